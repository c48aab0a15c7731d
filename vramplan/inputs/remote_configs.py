"""Configurations of a model's own code, in the keys of the transformers class that does the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vramplan.errors import SpecError

Written = tuple[dict[str, Any], dict[str, Any]]
"""(config, what it adds to the processor's)"""

HEADS = 16
"""Of InternViT-300M, whose published configurations all say it; of InternViT-6B 25."""
PIXEL_SHUFFLE = 0.5


def internvl_chat(config: Mapping[str, Any], where: str) -> Written:
    """OpenGVLab's InternVLChatModel as transformers' InternVLForConditionalGeneration (convert_internvl_weights).

    Its InternLM2 is a Llama whose projections are fused: as many weights, and adapters as if they were apart.

    Raises:
        SpecError: where a part is missing.
    """
    vision, language = (_part(config, key, where) for key in ("vision_config", "llm_config"))
    text = {
        **language,
        "model_type": {"internlm2": "llama"}.get(language.get("model_type", ""), language.get("model_type")),
    }
    if language.get("model_type") == "internlm2":
        text["attention_bias"] = language.get("bias", False)
    own = {
        key: vision[key]
        for key in ("hidden_size", "num_hidden_layers", "intermediate_size", "hidden_act", "norm_type")
        if key in vision
    }
    tile, patch = config.get("force_image_size") or vision.get("image_size", 448), vision.get("patch_size", 14)
    tower = {
        **own,
        "num_attention_heads": vision.get("num_attention_heads", HEADS),
        "image_size": [tile, tile],
        "patch_size": [patch, patch],
        "attention_bias": vision.get("qkv_bias", True),
        "use_qk_norm": vision.get("qk_normalization", False),
    }
    whole = {
        "model_type": "internvl",
        "vision_config": tower,
        "text_config": text,
        "downsample_ratio": config.get("downsample_ratio", PIXEL_SHUFFLE),
        "tie_word_embeddings": language.get("tie_word_embeddings", config.get("tie_word_embeddings", False)),
    }
    most = config.get("max_dynamic_patch", 12) if config.get("dynamic_image_size", True) else 1
    return whole, {"max_patches": most, "min_patches": min(config.get("min_dynamic_patch", 1), most)}


def _part(config: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    part = config.get(key)
    if not isinstance(part, Mapping):
        raise SpecError(f"{where}: no {key!r}; is this an OpenGVLab InternVL configuration?")
    return part


DIALECTS: dict[str, Callable[[Mapping[str, Any], str], Written]] = {"internvl_chat": internvl_chat}
"""By the model_type that such a configuration says."""
