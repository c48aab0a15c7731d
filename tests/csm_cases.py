"""CSM made small, and what traces of transformers' class say.

python -m tests.csm_cases     trace what has not been traced; write tests/cases/traced_csm.json
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.helpers import ROOT, card_of
from tests.matrix_cases import SETTINGS
from tests.traced_table import TracedTable
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.job_defaults import complete_job

ROPE = {"rope_type": "default", "rope_theta": 500000.0}
CODEC = {
    "model_type": "mimi",
    "num_quantizers": 8,
    "codebook_size": 256,
    "codebook_dim": 64,
    "vector_quantization_hidden_dimension": 64,
    "num_filters": 16,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "upsample_groups": 128,
}
DEPTH = {
    "num_codebooks": 8,
    "backbone_hidden_size": 512,
    "vocab_size": 259,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 9,
    "rope_parameters": ROPE,
}
CONFIG: dict[str, Any] = {
    "text_vocab_size": 6000,
    "vocab_size": 259,
    "num_codebooks": 8,
    "audio_token_id": 2002,
    "audio_eos_token_id": 2003,
    "bos_token_id": 2000,
    "pad_token_id": 2002,
    "codebook_pad_token_id": 258,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "rope_parameters": ROPE,
    "depth_decoder_config": DEPTH,
    "codec_config": CODEC,
}
JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {"checkpointing": "none", "micro_batch_size": 2}),
    ("full-bf16", {"checkpointing": "full", "micro_batch_size": 3, "attention": "flash"}),
    ("full-autocast", {"checkpointing": "none", "attention": "eager"}),
    ("full-autocast", {"checkpointing": "full", "micro_batch_size": 2}),
    ("full-fp32", {"checkpointing": "full", "micro_batch_size": 2, "sequence_length": 300}),
    ("lora-bf16", {"checkpointing": "none", "micro_batch_size": 2, "attention": "flash"}),
    ("lora-bf16", {"checkpointing": "none", "micro_batch_size": 3, "lora_targets": ("q_proj", "v_proj", "up_proj")}),
    ("lora-autocast", {"checkpointing": "none", "batches": "padded", "micro_batch_size": 2}),
    ("lora-autocast", {"checkpointing": "none", "micro_batch_size": 4, "attention": "eager"}),
    ("lora-fp32", {"checkpointing": "none", "autocast": "bf16", "gradient_accumulation_steps": 2}),
)


def spec_for(family: str) -> ModelSpec:
    """The small model."""
    return ModelSpec(name=family, model_type="csm", config={"model_type": "csm", **CONFIG})


def cases() -> Iterator[tuple[str, Job]]:
    """Jobs, of six seconds of sound."""
    for setting, given in JOBS:
        yield "csm", complete_job(spec_for("csm"), card_of(), {"audio_seconds": 6.0, **SETTINGS[setting], **given})


TABLE = TracedTable(ROOT / "tests" / "cases" / "traced_csm.json", spec_for, cases)

if __name__ == "__main__":
    TABLE.write()
