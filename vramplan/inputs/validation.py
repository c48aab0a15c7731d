"""Whether a job can run on a GPU at all, whichever estimator works out its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import CannotRunError, ConfigError, UnsupportedError, name_settings, nearest_names, setting
from vramplan.inputs.distillation_rules import DISTILLATION_RULES
from vramplan.inputs.former_names import FORMER_FIELDS
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.image_task_rules import IMAGE_TASK_RULES
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.ppo_rules import PPO_RULES
from vramplan.inputs.rollout_rules import ROLLOUT_RULES
from vramplan.inputs.rule import IMPOSSIBLE, UNSUPPORTED, Rule
from vramplan.inputs.swift_rules import SWIFT_RULES
from vramplan.inputs.task_rules import TASK_RULES, saved_head

LINEAR_EXPERTS = frozenset(
    {
        *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe"),
        *("deepseek_v2", "deepseek_v3", "glm4_moe", "glm4v_moe", "dots1"),
        *("ernie4_5_moe", "hunyuan_v1_moe", "flex_olmo"),
    }
)
"""Architectures whose experts were separate linear layers before transformers 5 (4.57, modeling_<type>.py)."""
OLDER_UNKNOWN = frozenset(
    {"minimax_m2", "laguna", "mellum", "solar_open", "exaone_moe", "afmoe", "cohere2_moe", "hy_v3"}
)
"""Mixtures of which transformers 4.57 has no class; what their own code did is not described."""


def are_linear(spec: ModelSpec, job: Job) -> bool:
    """Whether the job asks for experts as separate linear layers, and the architecture had such."""
    return job.experts == "linear" and spec.model_type in LINEAR_EXPERTS


METHOD_RULES = (
    Rule(
        lambda job: job.quantize != "none" and job.method == "full",
        IMPOSSIBLE,
        "{quantize} with {method}: quantized weights cannot train",
    ),
    Rule(
        lambda job: bool(job.modules_to_save) and job.method == "full",
        IMPOSSIBLE,
        "modules_to_save has no meaning with {method}: every weight trains",
    ),
    Rule(
        lambda job: bool(job.saved_dtype) and not job.modules_to_save,
        IMPOSSIBLE,
        "saved_dtype needs modules_to_save: it is their dtype",
    ),
    Rule(
        lambda job: job.prepare_for_kbit_training and job.quantize == "none",
        IMPOSSIBLE,
        "prepare_for_kbit_training needs {quantize=nf4} or int8: it casts what is not quantized",
    ),
)
LOOP_RULES = (
    Rule(
        lambda job: (
            job.optimizer_in_backward
            and (job.layers_of != "torchtune" or job.method != "full" or job.task is not None or job.offload != "none")
        ),
        UNSUPPORTED,
        "optimizer_in_backward is modelled for torchtune's full fine-tuning: layers_of torchtune, {method=full} and"
        " {offload=none}",
    ),
    Rule(
        lambda job: job.layers_of == "torchtune" and job.method == "dora" and job.task is not None,
        UNSUPPORTED,
        "{method} with {task} is not modelled for torchtune's layers; use {method=lora}",
    ),
    Rule(
        lambda job: job.offloads_activations and job.checkpointing != "full",
        IMPOSSIBLE,
        "offloads_activations with {checkpointing}: torchtune stops at it; use {checkpointing=full}",
    ),
    Rule(
        lambda job: job.offloads_activations and (job.layers_of != "torchtune" or job.task is not None),
        UNSUPPORTED,
        "offloads_activations is modelled for torchtune's supervised fine-tuning: layers_of torchtune",
    ),
    Rule(
        lambda job: job.keeps_outputs and (job.loop != "plain" or job.strategy != "ddp" or job.loss != "standard"),
        UNSUPPORTED,
        "keeps_outputs is modelled for {loop=plain}, {strategy=ddp} and {loss=standard}",
    ),
    Rule(
        lambda job: job.batches == "flattened" and job.attention == "flash",
        IMPOSSIBLE,
        "{batches} with {attention}: FlashAttention holds no mask, and one row needs what several do; use"
        " {batches=packed}",
    ),
    Rule(
        lambda job: job.batches == "flattened" and job.pictures > 0,
        UNSUPPORTED,
        "{batches} with images is not modelled yet; TRL stops at padding_free with them; use {batches=padded}",
    ),
)


def _is_own_fsdp2(job: Job) -> bool:
    """Whether FSDP 2 shards the job as accelerate sets it up, and neither verl nor torchtune."""
    is_own = job.loss != "log_probs" and job.layers_of == "transformers"
    return job.strategy == "fsdp" and job.fsdp.version == 2 and is_own


def _is_run_by_torchtune(job: Job) -> bool:
    """Whether one of torchtune's recipes may run the job, on one GPU or sharded."""
    is_sharded = job.strategy == "fsdp" and job.fsdp.version == 2 and job.fsdp.sync_each_batch and job.num_gpus > 1
    is_alone = job.strategy == "ddp" and job.num_gpus == 1
    return job.loop == "plain" and job.autocast == "none" and job.quantize != "int8" and (is_sharded or is_alone)


