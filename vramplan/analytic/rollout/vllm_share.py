"""What vLLM's share of a GPU has to hold at least: its weights, and the keys and values of its longest text."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from vramplan.analytic.layers.context import LayerKind, heads_of
from vramplan.analytic.prepare import prepare
from vramplan.analytic.rollout import colocated_sglang
from vramplan.analytic.rollout.colocated_vllm import vllm_weight_bytes
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import record_of
from vramplan.analytic.train_step import declare
from vramplan.analytic.unfolded_step import Step
from vramplan.errors import ConfigError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import LANGUAGE_MODEL
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory import sglang
from vramplan.memory.vllm import requested_bytes
from vramplan.units import DTYPE_BYTES, GiB, ceil_div, format_bytes

BLOCK = 16
"""Tokens of a block of vLLM's KV cache (vllm/config/cache.py)."""
BATCHED = 4096
"""Tokens of one forward of vLLM, as TRL sets it (trl 1.16, generation/vllm_generation.py: max_num_batched_tokens)."""


ACTIVATIONS = GiB
"""What vLLM's activations and CUDA graphs rarely need less than: 1.4 GiB in its own logs of 7B models ("PyTorch
activation peak memory takes 1.42GiB", vllm/worker/worker.py: determine_num_available_blocks)."""
MAY_NOT_START = "vLLM may not start: "
"""How the note begins that can turn a verdict that fits."""
SGLANG_ASLEEP = (
    "{size} are counted for what SGLang keeps while the model trains, CUDA graphs above all: as much as was reported of"
    " others' runs, not measured"
)
SHORT_TEXT = 256
"""Tokens of a text below which a shorter one is not proposed."""


def check_share(spec: ModelSpec, job: Job, gpu: Gpu) -> list[str]:
    """Refuse a share that holds less than the weights and one text of full length: vLLM does not start with it.

    (vllm/v1/core/kv_cache_utils.py: _check_enough_kv_cache_memory.) Returns a note if it leaves little beside these.

    Raises:
        ConfigError: in vLLM's words, with the least share that holds both; activations and CUDA graphs need more.
        VramplanError: for a job that cannot run or is not modelled.
    """
    if job.verl.engine == "sglang":
        return [SGLANG_ASLEEP.format(size=format_bytes(sglang.asleep_bytes(job, gpu)))]  # its weights are checked later
    weights, cache, longest = least_bytes(spec, job, gpu)
    requested = requested_bytes(job, gpu)
    left = requested - weights - cache
    if left >= ACTIVATIONS or (left >= 0 and job.vllm_weights == "shared"):
        return []
    if left >= 0:
        return [
            f"{MAY_NOT_START}{format_bytes(left)} of its share are left beside its weights and the keys and values"
            " of its longest text, for activations and CUDA graphs, which often need 1 GiB and more"
        ]
    least = _hundredths(weights + cache, gpu) / 100
    more = f"give more than {setting('vllm_share', least)}" if least < 1 else ""
    held = min(job.sequence_length, longest * max(0, requested - weights) // max(1, cache) // BLOCK * BLOCK)
    shorter = f"{setting('vllm_max_length', held)}" if SHORT_TEXT <= held < longest else ""
    elsewhere = f"let other GPUs generate: {setting('generate_with', 'vllm_server')}"
    if weights >= requested:
        said = f"No available memory for the cache blocks: its weights take {format_bytes(weights)}"
        ways = [one for one in (more, elsewhere) if one]
    else:
        said = (
            f"To serve at least one request with the model's max seq len ({longest}), {format_bytes(cache)} KV cache is"
            f" needed, beside {format_bytes(weights)} of weights"
        )
        ways = [way for way in (more, f"give {shorter}" if shorter else "") if way] or [elsewhere]
    raise ConfigError(
        f"{setting('vllm_share', job.vllm_share)}: vLLM gets {format_bytes(requested)}, and stops: {said};"
        f" {', or '.join(ways)}"
    )


def start_doubts(notes: Iterable[str]) -> tuple[str, ...]:
    """Of an estimate's notes those that vLLM may not start at all, whatever else fits."""
    return tuple(note for note in notes if note.startswith(MAY_NOT_START))


def least_share(spec: ModelSpec, job: Job, gpu: Gpu) -> int:
    """The smallest share of the GPU, in hundredths, that holds vLLM's weights and one text of full length; 100 if none.

    Raises:
        VramplanError: for a job that cannot run or is not modelled.
    """
    weights, cache, _ = least_bytes(spec, job, gpu)
    if job.verl.engine == "sglang":
        return colocated_sglang.least_share(job, gpu, weights)
    return min(100, _hundredths(weights + cache, gpu))


def _hundredths(num_bytes: int, gpu: Gpu) -> int:
    return ceil(100 * num_bytes / gpu.cuda_total_bytes)


def least_bytes(spec: ModelSpec, job: Job, gpu: Gpu) -> tuple[int, int, int]:
    """Bytes of vLLM's weights, and of the keys and values of its longest text, on each of its GPUs; its tokens."""
    half = "fp16" if job.dtype == "fp16" else "bf16"
    changes = {
        **LANGUAGE_MODEL,
        "loss": "standard",
        "method": "lora",
        "dtype": half,
        "autocast": "none",
        "strategy": "ddp",
        "num_gpus": 1,
        "num_nodes": 1,
    }
    setting_of, plan, _ = prepare(spec, job.model_copy(update={**changes, "optimizer": "sgd", "offload": "none"}), gpu)
    step = Step(setting_of, plan, gpu, record=record_of(declare(setting_of).tape))
    positions = setting_of.architecture.shape(setting_of.config).positions
    longest = job.vllm_max_length or int(positions or job.sequence_length)
    return vllm_weight_bytes(job, step.placed), _cache_bytes(setting_of, job, longest), longest


def _cache_bytes(setting_of: StepSpec, job: Job, longest: int) -> int:
    """Keys and values of one text in half precision, in blocks; 0 where the layers keep something else.

    A sliding layer holds its window and the tokens of a forward (vllm/v1/kv_cache_interface.py: SlidingWindowSpec).
    """
    c, decoder = setting_of.config, setting_of.architecture.decoder
    if c.get("kv_lora_rank") is not None or decoder is None:
        return 0
    heads = heads_of(c)
    own = max(1, heads.key // job.vllm_tensor_parallel)
    page = 2 * own * heads.dim * DTYPE_BYTES["bf16"] * BLOCK
    window, blocks = decoder.window(c), 0
    for kind in setting_of.architecture.stacks(c)[0]:
        if not isinstance(kind, LayerKind) or not kind.attends or kind.crosses or kind.shares == "reuse":
            continue
        if kind.sliding and window is not None:
            blocks += ceil_div(min(longest, window - 1 + BATCHED), BLOCK) + 1  # it begins within a block
        else:
            blocks += ceil_div(longest, BLOCK)
    return blocks * page
