"""A reward model on the GPU of GRPO and RLOO: its weights, and the forward that scores the completions.

Mirrors trl 1.16 (trainer/grpo_trainer.py: __init__, _calculate_rewards): a model of one label that accelerate prepares,
so that it runs under autocast. It gets all texts of a generation at once, and keeps their keys and values, as its
``use_cache`` is on. The texts are tokenized anew by its own tokenizer: as many tokens are assumed.
PPO of LLaMA-Factory (0.9.5, train/trainer_utils.py: create_reward_model) has a whole language model with a value head,
and scores a micro-batch at a time. TRL's PPO calls what is below the head (1.9, experimental/utils.py: get_reward).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from vramplan.analytic.architectures.lookup import architecture_of
from vramplan.analytic.autograd import ops
from vramplan.analytic.batch import Batch
from vramplan.analytic.layer_folding import FoldPlan, unfold
from vramplan.analytic.prepare import prepare
from vramplan.analytic.rollout.phase import RolloutPhase
from vramplan.analytic.rollout.ppo_phases import simulate_rewards
from vramplan.analytic.rollout.sharded_scoring import REWARD
from vramplan.analytic.rollout.value_phases import simulate_values
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import StepRecord, record_of
from vramplan.analytic.strategies import gathered_bytes
from vramplan.analytic.tasks.reward import rewards_of
from vramplan.analytic.train_step import new_modules
from vramplan.analytic.unfolded_step import Step, buffers_of, describe_in
from vramplan.analytic.value_model import check_ids
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_other_model, names_setting
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.timeline import Storage
from vramplan.units import ceil_div

if TYPE_CHECKING:
    from vramplan.inputs.job_values import Attention

PHASE = "reward"


def of_llamafactory(job: Job) -> bool:
    """Whether the reward model is a language model with a value head, of LLaMA-Factory's PPO."""
    return job.task == "ppo" and job.value_model is None


def reward_job(spec: ModelSpec, job: Job, rows: int) -> Job:
    """The job of the forward that scores `rows` texts."""
    possible = architecture_of(spec).architecture.attention
    attention = job.attention if job.attention in possible else cast("Attention", possible[0])
    if job.runs_openrlhf:
        return _openrlhf_job(job, rows, attention)
    shared = {"strategy": "zero3", "num_gpus": job.num_gpus, "zero": job.zero} if job.strategy == "zero3" else {}
    return Job(
        **shared,  # type: ignore[arg-type]
        task="ppo" if of_llamafactory(job) else "reward",
        prompt_length=job.prompt_length if of_llamafactory(job) else None,
        method="full",
        dtype=job.dtype_of_rewards,
        autocast="none" if job.value_model is not None else job.autocast,
        sequence_length=job.sequence_length,
        batches="padded",
        micro_batch_size=rows,
        checkpointing="none",
        attention=attention,
        mixer_kernels=job.mixer_kernels,
        optimizer="sgd",
    )


def _openrlhf_job(job: Job, rows: int, attention: Attention) -> Job:
    """The same in OpenRLHF, in an engine of its own (0.11, trainer/ray/launcher.py: RewardModelActor)."""
    return Job(
        task="reward",
        method="full",
        dtype=job.dtype,
        autocast="none",
        sequence_length=job.sequence_length,
        batches="padded" if job.batches == "padded" else "unpadded",
        micro_batch_size=rows,
        checkpointing="none",
        attention=attention,
        mixer_kernels=job.mixer_kernels,
        optimizer=job.optimizer,
        num_gpus=job.num_gpus,
        strategy=job.strategy,
        zero=job.zero.by_deepspeed(),
    )


def lay_out_reward_model(job: Job, gpu: Gpu, rows: int = 1) -> tuple[StepSpec, FoldPlan, list[str]]:
    """The layers of a job's reward model to simulate, the layers that they stand for, and notes.

    Raises:
        VramplanError: for a model that is not known, or is not modelled as a reward model.
    """
    assert job.reward_model is not None
    spec = load_other_model("reward_model", job.reward_model)
    with names_setting("reward_model", job.reward_model):
        return prepare(spec, reward_job(spec, job, rows), gpu, trains=False)


def reward_notes(job: Job, gpu: Gpu) -> list[str]:
    """Notes on a job's reward model.

    Raises:
        VramplanError: for a model that is not known, or is not modelled as a reward model.
    """
    return [f"reward model {job.reward_model}: {note}" for note in lay_out_reward_model(job, gpu)[2]]


