"""A real training step in a child process, measured on the card or on the CPU."""
