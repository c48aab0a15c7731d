"""Real training steps in a child process, measured on the GPU or on the CPU."""
