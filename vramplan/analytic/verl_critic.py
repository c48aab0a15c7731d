"""verl's critic beside the actor: what of it stays on the GPU, and what its values and its update take.

It runs in the actor's processes, between scoring and the actor's update (verl 0.7.1, trainer/ppo/ray_trainer.py: fit;
0.9.1, trainer/ppo/v1/trainer_base.py), under an FSDP of its own.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from vramplan.analytic.architectures.lookup import architecture_of
from vramplan.analytic.layer_folding import FoldPlan
from vramplan.analytic.prepare import fused_kernels, lay_out
from vramplan.analytic.rollout.phase import RolloutPhase
from vramplan.analytic.rollout.phases import CriticPhases
from vramplan.analytic.rollout.sharded_scoring import POLICY, ShardedScoring, scored_step
from vramplan.analytic.run_timeline import SimulatedRun
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.strategies import strategy_of
from vramplan.analytic.supported import check_model
from vramplan.analytic.train_step import simulate_scoring
from vramplan.analytic.unfolded_step import Step
from vramplan.errors import UnsupportedError
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import LANGUAGE_MODEL
from vramplan.inputs.load import load_other_model, names_setting
from vramplan.inputs.model_inputs import ModelInputs
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.task_inputs import of_verl
from vramplan.inputs.tasks import class_of
from vramplan.inputs.verl import Verl
from vramplan.memory import passes
from vramplan.memory.overheads import cublas_workspace
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import EMPTY_CACHE, Storage, Timeline

FIELD = "critic"
SAMPLES = ModelInputs("AutoModelForTokenClassification", lambda _, job: of_verl(job))
"""What a micro-batch of the critic has."""
SHARDING = {"use_orig_params": False, "reshard_after_forward": True, "forward_prefetch": False}
"""How its weights are sharded, whatever the actor's are: settings of its own that are not read otherwise."""


def critic_job(job: Job) -> Job:
    """The job of the critic alone."""
    critic = job.verl.critic
    assert critic is not None
    version = critic.fsdp_version or job.fsdp.version
    own = {
        "task": "token_classification",
        "num_labels": 1,
        "method": "full",
        "batches": critic.batches,
        "sequence_length": critic.sequence_length,
        "micro_batch_size": critic.micro_batch_size,
        "gradient_accumulation_steps": critic.gradient_accumulation_steps,
        "dtype": critic.dtype,
        "autocast": "bf16" if critic.dtype == "fp32" else "none",
        "checkpointing": critic.checkpointing,
        "modules_to_save": None,
        "verl": Verl(keeps_root=job.verl.keeps_root, sequence_parallel=critic.sequence_parallel),
        "fsdp": job.fsdp.model_copy(update={**SHARDING, "replicas": critic.replicas, "version": version}),
        "offload": "all" if critic.offload_policy else "none",
        "fused_kernels": (),
    }
    return job.model_copy(update={**LANGUAGE_MODEL, **own})


def check_critic(spec: ModelSpec, job: Job) -> None:
    """Check that transformers classifies tokens by the critic's model, and that it is modelled.

    Raises:
        UnsupportedError: where it does not, for which verl takes a value head of TRL's (utils/model.py).
        VramplanError: for a model that is not known.
    """
    critic = job.verl.critic
    assert critic is not None
    own = spec if critic.model is None else load_other_model(FIELD, critic.model)
    try:
        class_of(own.model_type, "token_classification", own.name)
    except UnsupportedError:
        raise UnsupportedError(
            f"the critic {own.name}: {own.model_type} with a value for each token is not modelled; use another model,"
            " or leave the critic out for the actor alone"
        ) from None
    model = architecture_of(own)
    if model.tower is not None:
        raise UnsupportedError(f"the critic {own.name}: models that see are not modelled as one yet; leave it out")
    with names_setting(FIELD, own.name):
        of_class = {"loss": "standard", "batches": "padded"}  # verl joins rows, and has the loss
        check_model(own, model, critic_job(job).model_copy(update=of_class))


