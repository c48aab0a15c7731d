"""What adapters and mixtures of experts cannot do, or what is not modelled of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vramplan.analytic.layers import moe_peft
from vramplan.analytic.layers.lora_targets import check_targets
from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import OLDER_UNKNOWN, are_linear

NARROW = {
    "score", "classifier", "out_proj", "shared_expert_gate", "gate", "in_proj_a", "in_proj_b", "in_proj_ba",
    "modality_router", "prediction_coefs", "correction_coefs",
}  # fmt: skip
"""Layers with few outputs (classes, experts, a number for each token, head or stream), which do not limit the rank."""


def leaves_experts_out() -> str:
    """Advice: targets without the experts and routers."""
    return f"{setting('lora_targets', 'q_proj,k_proj,v_proj,o_proj')} leaves them out"


def check_mixture(job: Job, routers: Collection[str], runs_grouped: bool, pattern: str) -> None:
    """Check a mixture of experts (MoE): it needs grouped matrix products, and adapters have their limits.

    Raises:
        UnsupportedError: for a GPU or adapters that are not modelled.
    """
    if routers and not runs_grouped:  # transformers 5.23, integrations/moe.py: _can_use_grouped_mm
        raise UnsupportedError("mixtures of experts are not modelled on GPUs below compute capability 8.0")
    if job.method != "full" and job.strategy in ("zero3", "fsdp") and moe_peft.adapted(pattern, job.lora_targets):
        raise UnsupportedError(
            f"{setting('strategy', job.strategy)}: adapters on stacked experts are not modelled yet;"
            f" {leaves_experts_out()}"
        )
    if pattern and job.method != "full" and "lora" in (job.vision, job.projector):
        raise UnsupportedError(
            f"{setting('vision', 'lora')}, {setting('projector', 'lora')}: PEFT takes all-linear for names here, which"
            f" convolutions have too; {setting('by', 'trace')} runs it"
        )


ALWAYS_STACKED = ("gpt_oss", "qwen3_vl_moe", "llama4")
"""Mixtures whose experts were one tensor in transformers 4.57 too (modeling_<type>.py)."""


def check_older_mixture(spec: ModelSpec, job: Job) -> None:
    """Check that a mixture is described as before transformers 5, if the job asks for that.

    Raises:
        UnsupportedError: if it is not.
    """
    if job.experts == "linear" and spec.model_type in OLDER_UNKNOWN:
        raise UnsupportedError(
            f"{setting('experts', 'linear')}: the mixture of {spec.model_type} before transformers 5 is not modelled;"
            f" with transformers 5 use {setting('experts', 'stacked')}"
        )


def mixture_notes(spec: ModelSpec, job: Job, routers: Collection[str], pattern: str) -> list[str]:
    """Notes on adapters and quantization of experts."""
    if are_linear(spec, job):
        return [
            "experts are separate linear layers (transformers < 5): they are quantized and all-linear adapts them,"
            " neither of which happens since; assumption: tokens spread evenly over them"
        ]
    if routers and job.experts == "linear":
        if spec.model_type.removesuffix("_text") in ALWAYS_STACKED:
            return [
                f"{spec.model_type} stacks its experts in transformers 4 too; they are simulated as in transformers 5"
            ]
        return [
            f"how {spec.model_type} held its experts before transformers 5 is not known: they are simulated as stacked;"
            " separate layers are quantized and adapted too"
        ]
    if not routers or job.method == "full":
        return []
    notes = []
    if "gate_up_proj" in (adapted := moe_peft.adapted(pattern, job.lora_targets)) or "down_proj" in adapted:
        notes.append(
            "PEFT adapts the experts too: a copy of each layer's experts with the adapter in it is made and kept for"
            " backward; the LoRA targets q_proj, k_proj, v_proj and o_proj leave them out"
        )
    if job.quantize != "none":
        notes.append(
            f"the experts stay in {job.dtype}: bitsandbytes replaces linear layers, which experts are not since"
            " transformers 5; before (experts: linear), they are quantized and all-linear adapts each"
        )
    return notes


def check_adapters(
    job: Job, widths: Mapping[str, int], linear_names: list[str], modules: Collection[str], pattern: str = ""
) -> list[str]:
    """Check the targets and the rank of adapters; returns notes. `pattern` is PEFT's for stacked experts.

    Raises:
        UnknownNameError: if no target matches a layer.
        UnsupportedError: for a target that is not modelled.
        ConfigError: for a rank above a layer's narrow side, and for adapters on experts that PEFT refuses.
    """
    if job.method == "full":
        return []
    missing = moe_peft.missing_half(pattern, job.lora_targets or ())
    if missing is not None:
        raise ConfigError(
            f"{setting('lora_targets')}: PEFT adapts experts by both halves of a pair or by none; add {missing}"
        )
    if job.lora_dropout and moe_peft.adapted(pattern, job.lora_targets):
        raise ConfigError(
            f"{setting('lora_dropout', job.lora_dropout)}: PEFT has none for the experts and routers that these targets"
            f" adapt; {leaves_experts_out()}"
        )
    notes = check_targets(job.lora_targets or (), linear_names, modules)
    if job.lora_targets and not widths and not moe_peft.adapted(pattern, job.lora_targets):
        raise ConfigError(
            f"{setting('lora_targets', ','.join(job.lora_targets))}: PEFT stops if no layer gets an adapter: all of"
            f" that name are in {setting('modules_to_save')}, or in a part of the model that gets none"
        )
    narrow = min((name for name in widths if name not in NARROW), key=lambda name: widths[name], default=None)
    if narrow is not None and job.lora_rank > widths[narrow]:
        raise ConfigError(
            f"{setting('lora_rank', job.lora_rank)}: {narrow} is only {widths[narrow]} wide; a larger rank adds nothing"
        )
    return notes
