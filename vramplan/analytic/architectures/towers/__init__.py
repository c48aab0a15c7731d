"""Vision towers by transformers' ``model_type``, and by the tower's if an architecture takes several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vramplan.lazy_table import LazyTable

if TYPE_CHECKING:
    from vramplan.analytic.architectures.vision_tower import VisionTower

TOWERS: LazyTable[VisionTower] = LazyTable(
    __name__,
    "TOWERS",
    {
        "vit": "internvl llava llava_next",
        "siglip": "idefics3 smolvlm paligemma gemma3 llava_onevision aya_vision llava_next/siglip_vision_model",
        "pixtral": "llava/pixtral mistral3",
        "qwen": "qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe qwen2_vl qwen2_5_vl",
        "omni": "qwen2_5_omni_thinker qwen3_omni_moe_thinker",
        "gemma3n": "gemma3n",
        "gemma4": "gemma4",
        "gemma4_unified": "gemma4_unified",
        "llama4": "llama4",
        "glm": "glm4v glm46v glm4v_moe",
        "mllama": "mllama",
        "lfm2_vl": "lfm2_vl",
        "minicpm": "minicpmv4_6 minicpmv4_7",
        "voxtral": "voxtral",
        "qwen2_audio": "qwen2_audio",
    },
)
"""What each module of this folder describes."""
