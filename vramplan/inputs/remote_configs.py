"""Configurations with code of their own, or around another one, as those of the transformers class that trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vramplan.errors import SpecError

Translated = tuple[dict[str, Any], dict[str, Any]]
"""(config, keys to add to the processor's configuration)"""

DEFAULT_HEADS = 16
"""Attention heads of InternViT-300M (25 in InternViT-6B), which all published configurations name."""
PIXEL_SHUFFLE = 0.5


def internvl_chat(config: Mapping[str, Any], where: str) -> Translated:
    """OpenGVLab's InternVLChatModel as transformers' InternVLForConditionalGeneration (convert_internvl_weights).

    Its InternLM2 is a Llama with fused projections: as many weights; adapters are counted as if they were separate.

    Raises:
        SpecError: if a part is missing.
    """
    vision, language = (_part(config, key, where) for key in ("vision_config", "llm_config"))
    text = {
        **language,
        "model_type": {"internlm2": "llama"}.get(language.get("model_type", ""), language.get("model_type")),
    }
    if language.get("model_type") == "internlm2":
        text["attention_bias"] = language.get("bias", False)
    verbatim = {
        key: vision[key]
        for key in ("hidden_size", "num_hidden_layers", "intermediate_size", "hidden_act", "norm_type")
        if key in vision
    }
    tile, patch = config.get("force_image_size") or vision.get("image_size", 448), vision.get("patch_size", 14)
    tower = {
        **verbatim,
        "num_attention_heads": vision.get("num_attention_heads", DEFAULT_HEADS),
        "image_size": [tile, tile],
        "patch_size": [patch, patch],
        "attention_bias": vision.get("qkv_bias", True),
        "use_qk_norm": vision.get("qk_normalization", False),
    }
    translated = {
        "model_type": "internvl",
        "vision_config": tower,
        "text_config": text,
        "downsample_ratio": config.get("downsample_ratio", PIXEL_SHUFFLE),
        "tie_word_embeddings": language.get("tie_word_embeddings", config.get("tie_word_embeddings", False)),
    }
    max_tiles = config.get("max_dynamic_patch", 12) if config.get("dynamic_image_size", True) else 1
    return translated, {"max_patches": max_tiles, "min_patches": min(config.get("min_dynamic_patch", 1), max_tiles)}


def thinker(config: Mapping[str, Any], where: str) -> Translated:
    """The Thinker of Qwen2.5-Omni or Qwen3-Omni, without the talker and the vocoder.

    Raises:
        SpecError: if it is missing.
    """
    part = _part(config, "thinker_config", where)
    for name in ("text_config", "vision_config", "audio_config"):
        _part(part, name, where)
    return {**part, "model_type": f"{config['model_type']}_thinker"}, {}


def _part(config: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    part = config.get(key)
    if not isinstance(part, Mapping):
        raise SpecError(f"{where}: no {key!r}; is this an OpenGVLab InternVL configuration?")
    return part


REMOTE_CONFIGS: dict[str, Callable[[Mapping[str, Any], str], Translated]] = {
    "internvl_chat": internvl_chat,
    "qwen2_5_omni": thinker,
    "qwen3_omni_moe": thinker,
}
"""Translation by model_type."""
