"""Attributes, items and truth of values."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.python import paths
from vramplan.frameworks.syntax.python.arithmetic import COMPARED, NotKnown, compared
from vramplan.frameworks.syntax.python.machine import Function, Machine
from vramplan.frameworks.syntax.python.modules import member
from vramplan.frameworks.syntax.python.values import (
    PLAIN,
    Attributes,
    Bound,
    FilePath,
    Library,
    Module,
    Ref,
    Super,
    Unknown,
    is_known,
    is_maybe,
    refs_of,
)
from vramplan.frameworks.syntax.shell import UNKNOWN

MOST_ITEMS = 256
"""Items of an iterable that are gone through one by one."""


OMEGACONF = "omegaconf"
"""The class of a dictionary whose keys are attributes too."""
DICT_METHODS = ("get", "pop", "keys", "values", "items", "copy", "setdefault", "update")
FILE_METHODS = ("write", "writelines", "read")
ARGV_LENGTH = Unknown("len(sys.argv)")
"""``len(sys.argv)`` of a script whose command is not known."""
NEVER_EMPTY = ("from_pretrained", "from_config", "Config", "Arguments", "Trainer", "Callback", "Accelerator", "Parser")
"""Ends of the names of libraries' classes and loaders whose objects are true; a Counter or a Dataset may be empty."""


