"""What settings of a job may be, and which tasks are of one kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from vramplan.inputs.former_names import with_current_names
from vramplan.inputs.openrlhf import OpenRlhf
from vramplan.inputs.record import Replaced
from vramplan.inputs.swift import Swift
from vramplan.inputs.verl import Verl

Method = Literal["full", "lora", "dora"]
Quantize = Literal["none", "nf4", "int8"]
Dtype = Literal["bf16", "fp16", "fp32"]
QuantStorage = Literal["uint8", "bf16", "fp16", "fp32"]
Autocast = Literal["none", "bf16", "fp16"]
EXPANDABLE_SEGMENTS = "PYTORCH_ALLOC_CONF=expandable_segments:True"
"""The environment variable with which PyTorch's allocator joins blocks of different sizes."""
Batches = Literal["unpadded", "padded", "packed", "flattened"]
Checkpointing = Literal["none", "full"]
Attention = Literal["sdpa", "flash", "eager"]
MixerKernels = Literal["torch", "packages"]
Loss = Literal[
    "standard",
    "sliced",
    "sliced_fp32",
    "sections",
    "liger",
    "liger_cross_entropy",
    "cut",
    "chunked",
    "log_probs",
    "concatenated",
    "concatenated_states",
    "copied_logits",
    "log_softmax",
    "fused_log_probs",
    "logits_to_keep",
    "liger_logits_to_keep",
    "value_head",
    "two_forwards",
    "scaled_log_softmax",
    "kept_log_probs",
    "divided_in_place",
    "axolotl_log_probs",
]
Task = Literal[
    "sequence_classification", "token_classification", "image_classification", "embedding", "reranker",
    "generative_reranker", "reward", "dpo", "kto", "orpo", "cpo", "simpo", "grpo", "rloo", "gkd", "ppo",
]  # fmt: skip
"""What is trained for, if that is not what transformers trains such a model for."""
ROLLOUTS: tuple[Task, ...] = ("grpo", "rloo")
"""Tasks of TRL that generate the completions that they train on."""
GENERATING: tuple[Task, ...] = (*ROLLOUTS, "gkd", "ppo")
"""All tasks that may generate completions."""
REFERRING: tuple[Task, ...] = ("dpo", "kto", "ppo", *ROLLOUTS)
"""Tasks with a reference."""
Reference = Literal["adapters_off", "frozen_adapters", "model", "precomputed", "none"]
Divergence = Literal["jsd", "forward_kl", "reverse_kl"]
GeneratedBy = Literal["student", "teacher", "both", "none"]
Engine = Literal["transformers", "vllm", "vllm_sleep", "vllm_server"]
FusedKernel = Literal["rope", "rms_norm", "layer_norm", "swiglu", "geglu"]
Loop = Literal["trainer", "plain"]
Experts = Literal["stacked", "linear"]
Part = Literal["frozen", "train", "lora"]
Pooling = Literal["mean", "cls", "lasttoken"]
EmbeddingLoss = Literal[
    "multiple_negatives",
    "cached_multiple_negatives",
    "symmetric",
    "cosent",
    "angle",
    "cosine_similarity",
    "contrastive",
    "online_contrastive",
    "triplet",
    "margin_mse",
]
Offload = Literal["none", "optimizer", "all"]
RolloutOffload = Literal["none", "optimizer", "model", "all"]
Strategy = Annotated[
    Literal["ddp", "zero0", "zero1", "zero2", "zero3", "fsdp", "device_map"],
    Replaced(lambda value: with_current_names({"strategy": value})["strategy"]),
]
PpoTrainer = Literal["trl", "ms_swift"]

PPO_TRAINERS: Mapping[PpoTrainer, str] = {"trl": "TRL up to 1.12", "ms_swift": "ms-swift"}
"""What the trainers of PPO with a value model are called."""
MAX_COUNT = 1 << 24
"""Largest batch, length or rank that is accepted; more is refused as a likely mistake."""


FUSED_KERNELS: tuple[FusedKernel, ...] = get_args(FusedKernel)
"""All of Liger's kernels that replace layers."""
LANGUAGE_MODEL: Mapping[str, Any] = {
    "task": None, "reference": None, "prompt_length": None, "generate_with": "transformers", "num_generations": 8,
    "steps_per_generation": None, "num_iterations": 1, "vllm_share": 0.3, "vllm_tensor_parallel": 1,
    "vllm_max_length": None, "vllm_weights": "own", "vllm_sync_parts": None, "rollout_offload": "none", "verl": Verl(),
    "openrlhf": OpenRlhf(), "swift": Swift(), "entropy_graph": False, "teacher": None, "teacher_dtype": None,
    "teacher_logits": None, "divergence": "jsd",
    "generated_by": "student", "reward_model": None, "reward_dtype": None, "reward_adapters": False,
    "value_model": None, "value_dtype": None, "rollout_batch_size": 64, "ppo_trainer": "trl",
}  # fmt: skip
"""The settings of a job that trains the next token, in place of those of a task."""
DEFAULT_SEQUENCE_LENGTH = 2048
"""Tokens of a sample if none are given."""


def engine_casts(strategy: object, quantize: object = "none") -> bool:
    """Whether DeepSpeed's engine casts the whole model (0.19, runtime/engine.py: _cast_module_mixed_precision).

    At stage 3 it does not cast a model that was sharded while loading; transformers loads a quantized model whole
    (modeling_utils.py: get_init_context), and that one is cast.
    """
    return strategy in ("zero0", "zero1", "zero2") or (strategy == "zero3" and quantize != "none")


def own_reference(method: str) -> Reference:
    """The reference that trainers take if none is given: the base of adapters, or a second model."""
    return "model" if method == "full" else "adapters_off"
