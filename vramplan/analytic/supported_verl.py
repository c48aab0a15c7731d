"""Checks of a model that sees in verl's reinforcement training: what was compared with runs of its actor."""

from __future__ import annotations

from vramplan.analytic.architectures.lookup import ModelArchitecture
from vramplan.errors import UnsupportedError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec


def check_verl_images(spec: ModelSpec, model: ModelArchitecture, job: Job) -> None:
    """Check a job of verl's on a model that sees.

    Raises:
        UnsupportedError: for what no run of verl's actor was compared with.
    """
    if not job.runs_verl or model.tower is None:
        return
    where = f"verl's actor of {spec.name}"
    if not job.pictures:  # models/transformers/qwen2_vl.py: _get_input_embeds
        raise UnsupportedError(
            f"{setting('images', 0)}: {where} runs its tower on an empty image where a batch has none, which is not"
            f" modelled; use {setting('images', 1)}"
        )
    if job.fsdp.version == 1 and (job.method != "full" or job.vision != "train"):
        raise UnsupportedError(
            f"{setting('vision', job.vision)}: {where} was compared under FSDP 1 with runs that train all of it; use"
            " FSDP 2 (strategy=fsdp2)"
        )
    if job.fused_kernels:
        raise UnsupportedError(f"{where} with Liger's kernels was not compared with images; leave use_liger out")
    if job.verl.fused_head is not None and (spec.model_type == "qwen3_vl" or job.verl.fused_head != "torch"):
        raise UnsupportedError(f"{where} with use_fused_kernels was not compared with images; leave it out")