STRATEGY_RULES = (
    Rule(
        lambda job: (
            job.layers_of == "torchtune"
            and job.strategy == "fsdp"
            and job.optimizer not in ("adamw_torch_fused", "adamw_torch", "adamw_torch_loop", "sgd", "sgd_momentum")
        ),
        UNSUPPORTED,
        "{optimizer} on weights that torchtune shards was not compared with a run; use {optimizer=adamw_torch_fused}",
    ),
    Rule(
        lambda job: job.layers_of == "torchtune" and not _is_run_by_torchtune(job),
        UNSUPPORTED,
        "layers_of torchtune is modelled for {loop=plain}, {autocast=none} and {quantize=none} or nf4, on one GPU or on"
        " several under {strategy=fsdp} version 2 with sync_each_batch",
    ),
    Rule(
        lambda job: job.num_gpus % job.num_nodes != 0,
        IMPOSSIBLE,
        "{num_nodes} with {num_gpus}: every node has as many GPUs; give a number of nodes that divides the GPUs",
    ),
    Rule(
        lambda job: job.num_nodes > 1 and job.strategy == "device_map",
        IMPOSSIBLE,
        "{num_nodes} with {strategy}: it is one process on one node; give {num_nodes=1}",
    ),
    Rule(
        lambda job: job.offload != "none" and job.strategy in ("ddp", "device_map"),
        IMPOSSIBLE,
        "{offload} needs DeepSpeed or FSDP: {strategy=zero2}, zero3 or fsdp",
    ),
    Rule(
        lambda job: job.offload == "all" and job.strategy in ("zero1", "zero2"),
        IMPOSSIBLE,
        "{offload}: DeepSpeed offloads weights at stage 3 alone; give {strategy=zero3}",
    ),
    Rule(
        lambda job: job.offload != "none" and job.strategy == "zero0",
        IMPOSSIBLE,
        "{offload}: DeepSpeed offloads from stage 1 on; give {strategy=zero2}",
    ),
    Rule(
        lambda job: job.offload == "optimizer" and job.strategy == "fsdp",
        IMPOSSIBLE,
        "{offload}: FSDP offloads weights, gradients and optimizer states together; give {offload=all}",
    ),
    Rule(
        lambda job: job.uses_deepspeed and job.autocast != "none",
        IMPOSSIBLE,
        "{autocast}: DeepSpeed casts the weights themselves (set {dtype}) and keeps fp32 copies in its optimizer; give"
        " {autocast=none}",
    ),
    Rule(
        lambda job: job.strategy == "zero1" and job.zero.overlap_comm and job.offload != "none",
        UNSUPPORTED,
        "zero: overlap_comm at stage 1 with {offload} is not modelled yet; set it to false in DeepSpeed's file",
    ),
    *(
        Rule(applies, UNSUPPORTED, f"{{strategy}} with {name} is not modelled yet; use zero2")
        for name, applies in (
            ("{quantize}", lambda job: job.strategy == "zero0" and job.quantize != "none"),
            ("{method}", lambda job: job.strategy == "zero0" and job.method == "dora"),
            ("modules_to_save", lambda job: job.strategy == "zero0" and bool(job.modules_to_save)),
            ("prepare_for_kbit_training", lambda job: job.strategy == "zero0" and job.prepare_for_kbit_training),
            ("fp32_norms", lambda job: job.strategy == "zero0" and job.fp32_norms),
        )
    ),
    Rule(
        lambda job: bool(job.device_map) and job.shards_weights,
        IMPOSSIBLE,
        "device_map with {strategy}, which shards weights as they are loaded",
    ),
    Rule(
        lambda job: job.fsdp.replicas > 1 and (job.fsdp.version != 1 or job.num_gpus % job.fsdp.replicas != 0),
        IMPOSSIBLE,
        "fsdp: replicas: hybrid sharding needs FSDP version 1 and a number of GPUs that the replicas divide",
    ),
    Rule(
        lambda job: job.fsdp.sync_each_batch and _is_own_fsdp2(job),
        UNSUPPORTED,
        "fsdp: sync_each_batch is modelled for FSDP version 1, and for version 2 of torchtune (layers_of) and verl"
        " ({loss=log_probs})",
    ),
    Rule(
        lambda job: job.fsdp.reduce_dtype is not None and _is_own_fsdp2(job),
        UNSUPPORTED,
        "fsdp: reduce_dtype is modelled for FSDP version 1, and for verl's version 2 ({loss=log_probs}); leave it out",
    ),
)
ZERO3_RULES = (  # DeepSpeed 0.19
    Rule(
        lambda job: job.quantize == "int8",
        UNSUPPORTED,
        "{strategy} {quantize}: bitsandbytes keeps every weight whole beside its shard, which is not modelled; use"
        " {quantize=nf4}, or zero2",
    ),
    Rule(
        lambda job: job.quantize == "nf4" and job.quant_storage not in (None, "uint8", job.dtype),
        IMPOSSIBLE,
        "{strategy} with {quant_storage}: DeepSpeed would cast four-bit weights packed in it to {dtype} as if they were"
        " numbers; pack them in the same dtype (bnb_4bit_quant_storage)",
    ),
    Rule(
        lambda job: (
            bool(job.modules_to_save or saved_head(job))
            and not job.engine_casts
            and job.lora_dtype != (job.saved_dtype or job.dtype)
        ),
        IMPOSSIBLE,
        "{strategy} with adapters and copies of modules that train (modules_to_save, a reward model's head): DeepSpeed"
        " puts all in one tensor and stops, as adapters ({lora_dtype}) and copies ({dtype}) differ in dtype; use one"
        " dtype (PEFT's autocast_adapter_dtype=False, ms-swift's lora_dtype)",
    ),
)
FSDP_RULES = (  # torch 2.13 on what accelerate 1.15 wraps of PEFT 0.21 and bitsandbytes 0.50
    Rule(
        lambda job: job.quantize == "int8" and job.fsdp.version == 1,
        IMPOSSIBLE,
        "{strategy} {quantize}: FSDP 1 does not flatten integers; use {quantize=nf4}, or {strategy=zero2}",
    ),
    Rule(
        lambda job: job.quantize == "int8",
        IMPOSSIBLE,
        "{strategy} {quantize}: FSDP 2 replaces bitsandbytes' weights by plain parameters; use {quantize=nf4}, or"
        " {strategy=zero2}",
    ),
    Rule(
        lambda job: job.quantize == "nf4" and job.fsdp.version == 1 and job.quant_storage == "uint8",
        IMPOSSIBLE,
        "{strategy} with {quant_storage}: FSDP 1 does not flatten integers; set bnb_4bit_quant_storage to the dtype of"
        " the other weights, {dtype}",
    ),
    Rule(
        lambda job: job.quantize == "nf4" and (job.quant_storage or job.dtype) not in ("uint8", job.dtype),
        IMPOSSIBLE,
        "{strategy} with {quant_storage}: four-bit weights packed in it are not gathered with {dtype} weights; set"
        " bnb_4bit_quant_storage to the dtype of the other weights",
    ),
)
FSDP1_RULES = (
    *(
        Rule(
            applies,
            IMPOSSIBLE,
            f"{{strategy}} with {name}: FSDP 1 flattens weights of one dtype alone, and norms are fp32 beside other"
            " weights in {dtype}; leave it out, or use FSDP version 2",
        )
        for name, applies in (
            ("prepare_for_kbit_training", lambda job: job.prepare_for_kbit_training),
            ("fp32_norms", lambda job: job.fp32_norms and job.dtype != "fp32"),
        )
    ),
    Rule(
        lambda job: job.method == "dora",
        IMPOSSIBLE,
        "{strategy} {method}: under FSDP 1 PEFT finds no shape of a weight that is not gathered; use FSDP version 2",
    ),
    Rule(
        lambda job: bool(job.modules_to_save),
        UNSUPPORTED,
        "{strategy} with modules_to_save is modelled for FSDP 2 alone; use FSDP version 2",
    ),
    Rule(
        lambda job: job.quantize == "nf4" and job.autocast == "none" and job.lora_dtype != job.dtype,
        IMPOSSIBLE,
        "{strategy} {quantize} {autocast}: under FSDP 1 inputs ({dtype}) and adapters ({lora_dtype}) differ in dtype;"
        " give both one dtype, use autocast with {dtype}, or FSDP version 2",
    ),
    Rule(
        lambda job: job.quantize == "nf4" and not job.fsdp.reshard_after_forward and job.fsdp.use_orig_params,
        IMPOSSIBLE,
        "{strategy} {quantize} with SHARD_GRAD_OP: bitsandbytes replaces gathered weights, which FSDP 1 takes for a"
        " change between forward and backward; use FULL_SHARD, use_orig_params: false or FSDP version 2",
    ),
)
DEVICE_MAP_RULES = (
    Rule(
        lambda job: job.strategy == "device_map" and job.loss not in ("standard", "liger", "chunked"),
        UNSUPPORTED,
        "{strategy} with {loss} is not modelled yet; use {loss=standard}",
    ),
    Rule(
        lambda job: (
            job.strategy in ("fsdp", "device_map") and job.num_gpus == 1 and not job.runs_verl
        ),  # which wraps one
        IMPOSSIBLE,
        "{strategy} needs more than one GPU: {num_gpus=2} or more",
    ),
)


