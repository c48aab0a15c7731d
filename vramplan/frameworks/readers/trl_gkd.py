"""TRL's GKDTrainer: the teacher, whose completions it trains on, and their lengths (trl 0.19 to 1.16)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.parsed_config import KeyNames
from vramplan.frameworks.readers.trainer_arguments import read_dtype
from vramplan.frameworks.readers.trl_trainers import dtype_of_scripts
from vramplan.frameworks.settings import ConfigReader

TEACHER = "teacher_model_name_or_path"
TEACHER_DTYPE = "teacher_dtype"
"""The key under which a script's own teacher says its dtype."""
NAMES: Mapping[str, KeyNames] = {
    "sequence_length": "max_length",
    "teacher": TEACHER,
    "divergence": {"jsd": "beta 0.5", "forward_kl": "beta 0.0", "reverse_kl": "beta 1.0"},
    "generated_by": {"student": "lmbda 0.5", "none": "lmbda 0.0"},
}
"""TRL's keys for the fields that a user may change."""
REFUSED = {
    "use_liger_kernel": "with GKD is not modelled",
    "use_liger": "with GKD is not modelled",
    "packing": "with GKD is not modelled: its collator pads samples",
    "padding_free": "with GKD is not modelled: its collator pads samples",
}


def distillation_fields(config: ConfigReader, version: str) -> dict[str, Any]:
    """Fields of a job that GKD decides.

    Raises:
        ConfigError: if no teacher is named.
        UnsupportedError: for a setting that is not modelled.
    """
    teacher = config.string(TEACHER)
    if not teacher:
        raise ConfigError(
            f"{config.source.where}: {TEACHER} is not set: GKDTrainer stops without a model to learn from"
        )
    if not config.boolean("disable_dropout", default=True):
        raise config.unsupported("disable_dropout", "is not modelled yet; TRL's default is true")
    for name, why in REFUSED.items():
        config.require_off(name, why=why)
    limit = 1024 if config.is_null("max_length") else config.integer("max_length", default=1024)
    if config.is_null("max_length") or not config.has("max_length"):
        config.note("default", "max_length", "not set: 1024")
    fields: dict[str, Any] = {
        "teacher": teacher,
        "divergence": divergence(config.number("beta", default=0.5)),
        "generated_by": generated_by(config),
        "sequence_length": limit,
    }
    return fields | _teacher_dtype(config, version)


def _teacher_dtype(config: ConfigReader, version: str) -> dict[str, str]:
    """The dtype that the teacher is loaded in, "auto" for the checkpoint's own; none if it is the student's.

    TRL's script gkd.py hands both models the same (examples/scripts/gkd.py); GKDTrainer by itself loads a name by
    ``teacher_model_init_kwargs``, and without them as transformers does: version 4, before TRL 0.27, in fp32.
    """
    options = config.section("teacher_model_init_kwargs")
    for name in ("quantization_config", "load_in_4bit", "load_in_8bit"):
        if options is not None and options.has(name):
            raise config.unsupported(
                "teacher_model_init_kwargs", f"with {name}: a quantized teacher is not modelled yet"
            )
    if options is not None and options.has("dtype", "torch_dtype"):
        return {TEACHER_DTYPE: read_dtype(options, "dtype", "torch_dtype") or "auto"}
    if config.has(TEACHER_DTYPE):
        return {TEACHER_DTYPE: read_dtype(config, TEACHER_DTYPE) or "auto"}
    return {TEACHER_DTYPE: dtype_of_scripts(version)} if config.source.spelling == "python" else {}


def divergence(beta: float) -> str:
    """The job's divergence by TRL's beta."""
    return {0.0: "forward_kl", 1.0: "reverse_kl"}.get(beta, "jsd")


def generated_by(config: ConfigReader) -> str:
    """Who generates completions: the student for a share of the micro-batches, the teacher for the others if told."""
    share, teaches = config.number("lmbda", default=0.5), config.boolean("seq_kd", default=False)
    if share <= 0.0:
        return "teacher" if teaches else "none"
    return "both" if teaches and share < 1.0 else "student"


def completion_length(config: ConfigReader, job: Mapping[str, Any]) -> int | None:
    """Tokens of a generated completion; None if none is generated."""
    if job["generated_by"] == "none":
        return None
    tokens = config.integer("max_new_tokens", default=128)
    if not config.has("max_new_tokens"):
        config.note("default", "max_new_tokens", "not set: 128")
    config.note(
        "warning",
        "max_new_tokens",
        f"{tokens} are generated behind a prompt: prompts of {job['sequence_length'] - tokens} tokens are assumed, so"
        " that generated samples are as long as those of max_length; behind longer prompts they are longer",
    )
    return tokens
