"""What trainers do before they train on completions: they generate them, and score them without gradients.

Mirrors trl 1.16: GRPO and RLOO generate for all prompts of a generation at once, by transformers or by vLLM, and score
a micro-batch at a time (trainer/grpo_trainer.py: _generate_and_score_completions); GKD generates for each micro-batch
(experimental/gkd/gkd_trainer.py: training_step), without a cache if the student is checkpointed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from vramplan.analytic.cached_forward import simulate_forward
from vramplan.analytic.decoding import decode, decode_job, decode_without_cache, unfolded_of
from vramplan.analytic.layer_folding import unfold
from vramplan.analytic.rollout import openrlhf, ppo_phases
from vramplan.analytic.rollout.colocated_vllm import VllmRollout, packs_weights, weight_bytes
from vramplan.analytic.rollout.phase import RolloutPhase, emptied_cache
from vramplan.analytic.rollout.reward_model import reward_gathered_bytes, scored, sharded_step
from vramplan.analytic.rollout.sharded_scoring import POLICY, REFERENCE, REWARD, ShardedScoring, scored_step
from vramplan.analytic.rollout.swift_sync import joins_weights
from vramplan.analytic.rollout.verl import verl_generation
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import StepRecord
from vramplan.analytic.strategies import gathered_bytes, passing_bytes
from vramplan.analytic.train_step import simulate_scoring
from vramplan.analytic.unfolded_step import Step, describe_in
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import LANGUAGE_MODEL, MAX_COUNT, ROLLOUTS
from vramplan.inputs.task_rules import OF_SWIFT
from vramplan.memory import vllm
from vramplan.memory.generation import GenerationRun
from vramplan.memory.timeline import Storage, rounded_bytes
from vramplan.units import DTYPE_BYTES, ceil_div

DECODED, WHOLE = 256, 32
"""Forwards of one token, and of all tokens so far, that are simulated; of more, each stands for several."""


class CriticPhases(NamedTuple):
    """What verl's critic adds to a run (:mod:`vramplan.analytic.verl_critic`)."""

    weights: list[Storage]
    """What is on the GPU all the time."""
    states: list[Storage]
    """The same from its first update on."""
    phases: list[RolloutPhase]
    """Its values and its update."""


class Generated(dict[tuple[str, int, str], RolloutPhase]):
    """Generations and their rewards that were simulated, by the number of prompts and the GPU.

    Batches of the same size share them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.critics: dict[str, CriticPhases] = {}
        """Critics by the GPU, which whoever lays out a run adds: the batch of the actor does not matter to them."""


def rollout_phases(step: Step, generated: Generated) -> list[RolloutPhase | VllmRollout | ShardedScoring]:
    """Generation and scoring, in order; empty for a job that generates nothing."""
    if not step.job.generates_completions:
        return []
    if step.job.task == "ppo":
        return [*_generation(step, generated), *_scored_by_ppo(step)]
    if generates_for_whole_steps(step.job):  # nothing scores
        return [*_generation(step, generated)]
    if step.job.task == "gkd":
        return [_distilled(step, who, generated) for who in GENERATORS[step.job.generated_by]]
    if step.job.runs_openrlhf:  # each group of processes empties its cache behind its forwards, or before it trains
        trains = step.job.openrlhf.trains != "nothing"
        scores = _scoring(step) if trains or step.job.loads_reference else ()
        forwards = (*scores, *_rewards(step, generated))
        return [
            *(_generation(step, generated) if trains else ()),
            *(one.emptied() for one in forwards if isinstance(one, RolloutPhase)),
        ]
    phases = [*_generation(step, generated), *_scoring(step), *_rewards(step, generated)]
    if step.job.verl.critic is not None:
        phases += generated.critics[step.card.name].phases
    images = _images_before(step)
    return phases if images is None else [phase.beside(images) for phase in phases]


def generates_for_whole_steps(job: Job) -> bool:
    """Whether a student's completions are generated for several micro-batches at once, and nothing scores them."""
    return job.task == "gkd" and job.loss in (*OF_SWIFT, "chunked")


def generates_each_micro_step(job: Job) -> bool:
    """Whether completions are generated more than once in an optimizer step, beside the gradients."""
    if job.task in ("gkd", "ppo") and not generates_for_whole_steps(job):
        return job.task == "gkd"
    return (steps_per_generation(job) * job.num_iterations) < job.gradient_accumulation_steps


def steps_per_generation(job: Job) -> int:
    """Micro-batches whose completions are generated at a time."""
    if job.task == "ppo":
        return 1  # one after the other
    return job.steps_per_generation or job.gradient_accumulation_steps


