"""Models that see, of 2025 and 2026, made small, and what traces of their classes say.

python -m tests.seeing_cases     trace what has not been traced; write tests/cases/traced_seeing.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.family_cases import GEMMA, NO_FLASH, SMALL, with_towers
from tests.helpers import ROOT, spec_of
from tests.matrix_cases import SETTINGS, VOCABULARY
from tests.mixer_cases import DELTA, EXPERTS
from tests.traced_table import TracedTable
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec

MARKS = {"vision_start_token_id": 10, "vision_end_token_id": 11, "audio_start_token_id": 12, "audio_end_token_id": 13}
IDS = {"image_token_id": 7, "video_token_id": 8, "audio_token_id": 9, **MARKS}
INDICES = {"image_token_index": 7, "video_token_index": 8, "audio_token_index": 9, **MARKS}
ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
SOUND = {"d_model": 128, "encoder_layers": 3, "encoder_attention_heads": 4, "encoder_ffn_dim": 256, "output_dim": 512}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2_5_omni": (
        "qwen2_5_omni_thinker",
        {
            **INDICES,
            "text_config": {**SMALL, "num_hidden_layers": 6, "rope_parameters": ROPE},
            "vision_config": {
                "depth": 8,
                "hidden_size": 256,
                "intermediate_size": 512,
                "num_heads": 4,
                "out_hidden_size": 512,
                "fullatt_block_indexes": [3, 7],
            },
            "audio_config": SOUND,
        },
    ),
    "qwen3_omni": (
        "qwen3_omni_moe_thinker",
        {
            **IDS,
            "text_config": {
                **SMALL,
                "num_hidden_layers": 6,
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 192,
                "rope_parameters": {**ROPE, "mrope_interleaved": True},
            },
            "vision_config": {
                "depth": 8,
                "hidden_size": 256,
                "intermediate_size": 512,
                "num_heads": 4,
                "out_hidden_size": 512,
                "patch_size": 16,
                "num_position_embeddings": 256,
                "deepstack_visual_indexes": [1, 3, 5],
            },
            "audio_config": {**SOUND, "downsample_hidden_size": 32},
        },
    ),
    "llama4": (
        "llama4",
        {
            "image_token_index": 7,
            "text_config": {
                "model_type": "llama4_text",
                **SMALL,
                "num_hidden_layers": 8,
                "intermediate_size": 384,
                "intermediate_size_mlp": 1536,
                "num_local_experts": 4,
            },
            "vision_config": {
                "hidden_size": 256,
                "num_attention_heads": 4,
                "num_hidden_layers": 6,
                "intermediate_size": 1024,
                "image_size": 112,
                "vision_output_dim": 256,
                "projector_input_dim": 256,
                "projector_output_dim": 256,
            },
        },
    ),
    "glm46v": (
        "glm46v",
        {
            **IDS,
            "text_config": {
                **SMALL,
                "model_type": "glm4v_text",
                "num_hidden_layers": 6,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 12, 12]},
            },
            "vision_config": {
                "model_type": "glm4v_vision",
                "depth": 6,
                "hidden_size": 256,
                "num_heads": 4,
                "intermediate_size": 512,
                "out_hidden_size": 512,
            },
        },
    ),
    "lfm2_vl": (
        "lfm2_vl",
        {
            **IDS,
            "projector_hidden_size": 640,
            "text_config": {
                "model_type": "lfm2",
                **SMALL,
                "num_hidden_layers": 6,
                "block_ff_dim": 1536,
                "layer_types": ["conv", "full_attention"] * 3,
            },
            "vision_config": {
                "model_type": "siglip2_vision_model",
                "hidden_size": 256,
                "intermediate_size": 512,
                "num_attention_heads": 4,
                "num_hidden_layers": 6,
                "vision_use_head": False,
            },
        },
    ),
}
"""Type and configuration of each."""
STOPS = ("qwen3_omni",)
"""Models on which PEFT's all-linear stops."""
SEEN = {"images": 1, "image_size": (300, 200), "sequence_length": 384}
JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {**SEEN, "checkpointing": "none", "vision": "train", "projector": "train"}),
    ("full-bf16", {**SEEN, "checkpointing": "full", "micro_batch_size": 2}),
    ("full-autocast", {**SEEN, "checkpointing": "none", "attention": "eager", "vision": "train", "projector": "train"}),
    ("full-fp32", {**SEEN, "checkpointing": "full", "projector": "train"}),
    ("lora-bf16", {**SEEN, "checkpointing": "full", "vision": "lora", "projector": "lora", "micro_batch_size": 2}),
    ("lora-bf16", {**SEEN, "checkpointing": "none", "attention": "flash"}),
    ("lora-autocast", {**SEEN, "checkpointing": "none", "images": 2, "sequence_length": 640}),
    ("lora-autocast", {**SEEN, "checkpointing": "full", "micro_batch_size": 2}),
    ("full-bf16", {"images": 0, "checkpointing": "none", "micro_batch_size": 2, "sequence_length": 200}),
    ("lora-autocast", {"images": 0, "checkpointing": "full", "sequence_length": 512}),
)
"""With images, then on text alone."""


