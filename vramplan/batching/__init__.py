"""Batches of samples that differ in length, up to a budget of tokens.

    sampler.py       the sampler: epochs, GPUs, state
    epoch_summary.py what an epoch does, in numbers
    checked.py       its settings and the lengths of the samples, checked
    steps.py         which samples an optimizer step has
    packing.py       how they become micro-batches
    torch_loader.py  a DataLoader of the steps                     (torch)
    gradients.py     gradients normalised by tokens                (torch)
    trainer.py       transformers' Trainer with the loader         (transformers)
    trainer_state.py the sampler's settings in its checkpoints     (transformers)

Only the last four need torch.

>>> sampler = TokenBudgetSampler([7, 3, 9, 2, 4, 8], max_tokens=16, global_tokens=20)
>>> [[sorted(micro_batch) for micro_batch in step] for step in sampler]
[[[0, 3], [5]], [[2], [1, 4]]]
"""

from vramplan.batching.epoch_summary import EpochSummary
from vramplan.batching.sampler import TokenBudgetSampler

__all__ = ["EpochSummary", "TokenBudgetSampler"]
