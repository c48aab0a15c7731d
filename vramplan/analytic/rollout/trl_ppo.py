"""What TRL's PPO does before it trains: it generates completions with their scores, and scores them by four models.

Mirrors trl 1.9 (experimental/ppo/ppo_trainer.py: generate, batch_generation, train; experimental/utils.py: get_reward):
so many completions at a time, none of it under autocast, as the wrapper alone is. The scores of every token of all
completions stay until the next generation has its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace

from vramplan.analytic.cached_forward import simulate_forward
from vramplan.analytic.decoding import decode, decode_job, unfolded_of
from vramplan.analytic.rollout.phase import RolloutPhase, emptied_cache
from vramplan.analytic.rollout.phases import DECODED, Generated, gathered, generating, recorded_phase
from vramplan.analytic.rollout.reward_model import scored, sharded_step
from vramplan.analytic.rollout.sharded_scoring import POLICY, REFERENCE, REWARD, ShardedScoring, scored_step
from vramplan.analytic.rollout.value_phases import simulate_reference, simulate_values
from vramplan.analytic.tasks.fused_head import scored_tokens
from vramplan.analytic.unfolded_step import Step
from vramplan.inputs.job import Job
from vramplan.memory.generation import GenerationRun
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage, rounded_bytes
from vramplan.units import ceil_div


class KeptScores:
    """The scores of a generation, which take the place of those before."""

    name = "generation"
    needs = ("weights",)

    def __init__(self, storage: Storage) -> None:
        self.storage, self.number = storage, -1

    def record(self, record: Recorder, known: dict[int, int]) -> None:
        """Allocate them, and free those of the generation before when their name is assigned."""
        before, self.number = self.number, record.allocate(self.storage)
        record.enter("scoring")
        if before >= 0:
            record.free(before)


def value_rollout(step: Step, generated: Generated) -> list[RolloutPhase | KeptScores | ShardedScoring]:
    """Generation and scoring, in order; under ZeRO-3 both models that train are gathered to generate."""
    key = "generation", step.job.micro_batch_size * step.job.gradient_accumulation_steps, step.card.name
    if key not in generated:
        generated[key] = gathered(step, _generation(step), whole=True)
    scoring = _sharded_scoring if step.job.strategy == "zero3" else _scoring
    return [generated[key], KeptScores(_scores(step, _parts(step.job), "of all completions")), *scoring(step)]


def rows_at_a_time(job: Job) -> int:
    """Completions that are generated, and scored, at a time."""
    return min(job.rollout_batch_size, job.micro_batch_size * job.gradient_accumulation_steps)


def _parts(job: Job) -> int:
    """Times that so many are; the last is padded to as many rows."""
    return ceil_div(job.micro_batch_size * job.gradient_accumulation_steps, rows_at_a_time(job))


def _scores(step: Step, parts: int, what: str) -> Storage:
    """fp32 scores of every token of the completions of so many parts."""
    vocabulary = step.setting.architecture.shape(step.setting.config).vocabulary
    shape = parts * rows_at_a_time(step.job), scored_tokens(step.job), vocabulary
    size = 4 * shape[0] * shape[1] * shape[2]
    return Storage(size, "logits", f"scores {what}", f"{' x '.join(map(str, shape))} fp32")


def _generation(step: Step) -> RolloutPhase:
    """``batch_generation``: parts one after the other, of which the last is simulated, and their scores, joined."""
    setting = generating(step.setting, rows_at_a_time(step.job))
    job, plan, gpu, new = setting.job, step.plan, step.card, scored_tokens(step.job)
    run = GenerationRun()
    prefill = simulate_forward(setting, 0)
    unfolded = unfolded_of(prefill, plan)
    sizes = rounded_bytes([one.on(gpu).num_bytes for one in prefill.record.storages])
    run.forward(unfolded.events, unfolded.source, run.add(sizes, prefill.cached.__contains__), prefill.cached)
    first = len(run.events)
    if new > 1:
        stride = max(1, ceil_div(new - 1, DECODED))
        decode(run, replace(setting, job=decode_job(job)), plan, gpu, job.sequence_length, new - 1, stride)
    last = len(run.events)
    run.drop()
    kinds = [
        Storage(size, "activation", "KV cache of the completions" if is_cache else "tensors of generate")
        for size, is_cache in run.kinds
    ]
    parts, own = _parts(step.job), len(kinds)
    kinds += [
        _scores(step, parts - 1, "of the parts before"),
        _scores(step, 1, "token by token"),
        _scores(step, 1, "of a part"),
        _scores(step, parts, "of all completions"),
    ]
    before, single, stacked, joined = range(len(run.kind_of), len(run.kind_of) + 4)
    events = [
        *(before, *run.events[:first], single, *run.events[first:last], stacked),
        *(*run.events[last:], ~single, joined, ~stacked, ~before, ~joined),
    ]
    return RolloutPhase("generation", kinds, run.kind_of + array("i", range(own, own + 4)), array("i", events))


def _scoring(step: Step) -> Iterator[RolloutPhase]:
    """The forwards on one part, each of which gives its memory back before the next."""
    rows, values = rows_at_a_time(step.job), step.setting.values
    assert values is not None
    yield recorded_phase(step, "scoring", simulate_reference(step.setting, "scoring", rows), step.setting)
    yield emptied_cache("scoring")
    yield recorded_phase(step, "scoring", simulate_values(values, "scoring", rows), values)
    yield scored(step.job, step.card, rows)
    yield emptied_cache("reward")


def _sharded_scoring(step: Step) -> Iterator[RolloutPhase | ShardedScoring]:
    """The same under ZeRO-3, which gathers weights as modules run.

    Only a second model as reference is called by its engine, of the others the policy or what is below the head.
    """
    rows, setting, values = rows_at_a_time(step.job), step.setting, step.setting.values
    assert values is not None
    reference = scored_step(step, setting, simulate_reference(setting, "scoring", rows), REFERENCE)
    yield ShardedScoring("scoring", reference, REFERENCE, by_engine=step.job.loads_reference)
    yield emptied_cache("scoring")
    valued = scored_step(step, values, simulate_values(values, "scoring", rows), POLICY)
    yield ShardedScoring("scoring", valued, POLICY, by_engine=False)
    yield ShardedScoring("reward", sharded_step(step.job, step.card, rows), REWARD, by_engine=False)
    yield emptied_cache("reward")
