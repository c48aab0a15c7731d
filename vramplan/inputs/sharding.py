"""How a job's model is divided over GPUs: the settings of FSDP and of DeepSpeed's ZeRO."""

from __future__ import annotations

from typing import Any, Literal

from vramplan.inputs.former_names import FORMER_FIELDS
from vramplan.inputs.job_values import Dtype
from vramplan.inputs.record import Record, field


def renamed(name: str, default: bool) -> Any:
    """A field that accepts its former name as well."""
    former = next(before for before, now in FORMER_FIELDS.items() if now == name)
    return field(default=default, former=former)


class Fsdp(Record):
    """torch's fully sharded data parallel, in the words of accelerate's ``fsdp_config``."""

    version: Literal[1, 2] = 2
    """1: FullyShardedDataParallel; 2: fully_shard."""
    reshard_after_forward: bool = True
    """Whether gathered layers are dropped between forward and backward (FULL_SHARD), or kept (SHARD_GRAD_OP)."""
    use_orig_params: bool = True
    """Version 1: whether weights stay parameters of their own (transformers' default; accelerate's launcher says)."""
    loads_whole_model: bool = renamed("loads_whole_model", True)
    """Whether a quantized model is loaded whole onto every GPU before it is sharded, as in transformers, or onto the
    host."""
    wraps_embeddings: bool = renamed("wraps_embeddings", True)
    """Version 2: whether embedding and output head are separate fully_shard groups, as in accelerate 1.15, or part of
    the root group, which stays gathered from its forward to the end of its backward (axolotl). Of torchtune: whether
    ``custom_sharded_layers`` names both."""
    backward_prefetch: Literal["none", "pre", "post"] = "none"
    """When version 1 gathers the next layer: before a layer's backward, or after it. Version 2 always does so
    before."""
    checkpoint_wraps_fsdp: bool = renamed("checkpoint_wraps_fsdp", False)
    """Whether reentrant checkpointing wraps the sharded layer (transformers before 4.52) instead of being inside it.
    Under version 1 no layer is then prefetched, and a frozen layer's hook holds the layer's input and its gradient
    until backward ends."""
    reduce_dtype: Dtype | None = None
    """Version 1 and verl's version 2: dtype in which gradients are reduced (MixedPrecision); null: that of the
    gathered weights, as accelerate sets it."""
    replicas: int = field(default=1, gt=0)
    """Version 1, HYBRID_SHARD: number of groups of GPUs, usually nodes, that each hold a full set of shards."""
    sync_each_batch: bool = False
    """Version 1, and version 2 of verl and torchtune: whether gradients are reduced after every micro-batch, not whole
    until the last (accelerate's ``sync_each_batch``; verl but for 0.9.0; torchtune always)."""
    forward_prefetch: bool = False
    """verl's version 2: whether the next layer is gathered as a layer's forward begins."""


DEEPSPEED_SIZES = {
    "reduce_bucket_size": 500_000_000,
    "prefetch_bucket_size": 50_000_000,
    "param_persistence_threshold": 100_000,
}
"""DeepSpeed's own defaults of sizes that transformers fills in for "auto" (0.19, runtime/zero/config.py)."""


class Zero(Record):
    """DeepSpeed's ``zero_optimization``; null: what transformers fills in for "auto"."""

    reduce_bucket_size: int | None = field(default=None, gt=0)
    """Elements of the bucket in which gradients are reduced; auto: hidden size squared; unset in DeepSpeed's own JSON:
    500,000,000."""
    overlap_comm: bool = False
    """Whether reduction overlaps with the backward, at stage 2 with a second bucket."""
    prefetch_bucket_size: int | None = field(default=None, ge=0)
    """Stage 3: elements that are gathered ahead; auto: 0.9 times the hidden size squared; unset: 50,000,000."""
    param_persistence_threshold: int | None = field(default=None, ge=0)
    """Stage 3: weights of up to this many elements are not sharded; auto: 10 times the hidden size; unset: 100,000."""
    max_live_parameters: int = field(default=1_000_000_000, ge=0)
    """Stage 3: elements that may be gathered ahead at a time."""
    max_reuse_distance: int = field(default=1_000_000_000, ge=0)
    """Stage 3: weights that are used again within this many elements stay gathered."""
    sub_group_size: int = field(default=1_000_000_000, gt=0)
    """Stage 3: elements of a GPU's shard that the optimizer updates at a time."""
    leaf_mixtures: bool = False
    """Stage 3: whether every mixture of experts (MoE) is gathered as one module (set_z3_leaf_modules in ms-swift and
    LLaMA-Factory); DeepSpeed itself does so for Mixtral and Qwen 1.5 to 3."""

    def of_width(self, hidden_size: int) -> Zero:
        """A copy with transformers' values for "auto" (integrations/deepspeed.py: trainer_config_finalize)."""
        auto = {
            "reduce_bucket_size": hidden_size**2,
            "prefetch_bucket_size": int(0.9 * hidden_size**2),
            "param_persistence_threshold": 10 * hidden_size,
        }
        return self.model_copy(update={name: size for name, size in auto.items() if getattr(self, name) is None})

    def by_deepspeed(self) -> Zero:
        """A copy with DeepSpeed's own defaults for "auto"."""
        own = DEEPSPEED_SIZES.items()
        return self.model_copy(update={name: size for name, size in own if getattr(self, name) is None})
