"""What GRPO and RLOO do before it trains on completions: they generate them, and score them without gradients.

Mirrors trl 1.16 (trainer/grpo_trainer.py: _generate_and_score_completions): all prompts of a generation are generated
for at once, by transformers or by vLLM; a micro-batch at a time is scored.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from vramplan.analytic.cached_forward import simulate_forward
from vramplan.analytic.decoding import decode, decode_job, unfolded_of
from vramplan.analytic.layer_folding import unfold
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.strategies import gathered_bytes
from vramplan.analytic.train_step import simulate_scoring
from vramplan.analytic.unfolded_step import Step, describe_in
from vramplan.inputs.job import LANGUAGE_MODEL, MAX_COUNT, ROLLOUTS, Job
from vramplan.memory import passes, vllm
from vramplan.memory.generation import GenerationRun
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import EMPTY_CACHE, Storage, rounded_bytes
from vramplan.units import DTYPE_BYTES, ceil_div

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
    return [_beside_images(step, phase) for phase in (*_generation(step, generated), *_scoring(step))]


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
    return job.task == "rloo" or job.reference not in (None, "none") or corrected or not aligned


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
    if job.shards_weights:
        yield _synchronised(step)
    if vllm.sleeps(job):  # what it took goes back to the driver when it sleeps
        kinds = [vllm.woken(job, step.card, shared_weight_bytes(step)), EMPTY_CACHE]
        yield RolloutPhase("generation", kinds, array("i", [0, 1]), array("i", [0, ~0, 1, ~1]))


def _synchronised(step: Step) -> RolloutPhase:
    """The weights on their way to vLLM: gathered all at once to merge adapters under ZeRO-3, else a layer's at a time.

    (trl 1.16, generation/vllm_generation.py: _iter_named_params.) vLLM that sleeps has its own weights awake by then.
    """
    job = step.job
    kinds, events = [], []
    if vllm.sleeps(job):
        own = ceil_div(_weight_bytes(step), job.vllm_tensor_parallel)
        kinds, events = [Storage(own, "vllm", "vLLM's weights awake", in_kernel=True)], [0, ~0]
    phase = RolloutPhase("generation", kinds, array("i", range(len(kinds))), array("i", events))
    return _gathered(step, phase, whole=job.method != "full")


def _weight_bytes(step: Step) -> int:
    """Bytes of the whole model."""
    return sum(storage.num_bytes for one in step.placed for storage in one.storages())


def shared_weight_bytes(step: Step) -> int:
    """Bytes of the weights that are vLLM's and the trained model's at once: all but adapters, if it shares them."""
    if step.job.vllm_weights == "own":
        return 0
    own = [one for one in step.placed if not one.parameter.is_adapter]
    return sum(storage.num_bytes for one in own for storage in one.storages())


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
    record = simulate_scoring(step.setting, steps_per_generation(step.job))
    sizes = [info.on(step.card).num_bytes for info in record.storages]
    unfolded = unfold(record, step.plan, sizes, brief=True)
    section_of = unfolded.section_of
    kinds = [
        describe_in(step.setting, record, section_of, number, info.on(step.card))
        for number, info in enumerate(record.storages)
    ]
    yield _gathered(step, RolloutPhase("scoring", kinds, unfolded.source, unfolded.events), whole=False)


def _gathered(step: Step, phase: RolloutPhase, whole: bool) -> RolloutPhase:
    """A phase with sharded weights gathered: `whole` under ZeRO-3 (ds3_gather_for_generation), else a layer's."""
    job = step.job
    if not job.shards_weights:
        return phase
    if whole and job.strategy == "zero3":
        size = _weight_bytes(step)
    else:
        size = gathered_bytes(step)
    return _beside(Storage(size, "communication", f"weights gathered for {phase.name}"), phase)


def _beside_images(step: Step, phase: RolloutPhase) -> RolloutPhase:
    """A phase beside the images of the generation before, which the trainer holds until the next is there.

    (trl 1.16, trainer/grpo_trainer.py: _prepare_inputs, self._buffered_inputs.)
    """
    steps = min(step.job.gradient_accumulation_steps, steps_per_generation(step.job))
    size = steps * _image_bytes(step)
    return _beside(Storage(size, "activation", "images of the generation before"), phase) if size else phase


def later_images(step: Step) -> Storage | None:
    """The images of a generation's micro-batches that later optimizer steps train on, which wait on the GPU."""
    job = step.job
    steps = steps_per_generation(job) - job.gradient_accumulation_steps if job.task in ROLLOUTS else 0
    size = max(0, steps) * _image_bytes(step)
    return Storage(size, "activation", "images of the generation's later steps") if size else None


def _image_bytes(step: Step) -> int:
    """Bytes of the images of a micro-batch."""
    setting = step.setting
    if setting.vision is None or not setting.has_images:
        return 0
    names = {one.name for one in setting.vision.image.tensors}
    images = (one for one in setting.inputs if one.name in names)
    return step.job.micro_batch_size * sum(one.num_elements * DTYPE_BYTES[one.dtype] for one in images)


def _beside(storage: Storage, phase: RolloutPhase) -> RolloutPhase:
    """A phase in which a storage lives from the beginning to the end."""
    number, kind = len(phase.kind_of), len(phase.kinds)
    return phase._replace(
        kinds=[*phase.kinds, storage],
        kind_of=phase.kind_of + array("i", [kind]),
        events=array("i", [number, *phase.events, ~number]),
    )