GEMMAS = {
    "gemma4": (GEMMA[0], {"standardize": True}, {"use_bidirectional_attention": "vision"}),
    "gemma4, inputs of layers": (GEMMA[1], {"use_clipped_linears": True}, {}),
}
"""Gemma 4 as its larger and its smaller models see: family on text, what differs in the tower and in the text."""
FEW = {"videos": 1, "frames": 3, "image_size": (300, 200), "sequence_length": 384}
VIDEOS = ("lora-bf16", {**FEW, "checkpointing": "none", "vision": "lora", "projector": "lora"})
MIXTURE = "qwen3_5_moe"
"""Qwen3.5 with experts and its tower."""


def spec_for(family: str) -> ModelSpec:
    """The family's small model."""
    if family == MIXTURE:
        return mixture()
    if family in GEMMAS:
        return gemma(family)
    model_type, parts = FAMILIES[family]
    return ModelSpec(name=family, model_type=model_type, config={"model_type": model_type, **parts})


def gemma(family: str) -> ModelSpec:
    """Gemma 4 with towers for images and, if it is a small one, for sound."""
    name, vision, text = GEMMAS[family]
    config = with_towers(name).config
    parts = {"vision_config": {**config["vision_config"], **vision}, "text_config": {**config["text_config"], **text}}
    return ModelSpec(name=family, model_type="gemma4", config={**config, **parts, **IDS})


def mixture() -> ModelSpec:
    """The published model, made small."""
    spec = spec_of("Qwen/Qwen3.5-35B-A3B")
    rope = {**spec.config["text_config"]["rope_parameters"], "mrope_section": [3, 3, 2]}
    sizes = {**DELTA, **EXPERTS, "num_hidden_layers": 8, "vocab_size": VOCABULARY, "rope_parameters": rope}
    text = {**spec.config["text_config"], **sizes}
    vision = {**spec.config["vision_config"], "depth": 5, "out_hidden_size": text["hidden_size"]}
    config = {**spec.config, **IDS, "text_config": text, "vision_config": vision}
    return spec.model_copy(update={"name": MIXTURE, "config": config})


def cases() -> Iterator[tuple[str, Job]]:
    """Families and jobs."""
    for family in (*FAMILIES, MIXTURE, *GEMMAS):
        for setting, given in (*JOBS, VIDEOS) if family in GEMMAS else JOBS:
            job = {**SETTINGS[setting], **given}
            if family in STOPS and "lora" in setting:
                job["lora_targets"] = ("q_proj", "o_proj", "qkv", "linear_fc1")
            if family == "lfm2_vl":  # no FlashAttention, and resized positions that train are refused
                job["attention"] = "eager" if job.get("attention") == "flash" else job.get("attention", "sdpa")
                job["vision"] = "frozen" if job.get("vision") == "train" else job.get("vision", "frozen")
            if family == "llama4":
                job = as_llama4_runs(job)
            elif family.startswith(NO_FLASH) and job.get("attention") == "flash":
                job["attention"] = "eager"
            yield family, Job(**job)


def as_llama4_runs(job: dict[str, Any]) -> dict[str, Any]:
    """The job as transformers runs Llama 4: with autocast for pixels, no FlashAttention, no adapter on the router."""
    attention = {"attention": "eager"} if job.get("attention") == "flash" else {}
    targets = {"lora_targets": ("q_proj", "o_proj", "up_proj")} if job.get("method") != "full" else {}
    autocast = {"autocast": "bf16"} if job["images"] and job["dtype"] == "bf16" else {}
    return {**job, **attention, **targets, **autocast}


TABLE = TracedTable(ROOT / "tests" / "cases" / "traced_seeing.json", spec_for, cases)

if __name__ == "__main__":
    TABLE.write()