class Access(Machine):
    """Reads and writes what values hold."""

    def truth_of(self, value: Any) -> bool | None:
        """Whether a value is true; None if it is not known."""
        if isinstance(value, PLAIN):
            return bool(value)
        if type(value) is tuple:
            return bool(value)
        if isinstance(value, (Function, Bound, FilePath, Module)):
            return True
        if isinstance(value, Library):
            if value.name == "typing.TYPE_CHECKING":
                return False
            return True if value.name.startswith("builtins.") else None
        if isinstance(value, Ref):
            item = self.at(value)
            if item.kind in ("list", "set", "dict"):
                if item.kind == "dict" and item.cls == "environ":
                    return None
                if item.items is not None:
                    return bool(item.items)
                slots = [(key, inner) for key, inner in item.slots.items() if not str(key).startswith("\0")]
                sure = any(not is_maybe(inner) for _, inner in slots)
                return True if sure else None if item.is_open or item.slots else False
            if item.kind == "instance" and isinstance(item.cls, Library):
                return True if item.cls.last.endswith(NEVER_EMPTY) else None
            return True if item.kind in ("class", "instance") and isinstance(item.cls, str) else None
        return None

    def _compared(self, kind: type[ast.cmpop], left: Any, right: Any) -> bool | None:
        if left is ARGV_LENGTH and type(right) is int and kind in COMPARED:
            if self.is_alone:  # its defaults count, as those of a shell script's arguments
                return compared(kind, 1, right)
            if right <= len(self.flags):  # it has a word at least for each flag
                return compared(kind, MOST_ITEMS, right)
        try:
            if kind in (ast.Is, ast.IsNot) and (left is None or right is None):
                other = right if left is None else left
                if isinstance(other, (Ref, Function)) or is_known(other):
                    return (other is None) == (kind is ast.Is)
                raise NotKnown
            if kind in (ast.In, ast.NotIn) and isinstance(right, (Ref, Attributes)):
                return self._contains(kind, left, right)
            left, right = self.comparable(left), self.comparable(right)
            return compared(kind, left, right) if kind in COMPARED else None
        except NotKnown:
            return None

    def comparable(self, value: Any) -> Any:
        """A known value or a name; lists as ("list", items).

        Raises:
            NotKnown: for anything else.
        """
        if isinstance(value, Ref) and self.at(value).kind == "list" and self.at(value).items is not None:
            value = ("list", *(self.at(value).items or []))
        if is_known(value) or isinstance(value, Library):
            return value
        raise NotKnown

    def _contains(self, kind: type[ast.cmpop], key: Any, container: Ref | Attributes) -> bool:
        item = self.at(container.id)
        if item.is_open or not is_known(key) or item.kind not in ("dict", "list", "set") or item.cls == "environ":
            raise NotKnown
        if item.items is None:
            if is_maybe(item.slots.get(key)):
                raise NotKnown
            return (key in item.slots) == (kind is ast.In)
        if not all(is_known(value) for value in item.items):
            raise NotKnown
        return (key in item.items) == (kind is ast.In)

    def attribute(self, owner: Any, name: str, node: ast.AST) -> Any:
        """The value of an attribute."""
        if isinstance(owner, Library):
            if owner.name == "os" and name == "environ":
                return self.environ
            if owner.name == "sys" and name == "argv" and self.arguments is not None:
                words = [Unknown("sys.argv") if UNKNOWN in word else word for word in self.arguments]
                return self.new("list", items=[self.where, *words])
            return Library(f"{owner.name}.{name}") if len(owner.name) < 300 else self.unknown(node)
        if isinstance(owner, Ref):
            return self._own_attribute(owner, name, node)
        if isinstance(owner, Super):
            return Bound(owner, name)
        if isinstance(owner, Module):
            return member(self, owner, name)
        if isinstance(owner, FilePath):
            with suppress(NotKnown):
                return paths.attribute(owner, name)
            return Bound(owner, name)
        if isinstance(owner, Unknown):
            return Unknown(self.text(node), owner.refs, f"{owner.path}.{name}"[:200], owner.is_library)
        return Bound(owner, name)

    def _own_attribute(self, owner: Ref, name: str, node: ast.AST) -> Any:
        item = self.at(owner)
        if name == "__dict__":
            return Attributes(owner.id)
        if item.cls == OMEGACONF and name not in DICT_METHODS:
            return item.slots.get(name, Unknown(self.text(node)))
        if item.kind in ("dict", "list", "set", "parser") or (item.cls == "file" and name in FILE_METHODS):
            return Bound(owner, name)
        if name in item.slots and name not in ("\0history",):
            return item.slots[name]
        lost = Unknown(self.text(node), frozenset({owner.id}), f".{name}")
        if item.is_open:
            return lost
        cls = item.cls if item.kind == "instance" else owner
        while isinstance(cls, Ref):
            owner_class = self.at(cls)
            if owner_class.is_open:
                return lost
            if name in owner_class.slots:
                return self._from_class(owner, owner_class.slots[name], name, node, item.kind == "instance")
            bases = [base for base in owner_class.items or [] if isinstance(base, Ref)]
            if len(bases) > 1:
                return lost
            cls = bases[0] if bases else None
        return lost

    def _from_class(self, owner: Ref, value: Any, name: str, node: ast.AST, is_instance: bool) -> Any:
        if not isinstance(value, Function):
            return value
        if value.kind == "property":
            return self.apply(value, [owner], {}, node) if is_instance else self.unknown(node, owner)
        if value.kind == "staticmethod" or (not is_instance and value.kind != "classmethod"):
            return value
        receiver = owner if value.kind != "classmethod" or not is_instance else self.at(owner).cls
        return Bound(receiver, name, value)

    def item(self, owner: Any, key: Any, node: ast.AST) -> Any:
        """The value at a key."""
        if owner == Library("sys.modules"):
            if isinstance(key, str) and key != "__main__":
                return Library(key)
            raise ConfigError(f"{self.place(node)}: {self.text(node)}: a script that changes itself is not followed")
        if isinstance(owner, (Ref, Attributes)):
            item = self.at(owner.id)
            if item.kind == "dict" and item.cls == "environ":
                return item.slots.get(key, self.unknown(node)) if is_known(key) else self.unknown(node)
            if item.items is not None:
                if isinstance(key, int) and item.kind == "list" and -len(item.items) <= key < len(item.items):
                    return item.items[key]
            elif (item.kind == "dict" or isinstance(owner, Attributes)) and is_known(key) and key in item.slots:
                return item.slots[key]
        elif (isinstance(owner, str) or type(owner) is tuple) and isinstance(key, int):  # noqa: SIM102
            if -len(owner) <= key < len(owner):
                return owner[key]
        return self.part(owner, self.text(node), "[]")

    def part(self, owner: Any, text: str, step: str) -> Unknown:
        """What is reached through a value."""
        return owner.part(text, step) if isinstance(owner, Unknown) else Unknown(text, refs_of([owner]), step)

    def set_item(self, owner: Any, key: Any, value: Any, node: ast.AST) -> None:
        """``owner[key] = value``."""
        if not isinstance(owner, (Ref, Attributes)):
            self.lose_all([owner], self.text(node))
            return
        item = self.at(owner.id)
        if item.kind == "list" and isinstance(key, int) and item.items is not None:  # noqa: SIM102
            if -len(item.items) <= key < len(item.items) and "*" not in item.spoiled:
                items = self.change(owner.id, "*").items
                assert items is not None
                items[key] = value
                return
        if (item.kind == "dict" or isinstance(owner, Attributes)) and is_known(key) and not isinstance(key, tuple):
            self.put(owner.id, key, value)
            return
        slots = self.change(owner.id, "*").slots
        slots["\0lost"] = Unknown("its content", refs_of([value, slots.get("\0lost")]))
        self.lose(owner.id, "*", self.text(node))

    def update(self, id: int, other: Any, text: str) -> None:
        """``dict.update`` with another mapping."""
        pairs = self.pairs(other)
        if pairs is None:
            self.lose(id, "*", text)
            return
        for key, value in pairs:
            self.put(id, key, value)

    def pairs(self, value: Any) -> list[tuple[Any, Any]] | None:
        """Keys and values of a mapping; None if they are not known."""
        if not isinstance(value, (Ref, Attributes)):
            return None
        item = self.at(value.id)
        if item.is_open or (item.kind != "dict" and not isinstance(value, Attributes)) or item.cls == "environ":
            return None
        return [(key, inner) for key, inner in item.slots.items() if not str(key).startswith("\0")]

    def iterated(self, value: Any) -> list[Any] | None:
        """What iterating over a value yields; None if it is not known, or is much."""
        if type(value) is tuple:
            return list(value)
        if isinstance(value, str) and len(value) <= MOST_ITEMS:
            return list(value)
        if isinstance(value, Ref):
            item = self.at(value)
            if item.is_open or item.cls == "environ":
                return None
            if item.items is not None:
                return None if item.kind == "set" and len(item.items) > 1 else list(item.items)
            if item.kind == "dict":
                maybe = any(is_maybe(inner) for inner in item.slots.values())
                return None if maybe else list(item.slots)
        return None
