"""What verl's engine ``fsdp`` makes of a model, in supervised and in reinforcement training (0.9.0).

(verl/workers/engine/fsdp/transformer_impl.py; before 0.8 workers/fsdp_workers.py.) `prefix` is of its section's keys.
"""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.readers.trainer_arguments import DTYPES
from vramplan.frameworks.settings import ConfigReader

FLASH = "flash_attention_2"
VERSIONS = {"fsdp": 1, "fsdp2": 2}
"""The version of FSDP by a strategy."""


def fsdp_version(config: ConfigReader, name: str) -> int:
    """The version of FSDP by a key of its strategy.

    Raises:
        UnsupportedError: for another strategy.
    """
    strategy = config.lowercase(name, default="fsdp")
    if strategy not in VERSIONS:
        raise config.unsupported(name, f"is not modelled yet; modelled: {', '.join(VERSIONS)}")
    return VERSIONS[strategy]


def sharding(config: ConfigReader, gpus: int, prefix: str, version: int = 1) -> dict[str, Any]:
    """FSDP as it is called; what is not named is torch's default (transformer_impl.py).

    Raises:
        ConfigError: for a number of GPUs in a group that does not divide all.
        UnsupportedError: for what is not modelled.
    """
    orig_params = config.boolean(f"{prefix}use_orig_params", default=False)
    fields: dict[str, Any] = {
        "version": version,
        "reshard_after_forward": config.boolean(f"{prefix}reshard_after_forward", default=True),
        **({"use_orig_params": orig_params, "backward_prefetch": "pre"} if version == 1 else {}),
        "reduce_dtype": _reduce_dtype(config, prefix),
    }
    if version == 2 and gpus == 1:
        raise UnsupportedError(
            f"{config.source.where}: one GPU under fsdp2 is not modelled; use fsdp, or if there are more GPUs, give"
            f" {setting('num_gpus')}"
        )
    size = -1
    if not config.is_null(f"{prefix}fsdp_size") and str(getattr(config.get(f"{prefix}fsdp_size"), "value", -1)) != "-1":
        size = config.integer(f"{prefix}fsdp_size", default=1)
    if 0 < size < gpus:
        if version == 2:
            raise config.unsupported(f"{prefix}fsdp_size", "is not modelled with fsdp2 yet; modelled: -1, or fsdp")
        if size == 1:
            raise config.unsupported(f"{prefix}fsdp_size", "shards nothing (NO_SHARD), which is not modelled")
        if gpus % size:
            raise ConfigError(f"{config.place(f'{prefix}fsdp_size')}: {size} does not divide {gpus} GPUs")
        fields["replicas"] = gpus // size
    return fields


def prefetching(config: ConfigReader, prefix: str, version: int) -> dict[str, bool]:
    """Whether layers are gathered ahead in a forward.

    Raises:
        UnsupportedError: for it under FSDP 1.
    """
    name = f"{prefix}forward_prefetch"
    if not config.boolean(name, default=False):
        return {}
    if version == 1:
        raise config.unsupported(name, "is not modelled with fsdp yet; modelled: False, or fsdp2")
    return {"forward_prefetch": True}


def offloads_for_good(config: ConfigReader, prefix: str, version: int) -> bool:
    """Whether the host keeps the model and updates it, which FSDP 2 alone does (engine/fsdp.yaml)."""
    name = f"{prefix}offload_policy"
    if not config.boolean(name, default=False):
        return False
    if version == 1:
        config.note("warning", name, "has no effect under fsdp; with fsdp2 the host keeps weights and states")
    return version == 2


def _reduce_dtype(config: ConfigReader, prefix: str) -> str:
    """Dtype in which gradients are reduced (MixedPrecision), beside weights in bf16 and buffers in any.

    Raises:
        UnsupportedError: for weights that are gathered in another.
    """
    names = {name: f"{prefix}mixed_precision.{name}" for name in ("param_dtype", "reduce_dtype", "buffer_dtype")}
    given = {
        name: DTYPES.get(config.lowercase(key, default=default), "")
        for (name, key), default in zip(names.items(), ("bf16", "fp32", "fp32"), strict=True)
    }
    for name, modelled in (("param_dtype", ("bf16",)), ("reduce_dtype", ("fp32", "bf16"))):
        if given[name] not in modelled:
            raise config.unsupported(names[name], f"is not modelled yet; modelled: {', '.join(modelled)}")
    return given["reduce_dtype"]


def dtypes(config: ConfigReader, prefix: str) -> dict[str, str]:
    """Weights are stored in `model_dtype` and gathered in bf16, under torch.autocast to bf16.

    Where they are bf16 already nothing is cast.
    """
    dtype = config.lowercase(f"{prefix}model_dtype", default="fp32")
    if DTYPES.get(dtype) not in ("fp32", "bf16"):
        raise config.unsupported(f"{prefix}model_dtype", "is not modelled yet; modelled: fp32, bf16")
    if not config.has(f"{prefix}model_dtype"):
        config.note("default", f"{prefix}model_dtype", "not set: fp32")
    return {"dtype": DTYPES[dtype], "autocast": "bf16" if DTYPES[dtype] == "fp32" else "none"}


def optimizer(config: ConfigReader, prefix: str) -> str:
    """AdamW of torch without arguments about its implementation (workers/config/optimizer.py: build_optimizer)."""
    for name, value in ((f"{prefix}optimizer", "AdamW"), (f"{prefix}optimizer_impl", "torch.optim")):
        if config.lowercase(name, default=value.lower()) != value.lower():
            raise config.unsupported(name, f"is not modelled yet; modelled: {value}")
    overrides = f"{prefix}override_optimizer_config."
    for name in config.source.settings:
        if name.startswith(overrides):
            raise config.unsupported(name)
    return "adamw_torch"


def attention(config: ConfigReader, prefix: str) -> str:
    """FlashAttention 2 unless the model's configuration is overridden."""
    overrides = f"{prefix}override_config."
    names = [name for name in config.source.settings if name.startswith(overrides)]
    for name in names:
        if name != f"{overrides}attn_implementation" or config.lowercase(name, default=FLASH) != FLASH:
            raise config.unsupported(name, f"is not modelled yet; modelled: attn_implementation {FLASH}")
    return "flash"
