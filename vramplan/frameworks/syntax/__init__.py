"""Parsers for what configurations are written in: YAML, TOML, JSON, shell commands, Python."""
