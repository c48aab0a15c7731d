"""Which trainer of a script trains, and with which arguments; trainers that are not read are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.nearest import NEAREST
from vramplan.frameworks.readers import trl_trainers
from vramplan.frameworks.readers.python_callers import importing, starting
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.python.trusted import TRUSTED
from vramplan.frameworks.syntax.python_ast import Call, Script, Thing
from vramplan.frameworks.syntax.shell import UNKNOWN

Settings = dict[str, ConfigValue]

_OF_TASKS = tuple(trl_trainers.CLASSES)
CONFIGS = (
    "TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "UnslothTrainingArguments",
    *(name for name in _OF_TASKS if name.endswith("Config")),
    "SentenceTransformerTrainingArguments", "CrossEncoderTrainingArguments",
)  # fmt: skip
TRAINERS = (
    "Trainer", "Seq2SeqTrainer", "SFTTrainer", "UnslothTrainer",
    *(name for name in _OF_TASKS if name.endswith("Trainer")),
    "SentenceTransformerTrainer", "CrossEncoderTrainer",
)  # fmt: skip
ARGS_AT: Mapping[str, int] = {
    "DPOTrainer": 2, "KTOTrainer": 2, "GRPOTrainer": 2, "RLOOTrainer": 2, "GKDTrainer": 2, "PPOTrainer": 0,
}  # fmt: skip
"""The place of the arguments among positional ones, where it is not 1: behind a reference, a teacher, or rewards."""
MODEL_AT: Mapping[str, int] = {"PPOTrainer": 2}
"""The place of the model among them, where it is not 0."""
EXPERIMENTAL = "trl.experimental."
READ_EXPERIMENTS = ("orpo", "cpo", "kto", "gkd", "ppo")
"""Modules of `EXPERIMENTAL` whose trainers are read; others have trainers of the same names."""
OTHER_TRAINERS = (
    "BCOTrainer", "OnlineDPOTrainer", "XPOTrainer", "NashMDTrainer",
    "PRMTrainer",
    "PPOv2Trainer", "IterativeSFTTrainer", "AlignPropTrainer", "DDPOTrainer", "GFPOTrainer", "PAPOTrainer",
    "GSPOTokenTrainer", "SDFTTrainer", "SDPOTrainer", "TPOTrainer", "SSDTrainer", "MiniLLMTrainer", "GOLDTrainer",
    "AsyncGRPOTrainer", "SimPOTrainer", "DistillationTrainer", "UnslothGRPOTrainer", "UnslothDPOTrainer",
)  # fmt: skip
"""TRL's other trainers (1.16 and its experimental modules)."""
OTHER_LOOPS = {
    "SparseEncoderTrainer": "sentence-transformers", "MultiVectorEncoderTrainer": "sentence-transformers",
    "SetFitTrainer": "SetFit", "LightningModule": "Lightning",
    "QuestionAnsweringTrainer": "question answering",
}  # fmt: skip
LIGHTNING = ("lightning", "pytorch_lightning")
HARMLESS_OVERRIDES = frozenset(
    [
        "log",
        "save_model",
        "_save",
        "_save_checkpoint",
        "evaluate",
        "predict",
        "compute_metrics",
        "store_flos",
        "_load_best_model",
        "get_eval_dataloader",
        "_get_train_sampler",
        "_get_eval_sampler",
        "get_test_dataloader",
        "_rotate_checkpoints",
        "push_to_hub",
        "create_model_card",
        "floating_point_ops",
        "create_scheduler",
        "_maybe_log_save_evaluate",
        "save_state",
        "_get_learning_rate",
        "is_world_process_zero",
    ]
)
"""Methods of the Trainer that a subclass may have of its own: they run outside training steps."""
REFUSED = {
    "compute_loss_func": "a loss of its own",
    "optimizer_cls_and_kwargs": "an optimizer of its own; name it in optim",
}
"""Arguments of the Trainer that change memory and are not modelled."""
OF_MODEL = (
    "use_peft", "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_parameters",
    "lora_modules_to_save", "lora_task_type", "use_dora", "use_rslora", "load_in_4bit", "load_in_8bit",
    "bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage", "dtype", "torch_dtype",
    "attn_implementation",
)  # fmt: skip
"""Fields of TRL's ModelConfig that no trainer's arguments have (TRL 0.12 to 1.16, trainer/model_config.py)."""
FOLLOWED = ("max_seq_length", "packing", "model_init_kwargs")
"""Arguments of SFTTrainer itself that TRL 0.16 moved to SFTConfig."""


