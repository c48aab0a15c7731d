"""What TRL's trainers of preferences, rewards and GRPO get in a script, beside a model and arguments, as settings."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.readers import python_ppo
from vramplan.frameworks.readers.python_model import Model, is_model
from vramplan.frameworks.readers.python_trainer import Run, argument
from vramplan.frameworks.readers.saved_adapters import ADAPTER_NAME_KEY, SECOND_KEY
from vramplan.frameworks.readers.trl_gkd import TEACHER, TEACHER_DTYPE
from vramplan.frameworks.readers.trl_trainers import CLASSES, LABELS_KEY, TOKENIZER_KEY, TRAINER_KEY
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.python_ast import Call, Thing
from vramplan.frameworks.syntax.shell import UNKNOWN
from vramplan.inputs.job_values import ROLLOUTS

Settings = dict[str, ConfigValue]

MOVED = ("beta", "max_length", "max_prompt_length", "loss_type", "precompute_ref_log_probs", "model_init_kwargs")
"""Arguments that trainers took before TRL 0.12, and their configurations take since."""
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("tools", "rollout_func", "environment_factory"), "makes completions of any length"),
    **dict.fromkeys(MOVED, "is an argument of TRL before 0.12; newer versions take it in the trainer's arguments"),
}
"""Arguments of the trainers -> why they are refused."""
HALVES = ("compute_metrics", "preprocess_logits_for_metrics")
"""Arguments with which an evaluation holds all logits."""
LOADING = ("dtype", "torch_dtype", "quantization_config", "load_in_4bit", "load_in_8bit", "num_labels")
OF_TRANSFORMERS = ("Trainer", "Seq2SeqTrainer")
"""transformers' own trainers."""
COPIES = ("create_reference_model", "deepcopy")
"""Functions that make a second model like the first."""


def task_of(run: Run) -> str | None:
    """The task of the script's trainer, or of its arguments; None for supervised fine-tuning."""
    return next((CLASSES[call.last] for call in run.calls if call.last in CLASSES), None)


def moved(run: Run) -> Settings:
    """Arguments of TRL's former trainers, which unsloth hands to their configuration (trainer.py)."""
    keywords = run.trainer.call.keywords if run.trainer is not None else {}
    return {name: keywords[name] for name in MOVED if name in keywords}


def former_arguments(run: Run, is_trl: bool) -> Settings:
    """The trainer's `tokenizer`, which tells the version: TRL and transformers take a `processing_class` since."""
    if run.trainer is None or not (is_trl or run.trainer.call.last in OF_TRANSFORMERS):
        return {}
    value = run.trainer.call.keywords.get(TOKENIZER_KEY)
    return {} if value is None or value.value is None else {TOKENIZER_KEY: ConfigValue(True, value.place)}


def settings_of(task: str, run: Run, model: Model | None, refuses_moved: bool = True) -> Settings:
    """The trainer's name, the reference and whether adapters are there already.

    Args:
        task: what the trainer is for.
        run: the trainer and its arguments.
        model: the model that it gets; None if it loads it itself.
        refuses_moved: whether arguments that moved to the configuration are refused.

    Raises:
        UnsupportedError: for what changes memory and is not modelled.
        ConfigError: for what is not known.
    """
    place = run.place
    settings = {TRAINER_KEY: ConfigValue(task, place)}
    if run.trainer is None:
        return settings
    call = run.trainer.call
    for name, why in REFUSED.items():
        value = call.keywords.get(name)
        if (refuses_moved or name not in MOVED) and value is not None and value.value not in (None, [], {}):
            raise UnsupportedError(f"{value.place}: {call.last}({name}=...) {why}, which is not modelled")
    for name in HALVES if task != "reward" else ():
        value = call.keywords.get(name)
        if value is not None and value.value is not None:
            raise UnsupportedError(
                f"{value.place}: {call.last}({name}=...): evaluations hold all logits then, which is not modelled yet"
            )
    if task in ("dpo", "kto", "ppo"):
        settings |= _reference(run.trainer, model, 3 if task == "ppo" else 1)
    if task in ROLLOUTS:
        settings |= reward_model(run, run.trainer)
    if task == "gkd":
        settings |= _teacher(run.trainer)
    if task == "ppo":
        settings |= python_ppo.settings_of(run, run.trainer, model)
    if task == "reward" and model is not None and model.load.last == "from_pretrained":
        labels = model.load.keywords.get("num_labels")
        settings[LABELS_KEY] = labels or ConfigValue(None, model.load.place)
    if model is not None and model.adapters is not None and not run.peft_configs:
        settings["peft_model"] = ConfigValue(True, model.adapters.place)
    return settings | _second_adapters(task, call, model)


def _second_adapters(task: str, call: Call, model: Model | None) -> Settings:
    """Names of adapters, and those that are loaded beside the ones that train.

    Raises:
        UnsupportedError: for trainers of which they are not modelled.
    """
    settings: Settings = {}
    if model is not None and model.saved is not None and model.saved.name != "default":
        settings[ADAPTER_NAME_KEY] = ConfigValue(model.saved.name, model.saved.folder.place)
    names = [call.keywords[name] for name in ("model_adapter_name", "ref_adapter_name") if name in call.keywords]
    second = None if model is None else model.second
    if task != "dpo" and (second is not None or names):
        place = names[0].place if names else second.call.place  # type: ignore[union-attr]
        raise UnsupportedError(f"{place}: two sets of adapters are modelled for DPOTrainer alone")
    if second is not None:
        value = {"name": second.name, "folder": second.folder.value}
        settings[SECOND_KEY] = ConfigValue(value, second.call.place)
    return settings


