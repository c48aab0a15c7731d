"""OpenRLHF's critic on the actor's GPU: a process of its own, which trains before the actor or beside it.

Mirrors OpenRLHF 0.11 (trainer/ppo_trainer.py: ppo_train; trainer/ppo_utils/experience_maker.py): with
``ds.enable_sleep`` one after the other, each with its states on the GPU only meanwhile; else at once. Either gives its
cache back after it scored or trained.
"""

from __future__ import annotations

from typing import NamedTuple

from vramplan.analytic.rollout.phase import RolloutPhase, at_once
from vramplan.analytic.strategies.states_on_host import moves
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import LANGUAGE_MODEL
from vramplan.inputs.openrlhf import OpenRlhf
from vramplan.memory.timeline import Storage, Timeline


class Critic(NamedTuple):
    """Bytes of the critic's process."""

    weights: int
    states: int
    """What leaves the GPU while the critic sleeps."""
    scoring: int
    """What a forward without gradients takes beside them."""
    training: int
    """What an update takes beside them, with what PyTorch caches."""

    def held(self, sleeps: bool) -> list[Storage]:
        """What is on the GPU all the time."""
        kept = [_storage(self.weights, "parameter", "critic: weights")]
        return kept if sleeps else [*kept, _storage(self.states, "optimizer_state", "critic: optimizer states")]

    def scored(self) -> Storage:
        """Its forward without gradients."""
        return _storage(self.scoring, "activation", "critic: a forward")

    def trained(self, sleeps: bool) -> Storage:
        """Its update, with the states if they come for it alone."""
        return _storage(self.training + (self.states if sleeps else 0), "activation", "critic: an update")


def critic_job(job: Job) -> Job:
    """The critic's own job, as if it were alone on the GPU."""
    own = OpenRlhf(
        trains="critic", scored_samples=job.openrlhf.scored_samples, scored_tokens=job.openrlhf.scored_tokens
    )
    elsewhere = {name: LANGUAGE_MODEL[name] for name in ("reference", "reward_model", "reward_dtype", "vllm_share")}
    elsewhere |= {name: LANGUAGE_MODEL[name] for name in ("vllm_max_length", "vllm_tensor_parallel")}
    elsewhere["fused_kernels"] = ()  # models/model.py: get_llm_for_sequence_regression knows no Liger
    return job.model_copy(update={**elsewhere, "generate_with": "vllm_server", "openrlhf": own})


def critic_of(timeline: Timeline, reserved_bytes: int, offloads: bool) -> Critic:
    """The bytes of a critic's process by its timeline, and by the most that PyTorch reserves in it.

    An optimizer in host memory (``ds.adam_offload``) has nothing that leaves.
    """
    live = timeline.live_bytes()
    peaks = timeline.phase_peaks(live)
    held = live[-1]
    moved = [
        timeline.kinds[kind].num_bytes
        for kind in timeline.live_at(len(timeline.events) - 1)
        if moves(timeline.kinds[kind])
    ]
    states = 0 if offloads else sum(moved)
    return Critic(held - states, states, max(0, peaks["scoring"] - held), max(0, reserved_bytes - held))


def _storage(num_bytes: int, category: str, label: str) -> Storage:
    return Storage(num_bytes, category, label, "in a process of its own", in_kernel=True)


def critic_phases(critic: Critic, sleeps: bool) -> list[RolloutPhase]:
    """What the critic does before the actor's update: it scores, and if they take turns it trains."""
    phases = [("scoring", critic.scored()), *([("critic", critic.trained(sleeps))] if sleeps else [])]
    return [at_once(name, [storage]).emptied() for name, storage in phases]
