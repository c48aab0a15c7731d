"""What a user's configuration says: settings with their places, read key by key, nothing passed over in silence."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.syntax.shell import UNKNOWN
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec

UNSET = (None, "", "null", "None", "none", "~")
"""How configurations say that nothing is set."""
TRUE = ("true", "1", "yes", "y", "on", "t")
FALSE = ("false", "0", "no", "n", "off", "f")

OWN = ("fix", "write", "json", "gpu", "seq_len", "min_headroom", "framework_version")
"""Flags of `vramplan check` that may have slipped behind the command's."""
Spelling = Literal["yaml", "flags", "python"]
Kind = Literal["warning", "default", "ignored", "unknown"]


class ConfigValue(NamedTuple):
    """A value, and where it stands."""

    value: Any
    place: str
    """``train.yaml:12``, or the command's own spelling of the flag."""


class Note(NamedTuple):
    """What a reader should know of one key."""

    kind: Kind
    """warning: does not do what people think, or contradicts another; default: not set, and it matters; ignored: the
    framework takes it, memory does not change; unknown: the framework would not know it."""
    key: str
    text: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """A configuration as it was found."""

    settings: Mapping[str, ConfigValue]
    environment: Mapping[str, ConfigValue] = field(default_factory=dict)
    """Variables exported to the command."""
    command: tuple[str, ...] = ()
    """Words before its flags: swift sft."""
    where: str = "the command"
    """File, or how else to call it."""
    unexported: Mapping[str, ConfigValue] = field(default_factory=dict)
    """Variables that were set but do not reach the command."""
    spelling: Spelling = "yaml"
    """How its settings are written."""
    gpu: Gpu | None = None
    """The card that it is to run on, where that is known."""
    model: ModelSpec | None = None
    """The model that it names, where that has been looked up."""

    @property
    def supports_bf16(self) -> bool:
        """Whether that card computes in it."""
        return self.gpu is None or self.gpu.supports("bf16")


