"""More language models, made small, and what traces of their classes say.

python -m tests.text_family_cases     trace what has not been traced; write tests/cases/traced_text_families.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.family_cases import FULL, GEMMA4, JOBS, SLIDING, SMALL, TOKENS
from tests.helpers import ROOT
from tests.matrix_cases import SETTINGS, VOCABULARY
from tests.traced_table import TracedTable
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

ERNIE = {**SMALL, "num_hidden_layers": 6, "use_bias": False}
MT5 = {
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "vocab_size": VOCABULARY,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_heads": 6,
    "num_layers": 5,
    "num_decoder_layers": 5,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
BART = {
    "vocab_size": VOCABULARY,
    "d_model": 512,
    "encoder_layers": 5,
    "decoder_layers": 6,
    "encoder_ffn_dim": 1536,
    "decoder_ffn_dim": 1536,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "max_position_embeddings": 1024,
    "pad_token_id": 1,
    "decoder_start_token_id": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "mt5": MT5,
    "umt5": MT5,
    "bart": BART,
    "mbart": BART,
    "pegasus": BART,
    "marian": BART,
    "m2m_100": {**BART, "d_model": 256, "max_position_embeddings": 1000},  # tables in PyTorch's pool of small blocks
    "gpt_bigcode": {
        **TOKENS,
        "vocab_size": VOCABULARY,
        "n_embd": 512,
        "n_head": 8,
        "n_layer": 6,
        "n_positions": 1024,
    },
    "gpt_neo": {
        **TOKENS,
        "vocab_size": VOCABULARY,
        "hidden_size": 512,
        "num_heads": 8,
        "num_layers": 6,
        "attention_types": [[["global", "local"], 3]],
        "max_position_embeddings": 1024,
    },
    "camembert": {
        "vocab_size": VOCABULARY,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "max_position_embeddings": 1026,
        "pad_token_id": 1,
        "type_vocab_size": 1,
    },
    "albert": {
        "vocab_size": VOCABULARY,
        "embedding_size": 128,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "max_position_embeddings": 1024,
    },
    "electra": {
        "vocab_size": VOCABULARY,
        "embedding_size": 128,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_attention_heads": 8,
        "num_hidden_layers": 6,
        "max_position_embeddings": 1024,
    },
    "gemma4_unified_text": {key: value for key, value in GEMMA4.items() if key != "hidden_size_per_layer_input"},
    "ernie4_5": ERNIE,
    "ernie4_5_moe": {
        **ERNIE,
        "moe_intermediate_size": 192,
        "moe_num_experts": 8,
        "moe_k": 2,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
    },
    "olmo": {**SMALL, "num_hidden_layers": 6},
    "helium": {**SMALL, "num_hidden_layers": 6},
    "nemotron": {**SMALL, "num_hidden_layers": 6, "partial_rotary_factor": 0.5},
    "stablelm": {**SMALL, "num_hidden_layers": 6, "use_qkv_bias": True, "partial_rotary_factor": 0.25},
    "stablelm, parallel": {
        **SMALL,
        "num_hidden_layers": 6,
        "use_parallel_residual": True,
        "hidden_dropout": 0.1,
    },
    "apertus": {**SMALL, "num_hidden_layers": 6},
    "hunyuan_v1_moe": {
        **SMALL,
        "num_hidden_layers": 6,
        "intermediate_size": 256,
        "num_experts": 8,
        "moe_topk": 2,
    },
    "minimax_m2": {
        **SMALL,
        "num_hidden_layers": 6,
        "intermediate_size": 192,
        "rotary_dim": 32,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "laguna": {
        **SMALL,
        "num_hidden_layers": 9,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 192,
        "shared_expert_intermediate_size": 192,
        "sliding_window": 128,
        "layer_types": [FULL, SLIDING, SLIDING] * 3,
        "num_attention_heads_per_layer": [8, 12, 12] * 3,
    },
    "mellum": {
        **SMALL,
        "num_hidden_layers": 9,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 192,
        "sliding_window": 128,
        "layer_types": [SLIDING, SLIDING, FULL] * 3,
    },
    "solar_open": {
        **SMALL,
        "num_hidden_layers": 6,
        "moe_intermediate_size": 192,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
    },
    "exaone_moe": {
        **SMALL,
        "num_hidden_layers": 9,
        "moe_intermediate_size": 192,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "sliding_window": 128,
        "layer_types": [SLIDING, SLIDING, FULL] * 3,
    },
    "flex_olmo": {
        **SMALL,
        "num_hidden_layers": 6,
        "intermediate_size": 192,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "afmoe": {
        **SMALL,
        "num_hidden_layers": 9,
        "moe_intermediate_size": 192,
        "num_dense_layers": 1,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "sliding_window": 128,
        "layer_types": [SLIDING, SLIDING, FULL] * 3,
        "mup_enabled": True,
    },
    "cohere2_moe": {
        **SMALL,
        "num_hidden_layers": 9,
        "intermediate_size": 192,
        "prefix_dense_intermediate_size": 1024,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "num_shared_experts": 1,
        "sliding_window": 128,
        "layer_types": [SLIDING, SLIDING, FULL] * 3,
        "mlp_layer_types": ["dense", *["sparse"] * 8],
    },
    "cohere2_moe, sigmoid": {
        **SMALL,
        "num_hidden_layers": 6,
        "intermediate_size": 192,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "layer_types": [FULL] * 6,
        "expert_selection_fn": "sigmoid",
        "rms_norm_eps": 1e-6,
    },
    "hy_v3": {
        **SMALL,
        "num_hidden_layers": 7,
        "moe_intermediate_size": 192,
        "num_experts": 8,
        "num_experts_per_tok": 2,
    },
    "bamba": {
        **SMALL,
        "num_hidden_layers": 9,
        "attn_layer_indices": [2, 5, 8],
        "mamba_n_heads": 16,
        "mamba_d_head": 64,
        "mamba_n_groups": 2,
        "mamba_d_state": 64,
        "mamba_chunk_size": 64,
    },
    "bitnet": {**SMALL, "num_hidden_layers": 6},
    "jais2": {**SMALL, "num_hidden_layers": 6},
    "vaultgemma": {
        **SMALL,
        "num_hidden_layers": 8,
        "sliding_window": 128,
        "layer_types": [SLIDING, FULL] * 4,
    },
    "hyperclovax": {**SMALL, "num_hidden_layers": 6},
    "youtu": {
        **{key: value for key, value in SMALL.items() if key != "head_dim"},
        "num_key_value_heads": 8,
        "num_hidden_layers": 6,
        "q_lora_rank": 192,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 96,
        "qk_rope_head_dim": 32,
        "v_head_dim": 128,
    },
    "dots1": {
        **SMALL,
        "num_hidden_layers": 9,
        "moe_intermediate_size": 192,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "sliding_window": None,
        "layer_types": [FULL] * 9,
    },
}
"""Configurations by ``model_type`` and variant."""
NO_FLASH = ("gemma4_unified", "mt5", "umt5", "gpt_neo", "bart", "mbart", "pegasus", "marian", "m2m_100")
"""Heads of 512 and biases do not run there; GPT-Neo's class for it is not described."""


