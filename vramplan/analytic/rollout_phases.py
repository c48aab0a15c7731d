"""What GRPO and RLOO do before it trains on completions: they generate them, and score them without gradients.

Mirrors trl 1.16 (trainer/grpo_trainer.py: _generate_and_score_completions): all prompts of a generation are generated
for at once, by transformers or by vLLM; a micro-batch at a time is scored.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod
from typing import NamedTuple

from vramplan.analytic.cached_forward import simulate_forward
from vramplan.analytic.decoding import decode, decode_job, unfolded_of
from vramplan.analytic.layer_folding import unfold
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.strategies import gathered_bytes
from vramplan.analytic.train_step import simulate_scoring
from vramplan.analytic.unfolded_step import Placed, Step, describe_in
from vramplan.inputs.job import LANGUAGE_MODEL, MAX_COUNT, ROLLOUTS, Job
from vramplan.memory import passes, vllm
from vramplan.memory.generation import GenerationRun
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import EMPTY_CACHE, Storage, rounded_bytes
from vramplan.units import DTYPE_BYTES, MiB, ceil_div

DECODED = 256
"""Forwards of one token that are simulated; of more, each stands for several."""


class RolloutPhase(NamedTuple):
    """Events in front of an optimizer step, none of whose storages outlives it."""

    name: str
    kinds: list[Storage]
    kind_of: array[int]
    """The number of each storage's kind."""
    events: array[int]
    """Numbers of the phase's own storages."""
    needs: tuple[str, ...] = ("weights",)
    """What of the model is on the GPU meanwhile, of what may wait in host memory."""

    def record(self, record: Recorder, known: dict[int, int]) -> None:
        """Add the events to a run; `known` has the first kind of each phase that was added before."""
        record.enter(self.name)
        first = known.setdefault(id(self), len(record.kinds))
        if first == len(record.kinds):
            record.add_kinds(self.kinds)
        record.extend(self.events, record.splice(passes.shifted(self.kind_of, first)))


Generated = dict[tuple[int, str], RolloutPhase]
"""Generations that were simulated, by the number of prompts and the GPU: batches of the same size share them."""


def rollout_phases(step: Step, generated: Generated) -> list[RolloutPhase]:
    """Generation and scoring, in order; empty for a job that generates nothing."""
    if step.job.task not in ROLLOUTS:
        return []
    return [*_generation(step, generated), *_scoring(step)]


def generates_each_micro_step(job: Job) -> bool:
    """Whether completions are generated more than once in an optimizer step, beside the gradients."""
    return (steps_per_generation(job) * job.num_iterations) < job.gradient_accumulation_steps


def steps_per_generation(job: Job) -> int:
    """Micro-batches whose completions are generated at a time."""
    return job.steps_per_generation or job.gradient_accumulation_steps


def rollout_size(job: Job) -> int:
    """A number that tells jobs apart whose rollouts differ, of those that differ in the batch alone; 0 without any."""
    return 0 if job.task not in ROLLOUTS else job.micro_batch_size * MAX_COUNT + job.gradient_accumulation_steps


def is_scored(job: Job) -> bool:
    """Whether completions are scored before the model trains on them: by the reference, or by the model itself.

    By the model itself after vLLM generated them, or if it was updated since they were generated; RLOO does so always.
    """
    aligned = job.gradient_accumulation_steps % (steps_per_generation(job) * job.num_iterations) == 0
    corrected = job.generate_with != "transformers" and job.importance_sampling
    return job.task == "rloo" or job.runs_verl or job.reference not in (None, "none") or corrected or not aligned


