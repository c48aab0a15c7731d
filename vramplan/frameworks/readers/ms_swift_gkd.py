"""ms-swift's ``swift rlhf --rlhf_type gkd``: distillation with a teacher (4.6: rlhf_args.py, gkd_trainer.py)."""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.readers import ms_swift_rollout, trl_gkd
from vramplan.frameworks.readers.ms_swift_rows import row_field
from vramplan.frameworks.settings import ConfigReader

SINCE = "4.6"
"""The first version whose trainer was read."""
NOT_MODELLED = {
    "teacher_adapters": "adapters of the teacher are not modelled yet",
    "use_liger_kernel": "with gkd is not modelled yet",
    "resume_from_checkpoint": "with gkd is not modelled yet",
    "adapters": "with gkd are not modelled yet",
}
PRESETS = ("zero0", "zero1", "zero2", "zero3")
"""Values of teacher_deepspeed without offloading."""
SERVER, HIGHEST = "teacher_model_server", "gkd_logits_topk"
OFFLOADED = "zero3_offload"
"""The one that says that each GPU's share waits in host memory."""
NO_CHANGE = ("temperature", "max_completion_length", "max_new_tokens", "disable_dropout", "log_completions")
"""Settings that change nothing where nobody generates on these GPUs."""


def earlier(config: ConfigReader, model: str, job: dict[str, Any]) -> UnsupportedError:
    """The error for a version whose trainer was not read, with the nearest estimate."""
    teacher = config.string("teacher_model")
    if not teacher:
        return config.unsupported("rlhf_type", f"is read from ms-swift {SINCE} on, and with a teacher_model")
    shown = {name: one for name, one in job.items() if name not in ("loss", "batches")}
    return config.unsupported(
        "rlhf_type",
        f"is read from ms-swift {SINCE} on; nearest, TRL's own trainer{_without_sharding(shown)}:"
        f" {estimate_command(model, {**shown, 'task': 'gkd', 'teacher': teacher})}",
    )


def _without_sharding(fields: dict[str, Any]) -> str:
    """Replace a strategy that is not modelled with a teacher; returns what to say of it."""
    if fields.get("strategy") == "zero0":
        fields["strategy"] = "ddp"
    if fields.get("strategy") not in ("zero3", "fsdp"):
        return ""
    fields |= {"strategy": "zero2", "offload": None}
    return " with whole weights on each GPU"


def task_fields(config: ConfigReader, model: str, job: dict[str, Any]) -> dict[str, Any]:
    """What gkd changes in a job that has been read for supervised fine-tuning.

    Raises:
        UnsupportedError: for a setting that is not modelled, with the nearest estimate where completions are generated
            on the GPUs that train.
    """
    teacher = config.string("teacher_model")
    nearest = (
        f"nearest, with a second copy of the weights on each GPU, which needs more: {_taught_by_itself(model, job)}"
    )
    given = _elsewhere(config)
    if teacher and given:
        raise ConfigError(f"{config.place(SERVER)}: ms-swift stops at it with teacher_model; leave one of both out")
    if not given and (not teacher or teacher == model):
        raise config.unsupported(
            "rlhf_type", f"without another teacher_model: self-distillation is not modelled yet; {nearest}"
        )
    for name, why in NOT_MODELLED.items():
        config.require_off(name, why=f"{why}; {setting('set', f'{name}=')} estimates the run without it")
    if not given:
        _check_placement(config, str(job.get("strategy", "ddp")))
        given = {"teacher": teacher, "teacher_dtype": job["dtype"] if config.has("torch_dtype") else "auto"}
    if job.get("strategy") not in (None, "ddp", "zero1", "zero2", "zero3"):
        raise config.unsupported(
            "rlhf_type",
            f"under {job['strategy']} is not modelled yet; {setting('set', 'fsdp=')} estimates it with both models"
            " whole on each GPU, which needs more",
        )
    fields: dict[str, Any] = {
        "task": "gkd",
        "loss": "logits_to_keep",
        **row_field(config),
        **given,
        "divergence": trl_gkd.divergence(config.number("beta", default=0.5)),
        "generated_by": "none",
        "adds_cross_entropy": config.number("sft_alpha", default=0.0) > 0.0,
    }
    if job["method"] != "full":
        fields["lora_dropout"] = 0.0
    config.read_keys |= set(NO_CHANGE)
    if not config.is_off("seq_kd"):
        raise ConfigError(f"{config.place('seq_kd')}: seq_kd: ms-swift {SINCE} stops at it; leave it out")
    if config.number("lmbda", default=0.5) > 0.0:
        return fields | _on_policy(config, job)
    config.require_off(
        "use_vllm", why="with lmbda 0 holds vLLM's share for nothing, which is not modelled; leave it out"
    )
    return fields


