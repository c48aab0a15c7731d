"""allenai/open-instruct's ``open_instruct/finetune.py`` (e6c3044, 2026): accelerate with a loop of its own."""

from __future__ import annotations

from dataclasses import replace

from vramplan.errors import ConfigError
from vramplan.frameworks.framework import Framework, Program
from vramplan.frameworks.liger import ALL_KERNELS
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, resolve_version
from vramplan.frameworks.readers.trainer_arguments import NAMES, checkpoint_dtype, num_processes, trainer_fields
from vramplan.frameworks.readers.trainer_programs import adapter_counts, checkpointing_fields
from vramplan.frameworks.readers.transformers_trainer import NEWEST
from vramplan.frameworks.settings import ConfigReader, ConfigValue

TARGETS = ("q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj")
UNREAD = {
    "dpo": "preference training",
    "dpo_tune_cache": "preference training",
    "dpo_tune": "preference training",
    "grpo_fast": "reinforcement training",
    "grpo": "reinforcement training",
    "ppo_vllm_thread_ray_gtrl": "reinforcement training",
    "reward_modeling": "training a reward model",
    "olmo_core_finetune": "training by OLMo-core",
}


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of ``main()``: the dtypes of its models, its adapters and its optimizers."""
    version = resolve_version("transformers", framework_version, NEWEST)
    half = _precision(config)
    lora, qlora = (config.boolean(f"use_{name}", default=False) for name in ("lora", "qlora"))
    if qlora and not lora:
        raise ConfigError(f"{config.place('use_qlora')}: use_qlora trains nothing without use_lora; add --use_lora")
    job = trainer_fields(config) | {"method": "lora" if lora else "full", "autocast": half, "dtype": "bf16"}
    job["optimizer"] = _optimizer(config, qlora, str(job["optimizer"]))
    if qlora:  # loaded without Liger
        job = {name: value for name, value in job.items() if name not in ALL_KERNELS}
    elif config.boolean("use_liger_kernel", default=False):
        if config.lowercase("reduce_loss", default="mean") != "mean":  # a loss of its own
            job["loss"] = "standard"
        job["dtype"] = checkpoint_dtype(config, "use_liger_kernel", "AutoLigerKernelForCausalLM loads")
    if lora:
        job |= adapter_counts(config, 64, 0.1) | {"lora_dtype": "fp32", "lora_targets": TARGETS}
    if qlora:
        job |= {"quantize": "nf4", "double_quant": True, "prepare_for_kbit_training": True, "device_map": True}
    if half == "none" or str(job.get("strategy")).startswith("zero"):
        job["loop"] = "plain"  # it keeps the loss alone, and accelerate does not cast the logits
    job |= checkpointing_fields(config, job, version[0])
    if config.boolean("use_flash_attn", default=True):  # found by itself in newer versions, if it is installed
        job["attention"] = "flash"
    if config.has("max_seq_length"):
        job["sequence_length"] = config.integer("max_seq_length", default=1)
    if config.boolean("packing", default=False):
        job["batches"] = "packed"
    launched = {"nproc_per_node", "num_processes"} & config.source.settings.keys()
    job["num_gpus"] = num_processes(config, num_gpus) if launched else 1
    keys = ("micro_batch_size", "gradient_accumulation_steps", "loss", "checkpointing", "lora_dropout")
    names: dict[str, KeyNames] = {key: NAMES[key] for key in keys} | {
        "sequence_length": "max_seq_length",
        "method": {"lora": "use_lora true"},
        "attention": {"sdpa": "use_flash_attn false"},
    }
    shown = f"with transformers {version[0]} ({version[1]})"
    return ParsedConfig(FRAMEWORK.name, shown, config.string("model_name_or_path") or "", job, names, config.notes)


def _precision(config: ConfigReader) -> str:
    """Accelerate's mixed precision, which DeepSpeed's configuration is compared with like the Trainer's flags."""
    half = config.variable("ACCELERATE_MIXED_PRECISION") or "no"
    if half not in ("bf16", "fp16"):
        return "none"
    settings = {**config.source.settings, half: ConfigValue(True, "mixed_precision")}
    config.source = replace(config.source, settings=settings)
    return half


def _optimizer(config: ConfigReader, qlora: bool, fused: str) -> str:
    """AdamW, `fused` by default; bitsandbytes' paged one with use_qlora alone."""
    eight = config.boolean("use_8bit_optimizer", default=False)
    if qlora:
        return "paged_adamw_8bit" if eight else "paged_adamw_32bit"
    if eight:
        config.note("warning", "use_8bit_optimizer", "has no effect without use_qlora")
    if config.boolean("fused_optimizer", default=True):
        return fused
    return "adamw_torch"


OWN = frozenset({"dataset_mixer_list", "dataset_mixer", "use_slow_tokenizer", "checkpointing_steps", "with_tracking"})
FRAMEWORK = Framework(
    name="open-instruct",
    read=read,
    programs=(
        Program("open_instruct/finetune.py"),
        *(Program(f"open_instruct/{name}.py", unread=task) for name, task in UNREAD.items()),
        Program("finetune.py", OWN),
    ),
    marks=frozenset({"use_slow_tokenizer", "dataset_mix_dir", "keep_last_n_checkpoints", "checkpointing_steps"}),
    inherits=("transformers",),
)