def _generation(step: Step, generated: Generated) -> Iterator[RolloutPhase]:
    job = step.job
    if job.generate_with == "transformers":
        key = job.micro_batch_size * steps_per_generation(job), step.card.name
        if key not in generated:
            generated[key] = _by_transformers(step)
        yield generated[key]
        return
    if vllm.sleeps(job):  # sync_weights empties the cache before vLLM wakes
        yield RolloutPhase("generation", [EMPTY_CACHE], array("i", [0]), array("i", [0, ~0]))
    if job.runs_verl:
        yield _sent_by_verl(step)
    elif job.shards_weights:
        yield _synchronised(step)
    if vllm.sleeps(job):  # what it took goes back to the driver when it sleeps
        kinds = [*vllm_awake(step), EMPTY_CACHE]
        last = len(kinds) - 1
        taken = [*range(last), *(~number for number in range(last)), last, ~last]
        yield RolloutPhase("generation", kinds, array("i", range(len(kinds))), array("i", taken), needs=())


def _synchronised(step: Step) -> RolloutPhase:
    """The weights on their way to vLLM: gathered all at once to merge adapters under ZeRO-3, else a layer's at a time.

    (trl 1.16, generation/vllm_generation.py: _iter_named_params.) vLLM that sleeps has its own weights awake by then.
    """
    job = step.job
    kinds, events = [], []
    if vllm.sleeps(job):
        kinds, events = [vllm.weights(job, vllm_weight_bytes(job, step.placed))], [0, ~0]
    phase = RolloutPhase("generation", kinds, array("i", range(len(kinds))), array("i", events))
    return _gathered(step, phase, whole=job.method != "full")


