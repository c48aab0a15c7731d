"""What a trained model needs to be loaded, and to generate with transformers' ``generate``, on one GPU.

Mirrors transformers 5.23: generation/utils.py (_prefill, _sample), cache_utils.py (DynamicCache). The prompt is one
forward without gradients that keeps the logits of the last token only (``logits_to_keep=1``); each further token is a
forward of one token, in which every layer's keys and values are copied to tensors that are one token longer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from vramplan.analytic.cached_forward import CachedForward, simulate_forward
from vramplan.analytic.decoding import MAX_STEPS, decode, decode_job, unfolded_of
from vramplan.analytic.layer_folding import FoldPlan
from vramplan.analytic.prepare import prepare
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import record_of
from vramplan.analytic.strategies import strategy_of
from vramplan.analytic.train_step import declare
from vramplan.analytic.unfolded_step import Step, buffers_of, no_cycle_collection
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.errors import setting as option
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import LANGUAGE_MODEL, MAX_COUNT
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.allocator import AllocatorSettings
from vramplan.memory.calibration import margin_bytes, plannable_bytes
from vramplan.memory.generation import Generation, GenerationRun
from vramplan.memory.overheads import cublas_workspace, outside_bytes
from vramplan.memory.recorder import Recorder
from vramplan.memory.replay import Replay, replay
from vramplan.memory.summarize import settle
from vramplan.memory.timeline import rounded_bytes
from vramplan.units import ceil_div


def generation_job(job: Job, prompt_tokens: int, batch: int) -> Job:
    """The job as the model is loaded after training: on one GPU, without autocast.

    PEFT loads adapters in fp32 if they are stored in half precision (0.21, utils: autocast_adapter_dtype).
    """
    changes: dict[str, object] = {
        **LANGUAGE_MODEL,
        "micro_batch_size": batch,
        "gradient_accumulation_steps": 1,
        "sequence_length": prompt_tokens,
        "lengths": None,
        "batches": "padded" if job.batches == "padded" else "unpadded",
        "checkpointing": "none",
        "reentrant": False,
        "autocast": "none",
        "fp32_norms": False,
        "prepare_for_kbit_training": False,
        "lora_dtype": "fp32",
        "lora_dropout": 0.0,
        "loss": "standard",
        "loop": "plain",  # generate drops a mask without padding
        "num_gpus": 1,
        "num_nodes": 1,
        "strategy": "ddp",
        "offload": "none",
        "optimizer": "sgd",
    }
    return job.model_copy(update=changes)


def generation(
    spec: ModelSpec, job: Job, gpu: Gpu, new_tokens: int, prompt_tokens: int | None = None, batch: int = 1
) -> Generation:
    """The memory to load a job's model on one GPU and to generate with it.

    Args:
        spec: the model.
        job: the training job; its weights, adapters, quantization and attention count.
        gpu: the GPU, with its safety margin.
        new_tokens: tokens to generate for each prompt.
        prompt_tokens: tokens of each prompt, those of images included; None for the job's sequence length.
        batch: prompts at a time.

    Raises:
        VramplanError: for a model that does not generate, or whose generation is not modelled.
    """
    prompt_tokens = job.sequence_length if prompt_tokens is None else prompt_tokens
    for name, count in (("generate_tokens", new_tokens), ("prompt_tokens", prompt_tokens), ("generate_batch", batch)):
        if not 1 <= count <= MAX_COUNT:
            raise ConfigError(f"{option(name, count)}: expected 1 to {MAX_COUNT}")
    try:
        with no_cycle_collection():
            return _generation(spec, generation_job(job, prompt_tokens, batch), gpu, new_tokens)
    except ConfigError as error:
        if error.field != "sequence_length":
            raise
        raise ConfigError(f"{option('prompt_tokens', prompt_tokens)}: {error.reason}") from error


def check_generates(spec: ModelSpec, setting: StepSpec) -> None:
    """Refuse models without a causal language model, and those whose cache is not modelled.

    Raises:
        UnsupportedError: naming the model and the reason.
    """
    why = ""
    if setting.architecture.decoder is None:
        writes = setting.model_inputs is not None and "Generation" in setting.model_inputs.model_class
        why = "the cache of cross attention is not modelled" if writes else "an encoder has no generate"
    elif any(getattr(kind, "crosses", False) for kind in setting.stacks[0]):
        why = "the cache of cross attention is not modelled"
    elif any(getattr(kind, "recurrent", False) for kind in setting.stacks[0]):
        why = "what layers without attention keep of the tokens before is not modelled"
    elif any(getattr(kind, "shares", "") for kind in setting.stacks[0]):
        why = "a prompt of which the last layers see only the end is not modelled"
    if why:
        raise UnsupportedError(f"{option('generate_tokens')}: {spec.name} ({spec.model_type}): {why}")


class Simulated(NamedTuple):
    """A run of loading and generating."""

    run: GenerationRun
    weight_bytes: int
    last: CachedForward
    """The last forward."""
    plan: FoldPlan
    stride: int
    """Tokens that the cache grows by at a time."""


def simulate(spec: ModelSpec, job: Job, gpu: Gpu, new_tokens: int) -> Simulated:
    """Load the model of a job from :func:`generation_job`, and generate.

    Raises:
        VramplanError: for a model that does not generate, or whose generation is not modelled.
    """
    setting, plan, _ = prepare(spec, job, gpu)
    check_generates(spec, setting)
    run, prompt = GenerationRun(), job.sequence_length
    prefill = simulate_forward(setting, 0)
    if len(prefill.cached) != 2 * len(setting.stacks[0]):
        raise UnsupportedError(f"{option('generate_tokens')}: the cache of {spec.model_type} is not modelled")
    weight_bytes = _load(run, Step(setting, plan, gpu, record=prefill.record), gpu)
    run.ends["loaded"] = len(run.events)
    sizes = rounded_bytes([one.on(gpu).num_bytes for one in prefill.record.storages])
    unfolded = unfolded_of(prefill, plan)
    run.forward(unfolded.events, unfolded.source, run.add(sizes, prefill.cached.__contains__), prefill.cached)
    run.ends["prefill"] = len(run.events)
    stride = max(1, ceil_div(new_tokens - 1, MAX_STEPS))
    last = prefill
    if new_tokens > 1:
        last = decode(run, replace(setting, job=decode_job(job)), plan, gpu, prompt, new_tokens - 1, stride)
    run.ends["decode"] = len(run.events)
    return Simulated(run, weight_bytes, last, plan, stride)


def _generation(spec: ModelSpec, job: Job, gpu: Gpu, new_tokens: int) -> Generation:
    simulated, outside = simulate(spec, job, gpu, new_tokens), outside_bytes(job, gpu)
    run, settings = simulated.run, AllocatorSettings(expandable_segments=job.expandable_segments)

    def replayed(limit: int) -> Replay:
        return replay(run.events, run.kind_of, run.sizes, limit, settings)

    limits = (plannable_bytes(job, gpu) - outside, gpu.usable_bytes - outside)
    found, fits, fits_without_margin = settle(0, limits, replayed)
    peaks = run.peaks(found)
    loaded = replay(run.events[: run.ends["loaded"]], run.kind_of, run.sizes, settings=settings)
    loaded_bytes = loaded.peak_reserved_bytes + outside
    return Generation(
        prompt_tokens=job.sequence_length,
        new_tokens=new_tokens,
        batch=job.micro_batch_size,
        weight_bytes=simulated.weight_bytes,
        merged_weight_bytes=None if job.method == "full" else _merged_bytes(spec, job, gpu),
        dense_weight_bytes=None if job.quantize == "none" else _merged_bytes(spec, _dense(job), gpu),
        loaded_bytes=loaded_bytes,
        cache_bytes=run.cache_bytes(),
        cache_text=cache_text(simulated.last, simulated.plan),
        prefill_bytes=peaks["prefill"],
        decode_bytes=peaks["decode"],
        peak_reserved_bytes=found.peak_reserved_bytes,
        device_total_bytes=found.peak_reserved_bytes + outside,
        capacity_bytes=gpu.usable_bytes,
        margin_bytes=margin_bytes(job, gpu),
        fits=fits,
        fits_without_margin=fits_without_margin,
        fits_loaded=loaded_bytes <= plannable_bytes(job, gpu),
        assumptions=_assumptions(job, simulated.stride),
    )


def _load(run: GenerationRun, step: Step, gpu: Gpu) -> int:
    """Load weights, buffers and cuBLAS' workspace of the one thread that runs; returns the bytes of the weights."""
    record = Recorder()
    strategy_of(step, record).load()
    for buffer in buffers_of(step.setting):
        record.allocate(buffer)
    weight_bytes = record.live_bytes()
    record.allocate(cublas_workspace(gpu))
    run.kind_of.extend(run.add([record.kinds[kind].num_bytes for kind in record.kind_of]))
    run.events.extend(record.events)
    return weight_bytes


