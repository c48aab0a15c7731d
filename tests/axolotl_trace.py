"""TRL's trainers with axolotl's own functions, on fake tensors (see `tests.axolotl_runs`)."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from tests import trl_trace
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

FILE = "axolotl/monkeypatch/trainer/utils.py"
NAMES = ("selective_log_softmax", "entropy_from_logits")
KERNELS = (
    "_entropy_online_kernel", "_entropy_online_kernel_strided", "_selective_logsoftmax_fwd_kernel",
    "_selective_logsoftmax_bwd_kernel",
)  # fmt: skip
ON_A_GPU = (("if not logits.is_cuda:", "if False:"), ("if not logits.is_cuda or", "if"))
"""Fake tensors are on no GPU."""


class _Operation:
    """A function in place of torch's operation of it, whose allocations would be hidden."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def register_fake(self, function: Any) -> Any:
        return function


def replace_functions(folder: Path) -> None:
    """Put axolotl's functions into TRL before its trainers are imported, as axolotl does; kernels write in place."""
    import trl.trainer.utils

    text = (folder / FILE).read_text()
    for before, after in ON_A_GPU:
        assert before in text
        text = text.replace(before, after)
    registry = ModuleType("axolotl.kernels.op_registry")
    registry.register_kernel_op = lambda name: _Operation  # type: ignore[attr-defined]
    stubs = {"axolotl": ModuleType("axolotl"), "axolotl.kernels": ModuleType("axolotl.kernels")}
    with tempfile.TemporaryDirectory() as work, patch.dict(sys.modules, {**stubs, registry.__name__: registry}):
        path = Path(work) / "functions.py"  # Triton reads the source of its kernels
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("axolotl_functions", path)
        assert spec is not None
        assert spec.loader is not None
        functions = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(functions)
    for name in KERNELS:
        assert hasattr(functions, name)
        setattr(functions, name, trl_trace._Kernel())
    for name in NAMES:
        setattr(trl.trainer.utils, name, getattr(functions, name))


def traced(spec: ModelSpec, job: Job, gpu: Gpu) -> dict[str, int]:
    """Peak of live tensors in each phase, in bytes."""
    from tests.trl_grpo_trace import GrpoRun

    scored = trl_trace.of_one_kind() if job.task == "kto" else trl_trace.num_scored
    run = GrpoRun if job.task == "grpo" else trl_trace.TrlRun
    with patch.object(trl_trace, "num_scored", scored):
        return run(spec, job, gpu, str(job.task), job.prompt_length or 0).go()
