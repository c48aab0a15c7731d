"""What SGLang takes of a GPU that it shares with verl's training, in processes of its own.

Mirrors SGLang 0.5 as verl 0.7.1 to 0.9.1 starts it (workers/rollout/sglang_rollout/async_sglang_server.py):
``gpu_memory_utilization`` is its ``mem_fraction_static``.
"""

from __future__ import annotations

from bisect import bisect_right
from math import ceil
from typing import NamedTuple

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, GiB, MiB, ceil_div

EAGER_BYTES = ceil(1.1 * GiB)
"""What stays without large CUDA graphs: the context of a process, attention workspaces, small graphs. Reported: 1.1 GiB
of a paused SGLang for a 1B on an RTX 4090D (sglang#2542). Not measured here."""
MOST_BYTES = ceil(7.1 * GiB)
"""The most that was reported of a paused SGLang for dense models: 7.1 GiB for an 8B and 5.8 GiB for a 32B on H200,
whose CUDA graphs are of up to 256 texts (sglang#7009). verl gives back weights and cache alone, and so the graphs stay
(sglang_rollout.py: release). Not measured here."""
FEWEST, MOST = 24, 256
"""Texts of the largest CUDA graph on the GPUs of these reports."""
MEMORY = (20, 35, 60, 90, 160)
"""GiB at which SGLang's defaults change (srt/server_args.py: _handle_gpu_memory_settings)."""
GRAPHS = ((8, 8), (24, 80), (32, 160), (256, 512), (256, 512), (512, 512))
"""Texts of the largest CUDA graph: with a tensor parallelism below 4, and from 4 on."""
PREFILL = (2048, 2048, 4096, 8192, 8192, 16384)
"""Tokens of a forward that reads prompts (``chunked_prefill_size``)."""
TOKEN_BYTES = 3 * MiB // 2
"""Bytes for the activations of such a token by which SGLang chooses a share if it is given none, whatever the model
("The coefficient 1.5 is a heuristic value", same function). verl gives the share, and nothing is reserved; it is taken
where the layers are not known, as of mixtures of experts."""


class Sizes(NamedTuple):
    """Widths of a dense model's layers, and its vocabulary."""

    hidden: int
    intermediate: int
    queries: int
    """Of the queries of all heads together."""
    keys: int
    """The same of the keys."""
    vocabulary: int


def _defaults_of(gpu: Gpu) -> int:
    return bisect_right(MEMORY, gpu.cuda_total_bytes / GiB)


def asleep_bytes(job: Job, gpu: Gpu) -> int:
    """Bytes that stay while SGLang sleeps: between two reports, by the texts of its largest CUDA graph."""
    texts = 0 if job.verl.eager else GRAPHS[_defaults_of(gpu)][job.vllm_tensor_parallel >= 4]
    part = (min(max(texts, FEWEST), MOST) - FEWEST) / (MOST - FEWEST)
    return EAGER_BYTES + ceil(part * (MOST_BYTES - EAGER_BYTES))


def asleep(job: Job, gpu: Gpu) -> Storage:
    """What stays of SGLang while it sleeps."""
    name = "SGLang asleep: CUDA context" if job.verl.eager else "SGLang asleep: CUDA graphs, context"
    return Storage(asleep_bytes(job, gpu), "sglang", name, "as much as others reported", in_kernel=True)


def static_bytes(job: Job, gpu: Gpu, loaded_bytes: int) -> int:
    """Bytes of its weights and KV cache: its share of what was free as it started, after the training's weights.

    (srt/model_executor/model_runner.py: init_torch_distributed, profile_max_num_token; from 0.5.6 on
    model_runner_kv_cache_mixin.py: _profile_available_bytes.) CUDA contexts and NCCL, which it does not count as free
    either, are left out, so that these are rather too many.

    Args:
        job: the job.
        gpu: the GPU.
        loaded_bytes: bytes of the training's weights that were on the GPU by then.
    """
    return ceil(job.vllm_share * max(0, gpu.cuda_total_bytes - loaded_bytes))


def weights(job: Job, weight_bytes: int) -> Storage:
    """The weights of SGLang's own copy of the model, on one of its GPUs."""
    parallel = job.vllm_tensor_parallel
    text = "" if parallel == 1 else f"a copy on {parallel} GPUs"
    return Storage(weight_bytes, "sglang_weights", "SGLang: weights", text, in_kernel=True)


def prefill_bytes(tokens: int, sizes: Sizes, parallel: int) -> int:
    """Bytes of the tensors that are there in the widest layer of a prefill, on one of `parallel` GPUs, in bf16.

    (0.5.6, srt/models/qwen2.py.) The layer's input, the residual stream, the attention's output and the layer's own are
    there in the feed-forward, beside the gate with the product (one tensor), and that times the other; no gradients,
    and norms, rotary positions and additions write where they read. In attention there are three, beside queries, keys
    and values, and the heads' outputs.
    """
    fed = 4 * sizes.hidden + ceil_div(3 * sizes.intermediate, parallel)
    attends = 3 * sizes.hidden + ceil_div(2 * sizes.queries + 2 * sizes.keys, parallel)
    return DTYPE_BYTES["bf16"] * tokens * max(fed, attends)


def sampling_bytes(texts: int, vocabulary: int) -> int:
    """Bytes of the most that a sampling of `texts` tokens has: probabilities, and log-probabilities twice, in fp32.

    (0.5.6, srt/layers/sampler.py: forward; ``torch.log(probs).clamp(...)``.)
    """
    return 3 * DTYPE_BYTES["fp32"] * texts * vocabulary


def activations(job: Job, gpu: Gpu, sizes: Sizes | None) -> Storage:
    """The activations of a prefill and of a sampling, whose blocks are taken to be different ones."""
    tokens, texts = PREFILL[_defaults_of(gpu)], job.verl.texts
    if sizes is None:
        text, size = f"SGLang's own guess for {tokens:,} tokens", tokens * TOKEN_BYTES
    else:
        text = f"a prefill of {tokens:,} tokens, {texts:,} texts sampled"
        size = prefill_bytes(tokens, sizes, job.vllm_tensor_parallel) + sampling_bytes(texts, sizes.vocabulary)
    return Storage(size, "sglang", "SGLang: activations", text, in_kernel=True)


def awake(job: Job, gpu: Gpu, weight_bytes: int, loaded_bytes: int, sizes: Sizes | None) -> list[Storage]:
    """What SGLang takes while it generates, beside what stays while it sleeps: weights, KV cache and activations.

    Args:
        job: the job.
        gpu: the GPU.
        weight_bytes: bytes of its weights on one of its GPUs.
        loaded_bytes: bytes of the training's weights that were on the GPU as it started.
        sizes: of the model's layers; None if these are not known to be dense.
    """
    cache = max(0, static_bytes(job, gpu, loaded_bytes) - weight_bytes)
    text = f"the rest of {job.vllm_share:g} of what was free as it started"
    return [
        weights(job, weight_bytes),
        Storage(cache, "sglang", "SGLang: KV cache", text, in_kernel=True),
        activations(job, gpu, sizes),
    ]
