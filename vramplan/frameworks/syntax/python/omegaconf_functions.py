"""OmegaConf's functions on configurations whose values are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vramplan.frameworks.syntax.plain_data import load_yaml
from vramplan.frameworks.syntax.python.access import OMEGACONF
from vramplan.frameworks.syntax.python.arithmetic import NotKnown
from vramplan.frameworks.syntax.python.values import Ref
from vramplan.frameworks.syntax.shell import UNKNOWN

if TYPE_CHECKING:
    from vramplan.frameworks.syntax.python.data_files import DataFiles

DEEPEST = 20


def called(machine: DataFiles, name: str, positional: list[Any]) -> Any:
    """What ``OmegaConf.<name>(...)`` returns (omegaconf 2.3, omegaconf.py).

    Raises:
        NotKnown: for other functions, and for values that are not known.
    """
    if name in ("to_container", "to_object") and positional:
        return converted(machine, positional[0], None)
    if name == "create" and len(positional) == 1:
        if isinstance(positional[0], str):
            return machine.rebuilt(load_yaml(positional[0], machine.where, is_omegaconf=True), OMEGACONF)
        return converted(machine, positional[0], OMEGACONF)
    if name == "merge" and positional:
        result = converted(machine, positional[0], OMEGACONF)
        for other in positional[1:]:
            merge(machine, result, converted(machine, other, OMEGACONF))
        return result
    if name == "from_cli":
        words = machine.iterated(positional[0]) if positional else list(machine.arguments or ())
        return dotted(machine, words)
    raise NotKnown


def converted(machine: DataFiles, value: Any, cls: str | None, depth: int = 0) -> Any:
    """A copy of containers as OmegaConf's, or as Python's own.

    Raises:
        NotKnown: if a part is not known, or is an object.
    """
    if not isinstance(value, Ref):
        return value
    item = machine.at(value)
    machine.step()
    if item.is_open or item.spoiled or item.cls not in (None, OMEGACONF) or depth > DEEPEST:
        raise NotKnown
    if item.kind == "list" and item.items is not None:
        return machine.new("list", cls=cls, items=[converted(machine, one, cls, depth + 1) for one in item.items])
    if item.kind == "dict":
        slots = {key: converted(machine, one, cls, depth + 1) for key, one in item.slots.items()}
        return machine.new("dict", cls=cls, slots=slots)
    raise NotKnown


def merge(machine: DataFiles, target: Any, other: Any) -> None:
    """Set the other's keys; dictionaries are merged, lists are replaced."""
    if not (isinstance(target, Ref) and isinstance(other, Ref)):
        raise NotKnown
    if machine.at(target).kind != "dict" or machine.at(other).kind != "dict":
        raise NotKnown
    for key, value in machine.at(other).slots.items():
        old = machine.at(target).slots.get(key)
        both = [machine.at(one).kind if isinstance(one, Ref) else "" for one in (old, value)]
        if both == ["dict", "dict"]:
            merge(machine, old, value)
        else:
            machine.put(target.id, key, value)


def dotted(machine: DataFiles, words: list[Any] | None) -> Ref:
    """``a.b=1`` as nested configurations.

    Raises:
        NotKnown: if a word is not known, or is no setting.
    """
    root = machine.new("dict", cls=OMEGACONF)
    for word in words or []:
        if not isinstance(word, str) or UNKNOWN in word or "=" not in word:
            raise NotKnown
        path, _, text = word.partition("=")
        *folders, last = path.lstrip("+").split(".")
        owner = root
        for name in folders:
            inner = machine.at(owner).slots.get(name)
            if not isinstance(inner, Ref):
                inner = machine.new("dict", cls=OMEGACONF)
                machine.put(owner.id, name, inner)
            owner = inner
        value = machine.rebuilt(load_yaml(text, word, is_omegaconf=True), OMEGACONF) if text else None
        machine.put(owner.id, last, value)
    return root


__all__ = ["called", "converted", "dotted", "merge"]