@dataclass(slots=True)
class Run:
    """The training that a script runs."""

    place: str
    settings: Settings
    unused: Settings = field(default_factory=dict)
    """Fields of TRL's ModelConfig on the command, which count as far as the script hands them on."""
    trainer: Thing | None = None
    config: Thing | None = None
    peft_configs: list[Thing] = field(default_factory=list)

    @property
    def calls(self) -> list[Call]:
        """The constructors of its trainer and its arguments."""
        return [thing.call for thing in (self.trainer, self.config) if thing is not None]

    @property
    def model_argument(self) -> ConfigValue | None:
        """What the trainer gets as its model."""
        if self.trainer is None:
            return None
        call = self.trainer.call
        return argument(call, "model", MODEL_AT.get(call.last, 0))[1]


def find_run(script: Script) -> Run:
    """The one training of a script.

    Raises:
        ConfigError: if there is none, or several that differ, or its arguments are not known.
        UnsupportedError: for other trainers and for arguments of the trainer that are not modelled.
    """
    _refuse_others(script)
    trainer = _trainer(script)
    if trainer is None:
        config = _config_alone(script)
        _check_origin(config)
        return Run(script.where if config is None else config.call.place, _keywords(config), {}, None, config)
    _check_trainer(script, trainer)
    config = _config_of(trainer)
    for thing in (trainer, config):
        _check_origin(thing)
    settings = _keywords(config)
    settings |= {name: trainer.call.keywords[name] for name in FOLLOWED if name in trainer.call.keywords}
    unused = {name: settings.pop(name) for name in OF_MODEL if name in settings}
    run = Run(trainer.call.place, settings, unused, trainer, config)
    run.peft_configs = _peft_configs(trainer)
    return run


def _check_origin(thing: Thing | None) -> None:
    """Refuse a trainer or arguments of the user's own module, which may do anything under a known name.

    Raises:
        UnsupportedError: naming the module.
    """
    path = "" if thing is None else thing.call.name.rpartition(".")[0]
    module = path.partition(".")[0]
    experiment = path.removeprefix(EXPERIMENTAL).partition(".")[0] if path.startswith(EXPERIMENTAL) else ""
    if thing is not None and experiment and experiment not in READ_EXPERIMENTS:
        raise UnsupportedError(f"{thing.call.place}: {path}.{thing.call.last} is not read yet")
    if thing is not None and module and module not in TRUSTED:
        raise UnsupportedError(
            f"{thing.call.place}: {thing.call.last} is imported from {module}, which is not read; `vramplan estimate`"
            f" takes the settings, {setting('exec')} runs the script"
        )


def _refuse_others(script: Script) -> None:
    other_trainers = [call for call in script.calls if call.last in OTHER_TRAINERS]
    if other_trainers:
        call = other_trainers[0]
        nearest = f"; {NEAREST[call.last]}" if call.last in NEAREST else ""
        raise ConfigError(f"{call.place}: {call.last}: this kind of training is not read yet{nearest}")
    for call in script.calls:
        if call.last in OTHER_LOOPS:
            raise UnsupportedError(f"{call.place}: {call.last} ({OTHER_LOOPS[call.last]}) is not read yet")
    calls = (*script.calls, *script.unreached)
    lightning = [call for call in calls if call.name.partition(".")[0] in LIGHTNING and call.last == "Trainer"]
    if lightning:
        raise UnsupportedError(
            f"{lightning[0].place}: lightning's Trainer is not read yet; read: {', '.join(TRAINERS)}"
        )
    if script.named(*CONFIGS, *TRAINERS):
        return
    if script.ends_at:
        raise ConfigError(
            f"{script.ends_at}, before it trains; if flags avoid that, check the command: vramplan check -- python"
            f" {script.where} --flag ..."
        )
    unreached = next((call for call in script.unreached if call.last in (*CONFIGS, *TRAINERS, *OTHER_TRAINERS)), None)
    if unreached is not None:
        scripts = importing(script.where)
        way = f"check what does: vramplan check {' or '.join(scripts)}" if scripts else "call it"
        raise ConfigError(f"{unreached.place}: {unreached.last} stands in a function that nothing here calls; {way}")
    unread = next((call for call in script.calls if call.last.endswith("Trainer") and call.last[:1].isupper()), None)
    if unread is not None:
        raise UnsupportedError(f"{unread.place}: {unread.last} is not read yet; read: {', '.join(TRAINERS)}")
    fit = next((call for call in script.calls if call.last == "fit" and "train_objectives" in call.keywords), None)
    if fit is not None:
        raise UnsupportedError(
            f"{fit.place}: sentence-transformers' fit() is not read; read: its SentenceTransformerTrainer, or"
            " `vramplan estimate MODEL --task embedding`"
        )
    backward = next((call for call in script.calls if call.last == "backward"), None)
    if backward is not None:
        raise UnsupportedError(
            f"{backward.place}: a training loop of its own is not read; `vramplan estimate` takes the settings"
        )
    raise ConfigError(f"{script.where}: no Trainer and no TrainingArguments in it; nothing that trains is read")


