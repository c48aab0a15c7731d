"""Checks that the analytic estimator supports a job on a model; errors name the setting that it does not support."""

from __future__ import annotations

from vramplan.analytic.architectures import Architecture
from vramplan.analytic.architectures.lookup import ModelArchitecture, architecture_of, is_described
from vramplan.analytic.layers.context import LayerKind
from vramplan.analytic.layers.liger_models import UNMODELLED, LigerModel, liger_model
from vramplan.analytic.layers.losses import FUSED
from vramplan.analytic.not_compared import hook_of_template, not_compared
from vramplan.analytic.supported_adapters import check_older_mixture
from vramplan.analytic.supported_sequence import check_sequence_parallel, check_shared_texts
from vramplan.analytic.supported_verl import check_verl_images
from vramplan.errors import ConfigError, SpecError, UnsupportedError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.input_checks import check_inputs
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import ROLLOUTS
from vramplan.inputs.model_spec import MAX_LAYERS, Config, ModelSpec
from vramplan.inputs.sequence_length import check_sequence_length
from vramplan.inputs.task_rules import NO_REWARD, TRL_TASKS
from vramplan.inputs.tasks import has_language_head
from vramplan.inputs.validation import are_linear, check_card, check_spec
from vramplan.memory.optimizers import check_optimizer, optimizer_of

OF_TORCHTUNE = ("llama", "mistral", "qwen2")
"""Models whose layers as torchtune writes them were compared with runs."""


def check_modelled(job: Job) -> None:
    """Check the settings that are the same for all architectures.

    Raises:
        UnsupportedError: for a setting that is not modelled.
        UnknownNameError: for an unknown optimizer.
        ConfigError: for a setting that the optimizer does not run with.
    """
    optimizer_of(job.optimizer)
    check_optimizer(job)
    if job.method != "full" and job.loss in FUSED and "lm_head" in (job.lora_targets or ()):
        raise UnsupportedError(
            f"{setting('loss', job.loss)} with an adapter on lm_head is not modelled; use {setting('loss', 'standard')}"
        )


def _check_reads_one_way(spec: ModelSpec, config: Config, traced: str) -> None:
    """Refuse a decoder that is told to read both ways (transformers 5.23, masking_utils.py: create_causal_mask)."""
    if config.get("is_causal") is False:
        raise UnsupportedError(f"{spec.name}: {spec.model_type} with is_causal = False is not supported; {traced}")
    if config.get("use_bidirectional_attention") is True:
        why = traced if spec.model_type.startswith("gemma") else "transformers 5.23 ignores it there; leave it out"
        raise UnsupportedError(
            f"{spec.name}: {spec.model_type} with use_bidirectional_attention = True is not supported; {why}"
        )


