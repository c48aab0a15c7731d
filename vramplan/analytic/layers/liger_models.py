"""What liger-kernel replaces in a model of each type.

liger-kernel 0.8.5, transformers/monkey_patch.py: the apply_liger_kernel_to_* functions on a model that is loaded
already, as transformers' Trainer calls them, with transformers 5. For other types Liger leaves the model as it is.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from vramplan.inputs.gpu import MOST_MULTIPROCESSORS

NORMS = ("norm", "input_layernorm", "post_attention_layernorm")
QK_NORMS = ("q_norm", "k_norm")
GEMMA_NORMS = (*NORMS, "pre_feedforward_layernorm", "post_feedforward_layernorm")
MLA_NORMS = (*NORMS, "q_a_layernorm", "kv_a_layernorm")
SANDWICH_NORMS = (*NORMS, "post_self_attn_layernorm", "post_mlp_layernorm")
SIGLIP_NORMS = ("post_layernorm", "layer_norm1", "layer_norm2")


class LigerModel(NamedTuple):
    """The layers of a model that Liger replaces."""

    rope: bool = True
    rms_norms: tuple[str, ...] = NORMS
    """Last parts of the names of the RMS norms."""
    in_place: bool = True
    """Whether an RMS norm's backward overwrites the gradient of its output."""
    mlp: str = "swiglu"
    """The kernel of gated feed-forward layers; empty if they stay."""
    experts: bool = False
    """Whether `mlp` also replaces the experts of a mixture (LigerExperts)."""
    tower_mlp: bool = False
    """Whether `mlp` also replaces those of the vision tower."""
    layer_norms: tuple[str, ...] = ()
    """Last parts of the names of the LayerNorms, which are a vision tower's."""
    fuses_head: bool = True
    """Whether its loss can be fused with the head."""
    text: bool = False
    """Whether the rest is that of the language model's type."""


LIGER_MODELS = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "smollm3", "phi3"), LigerModel()),
    "granite": LigerModel(fuses_head=False),
    "qwen3": LigerModel(rms_norms=(*NORMS, *QK_NORMS)),
    **dict.fromkeys(
        ("olmo2", "olmo3"),
        LigerModel(rms_norms=("norm", "post_attention_layernorm", "post_feedforward_layernorm"), in_place=False),
    ),
    "gemma": LigerModel(mlp="geglu"),
    "gemma2": LigerModel(rms_norms=GEMMA_NORMS, in_place=False, mlp="geglu"),
    "gemma3_text": LigerModel(rms_norms=(*GEMMA_NORMS, *QK_NORMS), in_place=False, mlp="geglu"),
    "glm4": LigerModel(rope=False, rms_norms=SANDWICH_NORMS, in_place=False),
    "mixtral": LigerModel(experts=True),
    "qwen3_moe": LigerModel(rms_norms=(*NORMS, *QK_NORMS), experts=True),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), LigerModel(rope=False, rms_norms=MLA_NORMS, experts=True)),
    "gpt_oss": LigerModel(mlp=""),
    "gemma3": LigerModel(
        rms_norms=(*GEMMA_NORMS, *QK_NORMS, "mm_soft_emb_norm"),
        in_place=False,
        mlp="geglu",
        layer_norms=SIGLIP_NORMS,
    ),
    "paligemma": LigerModel(layer_norms=SIGLIP_NORMS, text=True),
    "smolvlm": LigerModel(layer_norms=SIGLIP_NORMS, text=True),
    "internvl": LigerModel(
        rms_norms=QK_NORMS, layer_norms=("layernorm", "layernorm_before", "layernorm_after"), text=True
    ),
    "llava": LigerModel(text=True),
    "mllama": LigerModel(
        layer_norms=("layernorm_pre", "layernorm_post", "input_layernorm", "post_attention_layernorm"),
    ),
    # transformers 5 rotates by apply_rotary_pos_emb there, Liger replaces apply_multimodal_rotary_pos_emb
    "qwen2_vl": LigerModel(rope=False, layer_norms=("norm1", "norm2")),
    "qwen2_5_vl": LigerModel(rope=False, rms_norms=(*NORMS, "norm1", "norm2")),
    "qwen3_vl": LigerModel(rms_norms=(*NORMS, *QK_NORMS), mlp=""),
    "qwen3_vl_moe": LigerModel(rms_norms=(*NORMS, *QK_NORMS), experts=True),
    "glm4v": LigerModel(rope=False, rms_norms=(*SANDWICH_NORMS, "norm1", "norm2"), tower_mlp=True),
    "glm4v_moe": LigerModel(
        rope=False,
        rms_norms=(*NORMS, "norm1", "norm2", "post_conv_layernorm", "post_layernorm"),
        experts=True,
        tower_mlp=True,
    ),
}
"""By transformers' ``model_type``."""
UNMODELLED = {
    *("gemma4", "gemma4_text", "llama4", "llama4_text", "falcon_h1", "ministral", "exaone4", "hunyuan_v1_dense"),
    *("hunyuan_v1_moe", "nemotron"),
    *("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
}
"""Others that liger-kernel 0.8.5 replaces layers of (transformers/monkey_patch.py: MODEL_TYPE_TO_APPLY_LIGER_FN)."""


class LigerLayers(NamedTuple):
    """The layers that Liger's kernels compute in one job."""

    rope: bool = False
    rms_norms: frozenset[str] = frozenset()
    in_place: bool = True
    mlp: bool = False
    tower_mlp: bool = False
    experts: bool = False
    layer_norms: frozenset[str] = frozenset()
    multiprocessors: int = MOST_MULTIPROCESSORS


def liger_model(model_type: str, text_type: str) -> LigerModel | None:
    """What Liger replaces in a model, `text_type` being its language model's type; None if nothing."""
    model = LIGER_MODELS.get(model_type)
    if model is None or not model.text:
        return model
    text = LIGER_MODELS.get(text_type, LigerModel(rope=False, rms_norms=(), mlp=""))
    return text._replace(
        rms_norms=(*text.rms_norms, *(model.rms_norms if model.rms_norms is not NORMS else ())),
        layer_norms=model.layer_norms,
        fuses_head=True,
    )


def liger_layers(model: LigerModel | None, kernels: Collection[str], multiprocessors: int | None) -> LigerLayers:
    """The layers that the `kernels` of a job replace."""
    if model is None or not kernels:
        return LigerLayers()
    is_fused = model.mlp in kernels
    return LigerLayers(
        rope=model.rope and "rope" in kernels,
        rms_norms=frozenset(model.rms_norms if "rms_norm" in kernels else ()),
        in_place=model.in_place,
        mlp=is_fused,
        tower_mlp=is_fused and model.tower_mlp,
        experts=is_fused and model.experts,
        layer_norms=frozenset(model.layer_norms if "layer_norm" in kernels else ()),
        multiprocessors=multiprocessors or MOST_MULTIPROCESSORS,
    )
