"""TRL's trainers of preferences, rewards and GRPO: what their configurations decide beside supervised fine-tuning's.

Read from trl 0.15 to 1.16 (trainer/*_config.py and *_trainer.py, experimental/orpo and experimental/cpo). A package
that trains with TRL's trainers reads the rest of its configuration, then calls :func:`train_for`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, at_least
from vramplan.frameworks.readers import trl_gkd, trl_grpo, trl_ppo
from vramplan.frameworks.readers.trl_adapters import copied_adapters, second_adapters
from vramplan.frameworks.readers.trl_liger import with_liger
from vramplan.frameworks.readers.trl_packing import NEEDS_FLASH
from vramplan.frameworks.readers.trl_trainers import LABELS_KEY, PROMPT_LENGTH
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.trl_tasks import WITHOUT
from vramplan.inputs.job_values import ROLLOUTS
from vramplan.inputs.task_rules import CONCATENATED
from vramplan.units import ceil_div

Treatment = Literal["as_loaded", "prepared", "cast"]
"""What happens to a quantized model: nothing, PEFT's preparation, or adapters are cast to bf16."""


class Trainer(NamedTuple):
    """One of TRL's trainers."""

    name: str
    """The class."""
    losses: tuple[tuple[str, str], ...]
    """(the first version, how it computes the loss, as a job's `loss`), in order; empty where that is not modelled."""
    prepares: tuple[str, str] = ("0", "")
    """The first version that calls PEFT's prepare_model_for_kbit_training, and the first that makes adapters bf16
    instead; empty if none does."""
    reference: bool = False
    """Whether a reference is part of the loss."""


SINCE_1_0 = (("1.0", "divided_in_place"), ("1.10", "standard"), ("1.14", ""), ("1.15", "chunked"))
"""Of GRPO and RLOO: ``logits.div_(temperature)`` from 1.0 to 1.9, ``logits / temperature`` before and after it."""
TRAINERS: Mapping[str, Trainer] = {
    "dpo": Trainer(
        "DPOTrainer",
        (
            ("0.15", "concatenated"), ("0.19", "concatenated_states"), ("0.29", "sliced"), ("1.6", "standard"),
            ("1.14", ""), ("1.15", "chunked"),
        ),
        ("0", "0.29"),
        reference=True,
    ),
    "kto": Trainer(
        "KTOTrainer",
        (("0.18", "copied_logits"), ("1.6", ""), ("1.9", "standard"), ("1.14", ""), ("1.15", "chunked")),
        ("0", "0.26"),
        reference=True,
    ),
    "orpo": Trainer("ORPOTrainer", (("0.19", "standard"), ("1.14", "fused_log_probs"))),
    "cpo": Trainer("CPOTrainer", (("0.19", "standard"), ("1.14", "fused_log_probs"))),
    "reward": Trainer("RewardTrainer", (("0.14", "two_forwards"), ("0.24", "standard")), ("0", "0.26")),
    "grpo": Trainer("GRPOTrainer", (("0.18", "standard"), *SINCE_1_0), ("0.22", "0.26")),
    "rloo": Trainer("RLOOTrainer", (("0.22", "standard"), *SINCE_1_0), ("0.22", "0.27")),
    "gkd": Trainer("GKDTrainer", (("0.19", "sliced"), ("1.7", "standard")), ("0", "0.27")),
    "ppo": Trainer("PPOTrainer", (("0.15", "standard"), ("1.13", ""))),
}  # fmt: skip
"""By task. ORPOTrainer and CPOTrainer gathered all GPUs' logits for their metrics before 0.19; KTOTrainer had other
metrics in 1.6 to 1.8; 1.14 computed log-probabilities and entropies in one function; RLOOTrainer was another one before
0.22."""