def check_job(job: Job, gpu: Gpu, trains: bool = True) -> None:
    """Refuse what no estimator models, and what the GPU cannot run; `trains`: whether weights do, or only run.

    Raises:
        UnsupportedError: for a setting that is known but not modelled.
        ConfigError: for one that cannot run.
    """
    _apply(METHOD_RULES, job)
    _apply(TASK_RULES, job)
    _apply(ROLLOUT_RULES, job)
    _apply(SWIFT_RULES, job)
    _apply(DISTILLATION_RULES, job)
    _apply(PPO_RULES, job)
    _apply(IMAGE_TASK_RULES, job)
    check_sharing(job)
    check_card(job, gpu, trains)


def check_sharing(job: Job) -> None:
    """Refuse what a strategy cannot do, or what is not modelled of it.

    Raises:
        UnsupportedError: for a setting that is known but not modelled.
        ConfigError: for one that cannot run.
    """
    _apply(LOOP_RULES, job)
    _apply(STRATEGY_RULES, job)
    if job.strategy == "zero3":
        _apply(ZERO3_RULES, job)
    if job.strategy == "fsdp":
        _apply(FSDP_RULES, job)
        if job.fsdp.version == 1:
            _apply(FSDP1_RULES, job)
    _apply(DEVICE_MAP_RULES, job)


