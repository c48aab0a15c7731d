"""Settings that OpenRLHF's reinforcement training alone has."""

from __future__ import annotations

from typing import Literal

from vramplan.inputs.record import Record, field


class OpenRlhf(Record):
    """How OpenRLHF's actor computes, scores and shares its GPUs (`task` grpo with `loss` kept_log_probs)."""

    trains: Literal["actor", "critic", "nothing"] = "actor"
    """The model that trains: the policy, or PPO's critic, which has a number for each token in place of its head.
    `nothing`: GPUs of a reference (`reference` model) or of a reward model (`reward_model`) alone, which score."""
    divides_logits: bool = False
    """Whether fp32 logits are divided where they lie, as at a temperature other than 1."""
    kl_loss: bool = False
    """Whether the loss has a KL term, for which log-probabilities of the reference come with each sample."""
    entropy_loss: bool = False
    """Whether the loss has the entropies of all tokens (a coefficient that is not 0)."""
    scored_samples: int | None = field(default=None, gt=0, le=1 << 20)
    """Samples of a forward without gradients (``rollout.micro_batch_size``); null: those of a micro-batch."""
    scored_tokens: int | None = field(default=None, gt=0, le=1 << 24)
    """The same of packed rows: their tokens (``rollout.max_tokens_per_gpu``)."""
    sleeps: bool = False
    """Whether DeepSpeed's states wait in host memory except while the model trains (``ds.enable_sleep``)."""
    critic: str | None = None
    """PPO's critic on the same GPU: the model that it begins with."""
    processes: int = field(default=0, ge=0, le=8)
    """Other processes with a model on the same GPU, each with a CUDA context: reference, critic, reward model."""