def check_model(spec: ModelSpec, model: ModelArchitecture, job: Job) -> list[str]:
    """Check a job on an architecture; returns notes for the user.

    Raises:
        UnsupportedError: for a variant of the architecture, or a setting, that is not modelled.
        ConfigError: for an attention implementation or a length that cannot run.
    """
    check_spec(spec)
    architecture, config = model.architecture, model.config
    if job.layers_of == "torchtune" and spec.model_type not in OF_TORCHTUNE:
        raise UnsupportedError(
            f"{setting('layers_of', 'torchtune')}: its {spec.model_type} is not modelled; modelled:"
            f" {', '.join(OF_TORCHTUNE)}"
        )
    if job.task in TRL_TASKS and architecture.decoder is None:
        raise UnsupportedError(
            f"{setting('task', job.task)}: {spec.model_type} is no causal language model, which TRL's trainer is"
            " modelled for"
        )
    if job.task in ROLLOUTS and job.pictures and spec.model_type == "mllama":
        raise ConfigError(  # trl 1.16, grpo_trainer.py: _get_per_token_logps_and_entropies takes no aspect_ratio_ids
            f"{setting('task', job.task)} with {setting('images', job.images)}: TRL does not hand {spec.model_type} the"
            f" shapes of images, without which it stops; use {setting('images', 0)}"
        )
    if job.task == "reward" and model.tower is not None:
        raise UnsupportedError(
            f"{setting('task', 'reward')}: {spec.model_type} is no causal language model of text alone, of which reward"
            " models are modelled"
        )
    if job.joins_texts and (architecture.decoder is None or model.tower is not None):
        raise UnsupportedError(
            f"{setting('joins_texts', True)}: {spec.model_type} is no causal language model of text alone, of which"
            " ms-swift trains embeddings; sentence-transformers trains them"
        )
    if job.task == "generative_reranker" and (architecture.decoder is None or model.tower is not None):
        raise UnsupportedError(
            f"{setting('task', job.task)}: {spec.model_type} is no causal language model of text alone, of which"
            " generative rerankers are modelled"
        )
    both_ways = architecture.decoder is not None and architecture.decoder.both_ways(config)
    if both_ways and (job.task != "embedding" or job.joins_texts):
        raise UnsupportedError(
            f"{spec.name} reads both ways and is modelled as sentence-transformers trains it; use"
            f" {setting('task', 'embedding')}"
        )
    check_inputs(spec, job)
    if job.loss == "kept_log_probs" and (model.tower is not None or _has_experts(spec)):
        raise UnsupportedError(
            f"{setting('loss', job.loss)}: OpenRLHF's loop is modelled for text without experts, whose router logits it"
            f" keeps too; {spec.name} has other layers"
        )
    own_head = job.fsdp.version == 2 and not job.verl.head_in_root and not architecture.is_tied(config)
    gathers_head = spec.model_type == "qwen3_vl" and job.verl.fused_head == "torch"  # supported_verl.py
    if job.verl.fused_head is not None and own_head and not gathers_head:
        raise ConfigError(
            f"{spec.name}: verl stops at use_fused_kernels under fsdp2, where its head, which is not tied to the"
            " embedding, is sharded when it is multiplied (mixed torch.Tensor and DTensor); use fsdp, or leave"
            " use_fused_kernels out"
        )
    traced = f"{setting('by', 'trace')} runs it"
    if architecture.decoder is not None and not both_ways:
        _check_reads_one_way(spec, config, traced)
    for key, refused in architecture.refuses:
        value = config.get(key)
        if value == refused or (refused is ... and value):
            raise UnsupportedError(f"{spec.name}: {spec.model_type} with {key} = {value} is not supported; {traced}")
    if architecture.clamps_fp16 and job.dtype == "fp16":
        raise UnsupportedError(
            f"{setting('dtype', 'fp16')}: {spec.model_type} clamps fp16 values, which is not modelled; {traced}"
        )
    check_shared(spec, model, job)
    check_older_mixture(spec, job)
    check_kept_keys(spec, model, job)
    check_sequence_parallel(spec, model, job)
    check_verl_images(spec, model, job)
    check_shared_texts(spec, model, job)
    if job.task == "reward" and job.loss == "standard" and spec.model_type in NO_REWARD:
        raise ConfigError(
            f"{setting('task', job.task)}: transformers 5.23 has no {spec.model_type} model with one number for a text"
            " (ForSequenceClassification)"
        )
    notes = (
        check_idle_tower(spec, model, job)
        + check_liger(spec, job)
        + check_mixers(spec, architecture, job)
        + not_compared(job)
        + hook_of_template(job, spec.model_type)
        + _all_logits(model, job)
    )
    if architecture.decoder is None and job.reentrant and job.checkpointing == "full":
        raise UnsupportedError(f"{setting('reentrant', True)}: not modelled yet for {spec.model_type}")
    if architecture.dora_stops and job.method == "dora":
        raise UnsupportedError(f"{setting('method', 'dora')}: {architecture.dora_stops} is not modelled; {traced}")
    if job.attention not in architecture.attention:
        raise ConfigError(
            f"{setting('attention', job.attention)}: transformers runs {spec.model_type} only with"
            f" {', '.join(architecture.attention)}"
        )
    if not architecture.checkpoints and job.checkpointing == "full":
        raise ConfigError(
            f"{setting('checkpointing', 'full')}: transformers 5.23 has no gradient checkpointing for"
            f" {spec.model_type}; use {setting('checkpointing', 'none')}"
        )
    for name, modelled in architecture.only.items():
        if getattr(job, name) not in modelled:
            raise UnsupportedError(
                f"{setting(name, getattr(job, name))}: not modelled yet for {spec.model_type}; use"
                f" {setting(name, modelled[0])}"
            )
    if architecture.hook_stops and job.checkpointing == "full" and job.method != "full":
        raise ConfigError(
            f"{setting('checkpointing', 'full')} with {setting('method', job.method)}: {architecture.hook_stops}; use"
            f" {setting('checkpointing', 'none')}, or {setting('method', 'full')}"
        )
    shape = architecture.shape(config)
    if not isinstance(shape.positions, (int, float, type(None))):
        raise SpecError(f"{spec.name}: {str(shape.positions)[:40]!r} positions; expected a whole number")
    if shape.layers > MAX_LAYERS:
        raise SpecError(f"{spec.name}: {shape.layers} layers; expected at most {MAX_LAYERS}")
    packed = job.batches == "packed"  # positions begin again with each sample of a row
    if shape.hard_limit and not packed:
        check_sequence_length(job.sequence_length, shape.positions, spec.name)
    if shape.positions is not None and job.sequence_length > shape.positions and not packed:
        notes.append(
            f"{job.sequence_length} tokens exceed the {shape.positions} positions the model was made for;"
            " the memory is right, the quality needs RoPE scaling"
        )
    if architecture.remote_code:
        notes.append(
            f"{spec.name} brings its own code; activations are those of vramplan's {spec.model_type}, written after it;"
            " parameters are exact"
        )
    return notes


