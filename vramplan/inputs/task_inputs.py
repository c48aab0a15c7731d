"""The batches of tasks that are not the next token, as TRL's collators make them (trl 1.16)."""

from __future__ import annotations

from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import Input


def task_inputs(job: Job) -> list[Input]:
    """The tensors of one sample; those of a pair are two rows, all chosen answers before all rejected ones."""
    if job.task == "grpo":  # prompts and completions as generated, and which of their tokens count
        return [Input(name, (job.sequence_length,)) for name in ("input_ids", "attention_mask")]
    rows = (2, job.sequence_length)
    inputs = [Input(name, rows, stacked=False) for name in ("input_ids", "attention_mask", "completion_mask")]
    if job.reference == "precomputed":
        inputs += [Input(f"ref_{answer}_logps", (), "fp32") for answer in ("chosen", "rejected")]
    return inputs