LAST_VERSIONS: Mapping[str, Mapping[str, str]] = {
    "dpo": dict.fromkeys(
        ("max_prompt_length", "max_completion_length", "rpo_alpha", "reference_free", "force_use_ref_model",
         "generate_during_eval", "label_pad_token_id", "use_logits_to_keep", "ref_model_init_kwargs",
         "model_adapter_name", "ref_adapter_name", "base_model_attribute_name"),
        "0.28.0",
    ) | {"use_liger_loss": "0.27.2"},
    "kto": dict.fromkeys(("max_prompt_length", "max_completion_length"), "0.26.2"),
    "orpo": {"max_prompt_length": "0.27.2"},
    "cpo": {"max_prompt_length": "0.27.2"},
    "reward": {},
    "grpo": {
        "vllm_device": "0.17.0",
        "max_prompt_length": "0.25.1", "use_liger_loss": "0.27.2", "vllm_guided_decoding_regex": "0.27.2",
    },
    "rloo": {"max_prompt_length": "0.26.2"},
    "gkd": {},
    "ppo": {},
}  # fmt: skip
"""Keys that were removed since, and the last version with each; GRPO cuts no prompt since 0.26, RLOO since 0.27."""

TITLES: Mapping[str, str] = {"reward": "reward model"}
"""What a task is called, where that is not its name in capitals."""


def loss_of(task: str, version: str) -> str:
    """The job's `loss` under a version of TRL.

    Raises:
        UnsupportedError: for a version whose loss is not modelled, naming those that are.
    """
    trainer = TRAINERS[task]
    known = [loss for first, loss in trainer.losses if at_least(version, first)]
    if not known or not known[-1]:
        raise UnsupportedError(
            f"{trainer.name} of TRL {version} is not modelled; modelled are those of {_modelled(trainer)}: give the"
            f" version that you run by {setting('framework_version', '1.16.0')}, or settings to `vramplan estimate"
            f" --task {task}`"
        )
    return known[-1]


def _modelled(trainer: Trainer) -> str:
    """Versions in words: 0.15 to 1.13, 1.15 on."""
    ranges: list[str] = []
    start = ""
    for first, loss in trainer.losses:
        if loss and not start:
            start = first
        elif not loss:
            major, _, minor = first.partition(".")
            ranges.append(f"{start} to {major}.{int(minor) - 1}")
            start = ""
    return ", ".join([*ranges, f"{start} on"] if start else ranges)


def kbit_treatment(task: str | None, version: str, has_adapters: bool) -> Treatment:
    """What a trainer does to a quantized model, and to the adapters that it adds; SFT if the task is None.

    `has_adapters`: the model came with adapters, which a trainer that would prepare it leaves as it is.
    """
    first, cast = TRAINERS[task].prepares if task else ("0", "0.27")
    if cast and at_least(version, cast):
        return "cast"
    return "as_loaded" if task and (has_adapters or not at_least(version, first)) else "prepared"


def train_for(parsed: ParsedConfig, config: ConfigReader, task: str, version: str) -> None:
    """Make a configuration that has been read for supervised fine-tuning that of one of TRL's trainers.

    `config` has TRL's own keys, `version` is TRL's.

    Raises:
        UnsupportedError: for a version, or a setting, that is not modelled.
    """
    parsed.job.pop("sequence_length", None)
    parsed.job |= task_fields(config, task, version, parsed.job)
    kept = {name: keys for name, keys in parsed.names.items() if name not in ("sequence_length", "loss")}
    parsed.names = {**kept, **task_names(task)}
    parsed.task, parsed.rows = TITLES.get(task, task.upper()), "samples"
    if task == "gkd":
        parsed.completion_length = trl_gkd.completion_length(config, parsed.job)
    elif task == "ppo":
        trl_ppo.finish(parsed, config)
    elif task in ROLLOUTS:
        if "sequence_length" not in parsed.job:
            parsed.completion_length = trl_grpo.completion_length(config, version)
        parsed.eval_batch_size = None
        trl_grpo.note_evaluation(config, parsed.job)
    elif config.has("precompute_ref_batch_size"):  # a forward without gradients, as an evaluation's
        size = config.integer("precompute_ref_batch_size", default=1)
        parsed.eval_batch_size = max(size, parsed.eval_batch_size or 0)