def _sent_by_verl(step: Step) -> RolloutPhase:
    """The weights on their way to vLLM, gathered in their stored dtype (verl 0.9.1).

    Of all weights a sharded state dict, which copies the own parts (torch 2.13, distributed/fsdp/_shard_utils.py:
    _create_chunk_dtensor), then one whole weight at a time beside the bucket; of adapters what is gathered to take them
    out (workers/engine/fsdp/transformer_impl.py: get_per_tensor_param; utils/fsdp_utils.py: collect_lora_params).
    """
    job = step.job
    factor = DTYPE_BYTES[job.dtype] // DTYPE_BYTES[job.computed_dtype or job.dtype]
    whole, layer = factor * _weight_bytes(step), factor * gathered_bytes(step)
    bucket = Storage(job.verl.bucket_mib * MiB, "communication", "bucket of weights on their way to vLLM")
    awake = [vllm.weights(job, vllm_weight_bytes(job, step.placed))] if vllm.sleeps(job) else []
    if job.method == "full":
        largest = max(prod(one.parameter.shape) for one in step.placed) * DTYPE_BYTES[job.dtype]
        gathered = Storage(layer, "communication", "weights gathered for a state dict")
        own = Storage(ceil_div(whole, job.num_gpus // job.fsdp.replicas), "communication", "state dict: own parts")
        one = Storage(largest, "communication", "a whole weight on its way to vLLM")
        kinds, events = [gathered, own, one, bucket], [0, 1, ~0, 2, 3, ~2, ~3, ~1]
    else:
        size = layer if job.verl.layered_summon else whole
        kinds, events = (
            [Storage(size, "communication", "weights gathered to take adapters out"), bucket],
            [0, ~0, 1, ~1],
        )
    number = len(kinds)
    events = [number, *events, ~number] if awake else events
    kinds = [*kinds, *awake, EMPTY_CACHE]
    last = len(kinds) - 1
    return RolloutPhase("generation", kinds, array("i", range(len(kinds))), array("i", [*events, last, ~last]))


def _weight_bytes(step: Step) -> int:
    """Bytes of the whole model."""
    return sum(storage.num_bytes for one in step.placed for storage in one.storages())


def vllm_held(step: Step) -> list[Storage]:
    """What vLLM on the same GPUs holds all the time."""
    return [vllm.asleep()] if vllm.sleeps(step.job) else vllm_awake(step)


def vllm_awake(step: Step) -> list[Storage]:
    """What it takes while it is awake; see :func:`vramplan.memory.vllm.awake`."""
    job = step.job
    return vllm.awake(job, step.card, vllm_weight_bytes(job, step.placed), job.vllm_weights == "shared")


def vllm_weight_bytes(job: Job, placed: Iterable[Placed]) -> int:
    """Bytes of vLLM's weights on each of its GPUs.

    vLLM loads fp32 files in half precision (vllm/config/model.py: _get_and_verify_dtype), and QLoRA's base in four bits
    (trl/generation/vllm_generation.py: _init_vllm).
    """
    own = [one for one in placed if not one.parameter.is_adapter]
    packed = sum(storage.num_bytes for one in own if one.parameter.stored for storage in one.storages())
    half = sum(prod(one.parameter.shape) for one in own if not one.parameter.stored) * DTYPE_BYTES["bf16"]
    return ceil_div(packed + half, job.vllm_tensor_parallel)


def _by_transformers(step: Step) -> RolloutPhase:
    """``generate`` for all prompts of a generation, beside the training's tensors."""
    setting = _generating(step.setting)
    job, plan, gpu = setting.job, step.plan, step.card
    run = GenerationRun()
    prefill = simulate_forward(setting, 0)
    sizes = rounded_bytes([one.on(gpu).num_bytes for one in prefill.record.storages])
    unfolded = unfolded_of(prefill, plan)
    run.forward(unfolded.events, unfolded.source, sizes, prefill.cached)
    new = step.job.sequence_length - job.sequence_length
    if new > 1:
        stride = max(1, ceil_div(new - 1, DECODED))
        decode(run, replace(setting, job=decode_job(job)), plan, gpu, job.sequence_length, new - 1, stride)
    run.drop()
    kinds = [
        Storage(size, "activation", "KV cache of the completions" if is_cache else "tensors of generate")
        for size, is_cache in run.kinds
    ]
    return _gathered(step, RolloutPhase("generation", kinds, run.kind_of, run.events), whole=True)


def _generating(setting: StepSpec) -> StepSpec:
    """The forward of a generation within training: no checkpointing, all prompts of a generation at once."""
    job = setting.job
    changes = {
        **LANGUAGE_MODEL,
        "micro_batch_size": job.micro_batch_size * steps_per_generation(job),
        "gradient_accumulation_steps": 1,
        "sequence_length": min(job.prompt_length or 1, job.sequence_length - 1),
        "checkpointing": "none",
        "reentrant": False,
        "loss": "standard",
        "lora_dropout": 0.0,
    }
    return replace(setting, job=job.model_copy(update=changes))


def _scoring(step: Step) -> Iterator[RolloutPhase]:
    """The forward of one micro-batch without gradients: each gives its memory back before the next."""
    if not is_scored(step.job):
        return
    setting = replace(step.setting, job=_scored(step.job))
    record = simulate_scoring(setting)
    sizes = [info.on(step.card).num_bytes for info in record.storages]
    unfolded = unfold(record, step.plan, sizes, brief=True)
    section_of = unfolded.section_of
    kinds = [
        describe_in(setting, record, section_of, number, info.on(step.card))
        for number, info in enumerate(record.storages)
    ]
    yield _gathered(step, RolloutPhase("scoring", kinds, unfolded.source, unfolded.events), whole=False)


def _scored(job: Job) -> Job:
    """The job with the batch that is scored at a time: verl has one of its own."""
    tokens = job.verl.scored_tokens
    if tokens is None:
        return job
    if job.batches == "packed":
        return job.model_copy(update={"sequence_length": tokens})
    return job.model_copy(update={"micro_batch_size": tokens // job.sequence_length})


def _gathered(step: Step, phase: RolloutPhase, whole: bool) -> RolloutPhase:
    """A phase with sharded weights gathered: `whole` under ZeRO-3 (ds3_gather_for_generation), else a layer's."""
    job = step.job
    if not job.shards_weights:
        return phase
    if whole and job.strategy == "zero3":
        size = _weight_bytes(step)
    else:
        size = gathered_bytes(step)
    number, kind = len(phase.kind_of), len(phase.kinds)
    gathered = Storage(size, "communication", f"weights gathered for {phase.name}")
    return phase._replace(
        kinds=[*phase.kinds, gathered],
        kind_of=phase.kind_of + array("i", [kind]),
        events=array("i", [number, *phase.events, ~number]),
    )
