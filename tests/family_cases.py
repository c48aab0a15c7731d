"""Families of 2025 and 2026, made small, and what traces of their classes say.

python -m tests.family_cases     trace what has not been traced; write tests/cases/traced_families.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helpers import ROOT, spec_of
from tests.matrix_cases import SETTINGS, VOCABULARY
from tests.traced_table import TracedTable
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

TOKENS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
SMALL = {
    **TOKENS,
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA4 = {
    **SMALL,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "global_head_dim": 256,
    "layer_types": [*[SLIDING] * 2, FULL] * 3,
    "num_hidden_layers": 9,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 128,
    "final_logit_softcapping": 30.0,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 2,
}
GEMMA3N = {
    **SMALL,
    "head_dim": 128,
    "num_hidden_layers": 14,
    "layer_types": [*[SLIDING] * 2, FULL] * 4 + [SLIDING] * 2,
    "activation_sparsity_pattern": [0.95] * 4 + [0.0] * 10,
    "num_kv_shared_layers": 6,
    "hidden_size_per_layer_input": 64,
    "vocab_size_per_layer_input": VOCABULARY - 64,
    "sliding_window": 128,
}
GRANITE = {
    **SMALL,
    "intermediate_size": 256,
    "num_hidden_layers": 6,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": True,
}
LLAMA4 = {
    **SMALL,
    "num_hidden_layers": 12,
    "intermediate_size": 384,
    "intermediate_size_mlp": 1536,
    "num_local_experts": 4,
    "attention_chunk_size": 150,
}
SCALED = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384}
FAMILIES: dict[str, dict[str, Any]] = {
    "ministral3": {
        **SMALL,
        "num_hidden_layers": 6,
        "rope_parameters": {**SCALED, "beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.1},
    },
    "arcee": {**SMALL, "num_hidden_layers": 6},
    "ministral": {
        **SMALL,
        "num_hidden_layers": 9,
        "sliding_window": 200,
        "layer_types": [*[SLIDING] * 2, FULL] * 3,
    },
    "exaone4": {**SMALL, "num_hidden_layers": 6, "sliding_window": None, "layer_types": [FULL] * 6},
    "exaone4, hybrid": {**SMALL, "num_hidden_layers": 12, "sliding_window": 128},
    "hunyuan_v1_dense": {**SMALL, "num_hidden_layers": 6},
    "cwm": {**SMALL, "num_hidden_layers": 9, "sliding_window": 200},
    "gemma4_text": GEMMA4,
    "gemma4_text, heads of 512": {**GEMMA4, "global_head_dim": 512, "num_global_key_value_heads": 1},
    "gemma4_text, experts": {
        **GEMMA4,
        "enable_moe_block": True,
        "num_experts": 8,
        "top_k_experts": 2,
        "moe_intermediate_size": 192,
    },
    "gemma4_text, inputs of layers": {
        **GEMMA4,
        "attention_k_eq_v": False,
        "num_key_value_heads": 1,
        "hidden_size_per_layer_input": 64,
        "vocab_size_per_layer_input": VOCABULARY,
        "num_hidden_layers": 12,
        "layer_types": [*[SLIDING] * 2, FULL] * 4,
        "num_kv_shared_layers": 6,
        "use_double_wide_mlp": True,
    },
    "gemma3n_text": GEMMA3N,
    "glm4_moe_lite": {
        **{key: value for key, value in SMALL.items() if key != "head_dim"},
        "num_key_value_heads": 8,
        "num_hidden_layers": 7,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 192,
        "q_lora_rank": 192,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 96,
        "qk_rope_head_dim": 32,
        "v_head_dim": 128,
    },
    "granitemoe": GRANITE,
    "granitemoeshared": {**GRANITE, "shared_intermediate_size": 768},
    "llama4_text": {**LLAMA4, "attention_chunk_size": 8192},
    "llama4_text, chunks": {**LLAMA4, "interleave_moe_layer_step": 2, "use_qk_norm": False},
}
"""Configurations by ``model_type`` and variant."""
JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {"checkpointing": "none", "micro_batch_size": 3, "sequence_length": 200}),
    ("full-bf16", {"checkpointing": "full", "sequence_length": 512, "attention": "flash"}),
    ("full-autocast", {"checkpointing": "none", "sequence_length": 192, "attention": "eager"}),
    ("full-autocast", {"checkpointing": "full", "sequence_length": 384, "micro_batch_size": 2}),
    ("full-fp32", {"checkpointing": "full", "sequence_length": 128, "micro_batch_size": 3}),
    ("lora-bf16", {"checkpointing": "full", "sequence_length": 200, "micro_batch_size": 3}),
    ("lora-bf16", {"checkpointing": "none", "sequence_length": 640, "attention": "flash"}),
    ("lora-autocast", {"checkpointing": "none", "sequence_length": 512}),
    ("lora-autocast", {"checkpointing": "none", "sequence_length": 256, "micro_batch_size": 2, "attention": "eager"}),
    ("lora-autocast", {"checkpointing": "full", "sequence_length": 256, "micro_batch_size": 2, "batches": "padded"}),
)
LLAMA = "llama4, text"
"""Llama 4 with its tower, on text."""
GEMMA = ("gemma4, text", "gemma4, text and inputs of layers")
"""Gemma 4 with its towers, on text."""
SEEING = "mistral3"
"""A model that sees, whose language model is a Ministral 3."""
SEEN = {"images": 1, "image_size": (300, 200), "sequence_length": 512}
OLDER_GEMMA = "gemma3n, text"
"""Gemma 3n with its towers, on text."""
NO_FLASH = ("gemma4", "llama4", OLDER_GEMMA)
"""Heads of 512 do not run there, and transformers has no Llama 4 and no tower of timm there."""


def spec_for(family: str) -> ModelSpec:
    """The family's small model."""
    if family == SEEING:
        return seeing()
    if family == LLAMA:
        vision = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 256}
        vision |= {"image_size": 56, "vision_output_dim": 96, "projector_input_dim": 64, "projector_output_dim": 96}
        parts = {"text_config": {"model_type": "llama4_text", **LLAMA4}, "vision_config": vision}
        return ModelSpec(name=family, model_type="llama4", config={"model_type": "llama4", **parts})
    if family in GEMMA:
        return with_towers(family)
    if family == OLDER_GEMMA:
        vision = {"model_type": "gemma3n_vision", "hidden_size": 2048}
        audio = {"hidden_size": 128, "conf_num_attention_heads": 4, "conf_num_hidden_layers": 3}
        text = {"model_type": "gemma3n_text", **GEMMA3N}
        parts = {"text_config": text, "vision_config": vision, "audio_config": {"model_type": "gemma3n_audio", **audio}}
        return ModelSpec(name=family, model_type="gemma3n", config={"model_type": "gemma3n", **parts})
    model_type = family.partition(",")[0]
    return ModelSpec(name=family, model_type=model_type, config={"model_type": model_type, **FAMILIES[family]})


