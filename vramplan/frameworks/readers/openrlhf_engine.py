"""What all of OpenRLHF's trainings read alike: DeepSpeed's settings, adapters, dtype and attention (0.11.2)."""

from __future__ import annotations

from typing import Any

from vramplan.errors import setting
from vramplan.frameworks.readers.trainer_arguments import DTYPES
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.sharding import DEEPSPEED_SIZES


def read_method(config: ConfigReader, dtype: str, stage: int) -> dict[str, Any]:
    """Full fine-tuning, or adapters; the engine casts those that it does not shard while loading."""
    rank = config.integer("ds.lora.rank", "lora_rank", default=0, least=0)
    four_bit = config.boolean("ds.load_in_4bit", "load_in_4bit", default=False)
    if not rank:
        return {"method": "full"} | ({"quantize": "nf4"} if four_bit else {})
    fields: dict[str, Any] = {"method": "lora", "lora_rank": rank}
    fields["lora_dtype"] = "fp32" if stage == 3 and not four_bit else dtype
    fields["lora_dropout"] = config.number("ds.lora.dropout", "lora_dropout", default=0.0)
    targets = config.strings("ds.lora.target_modules") or config.strings("target_modules")
    if targets and targets != ("all-linear",):
        fields["lora_targets"] = targets
    return fields | ({"quantize": "nf4", "double_quant": True} if four_bit else {})


def read_dtype(config: ConfigReader) -> str:
    """The dtype of the weights."""
    name = config.lowercase("ds.param_dtype", "param_dtype", default="bf16")
    if DTYPES.get(name) not in ("bf16", "fp16"):
        raise config.invalid(("ds.param_dtype", "param_dtype"), "bf16 or fp16")
    if not config.has("ds.param_dtype", "param_dtype", "bf16") and config.has("pretrain"):
        config.note("default", "param_dtype", "not set: bf16, as from 0.9.2 on; before, --bf16 said so")
    config.read_keys.add("bf16")
    return DTYPES[name]


def check_engine(config: ConfigReader, dtype: str, stage: int) -> None:
    """Refuse gradients that are added up in another dtype than the weights', and sequences divided among GPUs.

    The weights' dtype is what DeepSpeed takes by itself where it has a ZeRO stage (0.19, runtime/engine.py:
    get_data_types).

    Raises:
        UnsupportedError: naming the setting.
    """
    name = config.lowercase("ds.grad_accum_dtype", "grad_accum_dtype", default="")
    if name and (DTYPES.get(name) != dtype or stage == 0):
        key = "ds.grad_accum_dtype" if config.has("ds.grad_accum_dtype") else "grad_accum_dtype"
        raise config.unsupported(key, f"is not modelled yet; without it they are added up in {dtype}")
    if config.integer("ds.ring_attn_size", "ring_attn_size", default=1) > 1:
        key = "ds.ring_attn_size" if config.has("ds.ring_attn_size") else "ring_attn_size"
        raise config.unsupported(
            key,
            "divides sequences among GPUs (ring_flash_attn), which is not modelled yet;"
            f" {setting('set', f'{key}=1')} estimates whole ones on each GPU, which need more",
        )


def read_attention(config: ConfigReader) -> str:
    """flash_attention_2 unless another is named; up to 0.8.9 eager without --flash_attn."""
    name = config.lowercase("ds.attn_implementation", "attn_implementation", default="")
    if config.boolean("flash_attn", default=False) or "flash" in name:
        return "flash"
    if name:
        if name not in ("eager", "sdpa"):
            raise config.unsupported(
                "ds.attn_implementation" if config.has("ds.attn_implementation") else "attn_implementation"
            )
        return name
    if config.has("pretrain"):
        config.note("default", "attn_implementation", "not set: flash_attention_2, as from 0.8.10 on; before, eager")
    return "flash"


def read_zero(config: ConfigReader, stage: int) -> dict[str, Any]:
    """DeepSpeed's own sizes: nobody fills in "auto" (utils/deepspeed/deepspeed_utils.py: get_train_ds_config)."""
    overlaps = config.boolean("ds.overlap_comm", "overlap_comm", default=False) or stage == 3
    return {**DEEPSPEED_SIZES, "overlap_comm": overlaps}
