"""The real model's code run on fake tensors, without a GPU."""