def _trainer(script: Script) -> Thing | None:
    """The trainer that trains, as it is when it does; without a call of train, as it is in the end."""
    things = [training.trainer for training in script.trainings]
    if not things:
        things = [thing for thing in script.things if thing.call.last in TRAINERS]
    unread = [thing for thing in things if thing.call.last not in TRAINERS]
    for thing in unread:
        raise UnsupportedError(f"{thing.call.place}: {thing.call.last} is not read yet; read: {', '.join(TRAINERS)}")
    if not things and script.named(*TRAINERS):
        call = script.named(*TRAINERS)[0]
        things = [Thing(call)]
    if len(things) > 1 and any(not _is_alike(things[0], thing) for thing in things[1:]):
        raise ConfigError(f"{script.where}:{things[0].call.line}: {_differing(things)}")
    return things[0] if things else None


def _differing(things: list[Thing]) -> str:
    """Where trainings that differ stand, and in what they differ."""
    lines = list(dict.fromkeys(str(thing.call.line) for thing in things))
    where = f"trains in a loop, {len(things)} times" if len(lines) == 1 else f"trains in lines {' and '.join(lines)}"
    configs = [_final_values(thing) for thing in things]
    changed = [name for name in configs[0] if any(config.get(name) != configs[0][name] for config in configs)]
    shown = ""
    if changed:
        values = [str(config.get(changed[0], "default")).replace(UNKNOWN, "") for config in configs[:4]]
        shown = f" ({changed[0]}: {', '.join(values)}{', ...' if len(configs) > 4 else ''})"
    keep = "one turn of the loop" if len(lines) == 1 else "one of them"
    return f"{where}, with settings that differ{shown}; keep {keep} in a copy of the script, and check each copy"


def _final_values(trainer: Thing) -> dict[str, object]:
    values: dict[str, object] = {}
    for key in ("args", 1, "peft_config", "model", 0):
        for part in trainer.parts.get(key, []):
            values |= {name: value.value for name, value in part.call.keywords.items() if name != "output_dir"}
            values |= {"model": part.call.positional[0]} if part.call.positional else {}
    return values


def _is_alike(one: Thing, other: Thing) -> bool:
    """Whether two trainers get the same settings."""
    if one.call.last != other.call.last or one.call.keywords.keys() != other.call.keywords.keys():
        return False
    for key in ("model", "args", "peft_config", 0, 1):
        parts = [thing.parts.get(key, []) for thing in (one, other)]
        if len(parts[0]) != len(parts[1]):
            return False
        for left, right in zip(*parts, strict=True):
            same = {k: v.value for k, v in left.call.keywords.items()} == {
                k: v.value for k, v in right.call.keywords.items()
            }
            names = [[event[0] for event in thing.history if "Trainer" not in event[0]] for thing in (left, right)]
            if left.call.name != right.call.name or not same or names[0] != names[1][: len(names[0])]:
                return False
    return True


def _config_alone(script: Script) -> Thing | None:
    """Arguments in a part of a script without a trainer."""
    things = [thing for thing in script.things if thing.call.last in CONFIGS]
    if len(things) > 1 and any(_values(thing) != _values(things[0]) for thing in things[1:]):
        lines = ", ".join(str(thing.call.line) for thing in things)
        raise ConfigError(f"{script.where}: {len(things)} calls of {things[0].call.last} (lines {lines}); keep one")
    return things[0] if things else None


def _values(thing: Thing) -> dict[str, object]:
    return {name: value.value for name, value in thing.call.keywords.items()}


def argument(call: Call, name: str, position: int) -> tuple[str | int, ConfigValue | None]:
    """(the key of a call's argument among its parts, its value)."""
    if name in call.keywords:
        return name, call.keywords[name]
    if len(call.positional) > position:
        return position, ConfigValue(call.positional[position], call.place)
    return name, None


def _config_of(trainer: Thing) -> Thing | None:
    """The trainer's arguments; None if it has none, so that its defaults count.

    Raises:
        ConfigError: if they are not known.
    """
    call = trainer.call
    key, value = argument(call, "args", ARGS_AT.get(call.last, 1))
    if value is None or value.value is None:
        return None
    configs = [thing for thing in trainer.parts.get(key, []) if thing.call.last in CONFIGS]
    for config in configs:
        _refuse_without_command(config)
    if len(configs) != 1 or not trainer.is_certain.get(key):
        text = str(value.value).replace(UNKNOWN, "")
        raise ConfigError(f"{value.place}: {text} of {call.last} is not known without running the script")
    return configs[0]


