"""A tape that records shapes and lifetimes in place of tensors, as torch.autograd would keep them."""
