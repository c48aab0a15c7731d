"""Whether a job on a model is described by the blocks: what is not, is refused by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vramplan.analytic.architectures.lookup import ModelArchitecture
from vramplan.analytic.layers import moe_peft
from vramplan.analytic.layers.losses import FUSED
from vramplan.analytic.optimizers import optimizer_of
from vramplan.errors import ConfigError, SpecError, UnknownNameError, UnsupportedError
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import check_inputs
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.validation import are_linear, check_spec

MOST_LAYERS = 4096
"""No model comes near; a larger number would only cost time and memory."""
NARROW = {"classifier", "shared_expert_gate", "gate"}
"""Layers that are narrow by nature: for few classes or experts, or one number for each token."""


def check_modelled(job: Job) -> None:
    """Refuse what the tape does not model.

    Raises:
        UnsupportedError: for a setting that is known but not modelled.
        UnknownNameError: for an unknown optimizer.
    """
    optimizer_of(job.optimizer)
    if job.method != "full" and job.loss in FUSED and "lm_head" in (job.lora_targets or ()):
        raise UnsupportedError(f"--loss {job.loss} with an adapter on lm_head is not modelled; use --loss standard")


def check_model(spec: ModelSpec, model: ModelArchitecture, job: Job) -> list[str]:
    """Refuse what this architecture does not have; returns notes worth telling.

    Raises:
        UnsupportedError: for a variant of the architecture that no block describes.
        ConfigError: for an attention implementation or a length that cannot run.
    """
    check_spec(spec)
    check_inputs(spec, job)
    architecture, config = model.architecture, model.config
    for key, value in architecture.refuses:
        found = config.get(key)
        if found == value or (value is ... and found):
            value = found
            raise UnsupportedError(
                f"{spec.name}: {spec.model_type} with {key} = {value} is not described by any block; --by trace runs it"
            )
    if architecture.clamps_fp16 and job.dtype == "fp16":
        raise UnsupportedError(
            f"--dtype fp16: what {spec.model_type} clamps there is not described; --by trace runs it"
        )
    check_shared(spec, model, job)
    if architecture.decoder is None and job.reentrant and job.checkpointing == "full":
        raise UnsupportedError(f"reentrant: {spec.model_type} under reentrant checkpointing is not described yet")
    if architecture.dora_stops and job.method == "dora":
        raise UnsupportedError(f"--method dora: {architecture.dora_stops} is not described; --by trace runs it")
    if job.attention not in architecture.attention:
        raise ConfigError(
            f"--attention {job.attention}: transformers runs {spec.model_type} only with"
            f" {', '.join(architecture.attention)}"
        )
    notes = []
    shape = architecture.shape(config)
    if shape.layers > MOST_LAYERS:
        raise SpecError(f"{spec.name}: {shape.layers} layers; more than {MOST_LAYERS} are taken for a slip")
    if shape.positions is not None and job.sequence_length > shape.positions:
        if shape.hard_limit:
            raise ConfigError(
                f"--seq-len {job.sequence_length}: {spec.name} has a table of {shape.positions} positions;"
                f" longer sequences cannot run"
            )
        notes.append(
            f"{job.sequence_length} tokens exceed the {shape.positions} positions the model was made for;"
            f" memory is right, quality needs rope scaling"
        )
    if architecture.remote_code:
        notes.append(
            f"{spec.name} brings its own code; activations are those of the {spec.model_type} block written after it,"
            f" parameters are exact"
        )
    return notes


def check_shared(spec: ModelSpec, model: ModelArchitecture, job: Job) -> None:
    """Refuse a strategy that divides the model where this architecture's parts are not modelled, or stop it.

    Raises:
        UnsupportedError: for that.
    """
    if job.strategy not in ("ddp", "zero2") and are_linear(spec, job):
        raise UnsupportedError(
            f"--strategy {job.strategy}: {spec.model_type} with experts of linear layers, as before transformers 5, is"
            " not modelled yet; use ddp or zero2"
        )
    if job.strategy == "device_map" and (model.tower is not None or model.architecture.decoder is None):
        raise UnsupportedError(f"--strategy device_map: {spec.model_type} is not modelled yet; use ddp or zero2")
    if job.strategy not in ("zero3", "fsdp"):
        return
    where, (architecture, config, tower, _) = f"--strategy {job.strategy}: {spec.model_type}", model
    if job.modules_to_save and architecture.is_tied(config):
        raise UnsupportedError(f"{where} with modules_to_save: its head is its embedding, not modelled yet; use zero2")
    if job.quantize != "none" and (tower is not None or architecture.decoder is None):
        raise UnsupportedError(f"{where} with --quantize {job.quantize} is not modelled yet; use ddp or zero2")
    if job.strategy == "zero3" and architecture.zero3_stops:
        raise UnsupportedError(f"{where}: {architecture.zero3_stops}; use ddp or zero2")
    if job.strategy == "fsdp" and architecture.decoder is None:
        raise UnsupportedError(f"{where} is not modelled yet; use ddp or zero2")
    if tower is None or job.strategy == "zero3":
        return
    if tower.wrapped:
        raise UnsupportedError(f"{where}: {tower.wrapped}; use zero3")
    if job.fsdp.version == 1 and job.method == "full" and {job.vision, job.projector} != {"train"}:
        raise UnsupportedError(
            f"{where} with FSDP version 1: weights that train and frozen ones would be one flat weight outside of the"
            ' layers, which is not modelled; give --job {"fsdp": {"version": 2}}, or zero3'
        )


def check_mixture(job: Job, routers: Collection[str], runs_grouped: bool, pattern: str) -> None:
    """Refuse a mixture of experts on a card that has no grouped products, and adapters that go where none belong.

    Raises:
        UnsupportedError: for that.
    """
    if routers and not runs_grouped:  # transformers 5.23, integrations/moe.py: _can_use_grouped_mm
        raise UnsupportedError("mixtures of experts are not modelled on cards below compute capability 8.0")
    if job.method != "full" and job.strategy in ("zero3", "fsdp") and moe_peft.adapted(pattern, job.lora_targets):
        raise UnsupportedError(
            f"--strategy {job.strategy}: adapters on stacked experts are not modelled yet; {moe_peft.LEAVES_OUT}"
        )
    if pattern and job.method != "full" and "lora" in (job.vision, job.projector):
        raise UnsupportedError(
            "--vision lora, --projector lora: PEFT takes all-linear for names here, which convolutions have too;"
            " --by trace runs it"
        )


def mixture_notes(spec: ModelSpec, job: Job, routers: Collection[str], pattern: str) -> list[str]:
    """What surprises people about adapters and quantization of experts."""
    if are_linear(spec, job):
        return [
            "experts are linear layers of their own, as before transformers 5: --quantize and all-linear take them too,"
            " which they do not take since; tokens are taken to spread evenly over them"
        ]
    if routers and job.experts == "linear":
        return [f"{spec.model_type} stacks its experts in transformers 4 too; they run as in transformers 5 here"]
    if not routers or job.method == "full":
        return []
    notes = []
    if "gate_up_proj" in (found := moe_peft.adapted(pattern, job.lora_targets)) or "down_proj" in found:
        notes.append(
            "PEFT adapts the experts too: a copy of each layer's experts with the adapter in it is made and kept for"
            f" backward; {moe_peft.LEAVES_OUT}"
        )
    if job.quantize != "none":
        notes.append(
            f"the experts stay in {job.dtype}: bitsandbytes replaces linear layers, and since transformers 5 they are"
            " none; before (experts: linear), they are quantized, and all-linear adapts each"
        )
    return notes


def check_adapters(job: Job, widths: Mapping[str, int], linear_names: list[str], pattern: str = "") -> None:
    """Refuse adapters that go nowhere or are wider than their layer; `pattern` is PEFT's for stacked experts.

    Raises:
        UnknownNameError: for a target that matches no layer.
        ConfigError: for a rank above a layer's narrow side, and what PEFT refuses for experts.
    """
    if job.method == "full":
        return
    missing = moe_peft.missing_half(pattern, job.lora_targets or ())
    if missing is not None:
        raise ConfigError(f"--lora-targets: PEFT adapts experts by both halves of a pair or by none; add {missing}")
    if job.lora_dropout and moe_peft.adapted(pattern, job.lora_targets):
        raise ConfigError(
            f"--lora-dropout {job.lora_dropout}: PEFT has none for the experts and routers that these targets adapt;"
            f" {moe_peft.LEAVES_OUT}"
        )
    for target in job.lora_targets or ():
        if not any(name == target or name.endswith(f".{target}") for name in linear_names):
            last = sorted({name.rpartition(".")[2] for name in linear_names})
            raise UnknownNameError("LoRA target", target, last, f"this model has {', '.join(last)}")
    narrow = min((name for name in widths if name not in NARROW), key=lambda name: widths[name], default=None)
    if narrow is not None and job.lora_rank > widths[narrow]:
        raise ConfigError(
            f"--lora-rank {job.lora_rank}: {narrow} is only {widths[narrow]} wide; a larger rank adds nothing"
        )


def check_saved(job: Job, widths: Mapping[str, int], modules: set[str]) -> None:
    """Refuse modules to save that the model does not have, or that get an adapter; `modules` have weights of their own.

    Raises:
        UnknownNameError: for a name at which none of them ends (PEFT takes modules of modules too).
        ConfigError: for one that gets an adapter.
    """
    for name in job.modules_to_save or ():
        if any(one.endswith(name) for one in widths):
            raise ConfigError(f"modules_to_save {name}: it is a LoRA target too; a module takes one of both")
        if not any(one.endswith(name) for one in modules):
            last = sorted({one.rpartition(".")[2] for one in modules})
            raise UnknownNameError("modules_to_save", name, last, f"known here: {', '.join(last)}")
