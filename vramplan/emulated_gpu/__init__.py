"""PyTorch's CUDA build without a GPU: libraries that stand in for CUDA's, built for the installed PyTorch.

PyTorch's own host code runs: the caching allocator, the choice of kernels, autocast, fused optimizers. Memory of the
GPU is counted, small copies are made, kernels do not run.
"""
