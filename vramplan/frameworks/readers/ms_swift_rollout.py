"""How ms-swift's trainers generate: GRPO and GKD share it (4.6: rlhf_args.py, rollout_mixin.py, args_mixin.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.parsed_config import KeyNames
from vramplan.frameworks.settings import ConfigReader

HERE = ("vllm", "vllm_sleep")
"""vLLM in the training processes."""
OFFLOADS = {
    (False, False): "none", (False, True): "optimizer", (True, False): "model", (True, True): "all",
}  # fmt: skip
"""(offload_model, offload_optimizer) -> the job's `rollout_offload`."""
ROLLOUT_NAMES: Mapping[str, KeyNames] = {
    "generate_with": {
        "vllm": "use_vllm true; vllm_mode colocate",
        "vllm_sleep": "use_vllm true; vllm_mode colocate; sleep_level 1",
        "vllm_server": "use_vllm true; vllm_mode server",
    },
    "rollout_offload": {
        "optimizer": "offload_optimizer true",
        "model": "offload_model true",
        "all": "offload_model true; offload_optimizer true",
    },
    "vllm_sync_parts": "move_model_batches",
    "vllm_share": "vllm_gpu_memory_utilization",
    "vllm_tensor_parallel": "vllm_tensor_parallel_size",
    "vllm_max_length": "vllm_max_model_len",
    "steps_per_generation": "steps_per_generation",
}
"""Its keys for the fields that a user may change."""


def generation_fields(config: ConfigReader, job: Mapping[str, Any]) -> dict[str, int]:
    """Micro-batches of a generation (args_mixin.py: _init_generation_batch_params)."""
    steps = config.integer("steps_per_generation", default=1) if config.has("steps_per_generation") else None
    if not config.has("generation_batch_size"):
        return {} if steps is None else {"steps_per_generation": steps}
    size, at_once = config.integer("generation_batch_size", default=1), job["micro_batch_size"] * job["num_gpus"]
    if size % at_once or (steps is not None and steps * at_once != size):
        expected = f"a multiple of the {at_once} completions of a forward" if steps is None else f"{steps * at_once}"
        raise config.invalid(("generation_batch_size",), expected)
    return {"steps_per_generation": size // at_once}


def engine_fields(config: ConfigReader, job: Mapping[str, Any]) -> dict[str, Any]:
    """What generates: ``generate``, or vLLM by a server or in the training processes."""
    mode = config.lowercase("vllm_mode", default="")
    if not config.boolean("use_vllm", default=False):
        if mode:
            raise ConfigError(f"{config.place('vllm_mode')}: ms-swift stops at vllm_mode without use_vllm true")
        return {"generate_with": "transformers"}
    if not mode:
        raise ConfigError(f"{config.place('use_vllm')}: ms-swift stops without vllm_mode: colocate or server")
    if mode not in ("colocate", "server"):
        raise config.invalid(("vllm_mode",), "colocate or server")
    sync = {"vllm_sync_parts": config.integer("move_model_batches", default=1)}
    if mode == "server":
        return {"generate_with": "vllm_server"} | sync
    if job.get("quantize", "none") != "none":
        raise config.unsupported("quant_bits", "beside vllm_mode colocate is not modelled yet; use_vllm false is")
    if not config.has("vllm_gpu_memory_utilization"):
        config.note("default", "vllm_gpu_memory_utilization", "not set: 0.9")
    engine: dict[str, Any] = {
        "generate_with": "vllm_sleep" if config.integer("sleep_level", default=0, least=0) else "vllm",
        "vllm_share": config.number("vllm_gpu_memory_utilization", default=0.9),
        "vllm_tensor_parallel": config.integer("vllm_tensor_parallel_size", default=1),
        "rollout_offload": OFFLOADS[
            config.boolean("offload_model", default=False), config.boolean("offload_optimizer", default=False)
        ],
    } | sync
    if config.has("vllm_max_model_len"):
        engine["vllm_max_length"] = config.integer("vllm_max_model_len", default=1)
    else:
        config.note("default", "vllm_max_model_len", "not set: vLLM holds a text as long as the model's positions")
    return engine


def completion_length(config: ConfigReader) -> int:
    """Tokens of a completion of GRPO or PPO (rlhf_args.py: _init_max_completion_length)."""
    return config.integer("response_length", "max_new_tokens", "max_completion_length", default=512)


def length_fields(
    config: ConfigReader, job: Mapping[str, Any], answer: int, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Tokens of a prompt with its completion: max_length cuts prompts alone, and vLLM stops at the end of its texts.

    (template/base.py: encode; infer_engine.py: set_default_max_tokens.)
    """
    if not config.has("max_completion_length", "max_new_tokens", "response_length"):
        config.note("default", "max_completion_length", f"not set: {answer}")
    longest = fields.get("vllm_max_length")
    if not config.is_off("multi_turn_scheduler"):
        return _turns(config, longest)
    if "sequence_length" not in job and longest is None:
        return {}
    prompt = job.get("sequence_length", longest)
    if longest is None or prompt + answer <= longest:
        return {"prompt_length": prompt, "sequence_length": prompt + answer}
    if "sequence_length" in job:
        config.note(
            "warning",
            "vllm_max_model_len",
            f"is less than max_length with max_completion_length, {prompt + answer}: texts end at it",
        )
    return {"prompt_length": max(1, longest - answer), "sequence_length": longest}


def _turns(config: ConfigReader, longest: int | None) -> dict[str, Any]:
    """Several turns of answers and observations, which end where vLLM's texts do; all from the first answer on counts.

    (rollout_mixin.py: multi_turn_completion_length_context; rlhf_args.py: _set_loss_scale.)
    """
    if longest is None:
        raise config.unsupported(
            "multi_turn_scheduler", "adds turns without a limit; set vllm_max_model_len, with vllm_mode colocate"
        )
    return {"prompt_length": 1, "sequence_length": longest}
