"""What is trained, and how: everything of a training set-up that decides memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

Method = Literal["full", "lora", "dora"]
Quantize = Literal["none", "nf4", "int8"]
Dtype = Literal["bf16", "fp16", "fp32"]
QuantStorage = Literal["uint8", "bf16", "fp16", "fp32"]
Autocast = Literal["none", "bf16", "fp16"]
Batches = Literal["unpadded", "padded", "packed"]
Checkpointing = Literal["none", "full"]
Attention = Literal["sdpa", "flash", "eager"]
Loss = Literal["standard", "sliced", "sections", "liger", "cut", "chunked"]
Loop = Literal["trainer", "plain"]
Experts = Literal["stacked", "linear"]
Part = Literal["frozen", "train", "lora"]
Offload = Literal["none", "optimizer", "all"]

MAX_COUNT = 1 << 24
"""Larger batches, lengths or ranks than this are taken for a slip of the hand."""


FORMER_FIELDS = {
    "kbit": "prepare_for_kbit_training",
    "loads_on_card": "loads_whole_model",
    "carves": "wraps_embeddings",
    "checkpoint_outside": "checkpoint_wraps_fsdp",
}
"""Names of the release before, accepted for one more."""
FORMER_VALUES = {("strategy", "pipeline"): "device_map"}


def with_current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a job with former names replaced by the current ones."""
    return {
        FORMER_FIELDS.get(name, name): FORMER_VALUES.get((name, value), value) if isinstance(value, str) else value
        for name, value in settings.items()
    }


def renamed(name: str, default: bool) -> Any:
    """A field that its former name is accepted for, too."""
    former = next(before for before, now in FORMER_FIELDS.items() if now == name)
    return Field(default=default, validation_alias=AliasChoices(name, former))


Strategy = Annotated[
    Literal["ddp", "zero0", "zero1", "zero2", "zero3", "fsdp", "device_map"],
    BeforeValidator(lambda value: with_current_names({"strategy": value})["strategy"]),
]


class Settings(BaseModel):
    """A part of a job."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)


class Fsdp(Settings):
    """torch's fully sharded data parallel, in the words of accelerate's ``fsdp_config``."""

    version: Literal[1, 2] = 2
    """1: FullyShardedDataParallel; 2: fully_shard."""
    reshard_after_forward: bool = True
    """Whether gathered layers are dropped between forward and backward (FULL_SHARD), or kept (SHARD_GRAD_OP)."""
    use_orig_params: bool = True
    """Version 1: whether weights stay parameters of their own (transformers' default; accelerate's launcher says)."""
    loads_whole_model: bool = renamed("loads_whole_model", True)
    """Whether a quantized model comes to every card whole before it is divided, as in transformers, or to the host."""
    wraps_embeddings: bool = renamed("wraps_embeddings", True)
    """Version 2: whether embedding and head are gathered on their own, as by accelerate 1.15, or by the whole model's
    group, from its forward to its backward's end (axolotl)."""
    backward_prefetch: Literal["none", "pre", "post"] = "none"
    """When version 1 asks for the next layer: before a layer's backward, or behind it. Version 2 always does before."""
    checkpoint_wraps_fsdp: bool = renamed("checkpoint_wraps_fsdp", False)
    """Whether reentrant checkpointing goes around the sharded layer (transformers before 4.52), not within it. Under
    version 1 no layer is then asked for early, and a frozen layer's hook holds the layer's input and the gradient of
    that until backward ends."""
    replicas: int = Field(default=1, gt=0)
    """Version 1, HYBRID_SHARD: groups of cards, nodes as a rule, that each have all parts among them."""


class Zero(Settings):
    """DeepSpeed's ``zero_optimization``; null: what transformers fills in for "auto"."""

    reduce_bucket_size: int | None = Field(default=None, gt=0)
    """Elements of the bucket that gradients are reduced in; auto: hidden size squared; unset in DeepSpeed's own JSON:
    500,000,000."""
    overlap_comm: bool = False
    """Whether reduction overlaps with the backward, at stage 2 with a second bucket."""
    prefetch_bucket_size: int | None = Field(default=None, ge=0)
    """Stage 3: elements that are gathered ahead; auto: 0.9 times the hidden size squared; unset: 50,000,000."""
    param_persistence_threshold: int | None = Field(default=None, ge=0)
    """Stage 3: weights of up to so many elements stay whole; auto: 10 times the hidden size; unset: 100,000."""
    max_live_parameters: int = Field(default=1_000_000_000, ge=0)
    """Stage 3: elements that may be gathered ahead at a time."""
    max_reuse_distance: int = Field(default=1_000_000_000, ge=0)
    """Stage 3: weights that are used again within so many elements stay gathered."""
    sub_group_size: int = Field(default=1_000_000_000, gt=0)
    """Stage 3: elements of a card's part that the optimizer updates at a time."""
    leaf_mixtures: bool = False
    """Stage 3: whether every mixture of experts is gathered as one module (set_z3_leaf_modules in ms-swift and
    LLaMA-Factory); DeepSpeed itself does so for Mixtral and Qwen 1.5 to 3."""

    def of_width(self, hidden_size: int) -> Zero:
        """With what transformers makes of "auto" (integrations/deepspeed.py: trainer_config_finalize)."""
        auto = {
            "reduce_bucket_size": hidden_size**2,
            "prefetch_bucket_size": int(0.9 * hidden_size**2),
            "param_persistence_threshold": 10 * hidden_size,
        }
        return self.model_copy(update={name: size for name, size in auto.items() if getattr(self, name) is None})