def _apply(rules: tuple[Rule, ...], job: Job) -> None:
    for rule in rules:
        if rule.applies(job):
            raise rule.error(name_settings(rule.message, job))


def check_spec(spec: ModelSpec) -> None:
    """Refuse a model that is stored otherwise than its configuration suggests.

    Raises:
        UnsupportedError: for a quantized checkpoint.
    """
    if spec.config.get("quantization_config"):
        raise UnsupportedError(f"{spec.name}: quantization_config: quantized checkpoints are not modelled yet")


def check_apple(job: Job, gpu: Gpu) -> None:
    """Refuse what PyTorch's MPS backend does not have, and what is not modelled of it.

    Raises:
        ConfigError: naming the setting, and what runs instead.
        UnsupportedError: the same.
    """
    if job.num_gpus > 1:
        raise ConfigError(f"{setting('num_gpus', job.num_gpus)}: {gpu.title} is one GPU")
    if job.quantize != "none":
        raise ConfigError(
            f"{setting('quantize', job.quantize)}: bitsandbytes' kernels are CUDA's, and {gpu.title} has none;"
            f" use {setting('quantize', 'none')}"
        )
    if "8bit" in job.optimizer or "paged" in job.optimizer or "4bit" in job.optimizer:
        raise ConfigError(
            f"{setting('optimizer', job.optimizer)}: its kernels are CUDA's, and {gpu.title} has none;"
            f" use {setting('optimizer', 'adamw_torch')}"
        )
    if job.attention == "flash":
        raise CannotRunError(
            setting("attention", "flash"),
            f"FlashAttention needs CUDA; {gpu.title} has none",
            {"attention": "eager"},
            {"attention": "eager"},
        )
    if job.attention == "sdpa":  # MATH is chosen for every shape: pytorch#182746, pytorch#179294
        raise UnsupportedError(
            f"{setting('attention', 'sdpa')}: under MPS it holds all attention scores in training, which is not"
            f" modelled; {setting('attention', 'eager')} is"
        )
    if job.fused_kernels:
        raise ConfigError(
            f"{setting('fused_kernels', ','.join(job.fused_kernels))}: Liger's kernels are Triton's, which {gpu.title}"
            f" does not run; use {setting('fused_kernels', 'none')}"
        )
    if job.loss in ("liger", "liger_cross_entropy", "cut", "log_probs"):
        raise ConfigError(
            f"{setting('loss', job.loss)}: its kernels are Triton's, which {gpu.title} does not run;"
            f" use {setting('loss', 'standard')}"
        )