def check_second_model(spec: ModelSpec, job: Job, gpu: Gpu) -> None:
    """Check the job of a model that runs beside the one that trains, on the GPU.

    Raises:
        VramplanError: for what the GPU cannot run, or is not modelled.
    """
    check_card(job, gpu, trains=False)
    if _has_experts(spec) and not gpu.runs_flash:
        raise UnsupportedError(
            f"mixtures of experts are not modelled below compute capability 8.0, and {gpu.title} has"
            f" {gpu.compute_capability}"
        )


def _has_experts(spec: ModelSpec) -> bool:
    """Whether the model is a mixture of experts, by its configuration."""
    return any(spec.config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))


def _all_logits(model: ModelArchitecture, job: Job) -> list[str]:
    """What ms-swift does with a model that sees (4.6, trainers/mixin.py: get_use_logits_to_keep); not in GRPO."""
    if model.tower is None or job.loss != "logits_to_keep" or job.task == "grpo":
        return []
    return ["assumption: ms-swift with transformers 4, where such a model has logits for prompts too; 5 needs less"]


def check_mixers(spec: ModelSpec, architecture: Architecture, job: Job) -> list[str]:
    """Check whose code computes layers without attention; returns notes.

    Raises:
        ConfigError: if the model has no such layers and other packages are to compute them.
    """
    packages, chosen = architecture.mixer_packages, setting("mixer_kernels", "packages")
    if job.mixer_kernels == "packages" and not packages:
        raise ConfigError(
            f"{chosen}: {spec.model_type} has no layers without attention; use {setting('mixer_kernels', 'torch')}"
        )
    check_mixer_adapters(spec, architecture, job)
    if not packages:
        return []
    if job.mixer_kernels == "packages":
        return [
            f"assumption: {packages} are installed; what their kernels keep is read off their source, and not compared"
            " with a trace"
        ]
    return [
        f"assumption: layers without attention run transformers' own torch code; with {packages} installed they keep"
        " less, which --mixer-kernels packages counts"
    ]


def check_mixer_adapters(spec: ModelSpec, architecture: Architecture, job: Job) -> None:
    """Check that layers without attention run with the job's adapters and quantization.

    Raises:
        ConfigError: for adapters that PEFT refuses.
        UnsupportedError: for a layer that a kernel takes the plain weight of.
    """
    if job.method == "full":
        return
    targets, fused = job.lora_targets, architecture.fused_projection
    if architecture.unadapted and targets is None:
        raise ConfigError(
            f"{setting('lora_targets', 'all-linear')}: PEFT does not adapt {architecture.unadapted[0]} of"
            f" {spec.model_type}, which all-linear includes; name the other layers:"
            f" {setting('lora_targets', 'in_proj,q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj')}"
        )
    for name in architecture.unadapted:
        if targets is not None and any(target.rpartition(".")[2] == name for target in targets):
            raise ConfigError(f"{setting('lora_targets', name)}: PEFT does not adapt {name} of {spec.model_type}")
    if not fused or job.mixer_kernels != "packages":
        return
    packages = setting("mixer_kernels", "packages")
    if job.quantize != "none":
        raise UnsupportedError(
            f"{packages} with {setting('quantize', job.quantize)}: mamba-ssm multiplies by {fused}'s weight itself,"
            f" which is packed; use {setting('mixer_kernels', 'torch')}"
        )
    if targets is None or any(target.rpartition(".")[2] == fused for target in targets):
        raise UnsupportedError(
            f"{packages} with an adapter on {fused}: mamba-ssm multiplies by {fused}'s own weight, so that its adapter"
            f" does nothing; use {setting('lora_targets', 'in_proj,q_proj,k_proj,v_proj,o_proj')}"
        )


