"""Adapters of a folder or of the Hub that a training goes on with: rank, layers and the rest by their own file.

PEFT's from_pretrained takes all of it from adapter_config.json, whatever the framework's configuration says (peft 0.21,
peft_model.py: from_pretrained, tuners/lora/config.py), and makes the adapters as get_peft_model does: fp32 on weights
in half precision unless autocast_adapter_dtype is off. ms-swift may save them in a folder `default` of the one that it
names (4.6, arguments/base_args: _check_is_adapter).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.bounded_read import MiB, read_json
from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.readers.trainer_arguments import layers_of_pattern
from vramplan.frameworks.settings import UNSET, ConfigReader, is_unknown, shown
from vramplan.frameworks.syntax.lookup import beside

FILE = "adapter_config.json"
MOST_BYTES = MiB
KEY = "saved_adapters"
"""The folder that a Python script loads adapters from, as a setting."""
BASE_KEY = "model_of_adapters"
"""The folder whose own file names the model that a script loads (AutoPeftModelForCausalLM)."""
ADAPTER_NAME_KEY = "name_of_adapters"
"""What a script calls them, if not PEFT's default."""
SECOND_KEY = "second_adapters"
"""Name and folder of adapters that a script loads beside them."""
MERGED_KEY = "merged_adapters"
"""Whether a script loads adapters and hands its trainer new ones to add."""
OPTION = "--set "
"""Beginning of the place of a setting that the user gives beside the configuration."""
DROPOUT = 0.05
"""Counted where the adapters' own is not known: it keeps a mask and a copy of each input."""
INITIAL = (True, False, "gaussian", "orthogonal", None)
"""Values of init_lora_weights that leave the base weights as they are."""
HARMLESS = frozenset({
    "peft_type", "task_type", "base_model_name_or_path", "revision", "auto_mapping", "peft_version", "inference_mode",
    "lora_alpha", "use_rslora", "alpha_pattern", "fan_in_fan_out", "bias", "megatron_core", "qalora_group_size",
    "loftq_config", "eva_config", "corda_config", "lora_ga_config", "parent_library", "unsloth_fixed", "swift_type",
    "merge_weights", "lorap_lr_ratio", "lorap_emb_lr",
})  # fmt: skip
"""Keys of the file that change no memory, or that another key decides on."""
READ = frozenset({"r", "lora_dropout", "target_modules", "modules_to_save", "use_dora", "init_lora_weights"})
HEADS = ("classifier", "score")
"""Modules that PEFT saves for task_type SEQ_CLS by itself (peft_model.py: PeftModelForSequenceClassification)."""
_LAYER = re.compile(r"(?P<before>.*?)\.(?P<number>\d+)\.(?P<name>[^0-9]+)")


class LoraKeys(NamedTuple):
    """A framework's keys for adapters."""

    folder: str
    rank: str
    targets: str
    dora: str
    saved: str
    dropout: str = "lora_dropout"
    inner: str = ""
    """The key for a folder in it."""

    def named(self, config: ConfigReader) -> str:
        """The folder or Hub id; of several the last, which is trained on. Marks of what is not known stay in it."""
        inner = config.string(self.inner) if self.inner else None
        name = (names(config, self.folder) or [""])[-1]
        return f"{name}/{inner}" if inner else name


def names(config: ConfigReader, key: str) -> list[str]:
    """The folders or Hub ids of a key; none if it is not set. Marks of what is not known stay in them."""
    config.read_keys.add(key)
    value = config.source.settings.get(key)
    if value is None or value.value in UNSET:
        return []
    items = value.value if isinstance(value.value, list) else [value.value]
    if len(items) == 1 and not is_unknown(items[0]):
        items = str(items[0]).split(",")
    return [name for item in items if (name := str(item).strip())]


IN_SCRIPTS = LoraKeys(KEY, "lora_r", "lora_target_modules", "use_dora", "lora_modules_to_save")
"""Of Python scripts, whose settings have TRL's names."""


class SavedAdapters(NamedTuple):
    """What a file says of adapters."""

    path: Path
    base: str | None
    """The model that they were trained on, by its name or folder."""
    fields: dict[str, Any]
    """The job's fields: method, rank, dropout, targets, modules to save; vision and projector of models that see."""
    is_classifier: bool
    """Whether their head trains too (task_type SEQ_CLS or TOKEN_CLS)."""


