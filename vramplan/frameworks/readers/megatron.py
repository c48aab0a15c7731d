"""Megatron's arguments: pretrain_gpt.py and its like, ``megatron sft`` and ``megatron pt`` of ms-swift.

They are recognised and refused, with the names of everything that is not modelled: Megatron's layers, its fp32 main
gradients and its distributed optimizer (megatron/training/arguments.py; ms-swift 4.6.0, swift/megatron/arguments).
"""

from __future__ import annotations

from vramplan.errors import UnsupportedError
from vramplan.frameworks.framework import Framework
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.settings import ConfigReader

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


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """Refuse the configuration.

    Raises:
        UnsupportedError: always, naming every setting that would have to be modelled.
    """
    unmodelled = [
        f"--{name.replace('_', '-')} {config.integer(name, default=1)} ({description})"
        for name, description in DEGREES.items()
        if config.integer(name, default=1) > 1
    ]
    unmodelled += [
        f"--{name.replace('_', '-')} ({description})"
        for name, description in SWITCHES.items()
        if config.boolean(name, default=False)
    ]
    granularity = config.lowercase("recompute_granularity", default="")
    if granularity not in ("", "none"):
        unmodelled.append(f"--recompute-granularity {granularity}")
    if config.lowercase("fp8_format", default="none") not in ("none", ""):
        unmodelled.append("--fp8-format")
    unmodelled.append("Megatron's own layers, fp32 main gradients and optimizer")
    raise UnsupportedError(f"{config.source.where}: Megatron is not modelled yet: {', '.join(unmodelled)}")


FRAMEWORK = Framework(
    name="megatron",
    read=read,
    commands=(
        ("megatron", "sft"),
        ("megatron", "pt"),
        *((f"pretrain_{kind}.py",) for kind in ("gpt", "bert", "t5", "vlm")),
    ),
    marks=frozenset({"tensor_model_parallel_size", "recompute_granularity", "global_batch_size"}),
)