def liger_model_of(spec: ModelSpec) -> LigerModel | None:
    """What Liger replaces in a model; None if nothing."""
    model = architecture_of(spec) if is_described(spec) else None
    text_type = spec.model_type if model is None else model.config.text("model_type", spec.model_type)
    return liger_model(spec.model_type, text_type)


def fuses_head(spec: ModelSpec) -> bool:
    """Whether Liger has a fused head for a model."""
    replaced = liger_model_of(spec)
    return replaced.fuses_head if replaced is not None else spec.model_type in UNMODELLED


def check_liger(spec: ModelSpec, job: Job) -> list[str]:
    """Check that Liger has kernels for the model; returns notes. Where it has none, it leaves the model as it is.

    Raises:
        ConfigError: if it has none for the job's kernels.
    """
    replaced, loss = liger_model_of(spec), setting("loss", job.loss)
    plain = f"{setting('loss', 'standard')}, {setting('fused_kernels', 'none')}"
    if replaced is None and spec.model_type in UNMODELLED and job.fused_kernels:
        raise UnsupportedError(
            f"{setting('fused_kernels', ','.join(job.fused_kernels))}: what liger-kernel 0.8.5 replaces in"
            f" {spec.model_type} is not modelled yet; use {setting('fused_kernels', 'none')}"
        )
    if job.fused_kernels and replaced is None:
        raise ConfigError(
            f"{setting('fused_kernels', ','.join(job.fused_kernels))}: liger-kernel 0.8.5 has nothing for"
            f" {spec.model_type} and leaves the model as it is; use {plain}"
        )
    if job.loss != "liger" or fuses_head(spec):
        return []
    if job.fused_kernels:
        raise ConfigError(
            f"{loss}: liger-kernel 0.8.5 does not fuse the head of {spec.model_type}; what it does is"
            f" {setting('loss', 'liger_cross_entropy')}"
        )
    return [
        f"liger-kernel 0.8.5 has no fused head for {spec.model_type}: the estimate holds if the framework fuses it"
        " itself"
    ]


def check_shared(spec: ModelSpec, model: ModelArchitecture, job: Job) -> None:
    """Check a strategy that divides the model.

    Raises:
        UnsupportedError: if it is not modelled for the architecture, or stops at it.
    """
    strategy, ddp = setting("strategy", job.strategy), setting("strategy", "ddp")
    if job.strategy not in ("ddp", "zero2") and are_linear(spec, job):
        raise UnsupportedError(
            f"{strategy}: {spec.model_type} with experts as separate linear layers (transformers < 5) is not modelled"
            f" yet; use {ddp} or zero2"
        )
    if job.strategy == "device_map" and (model.tower is not None or model.architecture.decoder is None):
        raise UnsupportedError(f"{strategy}: {spec.model_type} is not modelled yet; use {ddp} or zero2")
    if job.strategy not in ("zero3", "fsdp"):
        return
    where, (architecture, config, tower, _) = f"{strategy}: {spec.model_type}", model
    if job.modules_to_save and has_language_head(job) and architecture.is_tied(config):
        raise UnsupportedError(
            f"{where} with {setting('modules_to_save')}: its head is its embedding, which is not modelled yet;"
            f" use {setting('strategy', 'zero2')}"
        )
    if job.quantize != "none" and (tower is not None or architecture.decoder is None):
        raise UnsupportedError(
            f"{where} with {setting('quantize', job.quantize)} is not modelled yet; use {ddp} or zero2"
        )
    if job.strategy == "zero3" and architecture.zero3_stops:
        raise UnsupportedError(f"{where}: {architecture.zero3_stops}; use {ddp} or zero2")
    if job.strategy == "fsdp" and architecture.decoder is None:
        raise UnsupportedError(f"{where} is not modelled yet; use {ddp} or zero2")
    _check_read_head(model, job)
    if tower is None or job.strategy == "zero3":
        return
    if tower.wrapped:
        raise UnsupportedError(f"{where}: {tower.wrapped}; use {setting('strategy', 'zero3')}")
    if job.fsdp.version == 1 and job.method == "full" and {job.vision, job.projector} != {"train"}:
        raise UnsupportedError(
            f"{where} with FSDP version 1: weights that train and frozen ones would be one flat weight outside of the"
            f" layers, which is not modelled; use {setting('fsdp')} version 2, or {setting('strategy', 'zero3')}"
        )