def find(name: str, folder: Path) -> SavedAdapters | None:
    """The adapters of a folder that is here, or beside the configuration in `folder`; None if there is none.

    Raises:
        ConfigError: for a file that cannot be read.
        UnsupportedError: for adapters that are not modelled.
    """
    for inner in (FILE, f"default/{FILE}"):
        path = beside(f"{name}/{inner}", folder) if name else None
        if path is not None:
            return _read(path)
    return None


def base_of(config: ConfigReader, key: str = BASE_KEY) -> str | None:
    """The model that a folder of adapters names; None if the configuration names no such folder.

    Raises:
        ConfigError: if its file is not here, or names none.
    """
    config.read_keys.add(key)
    value = config.source.settings.get(key)
    if value is None:
        return None
    saved = None if is_unknown(value.value) else find(str(value.value), config.folder)
    if saved is None or saved.base is None:
        config.note("warning", "", f"{FILE} of {shown(value.value)} names the model, and is not here")
        return None
    config.note("default", "", f"the model is {saved.base} ({saved.path})")
    return saved.base


def fields_of(config: ConfigReader, keys: LoraKeys) -> dict[str, Any]:
    """Fields of a job whose configuration loads adapters and trains on: of their own file, else of ``--set``.

    Raises:
        ConfigError: if neither says their rank and layers, with the options that do.
        UnsupportedError: for adapters that are not modelled.
    """
    name = keys.named(config)
    config.decided_elsewhere.add("lora_dropout")
    if all(config.place(key).startswith(OPTION) for key in (keys.rank, keys.targets)):
        return _by_options(config, keys)
    saved = None if is_unknown(name) else find(name, config.folder)
    if saved is None:
        raise ConfigError(_not_here(config, keys, name))
    rank, targets = saved.fields["lora_rank"], saved.fields["lora_targets"]
    layers = "all linear layers" if targets is None else ", ".join(targets)
    key = "" if keys.folder == KEY else keys.folder
    config.note("default", key, f"the adapters of {shown(name)} have rank {rank} on {layers} ({saved.path})")
    for key in (keys.rank, keys.targets, keys.dropout, keys.dora, keys.saved):
        config.read_keys.add(key)
    return saved.fields


COMPARED = ("method", "lora_rank", "lora_targets", "modules_to_save")


def are_alike(config: ConfigReader, keys: LoraKeys, other: str, job: Mapping[str, Any]) -> bool:
    """Whether adapters of another folder have the rank and the layers of those that train in a job.

    They do if both are of one folder, in a command also where its name is a variable; else by their own file.
    """
    own = keys.named(config) if names(config, keys.folder) else ""
    if own and own == other and (not is_unknown(own) or config.source.spelling == "flags"):
        return True
    saved = None if is_unknown(other) else find(other, config.folder)
    return saved is not None and all(_sorted(saved.fields.get(name)) == _sorted(job.get(name)) for name in COMPARED)


def _sorted(value: Any) -> Any:
    return sorted(value) if isinstance(value, tuple) else value


def _by_options(config: ConfigReader, keys: LoraKeys) -> dict[str, Any]:
    targets = config.strings(keys.targets)
    fields: dict[str, Any] = {
        "lora_rank": config.integer(keys.rank, default=8),
        "lora_targets": None if targets in (("all",), ("all-linear",)) else targets,
        "lora_dropout": DROPOUT,
    }
    optional = {key: config.place(key).startswith(OPTION) for key in (keys.dropout, keys.dora, keys.saved)}
    if optional[keys.dropout]:
        fields["lora_dropout"] = config.number(keys.dropout, default=DROPOUT)
    else:
        off = f"--set {keys.dropout}=0"
        key = "" if keys.folder == KEY else keys.folder
        config.note("warning", key, f"dropout of the adapters is taken as {DROPOUT}; {off} if they have none")
    if optional[keys.dora] and config.boolean(keys.dora, default=False):
        fields["method"] = "dora"
    if optional[keys.saved] and config.strings(keys.saved):
        fields["modules_to_save"] = config.strings(keys.saved)
    config.read_keys |= set(optional)
    return fields


def _not_here(config: ConfigReader, keys: LoraKeys, name: str) -> str:
    """The error for adapters whose file is not here, with the options that answer."""
    in_script = keys.folder == KEY
    where = config.place(keys.folder) if in_script else f"{config.place(keys.folder)}: {keys.folder}"
    own = f"{setting('set', f'{keys.rank}=N')} {setting('set', f'{keys.targets}=q_proj,v_proj')}"
    text = (
        f"{where}: {shown(name)} is trained on with its own rank and layers, and its {FILE} is not here: give {own} as"
        f" it says ({keys.dora} and {keys.saved} too, if it has them), or its folder by"
        f" {setting('set', f'{keys.folder}=FOLDER')}"
    )
    if in_script or not {keys.rank, keys.targets} & config.source.settings.keys():
        return text
    return f"{text}; {setting('set', f'{keys.folder}=')} if they are {keys.rank} and {keys.targets} of this file"