class ConfigReader:
    """A source read key by key; whatever nobody asked for is told at the end."""

    def __init__(self, source: ConfigSource, framework: str, inherits: tuple[str, ...] = ()) -> None:
        self.source, self.framework, self.inherits = source, framework, inherits
        self.asked: set[str] = set()
        self.synonyms: dict[str, tuple[str, ...]] = {}
        self.notes: list[Note] = []
        self.pinned: dict[str, ConfigValue] = {}
        """Fields of the job that another file says as well, and must say alike."""

    @property
    def folder(self) -> Path:
        """Where files that it names may lie."""
        return Path(self.source.where).parent

    # -- values --------------------------------------------------------------------------------------------------------

    def setting(self, *names: str) -> ConfigValue | None:
        """The first of these that is set."""
        self.asked.update(names)
        self.synonyms |= {name: names for name in names if len(names) > len(self.synonyms.get(name, ()))}
        for name in names:
            found = self.source.settings.get(name)
            if found is not None and isinstance(found.value, str) and UNKNOWN in found.value:
                said = found.value.replace(UNKNOWN, "")
                raise ConfigError(f"{found.place}: {said} is not known without running the script; set it in the call")
            if found is not None and not (isinstance(found.value, (str, type(None))) and found.value in UNSET):
                return found
        return None

    def has(self, *names: str) -> bool:
        """Whether any of these is set."""
        return self.setting(*names) is not None

    def is_null(self, name: str) -> bool:
        """Whether it is set to nothing, which is not the same as not being set."""
        found = self.source.settings.get(name)
        return found is not None and self.setting(name) is None

    def text(self, *names: str, default: str) -> str:
        """A word, in lower case."""
        found = self.setting(*names)
        if found is None:
            return default
        if isinstance(found.value, (dict, list)):
            raise self.wrong(names, "one word")
        return str(found.value).strip().lower()

    def name(self, *names: str) -> str | None:
        """A name, letter for letter."""
        found = self.setting(*names)
        if found is not None and isinstance(found.value, bool):
            raise self.wrong(names, "a name")
        return None if found is None else str(found.value).strip()

    def count(self, *names: str, default: int, least: int = 1) -> int:
        """A whole number."""
        return int(self._number(names, default, int, f"a whole number of at least {least}", least))

    def number(self, *names: str, default: float) -> float:
        """A number."""
        return float(self._number(names, default, float, "a number", None))

    def _number(self, names: tuple[str, ...], default: Any, kind: Callable[[Any], Any], said: str, least: Any) -> Any:
        found = self.setting(*names)
        if found is None:
            return default
        try:
            given = float(str(found.value).replace("_", ""))
            value = kind(given)
        except (ValueError, OverflowError):
            raise self.wrong(names, said) from None
        if isinstance(found.value, bool) or value != given or (least is not None and value < least):
            raise self.wrong(names, said)
        return value

    def flag(self, *names: str, default: bool) -> bool:
        """True or false, however it is spelt."""
        found = self.setting(*names)
        if found is None:
            return default
        word = str(found.value).strip().lower()
        if word in TRUE or word in FALSE:
            return word in TRUE
        raise self.wrong(names, "true or false")

    def names(self, *names: str) -> tuple[str, ...]:
        """A list, or words with commas between them."""
        found = self.setting(*names)
        if found is None:
            return ()
        given = found.value if isinstance(found.value, list) else str(found.value).split(",")
        return tuple(str(one).strip() for one in given if str(one).strip())

    def part(self, name: str) -> ConfigReader | None:
        """A nested mapping."""
        found = self.setting(name)
        if found is None:
            return None
        given = found.value
        if isinstance(given, str) and given.lstrip().startswith("{"):  # JSON, as on a command line
            with suppress(ValueError):
                given = json.loads(given)
        if not isinstance(given, dict):
            raise self.wrong((name,), "a mapping")
        inner = {key: ConfigValue(value, f"{found.place}: {key}") for key, value in given.items()}
        return ConfigReader(ConfigSource(inner, self.source.environment, (), self.source.where), self.framework)

    def variable(self, name: str) -> str | None:
        """A variable of the environment."""
        self.asked.add(f"${name}")
        found = self.source.environment.get(name)
        return None if found is None else str(found.value)

    # -- what is wrong -------------------------------------------------------------------------------------------------

    def wrong(self, names: Iterable[str], expected: str) -> ConfigError:
        """The error for a value that cannot be read."""
        found = self.setting(*names)
        assert found is not None
        shown = repr(found.value) if isinstance(found.value, str) else found.value
        name = next(name for name in names if self.source.settings.get(name) is found)
        return ConfigError(f"{_at(found, name)}: expected {expected}, found {shown}")

    def refuse(self, name: str, why: str = "is not modelled yet") -> UnsupportedError:
        """The error for a setting that nothing models."""
        found = self.setting(name)
        if found is None:
            return UnsupportedError(f"{self.framework}: {name} {why}")
        return UnsupportedError(f"{_at(found, name)}: {_short(found.value)} {why}")

    def is_harmless(self, name: str, *harmless: Any) -> bool:
        """Whether `name` is unset, off, or one of these."""
        found = self.setting(name)
        if found is None or found.value in ([], {}):
            return True
        if isinstance(found.value, dict) and str(found.value.get("enabled")).lower() in FALSE:
            return True
        return str(found.value).lower() in {str(one).lower() for one in (False, 0, 0.0, *harmless)}

    def only(self, name: str, *harmless: Any, why: str = "is not modelled yet") -> None:
        """Refuse `name` unless it is unset, off, or one of these.

        Raises:
            UnsupportedError: naming it.
        """
        if not self.is_harmless(name, *harmless):
            raise self.refuse(name, why)

    def place(self, name: str) -> str:
        """Where a key stands, or would."""
        found = self.source.settings.get(name)
        return self.source.where if found is None else found.place

    def note(self, kind: Kind, key: str, text: str) -> None:
        """Tell the reader."""
        found = self.source.settings.get(key)
        self.notes.append(Note(kind, key, text, found.place if found else ""))

    def finish(self, known: Iterable[str], unknown: str = "") -> None:
        """Tell what was set and not asked for: the framework's other keys, and those it does not know.

        `unknown` is said of the latter if a script may well have keys of its own.
        """
        known = set(known)
        for name, found in self.source.settings.items():
            if name in self.asked:
                continue
            if name in known:
                self.notes.append(Note("ignored", name, "does not change memory", found.place))
                continue
            near = difflib.get_close_matches(name, known | self.asked, 1, 0.85 if unknown else 0.6)
            meant = f"; did you mean {near[0]}?" if near else ""
            meant = "; vramplan's own flags go before the --" if name in OWN and self.source.command else meant
            said = unknown or f"{self.framework} does not know this key"
            self.notes.append(Note("unknown", name, f"{said}{meant}", found.place))


def _at(found: ConfigValue, name: str) -> str:
    if found.place.endswith(f": {name}"):  # a nested mapping's
        return found.place
    return found.place if found.place.lstrip("-").replace("-", "_") == name else f"{found.place}: {name}"


def _short(value: Any) -> str:
    said = " ".join(str(value).split())
    return said if len(said) < 40 else f"{said[:37]}..."
