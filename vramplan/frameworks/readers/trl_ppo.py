"""TRL's PPOTrainer: four models, their dtypes, completions at a time (trl 0.15 to 1.12; later versions have none).

Read from trl 0.15 to 0.28 (trainer/ppo_config.py, ppo_trainer.py), 0.26 to 1.12 (experimental/ppo) and its scripts
(examples/scripts/ppo).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, at_least
from vramplan.frameworks.readers.trainer_arguments import read_dtype
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.ppo_rules import STRATEGIES

LAST = "1.12.0"
"""The last version with this trainer."""
POLICY, SCORER = "sft_model_path", "reward_model_path"
"""The scripts' flags: policy and reference, and value and reward model."""
DEFAULT_MODEL = "EleutherAI/pythia-160m"
"""What both of them are by default (ppo_config.py)."""
VALUE, REWARD = "value_model", "reward_model"
"""The keys under which a script's own models are named; with ``_dtype``, their dtypes."""
SCRIPTS = ("ppo.py", "ppo_tldr.py")
MARKS = frozenset(
    {
        POLICY, SCORER, "num_ppo_epochs", "num_mini_batches", "local_rollout_forward_batch_size", "missing_eos_penalty",
        "response_length", "total_episodes", "dataset_name",
    }
)  # fmt: skip
"""Flags of which TRL's scripts get at least one; other projects have a ppo.py too."""
TLDR_PROMPT = 512
"""Tokens of the longest prompt that ppo_tldr.py keeps."""
NAMES: Mapping[str, KeyNames] = {"rollout_batch_size": "local_rollout_forward_batch_size"}
"""TRL's keys for the fields that a user may change."""
WITHOUT_EFFECT = ("checkpointing", "autocast", "loss", "quantize", "fused_kernels", "strategy", "offload")
"""Fields whose keys the trainer does not follow, or with which it is not modelled."""
REFUSED = {
    "use_liger_kernel": "has no effect: PPOTrainer does not run the Trainer's training loop",
    "ref_adapter_name": "names adapters of a folder, which are not read",
    "model_adapter_name": "names adapters of a folder, which are not read",
}
CHECKPOINTED = "gradient_checkpointing_enable"
"""The key under which a script says that it switches checkpointing on by itself."""


def is_script(config: ConfigReader) -> bool:
    """Whether one of TRL's own scripts runs, whose settings a file by itself is taken for."""
    return config.source.spelling != "python"


