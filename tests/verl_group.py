"""GPUs that share tokens in a run of verl's own code on fake tensors, where one of them is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.integrations import flash_attention


@contextmanager
def sharing(gpus: int) -> Iterator[None]:
    """Inside, this GPU shares tokens with others, which are not there: collectives allocate what they would."""
    if gpus == 1:
        yield
        return
    from verl.models.transformers.monkey_patch import _ulysses_flash_attention_forward
    from verl.utils import ulysses

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=gpus)
    ulysses.set_ulysses_sequence_parallel_group(torch.distributed.group.WORLD)
    with mock.patch.object(flash_attention, "_flash_attention_forward", _ulysses_flash_attention_forward):
        yield
    ulysses.set_ulysses_sequence_parallel_group(None)
    torch.distributed.destroy_process_group()
