"""Answers built from estimates: which batch fits, does a configuration fit, what to change. One file per command."""