def _check_read_head(model: ModelArchitecture, job: Job) -> None:
    """Check TRL's chunked loss under FSDP 2, which gathers a head by itself if nothing of the head's group runs.

    Raises:
        UnsupportedError: if such a head trains, or lies on the host, where TRL then computes the loss.
    """
    (architecture, config, tower, _), sharded = model, job.strategy == "fsdp" and job.fsdp.version == 2
    if job.loss != "chunked" or not sharded or not job.fsdp.wraps_embeddings or architecture.decoder is None:
        return
    with_norm = job.method == "full" and tower is None and architecture.decoder.norm_name.count(".") == 1
    if with_norm or architecture.is_tied(config):
        return
    loss, instead = setting("loss", job.loss), f"use {setting('loss', 'standard')} or {setting('strategy', 'zero3')}"
    if job.method == "full" or "lm_head" in (job.modules_to_save or ()):
        raise UnsupportedError(
            f"{loss} under FSDP 2 with a head that trains apart from the final norm is not modelled; {instead}"
        )
    if job.offload == "all":
        raise UnsupportedError(
            f"{loss} under FSDP 2 with {setting('offload', 'all')}: TRL computes the loss where the head lies, on the"
            f" host, which is not modelled; {instead}"
        )


def check_idle_tower(spec: ModelSpec, model: ModelArchitecture, job: Job) -> list[str]:
    """Check a model that sees, or whose towers are known by their weights alone; returns notes.

    Raises:
        UnsupportedError: for images that are not modelled, or such towers that train.
    """
    if model.tower is not None and model.tower.loss is not None and job.loss != "standard":
        raise UnsupportedError(
            f"{setting('loss', job.loss)}: {spec.model_type} computes a loss of its own; use"
            f" {setting('loss', 'standard')}"
        )
    if model.tower is not None and model.tower.no_rollouts and job.task in ROLLOUTS and job.pictures:
        raise UnsupportedError(
            f"{setting('task', job.task)} with images of {spec.model_type}: {model.tower.no_rollouts}; use"
            f" {setting('images', 0)}"
        )
    if model.tower is not None and not model.tower.casts_pixels:
        check_pixels(spec, job)
    if model.tower is not None and model.tower.note:
        return [model.tower.note]
    if model.tower is None or not model.tower.text_only:
        return []
    if job.pictures:
        raise UnsupportedError(
            f"{setting('images', job.images)}: images of {spec.model_type} are not modelled yet; use"
            f" {setting('images', 0)}, or {setting('by', 'trace')}"
        )
    for name in ("vision", "projector"):
        if getattr(job, name) != "frozen":
            raise UnsupportedError(
                f"{setting(name, getattr(job, name))}: the tower of {spec.model_type} is modelled only as it idles; use"
                f" {setting(name, 'frozen')}, or {setting('by', 'trace')}"
            )
    return [
        f"batches of text: the towers of {spec.model_type} are loaded and idle; images and sound are not modelled yet"
    ]


def check_pixels(spec: ModelSpec, job: Job) -> None:
    """Check images of a model whose tower takes pixels as its processor makes them, in fp32.

    Raises:
        ConfigError: if nothing casts them to the dtype of the weights.
    """
    is_cast = job.casts or job.computed_dtype is not None or job.strategy.startswith("zero")
    if job.pictures and job.dtype != "fp32" and not is_cast:
        raise ConfigError(
            f"{setting('autocast', job.autocast)}: the tower of {spec.model_type} multiplies pixels in fp32, which"
            f" PyTorch refuses with {job.dtype} weights; use {setting('autocast', job.dtype)}"
        )


def check_kept_keys(spec: ModelSpec, model: ModelArchitecture, job: Job) -> None:
    """Check a model whose layers take keys and values of earlier ones.

    Raises:
        UnsupportedError: for recomputation that loses their gradients, and for a model that is divided by layers.
    """
    if not any(isinstance(kind, LayerKind) and kind.shares for kind in model.stacks()[0]):
        return
    shared = f"{spec.model_type} with layers that share keys and values"
    if job.reentrant and job.checkpointing == "full":
        raise UnsupportedError(
            f"{setting('reentrant', True)}: {shared} is not modelled; use {setting('reentrant', False)}"
        )
    if job.strategy == "device_map":
        raise UnsupportedError(
            f"{setting('strategy', job.strategy)}: {shared} is not modelled; use {setting('strategy', 'zero2')}"
        )
