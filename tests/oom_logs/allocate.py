"""Tensors of 700 MiB and a little until memory runs out, with an argument in half of it."""

import sys

import torch

if len(sys.argv) > 1:
    torch.cuda.set_per_process_memory_fraction(0.5)
tensors = []
while True:
    tensors.append(torch.empty(700 * (1 << 20) + 12345, dtype=torch.uint8, device="cuda"))
