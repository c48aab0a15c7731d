"""unsloth: TRL's trainers of preferences and GRPO, whose source it rewrites (2026.10.9, models/rl.py, TRL up to 1.15).

Log-probabilities come from chunks of hidden states, as in TRL 1.15. The reference is the model without its adapters:
the copy of them that TRL makes is taken out of its source (models/rl.py: patch_functions).
"""

from __future__ import annotations

from typing import Any

from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig
from vramplan.frameworks.readers import trl_grpo, trl_tasks
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.job_values import own_reference

TRL = "1.15.0"
"""The newest version of TRL that it requires."""
READ = ("dpo", "kto", "grpo")
NAMES: dict[str, KeyNames] = {
    "reference": {"none": "beta 0.0"},
    "vllm_share": "gpu_memory_utilization",
    "num_generations": "num_generations",
    "steps_per_generation": "steps_per_generation",
    "generate_with": {"vllm": "fast_inference True"},
}
"""GRPO's keys for the fields that a user may change."""
WITHOUT_REFERENCE = ("dapo", "dr_grpo")
"""Values of `loss_type` with which `beta` is 0 by default, and not 0.001."""


def train_for(parsed: ParsedConfig, config: ConfigReader, task: str) -> None:
    """Make a script that has been read for supervised fine-tuning one for preferences or GRPO.

    Raises:
        UnsupportedError: for a trainer or a setting that is not modelled.
    """
    if task not in READ:
        nearest = {name: one for name, one in parsed.job.items() if name not in ("loss", "batches")} | {"task": task}
        raise config.unsupported(
            "trainer",
            f"{task.upper()} under unsloth is not modelled: it computes log-probabilities in chunks, TRL with whole"
            f" logits; that of TRL: {estimate_command(parsed.model, nearest)}",
        )
    limit = parsed.job["sequence_length"]
    trl_tasks.train_for(parsed, config, task, TRL)
    if task == "grpo":
        _generates(parsed, config, limit)
        parsed.names = {**parsed.names, **NAMES}
        return
    length = parsed.job.get("sequence_length")
    if length is None or length > limit:  # the fast forward cuts what is longer (models/rl_replacements.py)
        parsed.job["sequence_length"] = limit


def _generates(parsed: ParsedConfig, config: ConfigReader, limit: int) -> None:
    """GRPO: unsloth's defaults, and vLLM whose weights are those of the model.

    Args:
        parsed: the job as TRL would train it.
        config: the script.
        limit: `max_seq_length` of the model, tokens of a prompt with its completion at most.
    """
    job = parsed.job
    default = 0.0 if config.lowercase("loss_type", default="dapo") in WITHOUT_REFERENCE else 0.001
    job.pop("reference", None)
    if config.number("beta", default=default) != 0.0:
        job["reference"] = own_reference(job["method"])
    _complete_group(config, job)
    prompt = config.integer("max_prompt_length", default=0)
    completion = trl_grpo.completion_length(config, TRL)
    job["sequence_length"] = min(limit, prompt + completion) if prompt else limit
    job["prompt_length"] = max(1, job["sequence_length"] - completion)
    parsed.completion_length = None
    parsed.notes[:] = [note for note in parsed.notes if note.key != "max_prompt_length"]
    if config.boolean("fast_inference", default=False):
        job |= _engine(config) | {"vllm_max_length": limit}  # vLLM's max_model_len is max_seq_length
    config.note(
        "warning",
        "",
        "if memory is short, unsloth scores and trains on fewer completions at a time (unsloth_grpo_mini_batch): what"
        " does not fit here may fit there",
    )


def _complete_group(config: ConfigReader, job: dict[str, Any]) -> None:
    """The micro-batch becomes `num_generations` if the samples of an optimizer step are no multiple of them."""
    group = job["num_generations"]
    samples = job["micro_batch_size"] * job["gradient_accumulation_steps"] * job["num_gpus"]
    if samples % group and "steps_per_generation" not in job:
        config.note(
            "warning",
            "per_device_train_batch_size",
            f"becomes {group}: {samples} samples of an optimizer step are no multiple of num_generations",
        )
        job["micro_batch_size"] = group


def _engine(config: ConfigReader) -> dict[str, Any]:
    """The engine in the same process; it computes no log-probabilities again by default (models/rl.py)."""
    sleeps = config.boolean("unsloth_vllm_standby", default=False)
    if sleeps:
        config.note(
            "doubt",
            "unsloth_vllm_standby",
            "sets vLLM's share by itself, 0.71 to 0.88 of the GPU by its size, whatever gpu_memory_utilization says",
        )
    if not config.has("gpu_memory_utilization"):
        config.note("default", "gpu_memory_utilization", "not set: 0.5")
    return {
        "generate_with": "vllm_sleep" if sleeps else "vllm",
        "vllm_weights": "shared",
        "vllm_share": config.number("gpu_memory_utilization", default=0.5),
        "importance_sampling": config.boolean("vllm_importance_sampling_correction", default=False),
    }