def critic_phases(step: Step) -> CriticPhases:
    """The critic of a job beside its actor's step."""
    critic = step.job.verl.critic
    assert critic is not None
    setting, plan = _laid_out(step)
    own = Step(setting, plan, step.card)
    weights, states, events = _of_last_step(SimulatedRun(own).timeline, step)
    scored = replace(setting, job=_scored(setting.job, critic.scored_tokens))
    values, update = _values(own, scored), RolloutPhase("critic", *events, needs=())
    if critic.optimizer_offload:
        update = _beside(update, states)
    if critic.param_offload:
        values, update = _beside(values, weights), _beside(update, weights)
    return CriticPhases(
        [] if critic.param_offload else weights, [] if critic.optimizer_offload else states, [values, update]
    )


def _values(own: Step, scored: StepSpec) -> RolloutPhase:
    """The forward that computes values, and the weights that it gathers."""
    record = simulate_scoring(scored, 1)
    model = strategy_of(own, Recorder())
    ShardedScoring("values", scored_step(own, scored, record, POLICY), POLICY).score(model, {})
    model.record.free_all(passes.live_at(model.record.events, len(model.record.events) - 1))
    kinds = [_named(kind) for kind in model.record.kinds]
    return RolloutPhase("values", kinds, model.record.kind_of, model.record.events, needs=())


def _beside(phase: RolloutPhase, storages: list[Storage]) -> RolloutPhase:
    """The phase with storages that come from the host before it and go back behind it, when the cache is emptied."""
    for one in storages:
        phase = phase.beside(one)
    number, kind = len(phase.kind_of), len(phase.kinds)
    return phase._replace(
        kinds=[*phase.kinds, EMPTY_CACHE],
        kind_of=phase.kind_of + array("i", [kind]),
        events=phase.events + array("i", [number, ~number]),
    )


def _laid_out(step: Step) -> tuple[StepSpec, FoldPlan]:
    """The layers of the critic to simulate; those of the actor's if it is the same model."""
    critic, job = step.job.verl.critic, critic_job(step.job)
    assert critic is not None
    if critic.model is None:
        setting = replace(step.setting, job=job, model_inputs=SAMPLES)
        return setting, step.plan
    spec = load_other_model(FIELD, critic.model)
    setting, plan = lay_out(spec, job, fused_kernels(spec, step.card), step.card.multiprocessors)
    return replace(setting, model_inputs=SAMPLES), plan


def _scored(job: Job, tokens: int) -> Job:
    """The job with the batch of which values are computed at a time."""
    if job.batches == "packed":
        return job.model_copy(update={"sequence_length": tokens})
    return job.model_copy(update={"micro_batch_size": max(1, tokens // job.sequence_length)})


Events = tuple[list[Storage], "array[int]", "array[int]"]


def _of_last_step(timeline: Timeline, step: Step) -> tuple[list[Storage], list[Storage], Events]:
    """(Weights, optimizer states, the events of a later step) of the critic's own run."""
    ends = [number for number, mark in enumerate(timeline.marks) if mark.phase == "optimizer"]
    first = timeline.marks[ends[-2] + 1].first_event
    live = passes.live_at(timeline.events, first - 1)
    kinds = [_named(kind) for kind in timeline.kinds]
    workspace = f"critic's {cublas_workspace(step.card).label}"  # the actor's too
    stays = [kinds[timeline.kind_of[number]] for number in live]
    states = [one for one in stays if one.category == "optimizer_state"]
    weights = [one for one in stays if one.category != "optimizer_state" and one.label != workspace]
    events = timeline.events[first:]
    begun = {event for event in events if event >= 0}
    numbers = {number: place for place, number in enumerate(sorted(begun))}
    own = array(
        "i", (numbers[one] if one >= 0 else ~numbers[~one] for one in events if (one if one >= 0 else ~one) in begun)
    )
    kind_of = array("i", (timeline.kind_of[number] for number in sorted(begun)))
    return weights, states, (kinds, kind_of, own)


def _named(kind: Storage) -> Storage:
    """The same, as the critic's."""
    return kind if kind.label == EMPTY_CACHE.label else replace(kind, label=f"critic's {kind.label}")
