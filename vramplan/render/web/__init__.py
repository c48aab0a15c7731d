"""Answers as HTML: fragments that notebooks, the report and the site show alike."""
