"""What verl's engine ``fsdp`` makes of a model, in supervised and in reinforcement training (0.9.0).

(verl/workers/engine/fsdp/transformer_impl.py; before 0.8 workers/fsdp_workers.py.) `prefix` is of its section's keys.
"""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.readers.trainer_arguments import DTYPES
from vramplan.frameworks.settings import ConfigReader

FLASH = "flash_attention_2"


def sharding(config: ConfigReader, gpus: int, prefix: str) -> dict[str, Any]:
    """FullyShardedDataParallel as it is called; what is not named is torch's default (transformer_impl.py)."""
    fields: dict[str, Any] = {
        "version": 1,
        "reshard_after_forward": config.boolean(f"{prefix}reshard_after_forward", default=True),
        "use_orig_params": config.boolean(f"{prefix}use_orig_params", default=False),
        "backward_prefetch": "pre",
        "reduce_dtype": "fp32",
    }
    size = -1
    if not config.is_null(f"{prefix}fsdp_size") and str(getattr(config.get(f"{prefix}fsdp_size"), "value", -1)) != "-1":
        size = config.integer(f"{prefix}fsdp_size", default=1)
    if 0 < size < gpus:
        if size == 1:
            raise config.unsupported(f"{prefix}fsdp_size", "shards nothing (NO_SHARD), which is not modelled")
        if gpus % size:
            raise ConfigError(f"{config.place(f'{prefix}fsdp_size')}: {size} does not divide {gpus} GPUs")
        fields["replicas"] = gpus // size
    return fields


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
