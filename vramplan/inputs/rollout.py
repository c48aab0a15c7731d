"""How reinforcement learning makes its completions: with transformers, or with vLLM on the same GPUs or on others."""

from __future__ import annotations

from typing import Literal

from vramplan.inputs.record import Record, field

Engine = Literal["transformers", "vllm", "vllm_server"]


class Rollout(Record):
    """Generation within a training run, in the words of TRL's ``GRPOConfig``."""

    engine: Engine = "transformers"
    """transformers: the model's own ``generate``; vllm: vLLM in the training processes (``vllm_mode="colocate"``);
    vllm_server: vLLM on other GPUs."""
    num_generations: int = field(default=8, gt=0)
    """Completions of each prompt, which have to divide the samples of a generation."""
    steps_per_generation: int | None = field(default=None, gt=0)
    """Micro-batches whose completions are generated at a time; null: those of an optimizer step."""
    num_iterations: int = field(default=1, gt=0)
    """Passes over the same completions."""
    vllm_share: float = field(default=0.3, gt=0.0, le=1.0)
    """Share of the GPU's memory that vLLM takes for itself (``vllm_gpu_memory_utilization``)."""
    vllm_sleep: bool = False
    """Whether vLLM gives its weights and its KV cache back while the model trains (``vllm_enable_sleep_mode``)."""
    vllm_tensor_parallel: int = field(default=1, gt=0)
    """GPUs that share one copy of the model in vLLM."""
    importance_sampling: bool = True
    """Whether the model scores what vLLM generated, as vLLM's log-probabilities differ from its own
    (``vllm_importance_sampling_correction``)."""
