"""Architectures by transformers' ``model_type``."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture, Shape
from vramplan.errors import UnsupportedError, setting
from vramplan.lazy_table import LazyTable

ARCHITECTURES: LazyTable[Architecture] = LazyTable(
    __name__,
    "ARCHITECTURES",
    {
        "llama": "llama internlm3 internlm2 baichuan minicpm minicpm3 mistral ministral ministral3 arcee cwm"
        " qwen2 qwen2_vl_text qwen3 qwen3_vl_text seed_oss granite hyperclovax smollm3 olmo2 olmo3",
        "gemma": "gemma gemma2 vaultgemma gemma3_text",
        "gemma3n": "gemma3n_text",
        "gemma4": "gemma4_text gemma4_unified_text",
        "exaone4": "exaone4",
        "exaone_moe": "exaone_moe",
        "flex_olmo": "flex_olmo",
        "afmoe": "afmoe",
        "cohere2_moe": "cohere2_moe",
        "hy_v3": "hy_v3",
        "bamba": "bamba",
        "bitnet": "bitnet",
        "jais2": "jais2",
        "hunyuan": "hunyuan_v1_dense hunyuan_v1_moe",
        "ernie": "ernie4_5 ernie4_5_moe",
        "olmo": "olmo",
        "helium": "helium",
        "nemotron": "nemotron",
        "stablelm": "stablelm",
        "apertus": "apertus",
        "minimax": "minimax_m2",
        "laguna": "laguna mellum",
        "phi": "phi phi3 glm glm4 glm4v_text chatglm",
        "phimoe": "phimoe",
        "cohere": "cohere cohere2",
        "gpt": "gpt2 gptj gpt_neox opt starcoder2",
        "gpt_bigcode": "gpt_bigcode",
        "gpt_neo": "gpt_neo",
        "bloom": "bloom falcon",
        "moe": "mixtral olmoe qwen2_moe qwen3_moe qwen3_vl_moe_text",
        "llama4": "llama4_text",
        "granitemoe": "granitemoe granitemoeshared",
        "deepseek": "deepseek_v2 deepseek_v3 youtu glm4_moe glm4_moe_lite glm4v_moe_text dots1 solar_open",
        "gpt_oss": "gpt_oss",
        "lfm2": "lfm2 lfm2_moe",
        "mamba2": "mamba2 granitemoehybrid",
        "falcon_h1": "falcon_h1",
        "nemotron_h": "nemotron_h",
        "qwen3_next": "qwen3_next qwen3_5_text qwen3_5_moe_text",
        "mllama": "mllama_text",
        "bert": "bert roberta xlm-roberta camembert",
        "electra": "electra",
        "albert": "albert",
        "distilbert": "distilbert",
        "modernbert": "modernbert",
        "deberta": "deberta-v2",
        "eurobert": "eurobert",
        "mpnet": "mpnet",
        "rotary_bert": "nomic_bert gte",
        "vit": "vit",
        "dinov2": "dinov2 dinov2_with_registers",
        "dinov3": "dinov3_vit",
        "clip": "clip",
        "siglip": "siglip",
        "t5": "t5 mt5 umt5",
        "bart": "bart mbart pegasus marian m2m_100",
        "whisper": "whisper",
        "csm": "csm",
        "wav2vec2": "wav2vec2 hubert",
    },
)
"""What each module of this folder describes."""


def text_architecture_of(model_type: str, owner: str) -> Architecture:
    """The architecture of a model without a vision tower, or of the language model behind one.

    Raises:
        UnsupportedError: if the analytic estimator does not support it.
    """
    architecture = ARCHITECTURES.get(model_type)
    if architecture is None:
        raise UnsupportedError(
            f"{owner}: the analytic estimator does not support the architecture {model_type!r}; supported:"
            f" {', '.join(sorted(ARCHITECTURES))}; {setting('by', 'trace')} runs it"
        )
    return architecture


__all__ = ["ARCHITECTURES", "Architecture", "Shape", "text_architecture_of"]
