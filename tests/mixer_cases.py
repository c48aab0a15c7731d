"""Models with layers that mix tokens without attention, made small, and what their traces say.

python -m tests.mixer_cases     trace what has not been traced; write tests/cases/traced_mixers.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helpers import ROOT, spec_of
from tests.matrix_cases import SETTINGS, VOCABULARY
from tests.traced_table import TracedTable
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
DELTA = {
    **HEADS,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 64,
}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 64, "mamba_d_state": 32, "mamba_chunk_size": 64}
GRANITE = {
    **MAMBA,
    "hidden_size": 256,
    "shared_intermediate_size": 512,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 12,
    "layer_types": ["mamba", "mamba", "attention"] * 4,
}
FALCON = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 8,
    "mamba_d_ssm": 384,
    "mamba_n_heads": 12,
    "mamba_d_head": 32,
    "mamba_d_state": 32,
    "mamba_chunk_size": 64,
}
NEMOTRON = {
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "mamba_num_heads": 8,
    "mamba_head_dim": 64,
    "n_groups": 2,
    "ssm_state_size": 32,
    "chunk_size": 64,
}
NEMOTRON_3 = {
    **NEMOTRON,
    "hybrid_override_pattern": "MEM*E" * 3,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "moe_shared_expert_intermediate_size": 256,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen/Qwen3-Next-80B-A3B-Instruct", {**DELTA, **EXPERTS}),
    "qwen3_5_text": ("Qwen/Qwen3.5-9B", DELTA),
    "qwen3_5_moe_text": ("Qwen/Qwen3.5-35B-A3B", {**DELTA, **EXPERTS, "linear_num_value_heads": 2}),
    "granitemoehybrid": ("ibm-granite/granite-4.0-h-micro", GRANITE),
    "granitemoehybrid, experts": (
        "ibm-granite/granite-4.0-h-tiny",
        {**GRANITE, "num_local_experts": 8, "num_experts_per_tok": 2},
    ),
    "mamba2": (
        "mistralai/Mamba-Codestral-7B-v0.1",
        {"hidden_size": 256, "num_heads": 8, "n_groups": 2, "state_size": 32, "chunk_size": 64, "num_hidden_layers": 8},
    ),
    "falcon_h1": ("tiiuae/Falcon-H1-0.5B-Base", FALCON),
    "falcon_h1, norm": ("tiiuae/Falcon-H1-0.5B-Base", {**FALCON, "mamba_rms_norm": True, "mamba_n_groups": 2}),
    "falcon_h1, norm first": (
        "tiiuae/Falcon-H1-0.5B-Base",
        {**FALCON, "mamba_rms_norm": True, "mamba_norm_before_gate": True},
    ),
    "nemotron_h": ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", {**NEMOTRON, "hybrid_override_pattern": "M-M*-" * 3}),
    "nemotron_h, experts": ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", NEMOTRON_3),
    "nemotron_h, narrow experts": (
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        {**NEMOTRON_3, "moe_latent_size": 128},
    ),
    "lfm2": (
        "LiquidAI/LFM2-350M",
        {
            "hidden_size": 256,
            "block_ff_dim": 768,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "num_hidden_layers": 12,
            "full_attn_idxs": [2, 5, 8, 11],
        },
    ),
    "lfm2_moe": (
        "LiquidAI/LFM2-8B-A1B",
        {
            "hidden_size": 256,
            "intermediate_size": 768,
            "moe_intermediate_size": 192,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "num_hidden_layers": 12,
            "layer_types": ["conv", "conv", "full_attention"] * 4,
        },
    ),
}
JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {"checkpointing": "none", "micro_batch_size": 3, "sequence_length": 200}),
    ("full-bf16", {"checkpointing": "full", "sequence_length": 512, "attention": "flash"}),
    ("full-autocast", {"checkpointing": "none", "sequence_length": 192, "attention": "eager"}),
    ("full-fp32", {"checkpointing": "full", "sequence_length": 128, "micro_batch_size": 3}),
    ("lora-bf16", {"checkpointing": "full", "sequence_length": 200, "micro_batch_size": 3}),
    ("lora-autocast", {"checkpointing": "none", "sequence_length": 512}),
    ("lora-autocast", {"checkpointing": "full", "sequence_length": 256, "micro_batch_size": 2, "batches": "padded"}),
)
SEEN = {"images": 1, "image_size": (300, 200), "sequence_length": 256, "method": "full", "autocast": "none"}


def spec_for(family: str) -> ModelSpec:
    """The family's model, made small; Qwen3.5's language model alone."""
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    if family == "qwen3_5":
        return seeing()
    name, changes = FAMILIES[family]
    spec = spec_of(name)
    config = {**spec.config.get("text_config", spec.config), **tokens, "vocab_size": VOCABULARY, **changes}
    return spec.model_copy(update={"config": config, "model_type": config.get("model_type", spec.model_type)})


def seeing() -> ModelSpec:
    """Qwen3.5 with its vision tower."""
    spec = spec_of("Qwen/Qwen3.5-0.8B")
    rope = {**spec.config["text_config"]["rope_parameters"], "mrope_section": [3, 3, 2]}
    text = {**spec.config["text_config"], **DELTA, "vocab_size": VOCABULARY, "rope_parameters": rope}
    vision = {**spec.config["vision_config"], "depth": 5, "out_hidden_size": text["hidden_size"]}
    tokens = {"image_token_id": 7, "video_token_id": 8, "vision_start_token_id": 9, "vision_end_token_id": 10}
    return spec.model_copy(update={"config": {**spec.config, **tokens, "text_config": text, "vision_config": vision}})


def cases() -> Iterator[tuple[str, Job]]:
    """Families and jobs."""
    for family in FAMILIES:
        for setting, given in JOBS:
            job = {**SETTINGS[setting], **given}
            if family == "mamba2":
                job |= {"attention": "eager"} | ({"lora_targets": ("in_proj",)} if "lora" in setting else {})
            if family.startswith(("falcon_h1", "nemotron_h")) and "lora" in setting:  # PEFT does not adapt out_proj
                job["lora_targets"] = ("in_proj", "q_proj", "v_proj", "o_proj", "up_proj")
            yield family, Job(**job)
    yield "qwen3_5", Job(**SEEN, checkpointing="full", vision="train", projector="train")
    yield "qwen3_5", Job(**{**SEEN, "method": "lora", "autocast": "bf16"}, checkpointing="none")


TABLE = TracedTable(ROOT / "tests" / "cases" / "traced_mixers.json", spec_for, cases)

if __name__ == "__main__":
    TABLE.write()