def rollout_size(job: Job) -> int:
    """A number that tells jobs apart whose rollouts differ, of those that differ in the batch alone; 0 without any."""
    return 0 if not job.generates_completions else job.micro_batch_size * MAX_COUNT + job.gradient_accumulation_steps


def is_scored(job: Job) -> bool:
    """Whether completions are scored before the model trains on them: by the reference, or by the model itself.

    By the model itself after vLLM generated them, or if it was updated since they were generated; RLOO and ms-swift do
    so always.
    """
    return scores_itself(job) or job.reference not in (None, "none")


def scores_itself(job: Job) -> bool:
    """Whether the model that trains scores completions, with its adapters."""
    aligned = job.gradient_accumulation_steps % (steps_per_generation(job) * job.num_iterations) == 0
    corrected = job.generate_with != "transformers" and job.importance_sampling
    always = job.task == "rloo" or job.runs_own_actor or job.loss in OF_SWIFT
    return always or corrected or not aligned


def _generation(step: Step, generated: Generated) -> Iterator[RolloutPhase | VllmRollout]:
    job = step.job
    if job.generate_with == "transformers":
        key = "generation", job.micro_batch_size * steps_per_generation(job), step.card.name
        if key not in generated:
            made = _by_transformers(step, step.setting, job.micro_batch_size * steps_per_generation(job))
            generated[key] = gathered(step, made, whole=True)
        yield generated[key]
    elif job.runs_verl:
        yield from verl_generation(step)
    elif job.runs_openrlhf:
        yield from openrlhf.generation(step)
    elif (
        vllm.sleeps(job)
        or job.shards_weights
        or job.rollout_offload != "none"
        or packs_weights(job)
        or joins_weights(job)
    ):
        yield VllmRollout(step)


GENERATORS = {"student": ("student",), "teacher": ("teacher",), "both": ("student", "teacher")}
"""The models that generate for a distillation, by its `generated_by`."""


def _distilled(step: Step, who: str, generated: Generated) -> RolloutPhase:
    """``generate`` by the student or by the teacher for the prompts of a micro-batch."""
    setting = step.setting if who == "student" else step.setting.teacher
    assert setting is not None
    key = who, step.job.micro_batch_size, step.card.name
    if key not in generated:
        caches = step.job.checkpointing == "none"
        generated[key] = _by_transformers(step, setting, step.job.micro_batch_size, caches)
    return gathered(step, generated[key], whole=True) if who == "student" else generated[key]


def _by_transformers(step: Step, trained: StepSpec, prompts: int, caches: bool = True) -> RolloutPhase:
    """``generate`` for so many prompts, beside the training's tensors."""
    setting = generating(trained, prompts)
    job, plan, gpu = setting.job, step.plan, step.card
    run = GenerationRun()
    new = step.job.sequence_length - job.sequence_length
    stride = max(1, ceil_div(new - 1, DECODED if caches else WHOLE))
    if not caches:
        decode_without_cache(run, setting, plan, gpu, job.sequence_length, new, stride)
    else:
        prefill = simulate_forward(setting, 0)
        sizes = rounded_bytes([one.on(gpu).num_bytes for one in prefill.record.storages])
        unfolded = unfolded_of(prefill, plan)
        run.forward(unfolded.events, unfolded.source, run.add(sizes, prefill.cached.__contains__), prefill.cached)
        if new > 1:
            decode(run, replace(setting, job=decode_job(job)), plan, gpu, job.sequence_length, new - 1, stride)
    run.drop()
    kinds = [
        Storage(size, "activation", "KV cache of the completions" if is_cache else "tensors of generate")
        for size, is_cache in run.kinds
    ]
    return RolloutPhase("generation", kinds, run.kind_of, run.events)


def generating(setting: StepSpec, prompts: int) -> StepSpec:
    """The forward of a generation within training: no checkpointing, all prompts of a generation at once."""
    job = setting.job
    changes = {
        **LANGUAGE_MODEL,
        "micro_batch_size": prompts,
        "gradient_accumulation_steps": 1,
        "sequence_length": min(job.prompt_length or 1, job.sequence_length - 1),
        "checkpointing": "none",
        "reentrant": False,
        "loss": "standard",
        "lora_dropout": 0.0,
    }
    if job.task == "ppo":  # whose wrapper alone runs under autocast
        changes["autocast"] = "none"
    return replace(setting, job=job.model_copy(update=changes))