def _read(path: Path) -> SavedAdapters:
    content = read_json(path, MOST_BYTES)
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping, the configuration of adapters")
    kind = content.get("peft_type", content.get("swift_type"))
    if kind != "LORA":
        raise UnsupportedError(f"{path}: peft_type {shown(kind)} is not modelled yet; modelled: LORA")
    if content.get("init_lora_weights") not in INITIAL:
        raise UnsupportedError(f"{path}: init_lora_weights {shown(content['init_lora_weights'])} is not modelled yet")
    for key, value in content.items():
        if key not in HARMLESS | READ and value not in (None, False, [], {}, "", 0):
            raise UnsupportedError(f"{path}: {shown(key)} of the adapters is not modelled yet")
    task_type = str(content.get("task_type") or "")
    is_classifier = task_type.endswith(("SEQ_CLS", "TOKEN_CLS"))
    saved = [name for name in _names(content, "modules_to_save", path) if not (is_classifier and name in HEADS)]
    fields: dict[str, Any] = {
        "method": "dora" if content.get("use_dora") else "lora",
        "lora_rank": _number(content, "r", 8, int, path),
        "lora_dropout": _number(content, "lora_dropout", 0.0, float, path),
        **_targets(content, path),
    } | ({"modules_to_save": tuple(saved)} if saved else {})
    base = content.get("base_model_name_or_path")
    return SavedAdapters(path, base if isinstance(base, str) and base else None, fields, is_classifier)


def _number(content: Mapping[str, Any], key: str, default: Any, kind: type, path: Path) -> Any:
    value = content.get(key, default)
    is_number = isinstance(value, (int, kind)) and not isinstance(value, bool)
    if not is_number or not (value >= 1 if kind is int else 0 <= value < 1):
        raise ConfigError(f"{path}: {key}: expected {'a whole number from 1 on' if kind is int else 'a share below 1'}")
    return value


def _names(content: Mapping[str, Any], key: str, path: Path) -> list[str]:
    value = content.get(key) or []
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise ConfigError(f"{path}: {key}: expected a list of names")
    return sorted(value)


def _targets(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The layers: names, names of each layer as PEFT saves all-linear, or an expression for whole paths.

    In models that see, names mean the vision tower's layers too, expressions and whole paths those of the text alone.
    """
    value = content.get("target_modules")
    if isinstance(value, str):
        if value == "all-linear":
            return {"lora_targets": None}
        try:
            layers, seeing = layers_of_pattern(value)
        except re.error:
            raise ConfigError(
                f"{path}: target_modules: {shown(value)} is no regular expression, or one with too many repeats"
            ) from None
        matched = next(iter(layers))
        if len(layers) > 1 or not matched or not seeing <= {*matched}:
            what = "single layers" if len(layers) > 1 else "a vision tower's layers" if matched else "no usual layer"
            raise UnsupportedError(f"{path}: target_modules: {shown(value)} means {what}, which is not modelled yet")
        return {"lora_targets": matched} | dict.fromkeys(("vision", "projector"), "lora" if seeing else "frozen")
    names = _names(content, "target_modules", path)
    if not names:
        raise ConfigError(f"{path}: target_modules: the adapters name no layers")
    matches = [_LAYER.fullmatch(name) for name in names]
    if not any(matches):
        return {"lora_targets": tuple(names), "vision": "lora", "projector": "lora"}
    numbers: dict[tuple[str, str], set[int]] = {}
    for name, match in zip(names, matches, strict=True):
        if match is None:
            raise UnsupportedError(f"{path}: target_modules: {shown(name)} beside single layers is not modelled yet")
        numbers.setdefault((match["before"], match["name"]), set()).add(int(match["number"]))
    counts = {len(found) for found in numbers.values()}
    is_whole = len(counts) == 1 and all(found == set(range(len(found))) for found in numbers.values())
    if not is_whole or len({before for before, _ in numbers}) > 1:
        raise UnsupportedError(f"{path}: target_modules names single layers, which is not modelled yet")
    ends = sorted({name.rpartition(".")[2] for _, name in numbers})
    return {"lora_targets": tuple(ends), "vision": "frozen", "projector": "frozen"}