def seeing() -> ModelSpec:
    """Ministral 3 with its vision tower."""
    spec = spec_of("mistralai/Ministral-3-8B-Base-2512")
    text = {**spec.config["text_config"], **FAMILIES["ministral3"]}
    vision = {**spec.config["vision_config"], "num_hidden_layers": 4}
    config = {**spec.config, "image_token_id": 7, "text_config": text, "vision_config": vision}
    return spec.model_copy(update={"config": config})


def with_towers(family: str) -> ModelSpec:
    """Gemma 4 with towers for images and, if it is a small one, for sound."""
    hears = family == GEMMA[1]
    text = FAMILIES["gemma4_text, inputs of layers" if hears else "gemma4_text"]
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3}
    vision = {
        **sizes,
        "intermediate_size": 256,
        "num_key_value_heads": 4,
        "head_dim": 32,
        "position_embedding_size": 64,
    }
    audio = {**sizes, "model_type": "gemma4_audio", "output_proj_dims": 192} if hears else None
    parts = {
        "text_config": {"model_type": "gemma4_text", **text},
        "vision_config": {"model_type": "gemma4_vision", **vision},
    }
    return ModelSpec(
        name=family,
        model_type="gemma4",
        config={"model_type": "gemma4", "tie_word_embeddings": True, **parts, "audio_config": audio},
    )


def cases() -> Iterator[tuple[str, Job]]:
    """Families and jobs."""
    for family in (*FAMILIES, *GEMMA, OLDER_GEMMA, LLAMA):
        for setting, given in JOBS:
            job = {**SETTINGS[setting], **given}
            if family.startswith(NO_FLASH) and job.get("attention") == "flash":
                job["attention"] = "eager"
            if family.startswith("llama4") and "lora" in setting:  # PEFT fails on its router
                job["lora_targets"] = ("q_proj", "o_proj", "up_proj")
            yield family, Job(**job)
    yield SEEING, Job(**SEEN, method="full", autocast="none", checkpointing="none", vision="train", projector="train")
    yield SEEING, Job(**SEEN, checkpointing="full")


TABLE = TracedTable(ROOT / "tests" / "cases" / "traced_families.json", spec_for, cases)

if __name__ == "__main__":
    TABLE.write()
