"""Settings of a configuration with their places, and a reader that notes every key that was not read."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.syntax.shell import UNKNOWN
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec

UNSET = (None, "", "null", "None", "none", "~")
"""Values that mean "not set" in configurations."""
TRUE = ("true", "1", "yes", "y", "on", "t")
FALSE = ("false", "0", "no", "n", "off", "f")
OWN_FLAGS = ("fix", "write", "json", "gpu", "seq_len", "min_headroom", "framework_version")
"""Flags of ``vramplan check`` that may have been put after the ``--`` by mistake."""
Spelling = Literal["yaml", "flags", "pairs", "python"]
Kind = Literal["doubt", "unknown", "warning", "default", "ignored"]
"""In the order in which notes are shown."""


MOST_HINTS = 50
"""Unknown keys for which the nearest known one is looked for; a search takes milliseconds."""
MOST_NAMED = 6
"""Unknown keys that an error names."""
SUSPICIOUS = re.compile(
    r"lora|(?:^|_)bits?(?:$|_)|quant|peft|(?:^|_)beta$|reward|rlhf|(?<!re)vision|freeze|frozen|trainable|spectrum"
    r"|4bit|8bit|adapter"
)
"""In a key that a framework does not know: it may change what trains, so nothing is said without knowing it."""


class ConfigValue(NamedTuple):
    """A value and where it stands."""

    value: Any
    place: str
    """``train.yaml:12``, or the flag as the command spells it."""
    note: str = ""
    """What a user should know of how it was read: that it stands twice."""


def says(written: Any, value: str) -> bool:
    """Whether a setting as it is written has this value; a value in brackets is an item of a list.

    >>> says(True, "true"), says(["a.Liger", "b"], "[a.Liger]"), says(8, "4")
    (True, True, False)
    """
    return value[1:-1] in written if isinstance(written, list) else str(written).lower() == value.lower()


class Note(NamedTuple):
    """A remark on one key."""

    kind: Kind
    """doubt: something about it is not known that could turn the verdict; warning: it has another effect than expected,
    or contradicts another key; default: it is not set, and its default matters; ignored: the framework takes it, and
    memory does not change; unknown: the framework does not take it."""
    key: str
    text: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The settings of a configuration as they were written."""

    settings: Mapping[str, ConfigValue]
    environment: Mapping[str, ConfigValue] = field(default_factory=dict)
    """Variables exported to the command."""
    command: tuple[str, ...] = ()
    """Words before its flags: swift sft."""
    where: str = "the command"
    """The file's path, or another name for the source."""
    unexported: Mapping[str, ConfigValue] = field(default_factory=dict)
    """Variables that were set but do not reach the command."""
    spelling: Spelling = "yaml"
    """How its settings are written."""
    gpu: Gpu | None = None
    """The GPU that it will run on, if known."""
    model: ModelSpec | None = None
    """The model that it names, if it has been looked up."""
    program: str = ""
    """The script that a command runs, as it names it: scripts/sft.py."""
    comment: str = ""
    """The comment at the top of a file by itself, which may name the command that it is for."""
    constructor: ConfigValue | None = None
    """In a Python script the call that makes the trainer's arguments: its name and place, if there is one alone."""

    notes: tuple[Note, ...] = ()
    """Notes on how it was read."""
    way: str = ""
    """What would make values known that are not: the end of a message."""
    inner: Mapping[str, ConfigValue] = field(default_factory=dict)
    """What ``--set section.key=value`` put into sections, by the whole key: for its place."""

    @property
    def supports_bf16(self) -> bool:
        """Whether the GPU computes in bf16; True if it is not known."""
        return self.gpu is None or self.gpu.supports("bf16")


