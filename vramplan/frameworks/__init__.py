"""Training frameworks: their configurations read as a Job, written from one, and edited so that they fit."""