def task_fields(config: ConfigReader, task: str, version: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a job that one of TRL's trainers decides: task, loss, reference, lengths, generation.

    `job` has the method, the batch, the number of GPUs and the kernels. `sequence_length` stays open where nothing
    limits it.

    Raises:
        UnsupportedError: for a version, or a setting, that is not modelled.
    """
    fields: dict[str, Any]
    if task == "gkd":
        fields = {"task": task, "loss": loss_of(task, version), "batches": "padded"}
        return fields | trl_gkd.distillation_fields(config, version)
    if task == "ppo":
        fields = {"task": task, "loss": loss_of(task, version), "batches": "padded"}
        return fields | trl_ppo.ppo_fields(config, version, job)
    loss = with_liger(config, task, version, job, loss_of(task, version))
    fields = {"task": task, "loss": loss, "batches": "padded"}
    if task in ROLLOUTS:
        fields |= trl_grpo.generation_fields(config, task, version, job)
        return fields | copied_adapters(config, task, version, fields.get("reference", WITHOUT[task]) != "none")
    return fields | _preference(config, task, version, job, fields["loss"])


def _preference(config: ConfigReader, task: str, version: str, job: Mapping[str, Any], loss: str) -> dict[str, Any]:
    if not config.boolean("disable_dropout", default=True):
        raise config.unsupported("disable_dropout", "is not modelled yet; TRL's default is true")
    if config.boolean("padding_free", default=False):
        if task != "dpo":
            raise config.unsupported("padding_free", "is of DPO alone: set padding_free: false")
        if at_least(version, "0.29"):
            config.note("warning", "padding_free", "has no effect: TRL switched it off for DPO in 0.29")
    config.require_off("generate_during_eval", why="generates in evaluations, which is not modelled yet")
    fields = _dpo(config, loss, job) if task == "dpo" else _cpo(config) if task == "cpo" else {}
    if task == "kto":
        _check_kto(config, job)
    if task == "reward":
        _check_labels(config, version)
    if TRAINERS[task].reference:
        fields |= _reference(config, task, version, job)
    return fields | _lengths(config, task, version)


def _check_labels(config: ConfigReader, version: str) -> None:
    """A reward model has one label; TRL checks a model that the script loads (0.29, reward_trainer.py: __init__).

    Without `num_labels` transformers takes config.json's, or two.

    Raises:
        ConfigError: for another number.
    """
    config.read_keys.add(LABELS_KEY)
    if LABELS_KEY not in config.source.settings or not at_least(version, "0.29"):
        return
    value = config.source.settings[LABELS_KEY].value
    if value is None:
        config.note(
            "doubt",
            "num_labels",
            f"is not given where the model is loaded: RewardTrainer of TRL {version} stops unless config.json has one"
            " label, as that of a reward model; give num_labels=1",
        )
    if isinstance(value, int) and value != 1:
        raise ConfigError(
            f"{config.place(LABELS_KEY)}: num_labels is {value}: RewardTrainer of TRL {version} stops; load the model"
            " with num_labels=1"
        )


def _reference(config: ConfigReader, task: str, version: str, job: Mapping[str, Any]) -> dict[str, Any]:
    """A reference other than the usual one: a model of the script's own, or log-probabilities computed before.

    DPOTrainer of 0.29 to 1.1 loads the second model also for these, and keeps it (dpo_trainer.py: __init__).
    """
    own = config.boolean("ref_model", default=False)
    if config.boolean("precompute_ref_log_probs", default=False):
        if own:
            raise config.unsupported("precompute_ref_log_probs", "beside a ref_model, which stays, is not modelled")
        if task == "dpo" and job["method"] == "full" and at_least(version, "0.29") and not at_least(version, "1.2"):
            raise config.unsupported(
                "precompute_ref_log_probs",
                f"saves nothing in TRL {version}, which keeps the second model, and is not modelled; leave it out, or"
                " take TRL 1.2",
            )
        if copied_adapters(config, task, version, True):
            raise config.unsupported(
                "precompute_ref_log_probs",
                f"keeps the copy that TRL {version} makes of a model's adapters, which is not modelled; leave it out",
            )
        return {"reference": "precomputed"}
    if own:
        return {"reference": "model"}
    return second_adapters(config, job) or copied_adapters(config, task, version, True)


def _dpo(config: ConfigReader, loss: str, job: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    config.require_off("use_logits_to_keep")
    if loss != "chunked":  # from 1.15 on numbers for each token
        config.require_off("use_weighting", why="computes with whole logits before TRL 1.15, which is not modelled yet")
        has_sft = "sft" in config.strings("loss_type")
        if loss in CONCATENATED:
            fields = _concatenated(config, job, has_sft)
        elif has_sft:
            raise config.unsupported("loss_type", "has a cross-entropy of logits before TRL 1.15, not modelled yet")
    for name in ("reference_free", "force_use_ref_model", "beta", "f_divergence_type", "ld_alpha"):
        config.read_keys.add(name)
    return fields


def _concatenated(config: ConfigReader, job: Mapping[str, Any], has_sft: bool) -> dict[str, Any]:
    """Keys of 0.15 to 0.28: a cross-entropy of the chosen answers, and all answers in one row (dpo_trainer.py)."""
    fields: dict[str, Any] = {}
    if has_sft or config.string("rpo_alpha") is not None:
        fields["adds_cross_entropy"] = True
    if config.boolean("padding_free", default=False):
        has_flash = job.get("attention") == "flash"
        fields["batches"] = "packed" if has_flash else "flattened"
        if not has_flash:
            config.note("warning", "padding_free", NEEDS_FLASH)
    return fields


def _cpo(config: ConfigReader) -> dict[str, Any]:
    """Without cpo_alpha there is no cross-entropy of chosen answers, as in SimPO (cpo_trainer.py: cpo_loss)."""
    alpha = config.number("cpo_alpha", default=1.0)
    is_simpo = config.lowercase("loss_type", default="sigmoid") == "simpo"
    if is_simpo and alpha and not config.has("cpo_alpha"):
        config.note("warning", "loss_type", "is simpo, and cpo_alpha 1.0 adds CPO's loss; SimPO has cpo_alpha: 0.0")
    return {} if alpha else {"task": "simpo"}


def _check_kto(config: ConfigReader, job: Mapping[str, Any]) -> None:
    """KTO's KL term takes answers of other prompts of the batch (trl 1.16, kto_trainer.py)."""
    loss_type = config.lowercase("loss_type", default="kto")
    if loss_type not in ("kto", "['kto']"):
        raise config.unsupported("loss_type", "has no KL term, which is not modelled yet; modelled: kto")
    if job["micro_batch_size"] < 2:
        raise ConfigError(
            f"{config.place('per_device_train_batch_size')}: KTOTrainer stops at a per_device_train_batch_size of 1:"
            " its KL term takes answers of other prompts of the batch"
        )


def _lengths(config: ConfigReader, task: str, version: str) -> dict[str, Any]:
    """The longest prompt with an answer; open if nothing limits it."""
    limit = None if config.is_null("max_length") else config.integer("max_length", default=1024)
    if limit is not None and not config.has("max_length"):
        config.note("default", "max_length", "not set: 1024")
    if task == "dpo" and not at_least(version, "0.29") and config.has("max_completion_length"):
        prompt = config.integer("max_prompt_length", default=PROMPT_LENGTH)
        sized = prompt + config.integer("max_completion_length", default=1)
        limit = sized if limit is None else min(limit, sized)
    if config.has("max_prompt_length"):
        config.read_keys.add("max_prompt_length")
    return {} if limit is None else {"sequence_length": _padded(config, limit)}


def _padded(config: ConfigReader, length: int) -> int:
    """The length with padding to a multiple; "auto" pads on Neuron alone (trl 1.16, dpo_config.py)."""
    if config.lowercase("pad_to_multiple_of", default="auto") == "auto":
        return length
    multiple = config.integer("pad_to_multiple_of", default=1)
    return ceil_div(length, multiple) * multiple


def task_names(task: str) -> Mapping[str, KeyNames]:
    """TRL's keys for the fields that a user may change."""
    if task == "gkd":
        return trl_gkd.NAMES
    if task == "ppo":
        return trl_ppo.NAMES
    if task in ROLLOUTS:
        return trl_grpo.NAMES
    names: dict[str, KeyNames] = {"sequence_length": "max_length"}
    precomputed: KeyNames = {"precomputed": "precompute_ref_log_probs true"}
    return names | ({"reference": precomputed} if TRAINERS[task].reference else {})