def check_vocabulary(policy: StepSpec, job: Job, gpu: Gpu) -> list[str]:
    """Check that a reward model of PPO takes the policy's ids (train/trainer_utils.py); returns notes.

    Raises:
        ConfigError: naming both numbers.
    """
    scores = lay_out_reward_model(job, gpu)[0]
    own, given = (one.architecture.shape(one.config).vocabulary for one in (scores, policy))
    if job.task != "ppo":
        return []
    with names_setting("reward_model", str(job.reward_model)):
        return [f"reward model {job.reward_model}: {note}" for note in check_ids(own, given)]


def reward_weights(job: Job, gpu: Gpu) -> list[Storage]:
    """The weights and buffers of a job's reward model."""
    setting_of, plan, _ = lay_out_reward_model(job, gpu)
    step = Step(setting_of, plan, gpu, record=_simulate(setting_of, 1, job))
    own = [storage for one in step.placed for storage in one.storages()]
    if job.shards_weights and job.runs_openrlhf:
        own = [replace(one, num_bytes=ceil_div(one.num_bytes, job.num_gpus), formula="own part") for one in own]
    return [replace(one, label=f"reward model's {one.label}") for one in (*own, *buffers_of(setting_of))]


def reward_gathered_bytes(job: Job, gpu: Gpu) -> int:
    """Bytes of weights of OpenRLHF's sharded reward model that are gathered at a time; else 0."""
    if not (job.shards_weights and job.runs_openrlhf):
        return 0
    setting_of, plan, _ = lay_out_reward_model(job, gpu)
    return gathered_bytes(Step(setting_of, plan, gpu, record=_simulate(setting_of, 1, job)))


def reward_adapters(step: Step) -> list[Storage]:
    """A second set of the adapters that train."""
    own = [storage for one in step.placed if one.parameter.is_adapter for storage in one.storages()]
    return [replace(one, label=f"reward model's {one.label}") for one in own]


def frozen_adapters(step: Step) -> list[Storage]:
    """A second set of the adapters that train, for the reference alone; in preference training a step declares it."""
    dtype = step.setting.training().reference_adapters
    own = [storage for one in step.placed if one.parameter.is_adapter for storage in one.storages(dtype)]
    return [replace(one, label=f"reference's {one.label}") for one in own]


def scored(job: Job, gpu: Gpu, rows: int) -> RolloutPhase:
    """The forward that scores all texts of a generation."""
    setting_of, plan, _ = lay_out_reward_model(job, gpu, rows)
    record = _simulate(setting_of, rows, job)
    sizes = [info.on(gpu).num_bytes for info in record.storages]
    unfolded = unfold(record, plan, sizes, brief=True)
    kinds = [
        describe_in(setting_of, record, unfolded.section_of, number, info.on(gpu))
        for number, info in enumerate(record.storages)
    ]
    return RolloutPhase("reward", kinds, unfolded.source, unfolded.events)


def sharded_step(job: Job, gpu: Gpu, rows: int) -> Step:
    """The reward model under ZeRO-3, whose engine is one of its own (trl 1.16, models/utils.py: prepare_deepspeed)."""
    setting_of, plan, _ = lay_out_reward_model(job, gpu, rows)
    record = _simulate(setting_of, rows, job)
    sections = [one._replace(phase=REWARD) if one.phase == PHASE else one for one in record.sections]
    return Step(setting_of, plan, gpu, record=record._replace(sections=sections))


def _simulate(setting_of: StepSpec, rows: int, of: Job) -> StepRecord:
    """The record of ``reward_func(**reward_inputs).logits[:, 0]`` without gradients, or what PPO's job `of` does."""
    if of_llamafactory(of):
        return simulate_rewards(setting_of)
    if of.value_model is not None:
        return simulate_values(setting_of, PHASE, rows, owner="")
    job = setting_of.job
    caches = job.strategy == "ddp"  # use_cache, which OpenRLHF switches off
    caching = replace(setting_of, job=job.model_copy(update={"keeps_outputs": caches}))
    net = new_modules(caching)
    tape = net.tape
    tape.training, tape.in_inference_mode = False, True
    with tape.no_grad():
        tape.enter(PHASE, None)
        tape.module = "inputs"
        shape = rows, job.sequence_length
        names = "input_ids", "attention_mask"
        batch = Batch({name: tape.empty(shape, "int64", name.replace("_", " ")) for name in names}, [])
        with tape.autocasting(job.autocast if job.casts else None):
            rewards = rewards_of(net, caching, PHASE, batch)
        if job.casts:
            rewards = ops.to(rewards, "fp32", "outputs converted to fp32 (accelerate)")
        net.cache.clear()
    tape.enter("end", None)
    del rewards, batch
    embedded = next((number for number, one in enumerate(tape.parameters.values()) if one is net.embedded), None)
    return record_of(tape)._replace(embedded=embedded)
