"""Liger's kernels as frameworks switch them on: by one flag, and options in transformers' ``liger_kernel_config``."""

from __future__ import annotations

from typing import Any

from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import FUSED_KERNELS

ALL_KERNELS: dict[str, Any] = {"loss": "liger", "fused_kernels": FUSED_KERNELS}
"""What Liger replaces without options: where a model has no such kernel, its layers stay."""


def liger_fields(options: ConfigReader | None) -> dict[str, Any]:
    """The loss and the kernels by the options of transformers' ``liger_kernel_config``, which are all on if not named.

    (transformers 5.23, integrations/liger.py; liger-kernel 0.8.5, transformers/monkey_patch.py.)
    """
    if options is None:
        return dict(ALL_KERNELS)
    replaces_loss = options.boolean("cross_entropy", default=False)
    fuses_head = options.boolean("fused_linear_cross_entropy", default=not replaces_loss)
    loss = "liger" if fuses_head else "liger_cross_entropy" if replaces_loss else "standard"
    return {"loss": loss, "fused_kernels": tuple(name for name in FUSED_KERNELS if options.boolean(name, default=True))}


def liger_pairs(job: Job) -> dict[str, Any]:
    """The job's loss and kernels in TrainingArguments' keys; options are left out if all are on."""
    if not job.fused_kernels and job.loss not in ("liger", "liger_cross_entropy"):
        return {}
    pairs: dict[str, Any] = {"use_liger_kernel": True}
    options: dict[str, bool] = {name: False for name in FUSED_KERNELS if name not in job.fused_kernels}
    if job.loss == "liger_cross_entropy":
        options |= {"cross_entropy": True, "fused_linear_cross_entropy": False}
    elif job.loss != "liger":
        options["fused_linear_cross_entropy"] = False
    return pairs | ({"liger_kernel_config": options} if options else {})