def _reference(trainer: Thing, model: Model | None, position: int) -> Settings:
    """A reference model that the script makes, which has to be like the one that trains."""
    call = trainer.call
    key, value = argument(call, "ref_model", position)
    things = trainer.parts.get(key, [])
    if not things and (value is None or value.value is None):
        return {}
    place = call.place if value is None else value.place
    own = ConfigValue(True, place)
    if not things and value is not None and isinstance(value.value, str) and UNKNOWN not in value.value:
        named = model.load.positional[:1] if model is not None else [_named(call)]
        if named == [value.value]:
            return {"ref_model": own}
        raise UnsupportedError(f"{place}: {call.last}(ref_model=...): a reference of another model is not modelled")
    if len(things) != 1 or not trainer.is_certain.get(key):
        text = "" if value is None else str(value.value).replace(UNKNOWN, "")
        raise ConfigError(f"{place}: ref_model {text} of {call.last} is not known without running the script")
    thing = things[0]
    if thing.call.last in COPIES:
        return {"ref_model": own}
    if not is_model(thing) or model is None or not _is_alike(thing.call, model.load):
        raise UnsupportedError(
            f"{place}: {call.last}(ref_model=...): a reference that is loaded otherwise than the model is not modelled;"
            " load it with the same name, dtype and quantization, or leave it out"
        )
    return {"ref_model": own}


def _teacher(trainer: Thing) -> Settings:
    """The model that a student learns from: a name, or a model that the script loads."""
    call = trainer.call
    key, value = argument(call, "teacher_model", 1)
    things = trainer.parts.get(key, [])
    place = call.place if value is None else value.place
    if not things and (value is None or value.value is None):
        raise ConfigError(f"{place}: {call.last} has no teacher_model, and stops without a model to learn from")
    if not things and value is not None and isinstance(value.value, str) and UNKNOWN not in value.value:
        return {TEACHER: ConfigValue(value.value, place)}
    if len(things) != 1 or not trainer.is_certain.get(key) or not is_model(things[0]):
        raise ConfigError(f"{place}: teacher_model of {call.last} is not known without running the script")
    loaded = things[0].call
    name = _named(loaded, "pretrained_model_name_or_path")
    if not isinstance(name, str) or UNKNOWN in name:
        raise ConfigError(f"{loaded.place}: the name of the teacher is not known without running the script")
    for option in ("quantization_config", "load_in_4bit", "load_in_8bit"):
        if option in loaded.keywords and loaded.keywords[option].value not in (None, False):
            raise UnsupportedError(f"{loaded.place}: a quantized teacher ({option}) is not modelled yet")
    settings = {TEACHER: ConfigValue(name, loaded.place)}
    dtype = loaded.keywords.get("dtype") or loaded.keywords.get("torch_dtype")
    return settings | ({} if dtype is None else {TEACHER_DTYPE: dtype})


def _named(call: Call, keyword: str = "model") -> Any:
    """The model's name, if the trainer loads it."""
    value = call.keywords.get(keyword)
    return value.value if value is not None else call.positional[0] if call.positional else None


def _is_alike(one: Call, other: Call) -> bool:
    """Whether two models are loaded alike, for all that their memory depends on."""
    left, right = (
        (
            call.name,
            [*call.positional[:1]],
            {name: call.keywords[name].value for name in LOADING if name in call.keywords},
        )
        for call in (one, other)
    )
    return left == right


def reward_model(run: Run, trainer: Thing) -> Settings:
    """The model among the rewards, which lies on the GPU too; functions do not.

    TRL loads one that is named by its name with `model_init_kwargs` (grpo_trainer.py: __init__).

    Raises:
        UnsupportedError: for several models, and for one that is quantized.
    """
    call = trainer.call
    key, value = argument(call, "reward_funcs", 1)
    place = call.place if value is None else value.place
    models = [thing for thing in trainer.parts.get(key, []) if is_model(thing)]
    named = [] if value is None else _names_in(value.value)
    if not models and not named:
        return {}
    where = f"{place}: {call.last}(reward_funcs=...)"
    if len(models) + len(named) > 1:
        raise UnsupportedError(f"{where}: several reward models are not modelled; one is")
    if named:
        given = run.settings.get("model_init_kwargs")
        arguments = given.value if given is not None and isinstance(given.value, dict) else {}
        name = named[0]
    else:
        load = models[0].call
        arguments = {name: one.value for name, one in load.keywords.items()}
        name = str(load.positional[0] if load.positional else arguments.get("pretrained_model_name_or_path"))
    if any(arguments.get(one) for one in ("quantization_config", "load_in_4bit", "load_in_8bit")):
        raise UnsupportedError(f"{where}: a quantized reward model is not modelled; leave its quantization out")
    if UNKNOWN in name:
        raise ConfigError(f"{where}: the reward model's name is not known without running the script")
    dtype = arguments.get("dtype") or arguments.get("torch_dtype")
    settings = {"reward_model": ConfigValue(name, place)}
    return settings | ({} if dtype is None else {"reward_model_dtype": ConfigValue(dtype, place)})


def _names_in(value: Any) -> list[str]:
    """The texts in an argument; of a list that has other objects too, its source is all that is known."""
    if not isinstance(value, str) or UNKNOWN not in value:
        return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]
    try:
        call = ast.parse(f"_({value.replace(UNKNOWN, '')})", mode="eval").body
    except SyntaxError:
        return []
    given = [*call.args, *(one.value for one in call.keywords)] if isinstance(call, ast.Call) else []
    items = [item for one in given if isinstance(one, (ast.List, ast.Tuple)) for item in one.elts]
    return [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
