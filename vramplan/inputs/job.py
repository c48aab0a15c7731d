"""The job: every setting of a training run that decides its memory."""

from __future__ import annotations

from typing import Any, Literal

from vramplan.inputs.job_values import (
    DEFAULT_SEQUENCE_LENGTH,
    GENERATING,
    MAX_COUNT,
    REFERRING,
    Attention,
    Autocast,
    Batches,
    Checkpointing,
    Divergence,
    Dtype,
    EmbeddingLoss,
    Engine,
    Experts,
    FusedKernel,
    GeneratedBy,
    Loop,
    Loss,
    Method,
    MixerKernels,
    Offload,
    Part,
    Pooling,
    PpoTrainer,
    Quantize,
    QuantStorage,
    Reference,
    RolloutOffload,
    Strategy,
    Task,
    engine_casts,
    own_reference,
)
from vramplan.inputs.openrlhf import OpenRlhf
from vramplan.inputs.record import Record, field
from vramplan.inputs.sharding import Fsdp, Zero, renamed
from vramplan.inputs.swift import Swift
from vramplan.inputs.verl import Verl


def with_batch(job: Job, micro_batch_size: int, gradient_accumulation_steps: int) -> Job:
    """The job at another batch, which is not checked."""
    batch = {"micro_batch_size": micro_batch_size, "gradient_accumulation_steps": gradient_accumulation_steps}
    return job.model_copy(update=batch)


