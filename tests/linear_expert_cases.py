"""Mixtures of transformers 4, whose experts are separate linear layers, and what traces of their classes say.

python -m tests.linear_expert_cases     with transformers 4.57.6 and peft 0.18.1: trace what has not been traced; write
                                        tests/cases/traced_linear_experts.json

The loop over the experts reads how many rows each of them has, which a trace does not know: it is told that all have
the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.helpers import ROOT
from tests.text_family_cases import spec_for
from tests.traced_table import TracedTable
from vramplan.inputs.job import Job
from vramplan.units import ceil_div

FAMILIES = ("ernie4_5_moe", "hunyuan_v1_moe", "dots1", "flex_olmo")
EXPERTS = 8
"""Of each of them."""
JOBS: tuple[dict[str, Any], ...] = (
    {"method": "full", "autocast": "none", "checkpointing": "none"},
    {"method": "full", "autocast": "none", "checkpointing": "full"},
    {"method": "full", "dtype": "fp32", "autocast": "bf16", "checkpointing": "full"},
    {"autocast": "bf16", "checkpointing": "none"},
    {"autocast": "none", "lora_dtype": "bf16", "checkpointing": "full"},
    {"autocast": "bf16", "checkpointing": "full", "lora_targets": ("q_proj", "v_proj")},
)


def cases() -> Iterator[tuple[str, Job]]:
    """Families and jobs."""
    for family in FAMILIES:
        for settings in JOBS:
            yield (
                family,
                Job(**settings, sequence_length=256, micro_batch_size=2, experts="linear", attention="eager"),
            )


TABLE = TracedTable(ROOT / "tests" / "cases" / "traced_linear_experts.json", spec_for, cases)


def answers_evenly(known: Callable[..., Any]) -> Callable[..., Any]:
    """A trace's answers to what models read, with those of the loop over experts: every expert has as many rows."""
    import torch

    from vramplan.torch_backend.trace import host_reads

    aten, turn = torch.ops.aten, [0]

    def answer(self: Any, func: Any, args: Any, module: Callable[[], str]) -> Any:
        if host_reads._calling_function() is not None:
            return known(self, func, args, module)
        (x, *_) = args or (None,)
        if func is aten.nonzero.default:  # the experts that have rows, or the rows of one, by token and place
            rows = EXPERTS if x.dim() == 1 else ceil_div(x.numel(), EXPERTS)
            turn[0] = 0 if x.dim() == 1 else turn[0]
            return torch.empty((rows, x.dim()), dtype=torch.int64, device=x.device)
        is_number = func is aten._local_scalar_dense.default and x.dtype == torch.int64
        if is_number and getattr(x, "constant", None) is None:
            turn[0] += 1
            return turn[0] - 1
        return known(self, func, args, module)

    return answer


def as_transformers_5() -> None:
    """Give transformers 4.57 the names that a trace takes from 5, and leave `datasets` out, which needs another hub."""
    import transformers.modeling_flash_attention_utils as flash
    import transformers.utils
    from transformers.modeling_utils import PreTrainedModel
    from transformers.utils import import_utils

    import_utils._datasets_available = False
    import_utils.is_datasets_available = transformers.utils.is_datasets_available = lambda: False
    flash.FLASH_ATTENTION_COMPATIBILITY_MATRIX = {2: {"general_availability_check": None}}
    flash._loaded_implementation = None
    PreTrainedModel._flash_attn_import_error = None


if __name__ == "__main__":
    as_transformers_5()
    from vramplan.torch_backend.trace.host_reads import HostReads

    HostReads.answer = answers_evenly(HostReads.answer)  # type: ignore[method-assign]
    TABLE.write()