def _refuse_without_command(config: Thing) -> None:
    """Refuse arguments that are parsed from a command that is not known.

    Raises:
        ConfigError: with the way to give the command.
    """
    place = config.call.from_command
    if place:
        script = place.rpartition(":")[0]
        scripts = starting(script)
        way = " or ".join(scripts) if scripts else f"-- python {script} --flag ..."
        raise ConfigError(f"{place}: takes its settings from the command line; check the command: vramplan check {way}")


def _keywords(config: Thing | None) -> Settings:
    """Final values of the arguments.

    Raises:
        ConfigError: if something may have changed any of them.
        UnsupportedError: for a subclass that computes them itself.
    """
    if config is None:
        return {}
    _refuse_without_command(config)
    call = config.call
    unpacked = call.keywords.get("**")
    if unpacked is not None:
        text = str(unpacked.value).replace(UNKNOWN, "")
        raise ConfigError(f"{unpacked.place}: {call.last}: {text} is not known without running the script")
    if len(call.positional) > 1:
        raise ConfigError(f"{call.place}: {call.last}: what stands behind the folder is not read by its place; name it")
    if config.is_lost:
        raise ConfigError(f"{call.place}: {call.last}: {config.is_lost} may change it; set the arguments in the call")
    if call.overrides:
        raise UnsupportedError(
            f"{call.place}: {call.subclass}, a subclass of {call.last} with {call.overrides[0]}, is not modelled"
        )
    for name, event, _ in config.history:
        if name.startswith(".set_"):
            raise UnsupportedError(f"{event.place}: {call.last}{name}() is not read yet; set the arguments in the call")
    return dict(call.keywords)


def _check_trainer(script: Script, trainer: Thing) -> None:
    """Refuse what a trainer does otherwise.

    Raises:
        UnsupportedError: naming it.
    """
    call = trainer.call
    own = [name for name in call.overrides if name not in HARMLESS_OVERRIDES]
    if own:
        raise UnsupportedError(
            f"{call.place}: {call.subclass}, a subclass of {call.last} with its own {own[0]}, is not modelled; what it"
            f" computes is not read; nearest, the usual: {_nearest(trainer)}"
        )
    if "**" in call.keywords:
        text = str(call.keywords["**"].value).replace(UNKNOWN, "")
        raise ConfigError(f"{call.keywords['**'].place}: {call.last}: {text} is not known without running the script")
    for name, why in REFUSED.items():
        value = call.keywords.get(name)
        if value is not None and value.value is not None:
            raise UnsupportedError(f"{value.place}: {call.last}({name}=...), {why}, is not modelled")
    optimizers = call.keywords.get("optimizers")
    first = optimizers.value[0] if optimizers is not None and isinstance(optimizers.value, list) else optimizers
    if optimizers is not None and optimizers.value is not None and first is not None:
        raise UnsupportedError(
            f"{optimizers.place}: {call.last}(optimizers=...), its own optimizer, is not modelled; name it in optim"
        )
    for name, event, _ in trainer.history:
        last = name.rpartition(".")[2]
        if name.endswith("="):
            if name.count(".") == 1 and last[:-1] in ("args", "model", "optimizer", "lr_scheduler", "data_collator"):
                raise UnsupportedError(f"{event.place}: trainer{name[:-1]} is set after its construction; not modelled")
        elif name in (".create_optimizer", ".create_optimizer_and_scheduler"):
            continue
        elif name.startswith((".model.", ".accelerator.")) and last in ("float", "half", "to", "bfloat16"):
            raise UnsupportedError(f"{event.place}: trainer{name}() is not modelled")


def _nearest(trainer: Thing) -> str:
    """The estimate of the same model and task with the library's own loss."""
    key, value = argument(trainer.call, "model", MODEL_AT.get(trainer.call.last, 0))
    loads = [thing.call for thing in trainer.parts.get(key, []) if thing.call.last == "from_pretrained"]
    name = loads[0].positional[0] if loads and loads[0].positional else getattr(value, "value", None)
    shown = name if isinstance(name, str) and UNKNOWN not in name else "MODEL"
    task = trl_trainers.CLASSES.get(trainer.call.last, "")
    if loads and loads[0].name.endswith("ForSequenceClassification.from_pretrained"):
        labels = loads[0].keywords.get("num_labels")
        task = "reward" if labels is not None and labels.value == 1 else "sequence_classification"
    return f"vramplan estimate {shown}{f' --task {task}' if task else ''}"


def _peft_configs(trainer: Thing) -> list[Thing]:
    """What the trainer gets as peft_config."""
    value = trainer.call.keywords.get("peft_config")
    if value is None or value.value is None:
        return []
    configs = trainer.parts.get("peft_config", [])
    if len(configs) != 1 or not trainer.is_certain.get("peft_config"):
        text = str(value.value).replace(UNKNOWN, "")
        raise ConfigError(f"{value.place}: {text} is not known without running the script")
    return configs
