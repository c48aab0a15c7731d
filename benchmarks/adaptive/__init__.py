"""Whether policies find good batches: ``python -m benchmarks.adaptive``."""
