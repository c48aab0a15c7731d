"""A static web site that runs this package in the visitor's browser: the parts that it ships, and their assembly."""
