"""A job of TRL's preference, reward, GRPO and RLOO trainers in TRL's keys (1.16)."""

from __future__ import annotations

from vramplan.errors import UnsupportedError, setting
from vramplan.frameworks.writers.config_text import Pairs
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import ROLLOUTS, own_reference

TASKS = ("dpo", "kto", "reward", *ROLLOUTS)
"""Tasks with a command of TRL; ORPO and CPO have scripts alone, which load the model by its name without a dtype."""
BETAS = {"grpo": 0.04, "rloo": 0.05}
"""What is written with a reference: RLOO's default, and GRPO's while it had one (up to 0.18)."""

WITHOUT = {"grpo": "none", "rloo": "model"}
"""The reference that a job has if it names none."""


def task_pairs(job: Job) -> Pairs:
    """Keys beside those of supervised fine-tuning; a value of None removes one of those.

    Raises:
        UnsupportedError: for what the newest TRL does otherwise.
    """
    newest = "standard" if job.task == "reward" else "chunked"
    if job.loss != newest:
        raise UnsupportedError(
            f"{setting('for_framework', 'trl')}: {setting('loss', job.loss)} is an older TRL's than 1.16"
        )
    if job.task in ROLLOUTS:
        return _rollouts(job)
    if job.task == "reward" and job.method != "full":
        return {"lora_task_type": "SEQ_CLS"}  # whose score PEFT trains beside the adapters
    if job.reference == "precomputed":
        return {"precompute_ref_log_probs": True}
    if job.reference not in (None, own_reference(job.method)):
        raise UnsupportedError(
            f"{setting('for_framework', 'trl')}: {setting('reference', job.reference)} is written in Python alone"
        )
    return {}


def _rollouts(job: Job) -> Pairs:
    pairs: Pairs = {
        "max_length": None,
        "max_completion_length": job.sequence_length - (job.prompt_length or 0),
        "num_generations": job.num_generations,
        "beta": 0.0 if (job.reference or WITHOUT[str(job.task)]) == "none" else BETAS[str(job.task)],
    }
    if job.reward_model is not None:
        if job.reward_dtype not in (None, job.dtype):
            raise UnsupportedError(
                f"{setting('for_framework', 'trl')}: reward_dtype={job.reward_dtype}: TRL's script loads the"
                f" reward model in the policy's dtype, {job.dtype}"
            )
        pairs["reward_model_name_or_path"] = job.reward_model
    if job.steps_per_generation is not None:
        pairs["steps_per_generation"] = job.steps_per_generation
    if job.num_iterations > 1:
        pairs["num_iterations"] = job.num_iterations
    if job.generate_with == "transformers":
        return pairs
    pairs |= {"use_vllm": True, "vllm_mode": "server" if job.generate_with == "vllm_server" else "colocate"}
    if not job.importance_sampling and job.task == "grpo":
        pairs["vllm_importance_sampling_correction"] = False
    if job.generate_with == "vllm_server":
        return pairs
    pairs["vllm_gpu_memory_utilization"] = job.vllm_share
    if job.vllm_max_length is not None:
        pairs["vllm_max_model_length"] = job.vllm_max_length
    if job.vllm_tensor_parallel > 1:
        pairs["vllm_tensor_parallel_size"] = job.vllm_tensor_parallel
    return pairs | ({"vllm_enable_sleep_mode": True} if job.generate_with == "vllm_sleep" else {})


def task_notes(job: Job) -> tuple[str, ...]:
    """What a user has to do beside."""
    if job.task not in ROLLOUTS:
        return ()
    return (f"TRL cuts no prompts: keep those of up to {job.prompt_length:,} tokens alone",)


__all__ = ["TASKS", "task_notes", "task_pairs"]
