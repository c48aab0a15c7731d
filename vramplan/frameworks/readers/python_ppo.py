"""What TRL's PPOTrainer gets in a script beside its policy, as settings; former trainers of that name are refused."""

from __future__ import annotations

import re

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.nearest import FORMER_PPO_NEAREST
from vramplan.frameworks.parsed_config import at_least, resolve_version
from vramplan.frameworks.readers.python_adapters import ADAPTED, class_of
from vramplan.frameworks.readers.python_model import CASTS, Model, is_model
from vramplan.frameworks.readers.python_trainer import Run, argument
from vramplan.frameworks.readers.trl_grpo import FORMER
from vramplan.frameworks.readers.trl_ppo import CHECKPOINTED, REWARD, VALUE
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.python_ast import Call, Thing
from vramplan.frameworks.syntax.shell import UNKNOWN

Settings = dict[str, ConfigValue]

PLACES = {REWARD: 4, VALUE: 6}
"""Places of the other models among positional arguments (trl 0.15 to 1.12, ppo_trainer.py)."""
RENAMED = {"config": "args", "policy": "model", "ref_policy": "ref_model"}
"""Arguments of TRL 0.12 and their later names."""
HEAD = "ForSequenceClassification"


def refuse_former(call: Call) -> None:
    """Refuse PPOTrainer of TRL before 0.12, which steps by hand, and of 0.12 to 0.14; RLOOTrainer with a policy.

    Raises:
        UnsupportedError: with the nearest estimate.
    """
    module = call.name.rpartition(".")[0].partition(".")[0]
    if call.last == "RLOOTrainer" and module in ("", "trl") and "policy" in call.keywords:
        raise UnsupportedError(f"{call.place}: RLOOTrainer(policy=...) is {FORMER}")
    if call.last != "PPOTrainer" or module not in ("", "trl") or "**" in call.keywords:
        return
    renamed = [name for name in RENAMED if name in call.keywords]
    if {REWARD, VALUE, "train_dataset", "args"} & call.keywords.keys() or len(call.positional) > PLACES[REWARD]:
        if renamed:
            raise UnsupportedError(
                f"{call.place}: PPOTrainer({renamed[0]}=...) is of TRL 0.12, whose log-probabilities are those of all"
                f" tokens and not modelled; write {RENAMED[renamed[0]]}=..., its name in TRL 0.15 to 1.12"
            )
        return
    raise UnsupportedError(
        f"{call.place}: this PPOTrainer, without reward_model and value_model, is that of TRL before 0.12, whose loop a"
        f" script writes by step(): it is not read; {FORMER_PPO_NEAREST}"
    )


def settings_of(run: Run, trainer: Thing, model: Model | None) -> Settings:
    """Reward and value model, and whether there are data to sample from.

    Raises:
        ConfigError: for a model that is missing, or not known.
        UnsupportedError: for one that is not modelled.
    """
    settings: Settings = {}
    found: dict[str, Thing] = {}
    for name in (REWARD, VALUE):
        found[name] = _scorer(trainer, name)
        settings |= _loaded(name, found[name])
    if found[REWARD] is found[VALUE]:
        raise UnsupportedError(
            f"{trainer.call.place}: PPOTrainer gets one object as reward_model and value_model, so that what scores is"
            " trained, which is not modelled; load it twice"
        )
    data = trainer.call.keywords.get("eval_dataset")
    if data is not None and data.value is not None:
        settings["has_eval_dataset"] = ConfigValue(True, data.place)
    switch = model.checkpointing if model is not None else None
    if switch is not None and switch.value is not False:
        settings[CHECKPOINTED] = ConfigValue(True, switch.place)
    return settings


def _scorer(trainer: Thing, name: str) -> Thing:
    """The model that an argument gets."""
    call = trainer.call
    key, value = argument(call, name, PLACES[name])
    things = trainer.parts.get(key, [])
    if value is None or (value.value is None and not things):
        raise ConfigError(f"{call.place}: {call.last} has no {name}, and stops without one")
    if len(things) != 1 or not trainer.is_certain.get(key):
        raise ConfigError(f"{value.place}: {name} of {call.last} is not known without running the script")
    thing = things[0]
    if not is_model(thing) or class_of(thing.call) in ADAPTED or not class_of(thing.call).endswith(HEAD):
        raise UnsupportedError(
            f"{value.place}: {call.last}({name}=...): {thing.call.last} is not read; read: {HEAD}'s from_pretrained"
        )
    for change, event, _ in thing.history:
        words = {*event.keywords, *(str(one) for one in event.positional)}
        if change[1:] in CASTS or (change == ".to" and any(re.search("dtype|float|half", word) for word in words)):
            raise UnsupportedError(
                f"{event.place}: {name}{change}() changes its dtype, which is not read; load it with dtype=..."
            )
    return thing


def _loaded(name: str, thing: Thing) -> Settings:
    """Its name and its dtype."""
    call = thing.call
    given = call.keywords.get("pretrained_model_name_or_path")
    named = call.positional[0] if call.positional else None if given is None else given.value
    if not isinstance(named, str) or UNKNOWN in named:
        raise ConfigError(f"{call.place}: the name of {name} is not known without running the script")
    for option in ("quantization_config", "load_in_4bit", "load_in_8bit"):
        if option in call.keywords and call.keywords[option].value not in (None, False):
            raise UnsupportedError(f"{call.place}: a quantized {name} ({option}) is not modelled; leave it out")
    dtype = call.keywords.get("dtype") or call.keywords.get("torch_dtype")
    if dtype is None or dtype.value is None:
        version, _ = resolve_version("transformers", None, "5.23.0")
        dtype = ConfigValue("auto" if at_least(version, "5.0") else "float32", call.place)
    return {name: ConfigValue(named, call.place), f"{name}_dtype": dtype}
