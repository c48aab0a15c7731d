"""What a job is where nothing is said: the defaults that depend on the method, the card and the model."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from vramplan.analytic.families import family_of
from vramplan.card import Card
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.job import Job
from vramplan.spec import ModelSpec

FLAGS = {
    "sequence_length": "--seq-len",
    "micro_batch_size": "--micro-batch",
    "gradient_accumulation_steps": "--accumulation",
}


def complete_job(spec: ModelSpec, card: Card, given: dict[str, Any]) -> Job:
    """A job from what was given, the rest filled in; keys with None count as not given.

    bf16 weights under bf16 autocast; on a card without bf16, fp16 (trained weights in fp32, since the gradient scaler
    needs that). SDPA, or what the architecture runs by default.

    Raises:
        ConfigError: for a value out of range, naming the flag.
    """
    job = {key: value for key, value in given.items() if value is not None}
    half = "bf16" if card.supports("bf16") else "fp16"
    for flag in ("dtype", "autocast"):
        if job.get(flag) == "fp8":
            if not card.supports("fp8"):
                raise ConfigError(f"--{flag} fp8: {card.title} has no fp8 units; run --{flag} {half}")
            raise UnsupportedError(f"--{flag} fp8 is not modelled yet; run --{flag} {half}")
    full = job.get("method") == "full"
    if "dtype" not in job:
        job["dtype"] = "fp32" if full and half == "fp16" else half
        if job["dtype"] == "fp32":
            job.setdefault("autocast", half)
    job.setdefault(
        "autocast",
        job["dtype"] if job["dtype"] in ("bf16", "fp16") and not (full and job["dtype"] == "fp16") else "none",
    )
    if "lora_dtype" not in job and job["dtype"] == "fp32":
        job["lora_dtype"] = "fp32"
    if "attention" not in job:
        offered = family_of(spec.model_type, spec.name).attention
        job["attention"] = "sdpa" if "sdpa" in offered else offered[0]
    try:
        return Job.model_validate(job)
    except ValidationError as error:
        raise ConfigError(_said(error)) from error


def _said(error: ValidationError) -> str:
    """The first thing wrong, in words of the command line."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "job"
    flag = FLAGS.get(name, "--" + name.replace("_", "-"))
    if first["type"] == "extra_forbidden":
        return f"{name}: no such setting; known: {', '.join(sorted(Job.model_fields))}"
    return f"{flag} {first.get('input')!r}: {first['msg'][0].lower()}{first['msg'][1:]}"