WITHIN = "gemma4_unified, text"
"""Gemma 4 without encoders, on text."""


def spec_for(family: str) -> ModelSpec:
    """The family's small model."""
    if family == WITHIN:
        parts = {
            "text_config": {"model_type": "gemma4_unified_text", **FAMILIES["gemma4_unified_text"]},
            "vision_config": {"model_type": "gemma4_unified_vision", "mm_embed_dim": 512, "output_proj_dims": 512},
            "audio_config": {"model_type": "gemma4_unified_audio"},
        }
        config = {"model_type": "gemma4_unified", "tie_word_embeddings": True, **parts}
        return ModelSpec(name=family, model_type="gemma4_unified", config=config)
    model_type = family.partition(",")[0]
    return ModelSpec(name=family, model_type=model_type, config={"model_type": model_type, **FAMILIES[family]})


def cases() -> Iterator[tuple[str, Job]]:
    """Families and jobs."""
    for family in (*FAMILIES, WITHIN):
        for setting, given in JOBS:
            job = {**SETTINGS[setting], **given}
            if family.startswith(NO_FLASH) and job.get("attention") == "flash":
                job["attention"] = "eager"
            if family == "albert":
                job["checkpointing"] = "none"
            if family == "vaultgemma" and job.get("attention", "sdpa") == "sdpa":
                job["attention"] = "eager"
            if family == "gpt_neo":  # it has no SDPA
                job.setdefault("attention", "eager")
            yield family, Job(**job)


TABLE = TracedTable(ROOT / "tests" / "cases" / "traced_text_families.json", spec_for, cases)

if __name__ == "__main__":
    TABLE.write()