def _scoring(step: Step) -> Iterator[RolloutPhase | ShardedScoring]:
    """The forward of one micro-batch without gradients: each gives its memory back before the next."""
    job = step.job
    if not is_scored(job):
        return
    setting, steps = replace(step.setting, job=_scored(job)), steps_per_generation(job)
    record = simulate_scoring(setting, steps)
    if not job.shards_weights or job.runs_openrlhf:
        yield gathered(step, recorded_phase(step, "scoring", record, setting), whole=False)
        return
    if job.runs_verl:
        yield ShardedScoring("scoring", scored_step(step, setting, record, POLICY), POLICY)
        if job.reference == "model":
            if job.verl.reference_sequence_parallel is not None:
                shared = {"sequence_parallel": job.verl.reference_sequence_parallel}
                own = setting.job.model_copy(update={"verl": job.verl.model_copy(update=shared)})
                setting = replace(setting, job=own)
                record = simulate_scoring(setting, steps)
            scored = scored_step(step, setting, record, REFERENCE)
            yield ShardedScoring("reference", scored, REFERENCE, needs=())
        return
    if scores_itself(job):
        yield ShardedScoring("scoring", scored_step(step, setting, record, POLICY), POLICY, steps)
    if job.reference_source in ("model", "adapters_off"):
        yield ShardedScoring("scoring", scored_step(step, setting, record, REFERENCE), REFERENCE, steps)


def _scored_by_ppo(step: Step) -> Iterator[RolloutPhase]:
    """The forwards of PPO without gradients; the reference's has no more than the policy's."""
    if step.job.reward_model is not None:
        yield scored(step.job, step.card, step.job.micro_batch_size)
    if step.job.reward_adapters:
        yield recorded_phase(step, "reward", ppo_phases.simulate_rewards(step.setting), step.setting)
    yield emptied_cache("scoring")  # batched_forward_pass begins with it
    yield recorded_phase(step, "scoring", ppo_phases.simulate_scoring(step.setting), step.setting)


def recorded_phase(step: Step, name: str, record: StepRecord, setting: StepSpec) -> RolloutPhase:
    """The events of a simulated forward of a setting, of all layers."""
    sizes = [info.on(step.card).num_bytes for info in record.storages]
    unfolded = unfold(record, step.plan, sizes, brief=True)
    section_of = unfolded.section_of
    kinds = [
        describe_in(setting, record, section_of, number, info.on(step.card))
        for number, info in enumerate(record.storages)
    ]
    return RolloutPhase(name, kinds, unfolded.source, unfolded.events)


def _rewards(step: Step, generated: Generated) -> Iterator[RolloutPhase | ShardedScoring]:
    """The reward model's forward on all completions of a generation."""
    job = step.job
    if job.reward_model is None:
        return
    at_once = _scored(job)
    rows = at_once.micro_batch_size * (1 if job.runs_openrlhf else steps_per_generation(job))
    if job.strategy == "zero3" and not job.runs_openrlhf:
        yield ShardedScoring("reward", sharded_step(job, step.card, rows), REWARD)
        return
    key = "reward", rows, step.card.name
    if key not in generated:
        phase = scored(at_once, step.card, rows)
        size = reward_gathered_bytes(job, step.card)
        if size:
            phase = phase.beside(Storage(size, "communication", "reward model's weights, gathered"))
        generated[key] = phase
    yield generated[key]


def _scored(job: Job) -> Job:
    """The job with the batch that is scored at a time: verl and OpenRLHF have one of their own."""
    if job.openrlhf.scored_samples is not None:
        return job.model_copy(update={"micro_batch_size": job.openrlhf.scored_samples})
    tokens = job.verl.scored_tokens or job.openrlhf.scored_tokens
    if tokens is None:
        return job
    if job.batches == "packed":
        images = ceil_div(job.images * tokens, job.sequence_length)
        return job.model_copy(update={"sequence_length": tokens, "images": images})
    return job.model_copy(update={"micro_batch_size": tokens // job.sequence_length})


def gathered(step: Step, phase: RolloutPhase, whole: bool) -> RolloutPhase:
    """A phase with sharded weights gathered: `whole` under ZeRO-3 (ds3_gather_for_generation), else a layer's."""
    job = step.job
    if not job.shards_weights:
        return phase
    if whole and job.strategy == "zero3":
        size = weight_bytes(step)
    else:
        size = passing_bytes(step) if whole else gathered_bytes(step)
    return phase.beside(Storage(size, "communication", f"weights gathered for {phase.name}"))


def _images_before(step: Step) -> Storage | None:
    """The images of the generation before, which the trainer holds until the next is there.

    (trl 1.16, trainer/grpo_trainer.py: _prepare_inputs, self._buffered_inputs.)
    """
    steps = min(step.job.gradient_accumulation_steps, steps_per_generation(step.job))
    size = steps * _image_bytes(step)
    return Storage(size, "activation", "images of the generation before") if size else None


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
