"""Policies: what asks for another batch, one a file."""