def engine_casts(strategy: object, quantize: object = "none") -> bool:
    """Whether DeepSpeed's engine casts the whole model (0.19, runtime/engine.py: _cast_module_mixed_precision).

    At stage 3 it leaves a model alone that was divided as it was loaded; transformers loads a quantized one whole
    (modeling_utils.py: get_init_context), and that is cast.
    """
    return strategy in ("zero0", "zero1", "zero2") or (strategy == "zero3" and quantize != "none")


class Job(BaseModel):
    """One training set-up. Field names are the field's own words; see the README for what frameworks call them."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)

    method: Method = "lora"
    """full: every weight trains; lora: adapters on frozen weights."""
    lora_rank: int = Field(default=8, gt=0, le=MAX_COUNT)
    """Rank of the adapters."""
    lora_targets: tuple[str, ...] | None = None
    """Names of the linear layers that get an adapter; null: all but the output head (PEFT's all-linear)."""
    lora_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout before each adapter."""
    lora_dtype: Dtype = "fp32"
    """Stored dtype of the adapters; PEFT makes them fp32 on a half-precision model."""
    dtype: Dtype = "bf16"
    """Stored dtype of the model's weights."""
    modules_to_save: tuple[str, ...] | None = None
    """Modules that train whole beside the adapters, each in a copy of its own, such as embed_tokens, lm_head."""
    saved_dtype: Dtype | None = None
    """Stored dtype of those copies; null: their originals'."""
    quantize: Quantize = "none"
    """How frozen linear layers are stored, by bitsandbytes: nf4 in blocks of 64, or int8, computed in `dtype`; the
    output head, embeddings and norms keep their dtype."""
    prepare_for_kbit_training: bool = renamed("prepare_for_kbit_training", False)
    """Whether all that is not quantized is made fp32, hidden states with it: PEFT's prepare_model_for_kbit_training."""
    double_quant: bool = True
    """Whether nf4's scales are quantized as well."""
    quant_storage: QuantStorage | None = None
    """Dtype that four-bit weights are packed in (bnb_4bit_quant_storage), which decides whether FSDP can divide them;
    null: `dtype` under fsdp and zero3, elsewhere uint8, where it changes nothing."""
    quantize_vision: bool = True
    """Whether the vision tower and the projector are quantized too, as transformers does unless told otherwise."""
    experts: Experts = "stacked"
    """How a mixture's experts are made: stacked in one weight for all, as transformers 5 does, or each of linear layers
    of its own, as before (but for architectures that were stacked then: gpt_oss, qwen3_vl_moe, llama4)."""
    device_map: bool | None = None
    """Whether from_pretrained is given a device_map: it loads onto the card at once, and first asks torch for the whole
    model in one piece (transformers 4.50 on, nothing did before); null: for quantized models and `device_map` alone."""
    fp32_norms: bool = False
    """Whether the norms alone are made fp32, and with them what they give."""
    autocast: Autocast = "bf16"
    """Dtype that matmul-like operations run in under torch.autocast; none: the stored dtype."""
    optimizer: str = "adamw_torch_fused"
    """transformers' name for the optimizer (its `optim`)."""
    sequence_length: int = Field(default=2048, gt=0, le=MAX_COUNT)
    """Tokens in each sample as it enters the model."""
    lengths: tuple[int, ...] | None = None
    """Tokens of samples whose micro-batches come before the longest, in order, over and over; each micro-batch is as
    long as its longest sample. What they leave in torch's cache counts; null: all samples are equally long."""
    target_length: int | None = Field(default=None, gt=0, le=MAX_COUNT)
    """Tokens of the labels that a decoder beside an encoder writes (T5); null: 128, or `sequence_length` if shorter."""
    images: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Images in each sample; their tokens are part of its `sequence_length`."""
    videos: int = Field(default=0, ge=0, le=MAX_COUNT)
    """Videos in each sample, instead of images; their tokens are part of its `sequence_length`."""
    frames: int | None = Field(default=None, gt=0, le=1 << 16)
    """Frames of every video that are left when it has been sampled and enter its processor; null: 16."""
    image_size: tuple[int, int] | None = None
    """Width and height in pixels of every image, or of every frame of a video, before its processor."""
    min_pixels: int | None = Field(default=None, gt=0)
    """Least pixels that the processor enlarges an image to; null: as the model ships it. Of a video they count a frame
    (Qwen2-VL, Qwen2.5-VL) or all frames (Qwen3-VL, GLM-4.1V), as in its video processor."""
    max_pixels: int | None = Field(default=None, gt=0)
    """Most pixels that the processor leaves of an image, or of a video as above; null: as the model ships it."""
    max_tiles: int | None = Field(default=None, gt=0, le=1024)
    """Most tiles that the processor cuts an image into; null: as the model ships it."""
    vision: Part = "frozen"
    """What happens to the vision tower: frozen, train, or lora, which adapts its linear layers as well."""
    projector: Part = "frozen"
    """The same of what leads from the tower to the language model."""
    batches: Batches = "unpadded"
    """unpadded: equally long samples, no mask; padded: a mask with padding; packed: several samples in one row."""
    micro_batch_size: int = Field(default=1, gt=0, le=MAX_COUNT)
    """Samples that one device takes in one forward."""
    gradient_accumulation_steps: int = Field(default=1, gt=0, le=MAX_COUNT)
    """Micro-batches whose gradients are summed before one optimizer step."""
    checkpointing: Checkpointing = "full"
    """Activation checkpointing: none, or every layer."""
    reentrant: bool = False
    """Whether checkpointing is of torch's older, reentrant kind, past which int8 layers keep nothing."""
    attention: Attention = "sdpa"
    """Attention implementation."""
    loss: Loss = "standard"
    """standard: transformers' fp32 cross-entropy; sliced: the same before transformers 4.49, which copies the shifted
    logits; sections: torchtune's, fp32 for an eighth of the tokens at a time; liger: fused with the head; cut:
    Apple's cut cross-entropy, which axolotl's plugin puts in; chunked: TRL's."""
    loop: Loop = "trainer"
    """What the loop itself keeps: transformers' Trainer with accelerate, or a plain loop that holds only the loss."""
    num_gpus: int = Field(default=1, gt=0, le=1 << 16)
    """Cards: so many copies of the run, but for `strategy` device_map, which spreads one over them."""
    strategy: Strategy = "ddp"
    """How cards share the work: ddp, where each holds the whole model; DeepSpeed's ZeRO; torch's FSDP; device_map,
    where transformers' ``device_map="auto"`` places the layers on several cards of one process, which run in turn."""
    offload: Offload = "none"
    """What the host keeps instead of the cards: optimizer (states and their update), all (weights as well; FSDP's)."""
    zero: Zero = Zero()
    """Settings of `strategy` zero1 to zero3."""
    fsdp: Fsdp = Fsdp()
    """Settings of `strategy` fsdp."""
    expandable_segments: bool = False
    """PYTORCH_ALLOC_CONF=expandable_segments:True."""

    @property
    def pictures(self) -> int:
        """Images, or videos, in each sample."""
        return self.images or self.videos

    @property
    def settings(self) -> dict[str, Any]:
        """What was given or filled in, as arguments that make the same job again."""
        unused = self.method == "full"
        return {
            name: getattr(self, name)
            for name in sorted(self.model_fields_set)
            if not (unused and name.startswith("lora_"))
        }

    @property
    def computed_dtype(self) -> str | None:
        """What FSDP's mixed precision gathers weights in; None where torch.autocast or nothing casts."""
        return self.autocast if self.strategy == "fsdp" and self.autocast != "none" else None

    @property
    def trained_dtype(self) -> str:
        """Stored dtype of what trains."""
        return self.dtype if self.method == "full" else self.lora_dtype

    @property
    def engine_casts(self) -> bool:
        """Whether DeepSpeed makes every weight `dtype` that is of another floating one, adapters too."""
        return engine_casts(self.strategy, self.quantize)

    @property
    def is_mapped(self) -> bool:
        """Whether transformers itself loads the model onto the card, rather than to the host first."""
        return self.quantize != "none" or self.strategy == "device_map" if self.device_map is None else self.device_map

    @property
    def casts(self) -> bool:
        """Whether the forward runs under torch.autocast; accelerate leaves that out around ``fully_shard``."""
        return self.autocast != "none" and (self.strategy != "fsdp" or self.fsdp.version == 1)

    @property
    def uses_deepspeed(self) -> bool:
        """Whether DeepSpeed runs the job (ZeRO stages 0 to 3)."""
        return self.strategy.startswith("zero")

    @property
    def shards_weights(self) -> bool:
        """Whether each GPU keeps a part of the weights (ZeRO-3, FSDP)."""
        return self.strategy in ("zero3", "fsdp")

    @property
    def data_parallel(self) -> int:
        """Cards, or groups of cards, that take a micro-batch each."""
        return 1 if self.strategy == "device_map" else self.num_gpus

    @property
    def global_batch_size(self) -> int:
        """Samples behind one optimizer step."""
        return self.data_parallel * self.micro_batch_size * self.gradient_accumulation_steps
