"""Settings that verl's reinforcement training alone has."""

from __future__ import annotations

from typing import Literal

from vramplan.inputs.record import Record, field


class Critic(Record):
    """verl's critic: a second model that trains on the same GPUs and gives each token a value."""

    model: str | None = None
    """A name, a folder or a config.json; null: the actor's."""
    batches: Literal["unpadded", "packed", "padded"] = "unpadded"
    """How its micro-batches are made: padded without ``critic.model.use_remove_padding``."""
    sequence_length: int = field(gt=0, le=1 << 24)
    """Tokens of a row: of a sample, or of a budget."""
    micro_batch_size: int = field(default=1, gt=0, le=1 << 24)
    """Rows of a micro-batch."""
    gradient_accumulation_steps: int = field(default=1, gt=0, le=1 << 24)
    """Micro-batches of an update."""
    scored_tokens: int = field(gt=0, le=1 << 24)
    """Tokens of a forward that computes values without gradients."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Stored dtype of its weights, which are gathered in bf16."""
    checkpointing: Literal["none", "full"] = "full"
    """Whether its layers are recomputed in backward."""
    replicas: int = field(default=1, gt=0, le=1 << 16)
    """Groups of GPUs that each hold a full set of shards."""
    sequence_parallel: int = field(default=1, gt=0, le=1 << 10)
    """GPUs that share the tokens of a micro-batch, as the actor's do (:attr:`Verl.sequence_parallel`)."""
    fsdp_version: Literal[1, 2] | None = None
    """The version of FSDP that shards it; null: the actor's."""
    offload_policy: bool = False
    """FSDP 2: whether the host keeps its weights and states, and updates them."""
    param_offload: bool = False
    """Whether its weights wait in host memory while it does not run."""
    optimizer_offload: bool = False
    """Whether its optimizer states do so except while it is updated."""


class Verl(Record):
    """How verl's actor computes, scores and makes room for vLLM (`task` grpo with `loss` log_probs)."""

    logits: Literal["undivided", "copied", "in_place"] = "undivided"
    """What becomes of the logits as they are divided by the temperature: nothing at a temperature of 1 (verl 0.9.1), a
    copy at another one (verl 0.9), or the quotients overwrite them (verl up to 0.8)."""
    fused_head: Literal["torch", "triton"] | None = None
    """What computes log-probabilities from hidden states, without whole logits (``use_fused_kernels``): torch, for 512
    tokens at a time, or a Triton kernel; null: nothing, logits are whole."""
    joins_rows: bool = False
    """Padded rows: whether the logits of all their tokens are copied into one row (verl from 0.8 on), or those of the
    responses alone are copied (verl up to 0.7)."""
    scored_tokens: int | None = field(default=None, gt=0, le=1 << 24)
    """Tokens of a forward without gradients (samples of ``log_prob_micro_batch_size_per_gpu``, or
    ``log_prob_max_token_len_per_gpu``); null: those of a micro-batch."""
    entropy: bool = False
    """Whether the entropies of the tokens are part of the loss (``entropy_coeff``)."""
    sequence_parallel: int = field(default=1, gt=0, le=1 << 10)
    """GPUs that share the tokens of a micro-batch, each all tokens of some heads in attention
    (``ulysses_sequence_parallel_size``). Samples are those of all of them together, a packed row is one GPU's part."""
    samples: int | None = field(default=None, gt=0, le=1 << 40)
    """Samples of an optimizer step where a budget of tokens fills micro-batches, so that these do not say how many
    (``ppo_mini_batch_size`` x ``rollout.n``); null: as many as the micro-batches have."""
    reference_sequence_parallel: int | None = field(default=None, gt=0, le=1 << 10)
    """The same of the reference; null: the actor's."""
    critic: Critic | None = None
    """The critic of PPO; null: none."""
    param_offload: bool = False
    """Whether weights wait in host memory while vLLM generates and the reference scores."""
    optimizer_offload: bool = False
    """Whether optimizer states wait in host memory except while the actor is updated."""
    stages_all: bool = False
    """FSDP 2: whether weights that wait in host memory are all on the GPU while they go to vLLM (verl up to 0.8)."""
    keeps_root: bool = False
    """Whether weights outside of the layers stay gathered when completions are scored: under FSDP 1 until the next
    backward (verl from 0.8 on without ``fsdp_size``), under FSDP 2 as PyTorch before 2.8 has it."""
    head_in_root: bool = False
    """FSDP 2: whether the output head is gathered with the root (verl up to 0.6), not in a group of its own."""
    shares_columns: bool = False
    """FSDP 2: whether GPUs share columns of weights whose rows they do not divide (verl 0.6 and 0.7)."""
    layered_summon: bool = False
    """Adapters: whether a layer at a time is gathered to send them to vLLM, and not the whole model."""
    bucket_mib: int = field(default=2048, gt=0, le=1 << 20)
    """MiB of the bucket in which weights go to vLLM (``update_weights_bucket_megabytes``)."""
    engine: Literal["vllm", "sglang"] = "vllm"
    """What generates (``rollout.name``); the job's fields of vLLM are SGLang's as well."""
    texts: int = field(default=1024, gt=0, le=1 << 24)
    """Texts that SGLang generates at a time at most (``rollout.max_num_seqs``)."""
    eager: bool = False
    """Whether SGLang has no CUDA graphs (``rollout.enforce_eager``)."""

    @property
    def engine_name(self) -> str:
        """The name of what generates, as its authors write it."""
        return {"vllm": "vLLM", "sglang": "SGLang"}[self.engine]

    @property
    def in_host_memory(self) -> tuple[str, ...]:
        """What of a model waits in host memory while it is not needed."""
        waits = {"weights": self.param_offload, "optimizer": self.optimizer_offload}
        return tuple(name for name, does in waits.items() if does)

    @property
    def sharing(self) -> tuple[int, ...]:
        """GPUs that share a micro-batch, of each model of which several do: the actor, a reference, the critic."""
        reference = (
            self.sequence_parallel if self.reference_sequence_parallel is None else self.reference_sequence_parallel
        )
        sizes = (self.sequence_parallel, reference, 1 if self.critic is None else self.critic.sequence_parallel)
        return tuple(size for size in sizes if size > 1)

    def offloads(self) -> dict[str, Verl]:
        """More that could wait in host memory, the least first: its names, and the settings with it."""
        found = {}
        if not self.optimizer_offload:
            found["optimizer_offload"] = self.model_copy(update={"optimizer_offload": True})
        if not self.param_offload:
            found["optimizer_offload param_offload"] = self.model_copy(update=OFFLOADED)
        if self.critic is not None and not (self.critic.param_offload and self.critic.optimizer_offload):
            critic = self.critic.model_copy(update=OFFLOADED)
            names = "critic.optimizer_offload critic.param_offload"
            found[names] = self.model_copy(update={"critic": critic})
            found[f"optimizer_offload param_offload {names}"] = self.model_copy(update={"critic": critic, **OFFLOADED})
        return found

    def fewer_scored(self, length: int) -> list[Verl]:
        """Scoring half as many samples of `length` tokens at a time, and so on down to one."""
        samples, found = (self.scored_tokens or 0) // length, []
        while samples > 1:
            samples //= 2
            found.append(self.model_copy(update={"scored_tokens": samples * length}))
        return found


OFFLOADED = {"optimizer_offload": True, "param_offload": True}
