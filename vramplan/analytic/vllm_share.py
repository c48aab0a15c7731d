"""What vLLM's share of a GPU has to hold at least: its weights, and the keys and values of one completion."""

from __future__ import annotations

from math import ceil

from vramplan.analytic.layers.context import heads_of
from vramplan.analytic.prepare import prepare
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import record_of
from vramplan.analytic.train_step import declare
from vramplan.analytic.unfolded_step import Step
from vramplan.errors import ConfigError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import LANGUAGE_MODEL, Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.vllm import requested_bytes
from vramplan.units import DTYPE_BYTES, ceil_div, format_bytes


def check_share(spec: ModelSpec, job: Job, gpu: Gpu) -> None:
    """Refuse a share that holds less than the weights and one completion: vLLM does not start with it.

    Raises:
        ConfigError: naming the least share that holds both; activations and CUDA graphs need more.
        VramplanError: for a job that cannot run or is not modelled.
    """
    weights, cache = least_bytes(spec, job, gpu)
    if requested_bytes(job, gpu) >= weights + cache:
        return
    least = ceil(100 * (weights + cache) / gpu.cuda_total_bytes) / 100
    more, elsewhere = f"give more than {setting('vllm_share', least)}", f"use {setting('generate_with', 'vllm_server')}"
    raise ConfigError(
        f"{setting('vllm_share', job.vllm_share)}: vLLM gets {format_bytes(requested_bytes(job, gpu))}, and needs"
        f" {format_bytes(weights)} for its weights and {format_bytes(cache)} for the keys and values of one completion;"
        f" {more if least < 1 else elsewhere}"
    )


def least_bytes(spec: ModelSpec, job: Job, gpu: Gpu) -> tuple[int, int]:
    """Bytes of vLLM's weights, and of the keys and values of one prompt with its completion, on each of its GPUs.

    vLLM loads fp32 files in half precision (vllm/config/model.py: _get_and_verify_dtype), and QLoRA's base in four bits
    (trl/generation/vllm_generation.py: _init_vllm).
    """
    half = "fp16" if job.dtype == "fp16" else "bf16"
    changes = {**LANGUAGE_MODEL, "method": "lora", "dtype": half, "autocast": "none", "strategy": "ddp", "num_gpus": 1}
    setting_of, plan, _ = prepare(spec, job.model_copy(update={**changes, "optimizer": "sgd", "offload": "none"}), gpu)
    step = Step(setting_of, plan, gpu, record=record_of(declare(setting_of).tape))
    own = [storage.num_bytes for one in step.placed if not one.parameter.is_adapter for storage in one.storages()]
    return ceil_div(sum(own), job.vllm_tensor_parallel), _cache_bytes(setting_of, job)


def _cache_bytes(setting_of: StepSpec, job: Job) -> int:
    """Keys and values of one prompt with its completion in half precision; 0 where the layers keep something else."""
    c = setting_of.config
    if c.get("kv_lora_rank") is not None or setting_of.architecture.decoder is None:
        return 0
    heads = heads_of(c)
    own = max(1, heads.key // job.vllm_tensor_parallel)
    layers = setting_of.architecture.shape(c).layers
    return 2 * layers * own * heads.dim * DTYPE_BYTES["bf16"] * job.sequence_length
