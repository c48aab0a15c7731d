"""What vramplan costs: ``python -m benchmarks``."""