def check_card(job: Job, gpu: Gpu, trains: bool = True) -> None:
    """Refuse what the GPU cannot run; `trains`: whether weights do, or only run.

    Raises:
        CannotRunError: naming the setting, and what runs instead.
        ConfigError: for what runs on no GPU.
    """
    if gpu.vendor == "Apple":
        check_apple(job, gpu)
    if gpu.platform == "windows" and job.data_parallel > 1:
        raise UnsupportedError(
            f"{setting('num_gpus', job.num_gpus)}: NCCL does not exist for Windows, and training over Gloo is not"
            f" modelled; use {setting('gpu', gpu.name + '@wsl2')}"
        )
    matmul_in_fp16 = job.autocast == "fp16"  # bf16 weights are cast, then
    for field, dtype in (("dtype", "none" if matmul_in_fp16 else job.dtype), ("autocast", job.autocast)):
        if dtype == "bf16" and not gpu.supports("bf16"):
            stored = "fp32" if job.method == "full" and not job.uses_deepspeed else "fp16"
            update = {"dtype": stored, "autocast": "fp16"}
            raise CannotRunError(
                setting(field, "bf16"),
                f"{gpu.title} has no bf16 units (compute capability {gpu.compute_capability})",
                {"dtype": stored, "autocast": "none" if job.uses_deepspeed else "fp16"},
                {name: value for name, value in update.items() if getattr(job, name) != value},
            )
    if trains and job.loop == "trainer" and job.autocast == "fp16" and job.trained_dtype == "fp16":
        field = "dtype" if job.method == "full" else "lora_dtype"
        raise CannotRunError(
            f"{setting(field, 'fp16')} {setting('autocast', 'fp16')}",
            "the gradient scaler refuses to unscale fp16 gradients of weights that are stored so",
            {field: "fp32", "autocast": "fp16"},
            {field: "fp32"},
        )
    stays_fp32 = job.dtype == "fp32" or (job.prepare_for_kbit_training and not job.engine_casts)
    if job.attention == "flash" and job.autocast == "none" and stays_fp32:
        raise ConfigError(
            name_settings("{attention}: FlashAttention takes bf16 or fp16 only; add {autocast=bf16}", job)
        )
    if job.attention == "flash" and not gpu.runs_flash:
        raise CannotRunError(
            setting("attention", "flash"),
            f"FlashAttention-2 needs compute capability 8.0; {gpu.title} has {gpu.compute_capability}",
            {"attention": "sdpa"},
            {"attention": "sdpa"},
        )


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings from a file that are no fields of a job: they would reach functions as other arguments.

    Raises:
        ConfigError: naming the first.
    """
    for name in settings:
        if name not in Job.model_fields and name not in FORMER_FIELDS:
            nearest = nearest_names(name, Job.model_fields, 1)
            raise ConfigError(f"{name}: no such setting" + (f"; did you mean {nearest[0]}?" if nearest else ""))
