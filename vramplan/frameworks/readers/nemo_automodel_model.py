"""Model, adapters and optimizer of a NeMo Automodel recipe (0.5.0: _transformers, components/_peft and /optim)."""

from __future__ import annotations

import re
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.frameworks.readers.trainer_arguments import DTYPES, checkpoint_dtype
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.model_names import named_model

FACTORY = "NeMoAutoModelForCausalLM.from_pretrained"
OWN_TYPES = ("llama", "qwen2", "qwen3")
"""Types of models whose classes are its own and keep what transformers' keep (components/models)."""
COMPILED_NORMS = ("llama", "qwen2")
"""Those with norms of its own; its Qwen3 has transformers' (components/models/qwen3/model.py)."""
OTHER_OWN = frozenset(
    """
    baichuan bailing_moe deepseek_v3 deepseek_v4 ernie4_5_moe gemma4 glm4_moe glm4_moe_lite gpt_oss hy_v3 kimi_linear
    laguna mimo_v2_flash minimax_m2 ministral3 mistral3 mistral4 nemotron_h qwen3_5 qwen3_5_moe qwen3_moe qwen3_next
    qwen3_vl qwen3_vl_moe step3p5
    """.split()  # noqa: SIM905
)
"""Types of models whose classes are its own as well, and not modelled (_transformers/registry.py)."""
READ = frozenset(
    {"model._target_", "model.pretrained_model_name_or_path", "model.torch_dtype", "model.attn_implementation",
     "model.use_liger_kernel", "model.force_hf", "model.trust_remote_code"}
)  # fmt: skip
NO_MEMORY = ("_target_", "alpha", "lora_A_init", "use_triton", "moe_rank_scaling")
"""Settings of `peft` that change no memory, or that speed alone depends on."""
LAYER = re.compile(r"(?:\*\.?)?([a-z]\w*)")
"""A layer's name in `target_modules`: q_proj, *.q_proj."""


def model_name(config: ConfigReader) -> str:
    """The model, which has to be a causal language model as it is published.

    Raises:
        ConfigError: if none is named.
        UnsupportedError: for a model that is built otherwise, or with other settings.
    """
    target = config.string("model._target_") or FACTORY
    if not target.endswith(FACTORY):
        raise config.unsupported("model._target_", f"is not read yet; read: {FACTORY}")
    name = config.string("model.pretrained_model_name_or_path")
    if name is None:
        raise ConfigError(f"{config.source.where}: model.pretrained_model_name_or_path is not set; give the model")
    for key in config.source.settings:
        if key.startswith("model.") and key not in READ and not config.is_off(key):
            raise config.unsupported(key, "changes the model or its layers, which is not modelled yet")
    config.read_keys |= READ
    return name


def model_type(config: ConfigReader) -> str:
    """The type of the model; empty if it is not known.

    Raises:
        UnsupportedError: for a model that NeMo Automodel has layers of its own for that are not modelled.
    """
    name = model_name(config)
    try:
        kind = named_model(name)[0].model_type
    except VramplanError:  # the name is looked up again, and its error shown then
        return ""
    if kind in OTHER_OWN:
        raise config.unsupported(
            "model.pretrained_model_name_or_path",
            f"has layers of NeMo Automodel's own ({kind}) that are not modelled yet; modelled: {', '.join(OWN_TYPES)},"
            " and transformers' layers (model.force_hf: true)",
        )
    return kind


def weight_dtype(config: ConfigReader) -> str:
    """The stored dtype, in which everything is computed: that of the checkpoint unless one is set."""
    if config.lowercase("model.torch_dtype", default="auto") == "auto":
        return checkpoint_dtype(config, "model.torch_dtype", "keeps")
    dtype = DTYPES.get(config.lowercase("model.torch_dtype", default="").removeprefix("torch."))
    if dtype not in ("bf16", "fp32"):
        raise config.invalid(("model.torch_dtype",), "auto, bfloat16 or float32")
    return dtype