class Job(Record):
    """One training set-up; docs/reference/options.md says what frameworks call each field."""

    task: Task | None = None
    """What the model is trained for, which decides its class and its loss. By transformers: sequence_classification (a
    label for each sample), token_classification (a label for each token), image_classification. By
    sentence-transformers: embedding (bi-encoders), reranker (CrossEncoder). By TRL: reward (a number for each text),
    dpo (DPO and its kin), kto, orpo, cpo, simpo (cpo without the cross-entropy of chosen answers), grpo (GRPO, DAPO,
    Dr. GRPO), rloo, gkd (distillation with a `teacher`), ppo with a `value_model`. By LLaMA-Factory: ppo without. null:
    what transformers trains such a model for: the next token, words to fill in, an image's class.
    A sample of reward, dpo, orpo, cpo and simpo is a pair of a chosen and a rejected answer, of kto a prompt with an
    answer, of the others a prompt with a completion; `sequence_length` is that of a prompt with one of them."""
    reference: Reference | None = None
    """Where dpo, kto, grpo, rloo and ppo take the reference's log-probabilities from: adapters_off (the model without
    them), frozen_adapters (a second set of their rank and layers, in fp32), model (a second one, which does not train),
    precomputed (before), none; null: for grpo none (beta 0), else adapters_off with adapters and model without."""
    prompt_length: int | None = field(default=None, ge=0, le=MAX_COUNT)
    """Tokens of the prompt within `sequence_length`, which a task does not score; null: one."""
    generate_with: Engine = "transformers"
    """What generates completions (grpo, rloo): transformers (the model's own ``generate``); vllm (vLLM in the training
    processes, TRL's ``vllm_mode="colocate"``); vllm_sleep (the same, which gives weights and KV cache back while the
    model trains, ``vllm_enable_sleep_mode``); vllm_server (vLLM on other GPUs)."""
    num_generations: int = field(default=8, gt=0, le=MAX_COUNT)
    """Completions of each prompt (grpo), which have to divide the samples of a generation."""
    steps_per_generation: int | None = field(default=None, gt=0, le=MAX_COUNT)
    """Micro-batches whose completions are generated at a time (grpo); null: those of an optimizer step."""
    num_iterations: int = field(default=1, gt=0, le=MAX_COUNT)
    """Passes over the same completions (grpo)."""
    vllm_share: float = field(default=0.3, gt=0.0, le=1.0)
    """Share of the GPU's memory that vLLM takes in the training processes (``vllm_gpu_memory_utilization``)."""
    vllm_tensor_parallel: int = field(default=1, gt=0, le=1 << 16)
    """GPUs that share one copy of the model in vLLM (``vllm_tensor_parallel_size``)."""
    vllm_max_length: int | None = field(default=None, gt=0, le=MAX_COUNT)
    """Tokens of the longest text that vLLM takes (``vllm_max_model_length``), whose keys and values its share has to
    hold; null: the model's own positions."""
    vllm_weights: Literal["own", "shared"] = "own"
    """Whether vLLM in the training processes loads the model once more, or the weights that train adapters are vLLM's
    (unsloth's ``fast_inference``): then they are part of its share, and stay while it sleeps."""
    vllm_sync_parts: int | None = field(default=None, gt=0, le=MAX_COUNT)
    """Parts in which all weights that ZeRO-3 shards are gathered on their way to vLLM (ms-swift's
    ``move_model_batches``); null: as TRL does, all at once to merge adapters, else a layer's at a time."""
    rollout_offload: RolloutOffload = "none"
    """What moves to the host while vLLM on the same GPUs generates: optimizer (its states), model (the weights, the
    reference's too), all (ms-swift's ``offload_optimizer``, ``offload_model``)."""
    importance_sampling: bool = True
    """Whether the model scores what vLLM generated (``vllm_importance_sampling_correction``)."""
    entropy_graph: bool = False
    """Whether the entropies of completions are computed with a graph, whose tensors live until the loss exists (grpo,
    ms-swift's ``log_entropy`` and ``top_entropy_quantile``)."""
    adds_cross_entropy: bool = False
    """`task` dpo with `loss` concatenated or concatenated_states: whether the cross-entropy of the chosen answers is
    part of the loss (``rpo_alpha``, or ``sft`` among the loss types); `task` gkd with `loss` logits_to_keep: that of
    the completions (ms-swift's ``sft_alpha``)."""
    teacher: str | None = None
    """`task` gkd: the model whose distribution of the next token is learned: a shipped name, a Hub id, a folder, or a
    config.json. It is on the same GPUs, and its vocabulary has to be the student's."""
    teacher_dtype: Dtype | None = None
    """Stored dtype of the teacher's weights; null: `dtype`."""
    teacher_logits: int | None = field(default=None, gt=0, le=1 << 20)
    """Distillation from a teacher on other GPUs, which gives so many of each token's highest log-probabilities
    (ms-swift's ``teacher_model_server``, ``gkd_logits_topk``); null: the `teacher` gives all."""
    divergence: Divergence = "jsd"
    """`task` gkd: jsd (the generalized Jensen-Shannon divergence, TRL's ``beta`` between 0 and 1), forward_kl (``beta``
    0), or reverse_kl (``beta`` 1), which have no mixture."""
    generated_by: GeneratedBy = "student"
    """`task` gkd: who generates completions during training, by transformers' ``generate``: the student (TRL's
    ``lmbda`` above 0), the teacher (``seq_kd`` and ``lmbda`` 0), both by turns, or none (samples of the data set
    alone)."""
    reward_model: str | None = None
    """A model that scores the completions on the same GPU (grpo, rloo, ppo), by name or file; null: something else."""
    reward_dtype: Dtype | None = None
    """Stored dtype of the reward model's weights; null: `dtype`."""
    reward_adapters: bool = False
    """Whether a second set of such adapters scores completions (ppo; LLaMA-Factory's ``reward_model_type: lora``)."""
    value_model: str | None = None
    """`task` ppo: the model that learns the value of each token (``value_model`` of TRL's PPOTrainer, up to 1.12): a
    name, a folder or a config.json; a `reward_model` scores. null: LLaMA-Factory's value head."""
    ppo_trainer: PpoTrainer = "trl"
    """Whose trainer: trl, where all of the value model trains; ms_swift, where adapters of it do as the policy's do."""
    value_dtype: Dtype | None = None
    """Stored dtype of the value model's weights; null: `dtype`."""
    rollout_batch_size: int = field(default=64, gt=0, le=MAX_COUNT)
    """`task` ppo with a `value_model`: completions that are generated and scored at a time (TRL's
    ``local_rollout_forward_batch_size``)."""
    num_labels: int | None = field(default=None, gt=0, le=MAX_COUNT)
    """Labels of a classification; null: as many as the model's configuration names."""
    embedding_loss: EmbeddingLoss = "multiple_negatives"
    """`task` embedding: sentence-transformers' MultipleNegativesRankingLoss, the same with cached gradients, and
    MultipleNegativesSymmetricRankingLoss; CoSENTLoss, AnglELoss, CosineSimilarityLoss, ContrastiveLoss and
    OnlineContrastiveLoss of pairs with a score; TripletLoss; MarginMSELoss."""
    joins_texts: bool = False
    """`task` embedding: whether all texts of a micro-batch run in one forward of the causal language model, whose head
    passes the states (ms-swift: InfoNCE and losses of pairs), and not the anchors in one and all others in another
    (sentence-transformers)."""
    negatives: int = field(default=0, ge=0, le=1 << 10)
    """`task` embedding, reranker: texts in each sample that do not match, beside the anchor and the positive one."""
    mini_batch_size: int = field(default=32, gt=0, le=MAX_COUNT)
    """`embedding_loss` cached_multiple_negatives: texts that run through the model at a time."""
    matryoshka_dims: tuple[int, ...] | None = None
    """`task` embedding: widths of MatryoshkaLoss, which computes the loss for each; null: the whole width alone."""
    pooling: Pooling | None = None
    """`task` embedding: how a text's states become one vector; null: lasttoken for a decoder, else mean."""
    method: Method = "lora"
    """full: every weight trains; lora: adapters on frozen weights."""
    lora_rank: int = field(default=8, gt=0, le=MAX_COUNT)
    """Rank of the adapters."""
    lora_targets: tuple[str, ...] | None = None
    """Names of the linear layers that get an adapter; null: all but the output head (PEFT's all-linear)."""
    lora_dropout: float = field(default=0.0, ge=0.0, lt=1.0)
    """Dropout before each adapter."""
    lora_dtype: Dtype = "fp32"
    """Stored dtype of the adapters; PEFT makes them fp32 on a half-precision model."""
    dtype: Dtype = "bf16"
    """Stored dtype of the model's weights."""
    modules_to_save: tuple[str, ...] | None = None
    """Modules that train in full beside the adapters, each as a copy, such as embed_tokens, lm_head."""
    saved_dtype: Dtype | None = None
    """Stored dtype of those copies; null: their originals'."""
    quantize: Quantize = "none"
    """How frozen linear layers are stored, by bitsandbytes: nf4 in blocks of 64, or int8, computed in `dtype`; the
    output head, embeddings and norms keep their dtype. With `layers_of` torchtune: nf4 by torchao."""
    prepare_for_kbit_training: bool = renamed("prepare_for_kbit_training", False)
    """Whether PEFT's prepare_model_for_kbit_training casts everything that is not quantized to fp32, and hidden states
    with it."""
    double_quant: bool = True
    """Whether nf4's scales are quantized as well."""
    quant_storage: QuantStorage | None = None
    """Dtype that four-bit weights are packed in (bnb_4bit_quant_storage), which decides whether FSDP can shard them;
    null: `dtype` under fsdp and zero3, elsewhere uint8, where it changes nothing."""
    quantize_vision: bool = True
    """Whether the vision tower and the projector are quantized too, as transformers does by default."""
    experts: Experts = "stacked"
    """How the experts of a mixture of experts (MoE) are stored: stacked in one weight, as in transformers 5, or as
    separate linear layers, as before (except architectures that were stacked already: gpt_oss, qwen3_vl_moe,
    llama4)."""
    device_map: bool | None = None
    """Whether from_pretrained is given a device_map: it then loads directly onto the GPU, and first allocates the whole
    model in one piece (from transformers 4.50 on); null: only for quantized models and `strategy` device_map."""
    fp32_norms: bool = False
    """Whether the norms alone, and with them their outputs, are fp32."""
    autocast: Autocast = "bf16"
    """Dtype that matmul-like operations run in under torch.autocast; none: the stored dtype."""
    optimizer: str = "adamw_torch_fused"
    """transformers' name for the optimizer (its `optim`)."""
    sequence_length: int = field(default=DEFAULT_SEQUENCE_LENGTH, gt=0, le=MAX_COUNT)
    """Tokens in each sample as it enters the model."""
    lengths: tuple[int, ...] | None = None
    """Tokens of samples whose micro-batches come before the longest, in order, over and over; each micro-batch is as
    long as its longest sample. Memory that they leave cached by PyTorch is counted; null: all samples are equally
    long."""
    target_length: int | None = field(default=None, gt=0, le=MAX_COUNT)
    """Tokens of the labels of an encoder-decoder model (T5); null: 128, or `sequence_length` if shorter."""
    audio_seconds: float | None = field(default=None, gt=0, le=3600)
    """Seconds of each sound (wav2vec 2, HuBERT; CSM; Voxtral); null: 20, 10 and 30."""
    freeze_feature_encoder: bool = True
    """Whether the convolutions that read the waveform are frozen, by the model's method of that name (wav2vec 2,
    HuBERT)."""
    images: int = field(default=0, ge=0, le=MAX_COUNT)
    """Images in each sample; their tokens are part of its `sequence_length`."""
    videos: int = field(default=0, ge=0, le=MAX_COUNT)
    """Videos in each sample, instead of images; their tokens are part of its `sequence_length`."""
    sounds: int = field(default=0, ge=0, le=MAX_COUNT)
    """Sounds in each sample, of `audio_seconds` each, instead of images; their tokens are part of its
    `sequence_length`."""
    frames: int | None = field(default=None, gt=0, le=1 << 16)
    """Frames of every video after sampling, as they enter its processor; null: 16."""
    image_size: tuple[int, int] | None = None
    """Width and height in pixels of every image, or of every frame of a video, before its processor."""
    min_pixels: int | None = field(default=None, gt=0)
    """Least pixels: the processor enlarges smaller images; null: the model's own value. For a video it counts the
    pixels of a frame (Qwen2-VL, Qwen2.5-VL) or of all frames (Qwen3-VL, GLM-4.1V), as in its video processor."""
    max_pixels: int | None = field(default=None, gt=0)
    """Most pixels: the processor shrinks larger images, or videos as above; null: the model's own value."""
    max_tiles: int | None = field(default=None, gt=0, le=1024)
    """Most tiles that the processor cuts an image into; null: the model's own value."""
    vision: Part = "frozen"
    """The vision tower: frozen, train, or lora, which puts adapters on its linear layers."""
    projector: Part = "frozen"
    """The same for the projector from the vision tower to the language model."""
    batches: Batches = "unpadded"
    """unpadded: equally long samples, no mask; padded: a mask with padding; packed: several samples in one row;
    flattened: all samples of a micro-batch in one row (`padding_free`), whose mask SDPA and eager attention hold."""
    micro_batch_size: int = field(default=1, gt=0, le=MAX_COUNT)
    """Samples that one device takes in one forward."""
    gradient_accumulation_steps: int = field(default=1, gt=0, le=MAX_COUNT)
    """Micro-batches whose gradients are summed before one optimizer step."""
    checkpointing: Checkpointing = "full"
    """Activation checkpointing: none, or every layer."""
    reentrant: bool = False
    """Whether checkpointing is torch's older, reentrant kind, under which int8 layers keep nothing."""
    attention: Attention = "sdpa"
    """Attention implementation."""
    mixer_kernels: MixerKernels = "torch"
    """Code of the layers that mix tokens without attention (linear attention, state spaces, short convolutions): torch,
    transformers' own, which runs where the packages with kernels for them are not installed; packages:
    flash-linear-attention, mamba-ssm and causal-conv1d, which keep less."""
    loss: Loss = "standard"
    """standard: transformers' fp32 cross-entropy; sliced: that of transformers 4.46 to 4.48, which copies the shifted
    logits; sliced_fp32: of those before, where fp32 logits replace the half-precision ones; sections: torchtune's, fp32
    for an eighth of the tokens at a time; liger: Liger's, fused with the head; liger_cross_entropy: Liger's of fp32
    logits, which their gradients overwrite; cut: Apple's cut cross-entropy, as in axolotl's plugin; chunked: TRL's;
    log_probs: verl's, by FlashAttention's cross-entropy of half-precision logits, which their gradients overwrite
    (with `task` grpo: its actor, its scoring and its vLLM);
    kept_log_probs: OpenRLHF's, the same of fp32 logits, which live on until the next micro-batch (with `task` grpo:
    its actor, its scoring and its vLLM, where they live until the optimizer step is over).
    With `task` dpo: chunked is that of TRL from 1.15 on, standard of 1.6 to 1.13, sliced of 0.29 to 1.5,
    concatenated_states of 0.19 to 0.28, whose forward returns all hidden states too, concatenated of 0.15 to 0.18,
    liger of 1.0 to 1.12 with use_liger_kernel (grpo too). With `task` kto: chunked the same, standard is that of TRL
    1.9 to 1.13, copied_logits of 0.18 to 1.5. With `task` orpo, cpo and simpo: fused_log_probs is that of TRL from 1.14
    on, whose kernel keeps numbers of tokens alone, standard of 0.19 to 1.13, of later ones without Triton, and of
    ms-swift. With `task` gkd: standard is that of TRL 1.7 on, sliced of 0.19 to 1.6, which compares completions alone,
    chunked that of TRL's DistillationTrainer (1.16), which makes logits of both by tiles and runs without autocast,
    logits_to_keep is ms-swift's, which compares 512 tokens of them at a time. With `task` dpo and kto: log_softmax is
    LLaMA-Factory's, of all logits in fp32 at once; logits_to_keep is ms-swift's, of the logits from the first answer's
    first token on (grpo too: those of completions, divided where they lie); liger_logits_to_keep is its GRPO with
    use_liger_kernel, which scores so. With `task` dpo: scaled_log_softmax is torchtune's, of fp32 logits divided by a
    temperature, with the reference's logits kept until the next. With `task` grpo and rloo: divided_in_place is that of
    TRL 1.0 to 1.9, which divides whole logits by the temperature where they lie. axolotl_log_probs is axolotl's, TRL
    1.9's trainers with a kernel of its own. With `task` reward: standard is TRL's, of a model with one number for a
    text, two_forwards that of TRL 0.14 to 0.23, which runs chosen and rejected texts apart, value_head LLaMA-Factory's,
    of a whole language model with a value head, kept_log_probs OpenRLHF's, of a model with a number for each token."""
    fused_kernels: tuple[FusedKernel, ...] = ()
    """Layers that Liger's kernels compute, where the model has them and Liger replaces them: rope (rotary embedding),
    rms_norm, layer_norm (of vision towers), swiglu and geglu (gated feed-forward)."""
    loop: Loop = "trainer"
    """The training loop: transformers' Trainer with accelerate, or a plain loop that keeps only the loss."""
    layers_of: Literal["transformers", "torchtune"] = "transformers"
    """Whose model it is. torchtune's copies keys and values for every query head, keeps norms in fp32 and holds tables
    of all positions; with `loop` plain, and FSDP 2 as its recipes call it."""
    optimizer_in_backward: bool = False
    """`layers_of` torchtune: whether each weight is updated, by an optimizer of its own, and its gradient dropped as
    soon as backward has it, or has reduced it (``optimizer_in_bwd``)."""
    offloads_activations: bool = False
    """`layers_of` torchtune: whether what the forward saves waits in host memory, but for the last tensors
    (``enable_activation_offloading``)."""
    keeps_outputs: bool = False
    """Plain loop: whether the model's outputs live until a micro-batch's backward is over, as in NeMo Automodel: the
    logits and, without checkpointing and packed rows, every layer's keys and values: `use_cache` stays on."""
    num_gpus: int = field(default=1, gt=0, le=1 << 16)
    """Number of GPUs. Each runs a copy of the training loop, except under `strategy` device_map, where one process uses
    all."""
    num_nodes: int = field(default=1, gt=0, le=1 << 16)
    """Number of machines that the GPUs are in, as many in each. It decides about time, not about memory."""
    strategy: Strategy = "ddp"
    """How GPUs share the work: ddp, where each holds the whole model; DeepSpeed's ZeRO; torch's FSDP; device_map, where
    transformers' ``device_map="auto"`` places the layers on the GPUs of one process, which run one after another."""
    offload: Offload = "none"
    """What the host keeps instead of the GPUs: optimizer (states and their update), all (weights as well; FSDP's)."""
    zero: Zero = Zero()
    """Settings of `strategy` zero1 to zero3."""
    fsdp: Fsdp = Fsdp()
    """Settings of `strategy` fsdp."""
    verl: Verl = Verl()
    """Settings of verl's reinforcement training (`task` grpo with `loss` log_probs); of its supervised one `logits`."""
    openrlhf: OpenRlhf = OpenRlhf()
    """Settings of OpenRLHF's reinforcement training (`task` grpo with `loss` kept_log_probs)."""
    swift: Swift = Swift()
    """Settings of ms-swift's training."""
    expandable_segments: bool = False
    """Whether :data:`EXPANDABLE_SEGMENTS` is set."""

    @property
    def pictures(self) -> int:
        """Images, videos, or sounds, in each sample."""
        return self.images or self.videos or self.sounds

    @property
    def picture_kind(self) -> str:
        """What :attr:`pictures` counts, in one word."""
        return "sound" if self.sounds else "video" if self.videos else "image"

    @property
    def joins_samples(self) -> bool:
        """Whether several samples share a row, in which positions begin again with each."""
        return self.batches in ("packed", "flattened")

    @property
    def row_length(self) -> int:
        """Tokens of a row as it comes to a GPU; GPUs that share packed rows each have a part of it."""
        return self.sequence_length * (self.verl.sequence_parallel if self.joins_samples else 1)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields that were set, as keyword arguments that create the same job."""
        unused = self.method == "full"
        return {
            name: getattr(self, name)
            for name in sorted(self.model_fields_set)
            if not (unused and name.startswith("lora_"))
        }

    @property
    def runs_verl(self) -> bool:
        """Whether verl's reinforcement training runs the job, not TRL's trainer."""
        return self.task == "grpo" and self.loss == "log_probs"

    @property
    def runs_openrlhf(self) -> bool:
        """Whether OpenRLHF's reinforcement training runs the job."""
        return self.task == "grpo" and self.loss == "kept_log_probs"

    @property
    def runs_own_actor(self) -> bool:
        """Whether a framework's own reinforcement training runs the job, not TRL's trainer or one after it."""
        return self.runs_verl or self.runs_openrlhf

    @property
    def is_verl_critic(self) -> bool:
        """Whether it is the part of verl's critic in a job (:mod:`vramplan.analytic.verl_critic`)."""
        return self.task == "token_classification" and self.loss == "log_probs"

    @property
    def loads_reference(self) -> bool:
        """Whether a second model is on the GPU, which gives the log-probabilities of the reference, or teaches.

        Under verl it is in host memory (workers/engine/fsdp/transformer_impl.py: _build_fsdp_module).
        """
        refers = self.task in REFERRING and self.reference_source == "model"
        return (self.task == "gkd" and self.teacher is not None) or (refers and not self.runs_verl)

    @property
    def generates_completions(self) -> bool:
        """Whether completions are generated while the model trains."""
        return self.task in GENERATING and (self.task != "gkd" or self.generated_by != "none")

    @property
    def dtype_of_rewards(self) -> Dtype:
        """Stored dtype of the reward model's weights, which DeepSpeed's engine casts as it casts the model's."""
        return self.dtype if self.uses_deepspeed else self.reward_dtype or self.dtype

    @property
    def dtype_of_values(self) -> Dtype:
        """Stored dtype of the value model's weights, which DeepSpeed casts like the policy's."""
        return self.dtype if self.uses_deepspeed else self.value_dtype or self.dtype

    @property
    def dtype_of_teacher(self) -> str:
        """Stored dtype of the teacher's weights, which DeepSpeed casts like the model's, at stage 3 on loading."""
        return self.dtype if self.strategy.startswith("zero") else self.teacher_dtype or self.dtype

    @property
    def reference_source(self) -> Reference:
        """Where the log-probabilities of the reference come from; GRPO has no reference by default (beta 0)."""
        return self.reference or ("none" if self.task == "grpo" else own_reference(self.method))

    @property
    def computed_dtype(self) -> str | None:
        """Dtype in which FSDP's mixed precision gathers weights; None if it does not cast."""
        return self.autocast if self.strategy == "fsdp" and self.autocast != "none" else None

    @property
    def trained_dtype(self) -> str:
        """Stored dtype of the trained weights."""
        return self.dtype if self.method == "full" else self.lora_dtype

    @property
    def reads_sharded_head(self) -> bool:
        """Whether a loss gathers a head that is not tied by itself, in its stored dtype: nothing runs in its group.

        Under FSDP 2 the final norm is in that group too, unless PEFT hides it from accelerate (1.15,
        utils/fsdp_utils.py: _find_final_norm; trl 1.16, trainer/utils.py: add_fused_lm_head).
        """
        shards = self.strategy == "fsdp" and self.fsdp.version == 2 and self.fsdp.wraps_embeddings
        return (
            self.loss == "chunked"
            and shards
            and self.method != "full"
            and "lm_head" not in (self.modules_to_save or ())
        )

    @property
    def engine_casts(self) -> bool:
        """Whether DeepSpeed casts every floating-point weight to `dtype`, adapters included."""
        return engine_casts(self.strategy, self.quantize)

    @property
    def is_mapped(self) -> bool:
        """Whether transformers itself loads the model onto the card, rather than to the host first."""
        if self.layers_of == "torchtune":
            return False
        return self.quantize != "none" or self.strategy == "device_map" if self.device_map is None else self.device_map

    @property
    def casts(self) -> bool:
        """Whether the forward runs under torch.autocast; accelerate leaves that out around ``fully_shard``."""
        return self.autocast != "none" and (self.strategy != "fsdp" or self.fsdp.version == 1)

    @property
    def forward_autocast(self) -> str | None:
        """Dtype of the torch.autocast that the loss is computed under; verl's is on with half-precision weights too.

        (verl 0.7.1, workers/actor/dp_actor.py: _forward_micro_batch; 0.9.1, workers/engine/fsdp: forward_step, which
        its supervised trainer runs as well.)
        """
        if self.loss == "log_probs":
            return "bf16"
        return self.autocast if self.casts else None

    @property
    def uses_deepspeed(self) -> bool:
        """Whether DeepSpeed runs the job (ZeRO stages 0 to 3)."""
        return self.strategy.startswith("zero")

    @property
    def shards_weights(self) -> bool:
        """Whether each GPU keeps a part of the weights (ZeRO-3, FSDP)."""
        return self.strategy in ("zero3", "fsdp")

    @property
    def processes(self) -> int:
        """Number of GPUs with a process of their own; 1 under device_map."""
        return 1 if self.strategy == "device_map" else self.num_gpus

    @property
    def sequence_parallel(self) -> int:
        """GPUs that share the tokens of a micro-batch, in verl or in ms-swift."""
        return max(self.verl.sequence_parallel, self.swift.sequence_parallel)

    @property
    def data_parallel(self) -> int:
        """Number of micro-batches that run at a time, on a GPU each or on GPUs that share its samples.

        Of packed rows verl's GPUs each have one, ms-swift's share one.
        """
        shared = self.swift.sequence_parallel if self.joins_samples else self.sequence_parallel
        return max(1, self.processes // shared)

    @property
    def global_batch_size(self) -> int:
        """Rows of one optimizer step: its samples, or rows in which samples are packed."""
        return self.data_parallel * self.micro_batch_size * self.gradient_accumulation_steps