class ConfigReader:
    """Reads a source key by key, and notes the keys that were not read in the end."""

    def __init__(self, source: ConfigSource, framework: str, inherits: tuple[str, ...] = ()) -> None:
        self.source, self.framework, self.inherits = source, framework, inherits
        self.read_keys: set[str] = set()
        self.synonyms: dict[str, tuple[str, ...]] = {}
        self.notes: list[Note] = list(source.notes)
        self.required_values: dict[str, ConfigValue] = {}
        """Fields of the job that a second file sets too, and must set to the same value."""
        self.decided_elsewhere: set[str] = set()
        """Fields of the job that another file decides, so that the configuration's own keys for them have no effect."""

    @property
    def folder(self) -> Path:
        """Where files that it names may lie."""
        return Path(self.source.where).parent

    # -- values --------------------------------------------------------------------------------------------------------

    def get(self, *names: str) -> ConfigValue | None:
        """The first of these keys that is set."""
        self.read_keys.update(names)
        self.synonyms |= {name: names for name in names if len(names) > len(self.synonyms.get(name, ()))}
        for name in names:
            value = self.source.settings.get(name)
            if value is not None and is_unknown(value.value):
                runs = f", or run the script by {setting('exec')}" if self.source.spelling != "yaml" else ""
                raise ConfigError(
                    f"{_place_of(value, name)}: {shown(value.value)} is not known without running the script; say what"
                    f" it is by {setting('set', f'{name}=VALUE')}{runs}{self.source.way}"
                )
            if value is not None and not (isinstance(value.value, (str, type(None))) and value.value in UNSET):
                return value
        return None

    def has(self, *names: str) -> bool:
        """Whether any of these keys is set."""
        return self.get(*names) is not None

    def is_null(self, name: str) -> bool:
        """Whether the key is present and has no value."""
        value = self.source.settings.get(name)
        return value is not None and self.get(name) is None

    def lowercase(self, *names: str, default: str) -> str:
        """One word in lower case."""
        value = self.get(*names)
        if value is None:
            return default
        if isinstance(value.value, (dict, list)):
            raise self.invalid(names, "one word")
        return str(value.value).strip().lower()

    def string(self, *names: str) -> str | None:
        """A text as it is written."""
        value = self.get(*names)
        if value is not None and isinstance(value.value, bool):
            raise self.invalid(names, "a name")
        return None if value is None else str(value.value).strip()

    def integer(self, *names: str, default: int, least: int = 1) -> int:
        """A whole number of at least `least`."""
        return int(self._number(names, default, int, f"a whole number of at least {least}", least))

    def number(self, *names: str, default: float) -> float:
        """A number."""
        return float(self._number(names, default, float, "a number", None))

    def _number(
        self, names: tuple[str, ...], default: Any, kind: Callable[[Any], Any], expected: str, least: Any
    ) -> Any:
        value = self.get(*names)
        if value is None:
            return default
        try:
            exact = float(str(value.value).replace("_", ""))
            number = kind(exact)
        except (ValueError, OverflowError):
            raise self.invalid(names, expected) from None
        if isinstance(value.value, bool) or number != exact or (least is not None and number < least):
            raise self.invalid(names, expected)
        return number

    def boolean(self, *names: str, default: bool) -> bool:
        """True or false, in any of YAML's and the frameworks' spellings."""
        value = self.get(*names)
        if value is None:
            return default
        word = str(value.value).strip().lower()
        if word in TRUE or word in FALSE:
            return word in TRUE
        raise self.invalid(names, "true or false")

    def strings(self, *names: str) -> tuple[str, ...]:
        """The items of a list, or of a text with commas between them."""
        value = self.get(*names)
        if value is None:
            return ()
        items = value.value if isinstance(value.value, list) else str(value.value).split(",")
        return tuple(str(item).strip() for item in items if str(item).strip())

    def section(self, name: str) -> ConfigReader | None:
        """A reader of a nested mapping."""
        value = self.get(name)
        if value is None:
            return None
        pairs = value.value
        if isinstance(pairs, str) and pairs.lstrip().startswith("{"):  # JSON, as on a command line
            with suppress(ValueError):
                pairs = json.loads(pairs)
        if not isinstance(pairs, dict):
            raise self.invalid((name,), "a mapping")
        start = f"{name}."
        from_options = {
            key.removeprefix(start): value for key, value in self.source.inner.items() if key.startswith(start)
        }
        settings = {
            key: from_options.get(key) or ConfigValue(inner, f"{value.place}: {key}") for key, inner in pairs.items()
        }
        source = ConfigSource(settings, self.source.environment, (), self.source.where, inner=from_options)
        return ConfigReader(source, self.framework)

    def variable(self, name: str) -> str | None:
        """An environment variable."""
        self.read_keys.add(f"${name}")
        value = self.source.environment.get(name)
        return None if value is None else str(value.value)

    # -- errors and notes ----------------------------------------------------------------------------------------------

    def invalid(self, names: Iterable[str], expected: str) -> ConfigError:
        """The error for a value that is not what was expected."""
        value = self.get(*names)
        assert value is not None
        shown = repr(_shortened(value.value)) if isinstance(value.value, str) else _shortened(value.value)
        name = next(name for name in names if self.source.settings.get(name) is value)
        return ConfigError(f"{_place_of(value, name)}: expected {expected}, found {shown}")

    def unsupported(self, name: str, why: str = "is not modelled yet") -> UnsupportedError:
        """The error for a setting that is not modelled."""
        value = self.get(name)
        if value is None:
            return UnsupportedError(f"{self.framework}: {name} {why}")
        return UnsupportedError(f"{_place_of(value, name)}: {_shortened(value.value)} {why}")

    def is_off(self, name: str, *harmless: Any) -> bool:
        """Whether a key is unset, off, or has one of the `harmless` values."""
        value = self.get(name)
        if value is None or value.value in ([], {}):
            return True
        if isinstance(value.value, dict) and str(value.value.get("enabled")).lower() in FALSE:
            return True
        return str(value.value).lower() in {str(item).lower() for item in (False, 0, 0.0, *harmless)}

    def require_off(self, name: str, *harmless: Any, why: str = "is not modelled yet") -> None:
        """Refuse a key unless it is unset, off, or has one of the `harmless` values.

        Raises:
            UnsupportedError: naming it.
        """
        if not self.is_off(name, *harmless):
            raise self.unsupported(name, why)

    def place(self, name: str) -> str:
        """Where a key stands; the whole source if it is not set."""
        value = self.source.settings.get(name)
        return self.source.where if value is None else value.place

    def note(self, kind: Kind, key: str, text: str) -> None:
        """Add a note on a key."""
        value = self.source.settings.get(key)
        self.notes.append(Note(kind, key, text, value.place if value else ""))

    def note_unread_keys(self, known: Iterable[str], unknown_key: str = "", stops: bool = False) -> None:
        """Note each key that was set and not read: ignored if it is `known`, else unknown.

        `unknown_key` replaces the text of the latter, for scripts that may have keys of their own.

        Raises:
            ConfigError: for unknown keys if the framework `stops` at them.
            UnsupportedError: for an unknown key by whose name it may change what trains.
        """
        known, tries = set(known), MOST_HINTS
        stopping: list[tuple[ConfigValue, str, str]] = []
        for name, value in self.source.settings.items():
            if value.note:
                self.notes.append(Note("warning", name, value.note, value.place))
            if name in self.read_keys:
                continue
            if name in known:
                self.notes.append(Note("ignored", name, "does not change memory", value.place))
                continue
            tries -= 1
            near = self._nearest(name, known, 0.85 if unknown_key else 0.6) if tries > 0 else ""
            hint = f"; did you mean {near}?" if near else ""
            is_own_flag = name in OWN_FLAGS and self.source.command
            if stops and not is_own_flag and not value.place.startswith("+"):  # added to hydra's struct
                stopping.append((value, name, hint.removeprefix("; ")))
                continue
            if SUSPICIOUS.search(name.lower()) and not self.is_off(name):
                raise UnsupportedError(
                    f"{_place_of(value, name)}: {self.framework} does not know {name}, which may change what trains"
                    f"{hint}; if it does not, leave it out by {setting('set', f'{name}=')}"
                )
            hint = "; vramplan's own flags go before the --" if is_own_flag else hint
            text = unknown_key or f"{self.framework} does not know this key"
            self.notes.append(Note("unknown", name, f"{text}{hint}", value.place))
        if stopping:
            raise self._stops_at(stopping)

    def _stops_at(self, unknown: list[tuple[ConfigValue, str, str]]) -> ConfigError:
        """The error for keys at which the framework stops: (value, name, hint) of each."""
        named = [
            f"{_place_of(value, name)}{f' ({hint})' if hint else ''}" for value, name, hint in unknown[:MOST_NAMED]
        ]
        more = [f"{len(unknown) - MOST_NAMED} more"] if len(unknown) > MOST_NAMED else []
        what = "a key that it does not know" if len(unknown) == 1 else "keys that it does not know"
        without = " ".join(setting("set", f"{name}=") for _, name, _ in unknown[:MOST_HINTS])
        it = "it" if len(unknown) == 1 else "them"
        return ConfigError(
            f"{'; '.join([*named, *more])}: {self.framework} stops at {what}, but for a copy that has {it};"
            f" without {it} the run is estimated by {without}"
        )

    def _nearest(self, name: str, known: set[str], cutoff: float) -> str:
        """The key that a name seems to misspell, one of the same first word before others; empty if none."""
        near = difflib.get_close_matches(name, known | self.read_keys, 3, cutoff)
        near.sort(key=lambda other: other.partition("_")[0] != name.partition("_")[0])  # lora_rank: lora_r
        return near[0] if near else ""


def is_unknown(value: Any) -> bool:
    """Whether a value, or a part of it, is only known in a run."""
    if isinstance(value, str):
        return UNKNOWN in value
    if isinstance(value, dict):
        return any(map(is_unknown, value.values()))
    return isinstance(value, (list, tuple)) and any(map(is_unknown, value))


def shown(value: Any) -> str:
    """A value for a message, without the marks of its unknown parts."""
    return _shortened(str(value).replace(UNKNOWN, ""))


def _place_of(value: ConfigValue, name: str) -> str:
    if value.place.endswith(f": {name}"):  # a nested mapping's
        return value.place
    return value.place if value.place.lstrip("-").replace("-", "_") == name else f"{value.place}: {name}"


def _shortened(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) < 40 else f"{text[:37]}..."
