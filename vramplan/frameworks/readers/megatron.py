"""Megatron's arguments: pretrain_gpt.py and its like, ``megatron sft``, ``pt`` and ``rlhf`` of ms-swift.

They are recognised and refused, with the names of everything that is not modelled: Megatron's layers, its fp32 main
gradients and its distributed optimizer (megatron/training/arguments.py; ms-swift 4.6.0, swift/megatron/arguments); of
ms-swift's the estimate of transformers' layers under DeepSpeed is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import UnsupportedError
from vramplan.frameworks.framework import Framework, Program
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.parsed_config import ParsedConfig, num_started_processes
from vramplan.frameworks.settings import ConfigReader, ConfigSource
from vramplan.inputs.images import IMAGE_PROCESSORS
from vramplan.inputs.tasks import RERANKERS

DEGREES = {
    "tensor_model_parallel_size": "tensor parallelism",
    "pipeline_model_parallel_size": "a pipeline over GPUs",
    "context_parallel_size": "context parallelism",
    "expert_model_parallel_size": "expert parallelism",
    "expert_tensor_parallel_size": "tensor parallelism of experts",
}
SWITCHES = {
    "use_megatron_fsdp": "Megatron's FSDP",
    "use_torch_fsdp2": "FSDP2",
    "optimizer_cpu_offload": "an optimizer on the host",
    "fine_grained_activation_offloading": "activations on the host",
    "cpu_offloading": "layers on the host",
    "use_precision_aware_optimizer": "a precision-aware optimizer",
    "sequence_parallel": "sequence parallelism",
    "recompute_activations": "selective recomputation",
}
TASKS = {
    "dpo": "dpo", "kto": "kto", "rm": "reward", "grpo": "grpo", "gkd": "gkd",
    "seq_cls": "sequence_classification", "embedding": "embedding", "reranker": "reranker",
    "generative_reranker": "generative_reranker",
}  # fmt: skip
"""Values of rlhf_type and task_type -> the task of the nearest estimate."""
WITHOUT_ZERO3 = ("gkd", "embedding", *RERANKERS)
"""Tasks that are not modelled under ZeRO-3; neither are others with images, or with adapters beside a reference."""


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """Refuse the configuration.

    Raises:
        UnsupportedError: always, naming every setting that would have to be modelled.
    """
    roles = _roles(config)
    unmodelled = [
        f"--{name.replace('_', '-')} {roles.integer(name, default=1)} ({description})"
        for name, description in DEGREES.items()
        if roles.integer(name, default=1) > 1
    ]
    unmodelled += [
        f"--{name.replace('_', '-')} ({description})"
        for name, description in SWITCHES.items()
        if roles.boolean(name, default=False)
    ]
    granularity = roles.lowercase("recompute_granularity", default="")
    if granularity not in ("", "none"):
        unmodelled.append(f"--recompute-granularity {granularity}")
    if roles.lowercase("fp8_format", default="none") not in ("none", ""):
        unmodelled.append("--fp8-format")
    unmodelled.append("Megatron's own layers, fp32 main gradients and optimizer")
    error = f"{config.source.where}: Megatron is not modelled yet: {', '.join(unmodelled)}"
    if roles.has("model", "load", "mcore_model", "rlhf_type", "tuner_type", "train_type"):
        error += f"; nearest, transformers' layers with DeepSpeed: {_nearest(roles, num_gpus)}"
    raise UnsupportedError(error)


def _roles(config: ConfigReader) -> ConfigReader:
    """The settings with those of the role that trains, which configurations for Ray have in a section."""
    train = config.source.settings.get("train")
    if train is None or not isinstance(train.value, dict):
        return config
    section = config.section("train")
    assert section is not None
    settings = {**config.source.settings, **section.source.settings}
    source = ConfigSource(settings, config.source.environment, config.source.command, config.source.where)
    return ConfigReader(source, config.framework)


def _nearest(config: ConfigReader, num_gpus: int) -> str:
    """The estimate with transformers' layers: weights divided by ZeRO-3 where that is modelled."""
    model = (config.string("model", "load", "mcore_model") or "").removesuffix("-mcore")
    task = TASKS.get(config.lowercase("rlhf_type", "task_type", default=""))
    gpus = config.integer("gpus", default=num_started_processes(config, num_gpus) or num_gpus)
    method = "full" if config.lowercase("tuner_type", "train_type", default="full") == "full" else "lora"
    spec = config.source.model
    sees = task is not None and spec is not None and spec.model_type in IMAGE_PROCESSORS
    divides = method == "full" and task not in WITHOUT_ZERO3 and not sees
    job: dict[str, Any] = {
        "task": task,
        "method": method,
        "micro_batch_size": config.integer("micro_batch_size", default=1),
        "num_gpus": gpus,
        "checkpointing": "full" if config.lowercase("recompute_granularity", default="none") == "full" else "none",
        "sequence_length": config.integer("max_length", "seq_length", default=2048),
    }
    job |= {"strategy": "zero3" if divides else "zero2"} if gpus > 1 else {}
    job |= {"lora_rank": config.integer("lora_rank", default=8)} if method == "lora" else {}
    job |= {"attention": "flash"} if config.lowercase("attention_backend", default="flash") == "flash" else {}
    job["gradient_accumulation_steps"] = max(
        1, config.integer("global_batch_size", default=1) // (job["micro_batch_size"] * gpus)
    )
    return estimate_command(model, job | _lengths(config, job))


def _lengths(config: ConfigReader, job: Mapping[str, Any]) -> dict[str, Any]:
    """A generation's: max_length limits prompts, and completions come behind them."""
    if job["task"] == "gkd":
        return {"teacher": config.string("teacher_model") or "TEACHER"}
    if job["task"] != "grpo":
        return {}
    completion = config.integer("max_completion_length", default=512)
    lengths = {"prompt_length": job["sequence_length"], "sequence_length": job["sequence_length"] + completion}
    generations = {"num_generations": config.integer("num_generations", default=8), "generate_with": "vllm_server"}
    beta = config.number("beta", default=0.04)
    return (
        lengths | generations | ({"reference": "model" if job["method"] == "full" else "adapters_off"} if beta else {})
    )


FRAMEWORK = Framework(
    name="megatron",
    read=read,
    commands=(
        ("megatron", "sft"),
        ("megatron", "pt"),
        ("megatron", "rlhf"),
        *((f"_megatron/{name}.py",) for name in ("sft", "pt", "rlhf")),
        *((f"pretrain_{kind}.py",) for kind in ("gpt", "bert", "t5", "vlm")),
    ),
    programs=(Program("rlhf.py", frozenset({"rlhf_type", "tensor_model_parallel_size"})),),
    task_keys=("rlhf_type",),
    marks=frozenset({"tensor_model_parallel_size", "recompute_granularity", "global_batch_size", "colocate_groups"}),
)
