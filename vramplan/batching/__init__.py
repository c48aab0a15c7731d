"""Batches of samples that differ in length, up to a budget of tokens."""
