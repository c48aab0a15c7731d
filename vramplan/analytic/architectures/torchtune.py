"""What torchtune's own models hold besides their weights (0.6.1)."""

from __future__ import annotations

from vramplan.analytic.architectures.architecture import Architecture
from vramplan.analytic.architectures.llama import qwen2
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import Config
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES


def position_tables(architecture: Architecture, config: Config, job: Job) -> list[Storage]:
    """Cosines and sines of all positions in fp32 (modules/position_embeddings.py: build_rope_cache).

    The layers share one table but for builders of adapters: each layer's attention makes its own (models/llama2,
    llama3, mistral and qwen2: _component_builders.py); those of Llama 3.1 and later, which scale it, do not. Qwen2's is
    twice as wide (models/qwen2/_positional_embeddings.py).
    """
    decoder = architecture.decoder
    assert decoder is not None
    rotary = decoder.rotary(config)
    assert rotary is not None
    positions, width = config.count("max_position_embeddings"), rotary.dim * (2 if decoder.layer is qwen2 else 1)
    is_shared = job.method == "full" or config.get("rope_scaling") is not None
    copies = 1 if is_shared else architecture.shape(config).layers
    table = Storage(positions * width * 4, "parameter", "rotary table", f"{positions} x {width} fp32")
    return [table, Storage(rotary.dim // 2 * 4, "parameter", "rotary frequencies", "fp32 buffers")] * copies


def first_flex_inputs(config: Config, job: Job) -> list[Storage]:
    """Queries, keys and values of the first call of compiled flex_attention, which its compilation holds.

    Found in runs with packed rows on emulated GPUs (torch 2.13).
    """
    if not job.joins_samples:
        return []
    shape = (job.micro_batch_size, job.sequence_length, config.count("hidden_size"))
    formula = f"{' x '.join(map(str, shape))} {job.dtype}"
    size = shape[0] * shape[1] * shape[2] * DTYPE_BYTES[job.dtype]
    return [Storage(size, "activation", "first input of flex_attention", formula)] * 3