def ppo_fields(config: ConfigReader, version: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a job that PPO decides; `job` has the method, the batch, the dtypes and the number of GPUs.

    Raises:
        ConfigError: if a model is not named, or for a batch that TRL stops at.
        UnsupportedError: for a setting that is not modelled.
    """
    for name, why in REFUSED.items():
        config.require_off(name, why=why)
    check_mini_batches(config, version, job)
    fields = _models(config, version, job)
    fields["rollout_batch_size"] = config.integer("local_rollout_forward_batch_size", default=64)
    if not config.has("local_rollout_forward_batch_size"):
        config.note("default", "local_rollout_forward_batch_size", "not set: 64")
    if config.boolean("ref_model", default=False):
        fields["reference"] = "model"
    config.read_keys.add("peft_model")
    _refuse_engines(config, {**job, **fields})
    _note_checkpointing(config)
    fields |= {"checkpointing": "none", "autocast": _autocast(config, version, job)}
    completion = completion_length(config)
    if not config.has("response_length"):
        config.note("default", "response_length", f"not set: {completion}")
    if is_script(config) and config.source.program.endswith("ppo_tldr.py"):  # drops longer prompts
        fields |= {"prompt_length": TLDR_PROMPT, "sequence_length": TLDR_PROMPT + completion}
    return fields


def completion_length(config: ConfigReader) -> int:
    """Tokens of a completion."""
    return config.integer("response_length", default=53)


def finish(parsed: ParsedConfig, config: ConfigReader) -> None:
    """The model that trains, not the one whose tokenizer the scripts load, and the keys that have an effect."""
    parsed.names = {name: keys for name, keys in parsed.names.items() if name not in WITHOUT_EFFECT}
    if "sequence_length" not in parsed.job:
        parsed.completion_length = completion_length(config)
    is_tldr = config.source.program.endswith("ppo_tldr.py")
    has_data = config.lowercase("eval_strategy", default="no") != "no" if is_tldr else is_script(config)
    has_data = has_data or config.boolean("has_eval_dataset", default=False)
    parsed.eval_batch_size = samples_at_a_time(config, parsed.job, has_data, default=8)
    if not is_script(config):
        return
    policy = config.string(POLICY) or DEFAULT_MODEL
    if parsed.model and parsed.model != policy:
        told = "not set: it is" if not config.has(POLICY) else "is"
        config.note(
            "warning",
            POLICY,
            f"{told} {policy}, which trains; of model_name_or_path {parsed.model} the script loads the tokenizer alone",
        )
    parsed.model = policy


def _models(config: ConfigReader, version: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Value and reward model. TRL's scripts load both from one path, since 0.26 in the policy's dtype."""
    if is_script(config):
        scorer = config.string(SCORER) or DEFAULT_MODEL
        if not config.has(SCORER):
            config.note("warning", SCORER, f"is not set: {scorer} is the value model and the reward model")
        own = config.has("dtype", "torch_dtype") and read_dtype(config, "dtype", "torch_dtype") is None
        dtype = "auto" if own or (job["dtype"] != "fp32" and not config.has("dtype", "torch_dtype")) else job["dtype"]
        return {VALUE: scorer, REWARD: scorer, "value_dtype": dtype, "reward_dtype": dtype}
    fields: dict[str, Any] = {}
    for key, field in ((VALUE, "value_dtype"), (REWARD, "reward_dtype")):
        name = config.string(key) or config.string(SCORER)
        if not name:
            raise ConfigError(f"{config.source.where}: names no {key}: PPOTrainer stops without one")
        fields |= {key: name, field: read_dtype(config, f"{key}_dtype") or "auto"}
    return fields


def _rows(job: Mapping[str, Any]) -> int:
    """Completions that a process generates at a time."""
    return int(job["micro_batch_size"] * job["gradient_accumulation_steps"])


def check_mini_batches(config: ConfigReader, version: str, job: Mapping[str, Any]) -> None:
    """Refuse mini-batches of less than a micro-batch; a generation is of as many samples as an optimizer step.

    (ppo_trainer.py: local_batch_size, which before 0.18 was `num_mini_batches` times as large.)
    """
    parts = config.integer("num_mini_batches", default=1)
    micro, rows = job["micro_batch_size"], _rows(job)
    if parts == 1:
        return
    if not at_least(version, "0.18"):
        raise config.unsupported(
            "num_mini_batches", f"above 1 is not modelled of TRL {version}; it is of 0.18 and later"
        )
    if rows % parts:
        raise config.invalid(
            ("num_mini_batches",), f"a divisor of per_device_train_batch_size x gradient_accumulation_steps ({rows})"
        )
    if rows // parts < micro:
        raise config.unsupported(
            "num_mini_batches",
            f"makes mini-batches of {rows // parts}, fewer than per_device_train_batch_size, which is not modelled; set"
            f" per_device_train_batch_size {rows // parts} and gradient_accumulation_steps {parts}, which generates as"
            " many completions",
        )
    if rows // parts == micro:
        config.note(
            "warning",
            "num_mini_batches",
            "makes mini-batches of one micro-batch, whose tensors TRL deletes before the next: needs less",
        )


def _refuse_engines(config: ConfigReader, job: Mapping[str, Any]) -> None:
    """Refuse FSDP and offloading, with the estimate of four whole models on each GPU.

    Raises:
        ConfigError: for DeepSpeed by the training arguments, at which transformers stops.
        UnsupportedError: naming it.
    """
    strategy, offload = job.get("strategy", "ddp"), job.get("offload", "none")
    launched = config.variable("ACCELERATE_USE_DEEPSPEED") is not None
    if not launched and not config.is_off("deepspeed"):  # training_args.py: trainer_config_process
        raise ConfigError(
            f"{config.place('deepspeed')}: transformers stops at deepspeed in PPOConfig, whose world_size is None until"
            " the trainer is made; start it by accelerate launch --config_file with DeepSpeed in it"
        )
    if strategy in STRATEGIES and offload == "none":
        return
    strategy = strategy if offload == "none" else f"{strategy} with offload_{offload}"
    left_out = ("strategy", "offload", "loss", "batches", "zero", "fsdp")
    whole = {name: value for name, value in job.items() if name not in left_out}
    whole |= {"task": "ppo", "autocast": "none"}
    model = (config.string(POLICY) or DEFAULT_MODEL) if is_script(config) else config.string("model_name_or_path") or ""
    length = "" if "sequence_length" in whole else " --seq-len N --prompt-len N"
    key = next((name for name in ("deepspeed", "fsdp", "accelerate_config") if config.has(name)), "")
    place = f"{config.place(key)}: " if key else ""
    raise UnsupportedError(
        f"{place}PPOTrainer under {strategy} is not modelled; nearest, with four whole models on each GPU, which needs"
        f" more: `{estimate_command(model, whole)}{length}`"
    )


def _autocast(config: ConfigReader, version: str, job: Mapping[str, Any]) -> str:
    """The launcher's, as the trainer makes an Accelerator of its own.

    transformers 4 hands bf16 and fp16 on to it (training_args.py: ACCELERATE_MIXED_PRECISION), transformers 5 does not;
    TRL from 0.26 on is taken to run with that, as elsewhere.
    """
    if not at_least(version, "0.26"):
        return str(job["autocast"])
    launched = (config.variable("ACCELERATE_MIXED_PRECISION") or "no").lower()
    if launched in ("bf16", "fp16"):
        return launched
    if config.has("bf16", "fp16"):
        key = "fp16" if config.boolean("fp16", default=False) else "bf16"
        if config.boolean(key, default=False):
            config.note(
                "warning",
                key,
                "has no effect with transformers 5, as PPOTrainer makes an Accelerator of its own: no autocast;"
                f" accelerate launch --mixed_precision {key} switches it on",
            )
    return "none"


def _note_checkpointing(config: ConfigReader) -> None:
    """Checkpointing by the trainer's arguments has no effect; by the model's own method it is refused."""
    if config.boolean(CHECKPOINTED, default=False):
        raise config.unsupported(CHECKPOINTED, "of the policy is not modelled with PPOTrainer; leave the call out")
    if config.boolean("activation_checkpointing", "gradient_checkpointing", default=False):
        config.note("warning", "gradient_checkpointing", "has no effect: PPOTrainer never switches it on")


def samples_at_a_time(config: ConfigReader, job: Mapping[str, Any], has_data: bool, default: int) -> int | None:
    """Samples that are generated for the log and scored at a time; None if training generates and scores as many.

    Args:
        config: the settings.
        job: fields of the job.
        has_data: whether there is data to take them from.
        default: the framework's default of their number (ppo_trainer.py: generate_completions).
    """
    size = config.integer("per_device_eval_batch_size", default=default)
    at_once = min(_rows(job), job["rollout_batch_size"])
    if not (has_data and config.integer("num_sample_generations", default=10, least=0)) or size <= at_once:
        return None
    config.note(
        "warning",
        "per_device_eval_batch_size",
        f"is that of the samples for the log: {size} are generated and scored at a time, more than the {at_once} of"
        f" training, counted as an evaluation; per_device_eval_batch_size {at_once} or num_sample_generations 0 needs"
        " no more",
    )
    return size