def cache_text(last: CachedForward, plan: FoldPlan) -> str:
    """The tensors of the cache at the end, equal ones together."""
    counts: Counter[str] = Counter()
    for shape, dtype, layer in last.tensors:
        counts[f"{' x '.join(map(str, shape))} {dtype}"] += plan.copies_of(layer)
    return " + ".join(f"{count} tensors of {text}" for text, count in counts.items())


def _merged_bytes(spec: ModelSpec, job: Job, gpu: Gpu) -> int:
    """Bytes of the weights without adapters beside them: PEFT merges into the weights, quantized ones too."""
    setting, plan, _ = prepare(spec, job, gpu)
    record = record_of(declare(setting).tape)
    step = Step(setting, plan, gpu, record=record)
    own = [storage.num_bytes for one in step.placed if not one.parameter.is_adapter for storage in one.storages()]
    return sum(own) + sum(buffer.num_bytes for buffer in buffers_of(setting))


def _dense(job: Job) -> Job:
    """The job without quantized weights."""
    return job.model_copy(update={"quantize": "none", "prepare_for_kbit_training": False, "quant_storage": None})


def _assumptions(job: Job, stride: int) -> tuple[str, ...]:
    """What the figures of generation rest on."""
    beside = "" if job.method == "full" else ", fp32 adapters beside the weights (not merged)"
    prompts = "prompts padded to one length" if job.batches == "padded" else "prompts of one length"
    texts = [
        "a process of its own on one GPU, as after training: no gradients, optimizer or autocast; weights in"
        f" {job.dtype}{' but quantized ones' if job.quantize != 'none' else ''}{beside}",
        f"transformers 5.23: generate with its DynamicCache, {job.attention} attention, {prompts}, no beams; the prompt"
        " in one forward, of whose logits the last token's are kept; temperature, top-k and top-p",
    ]
    if stride > 1:
        texts.append(f"the growth of the cache is simulated {stride} tokens at a time")
    return tuple(texts)


__all__ = ["generation"]