def adapters(config: ConfigReader, dtype: str) -> dict[str, Any]:
    """LoRA's fields; none without a section `peft`. Its adapters have the dtype of the weights.

    Raises:
        UnsupportedError: for layers, or a dropout, that are not modelled.
    """
    if not any(key == "peft" or key.startswith("peft.") for key in config.source.settings):
        return {}
    config.read_keys |= {f"peft.{name}" for name in NO_MEMORY}
    if config.boolean("peft.use_dora", default=False):
        raise config.unsupported("peft.use_dora", "is not modelled for its layers yet")
    lora_dtype = config.lowercase("peft.lora_dtype", default=dtype).removeprefix("torch.")
    if lora_dtype != dtype and DTYPES.get(lora_dtype) not in ("bf16", "fp32"):
        raise config.invalid(("peft.lora_dtype",), "bfloat16 or float32")
    dropout = config.number("peft.dropout", default=0.0)
    if dropout and config.lowercase("peft.dropout_position", default="post") != "pre":
        raise config.unsupported("peft.dropout", "behind the adapter is not modelled yet; modelled: 0, and in front")
    config.read_keys.add("peft.dropout_position")
    if config.boolean("peft.use_memory_efficient_lora", default=True):
        text = "is on: its adapters and MLPs keep less for the backward than PEFT's, which are counted here"
        config.note("warning", "peft.use_memory_efficient_lora", text)
    return {
        "method": "lora",
        "lora_rank": config.integer("peft.dim", default=8),
        "lora_targets": _targets(config),
        "lora_dropout": dropout,
        "lora_dtype": DTYPES.get(lora_dtype, dtype),
    }


def _targets(config: ConfigReader) -> tuple[str, ...] | None:
    """The adapted layers; None for all but the output head, which ``*_proj`` are in the models that are read."""
    if config.boolean("peft.match_all_linear", default=False):
        raise config.unsupported("peft.match_all_linear", "adapts the output head; modelled: target_modules '*_proj'")
    excluded = config.strings("peft.exclude_modules")
    if excluded and all("lm_head" in name for name in excluded):
        return None
    if excluded:
        raise config.unsupported("peft.exclude_modules", "is not read yet but for the output head; use target_modules")
    names = config.strings("peft.target_modules") or ("*_proj",)
    if names == ("*_proj",):
        return None
    layers = [LAYER.fullmatch(name) for name in names]
    if not all(layers):
        raise config.unsupported("peft.target_modules", "is not read yet; read: '*_proj', and names such as '*.q_proj'")
    return tuple(match[1] for match in layers if match)


def optimizer(config: ConfigReader) -> str:
    """AdamW of torch, or its Adam without weight decay, which would copy the gradients."""
    target = config.string("optimizer._target_")
    if target is None:
        raise ConfigError(f"{config.source.where}: optimizer._target_ is not set; NeMo Automodel stops without it")
    kind = target.rpartition(".")[2].lower()
    is_torch = target.startswith("torch.optim.")
    decay = config.number("optimizer.weight_decay", default=0.0 if is_torch else 0.01)
    if not (is_torch or target.lower() == kind) or kind not in ("adam", "adamw") or (kind == "adam" and decay > 0):
        beside = f" with weight_decay {decay:g}" if kind == "adam" else ""
        raise UnsupportedError(
            f"{config.place('optimizer._target_')}: optimizer._target_ {target}{beside} is not modelled yet; modelled:"
            " torch.optim.AdamW, and Adam with weight_decay: 0"
        )
    config.read_keys |= {f"optimizer.{name}" for name in ("lr", "betas", "eps", "min_lr")}
    if config.boolean("optimizer.fused", default=False):
        return "adamw_torch_fused"
    return "adamw_torch" if config.boolean("optimizer.foreach", default=True) else "adamw_torch_loop"
