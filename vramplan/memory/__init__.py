"""From a timeline of allocations to an Estimate: the caching allocator, memory outside PyTorch, the safety margin."""