def _elsewhere(config: ConfigReader) -> dict[str, Any]:
    """What comes of a teacher on other GPUs: the highest log-probabilities of each token; empty without one.

    Raises:
        ConfigError: without their number, which ms-swift requires (rlhf_args.py: _check_gkd).
        UnsupportedError: for the highest logits of a teacher on the same GPUs.
    """
    if config.is_off(SERVER):
        without = setting("set", f"{HIGHEST}=")
        config.require_off(
            HIGHEST, why=f"of a teacher on the same GPUs is not modelled yet; {without} estimates all, which need more"
        )
        return {}
    if not config.has(HIGHEST):
        raise ConfigError(f"{config.place(SERVER)}: ms-swift stops at it without {HIGHEST}")
    return {"teacher_logits": config.integer(HIGHEST, default=1)}


def _taught_by_itself(model: str, job: dict[str, Any]) -> str:
    """The command of a student whose teacher is of its own size."""
    shown = {name: one for name, one in job.items() if name not in ("loss", "batches")}
    _without_sharding(shown)
    command = estimate_command(model, {**shown, "task": "gkd", "teacher": model, "generated_by": "none"})
    return f"{command} --loss logits_to_keep"


def _check_placement(config: ConfigReader, strategy: str) -> None:
    """Check that the teacher lies where it does without settings of its own.

    DeepSpeed of its own matters if the student has DeepSpeed, and shards it at stage 3 alone (4.6, rollout_mixin.py:
    _setup_teacher; utils.py: prepare_deepspeed).

    A share stays on the GPU with zero3_offload too: it is there when the engine is made (deepspeed 0.19.8).

    Raises:
        UnsupportedError: if it does not, with the nearest estimate.
    """
    stays = setting("set", "offload_teacher_model=")
    config.require_off(
        "offload_teacher_model",
        why=f"a teacher that comes and goes is not modelled yet; {stays} estimates one that stays, which needs more",
    )
    own = config.string("teacher_deepspeed")
    if not own or not strategy.startswith("zero"):
        config.read_keys.add("teacher_deepspeed")
        return
    shards, is_sharded = own.startswith("zero3"), strategy == "zero3"
    if own in PRESETS and shards == is_sharded:
        return
    if own == OFFLOADED and is_sharded:
        config.note("warning", "teacher_deepspeed", "leaves the teacher's share on each GPU, where it was loaded")
        return
    without, nearest = setting("set", "teacher_deepspeed="), "with it whole on each GPU, which needs more"
    if is_sharded and shards:
        nearest = "with its share on each GPU, which needs more"
    elif is_sharded:
        without, nearest = setting("set", "deepspeed=zero2"), "with both whole on each GPU, which needs more"
    raise config.unsupported(
        "teacher_deepspeed", f"of the teacher's own is not modelled yet; {without} estimates the run {nearest}"
    )


def _on_policy(config: ConfigReader, job: dict[str, Any]) -> dict[str, Any]:
    """Completions by the student, which follow prompts of up to max_length, for all micro-batches of a generation.

    With `lmbda` below 1 other steps take texts of the data set, of up to max_length, whose prompts may be short: the
    larger number of logits counts, and the longer text.

    Raises:
        UnsupportedError: where the length of a prompt with its completion is not known.
    """
    engine = ms_swift_rollout.engine_fields(config, job)
    new = config.integer("max_completion_length", "max_new_tokens", default=512)
    lengths = ms_swift_rollout.length_fields(config, job, new, engine)
    if not lengths:
        raise config.unsupported("lmbda" if config.has("lmbda") else "rlhf_type", "needs max_length: it limits prompts")
    if config.number("lmbda", default=0.5) < 1.0 and "sequence_length" in job:
        own = max(job["sequence_length"], lengths["sequence_length"] - lengths["prompt_length"] + 1)
        lengths["prompt_length"] = max(1, lengths["sequence_length"] - own + 1)
    return {"generated_by": "student", **engine, **lengths, **ms_swift_rollout.generation_fields(config, job)}
