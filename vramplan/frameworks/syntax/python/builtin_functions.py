"""Python's own functions, of known values."""

from __future__ import annotations

import ast
from typing import Any

from vramplan.frameworks.syntax.python.access import ARGV_LENGTH, MOST_ITEMS, OMEGACONF
from vramplan.frameworks.syntax.python.arithmetic import NotKnown, bounded
from vramplan.frameworks.syntax.python.command_line import CommandLine
from vramplan.frameworks.syntax.python.values import (
    PLAIN,
    Attributes,
    FilePath,
    Library,
    Ref,
    Unknown,
    is_known,
    is_maybe,
    refs_of,
)

TYPES: dict[str, type] = {"str": str, "int": int, "float": float, "bool": bool}
MAPPINGS = ("Mapping", "MutableMapping")
HOMES = ("builtins.", "collections.abc.", "typing.", "pathlib.", "omegaconf.")
CONTAINERS = ("list", "dict", "tuple", "set", "Path", "DictConfig")


class Builtins(CommandLine):
    """Evaluates int, len, dict, range and the like; NotKnown is raised for what is left to the general rule."""

    def _builtin_len(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        (value,) = positional or [None]
        if isinstance(value, str) or type(value) is tuple:
            return len(value)
        if value == Library("sys.argv"):
            return ARGV_LENGTH
        items = self.iterated(value)
        if items is None:
            raise NotKnown
        return len(items)

    def _converted(self, kind: type, positional: list[Any], node: ast.AST) -> Any:
        if not positional:
            return kind()
        value = positional[0]
        if len(positional) != 1 or not isinstance(value, PLAIN) or (isinstance(value, str) and len(value) > 400):
            raise NotKnown
        try:
            return bounded(kind(value))
        except (TypeError, ValueError, OverflowError):
            raise NotKnown from None

    def _builtin_int(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        return self._converted(int, positional, node)

    def _builtin_float(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        return self._converted(float, positional, node)

    def _builtin_str(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        if positional and isinstance(positional[0], bytes):
            raise NotKnown
        if len(positional) == 1 and isinstance(positional[0], FilePath):
            return positional[0].text
        return self._converted(str, positional, node)

    def _builtin_bool(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        truth = self.truth_of(positional[0]) if positional else False
        if truth is None:
            raise NotKnown
        return truth

    def _builtin_dict(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        ref = self.new("dict")
        for other in positional:
            items = self.iterated(other) if self.pairs(other) is None else None
            if items is not None and all(type(item) is tuple and len(item) == 2 for item in items):
                for key, value in items:
                    self.set_item(ref, key, value, node)
            else:
                self.update(ref.id, other, self.text(node))
        for key, value in keywords.items():
            self.put(ref.id, key, value)
        return ref

    def _builtin_list(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        items = self.iterated(positional[0]) if positional else []
        if items is None:
            lost = Unknown("its items", refs_of(positional))
            return self.new("list", slots={"\0lost": lost}, is_open=self.text(node))
        return self.new("list", items=items)

    def _builtin_tuple(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        items = self.iterated(positional[0]) if positional else []
        if items is None:
            raise NotKnown
        return bounded(tuple(items))

    def _builtin_set(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        items = self.iterated(positional[0]) if positional else []
        if items is None or not all(is_known(item) for item in items):
            raise NotKnown
        return self.new("set", items=list(dict.fromkeys(items)))

    def _builtin_sorted(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        value = positional[0]
        items = None if keywords else self.iterated(value)
        if isinstance(value, Ref) and self.at(value).kind == "set" and not keywords:
            items = self.at(value).items
        if items is None or not all(is_known(item) for item in items):
            raise NotKnown
        try:
            return self.new("list", items=sorted(items))
        except TypeError:
            raise NotKnown from None

    def _builtin_range(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        if not positional or not all(type(value) is int for value in positional):
            raise NotKnown
        try:
            numbers = range(*positional)
        except (TypeError, ValueError):
            raise NotKnown from None
        if len(numbers) > MOST_ITEMS:
            raise NotKnown
        return tuple(numbers)

    def _builtin_enumerate(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        items = self.iterated(positional[0]) if len(positional) == 1 and not keywords else None
        if items is None:
            raise NotKnown
        return tuple(enumerate(items))

    def _builtin_zip(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        columns = [self.iterated(value) for value in positional]
        if keywords or None in columns:
            raise NotKnown
        return tuple(zip(*[column or [] for column in columns], strict=False))

    def _numbers(self, positional: list[Any]) -> list[Any]:
        items = self.iterated(positional[0]) if len(positional) == 1 else positional
        if not items or not all(isinstance(item, (int, float)) for item in items):
            raise NotKnown
        return items

    def _builtin_max(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        if keywords:
            raise NotKnown
        return max(self._numbers(positional))

    def _builtin_min(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        if keywords:
            raise NotKnown
        return min(self._numbers(positional))

    def _builtin_sum(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        if keywords or len(positional) != 1:
            raise NotKnown
        return bounded(sum(self._numbers(positional)))

    def _builtin_abs(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        return abs(self._numbers([tuple(positional)])[0])

    def _builtin_round(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        if len(positional) != 1 or keywords:
            raise NotKnown
        try:
            return round(self._numbers([tuple(positional)])[0])
        except (ValueError, OverflowError):
            raise NotKnown from None

    def _builtin_vars(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        if positional and isinstance(positional[0], Ref):
            return Attributes(positional[0].id)
        if positional:
            raise NotKnown
        return Attributes(self.scope)

    def _builtin_getattr(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        if len(positional) < 2 or not isinstance(positional[1], str) or not positional[1].isidentifier():
            raise NotKnown
        item = self.at(positional[0]) if isinstance(positional[0], Ref) else None
        if item is not None and item.cls in (OMEGACONF, "namespace") and not item.is_open and len(positional) > 2:
            value = item.slots.get(positional[1], positional[2])
            return self.unknown(node, value, positional[2]) if is_maybe(value) else value
        value = self.attribute(positional[0], positional[1], node)
        if len(positional) > 2 and (isinstance(value, Unknown) or isinstance(positional[0], Library)):
            return self.unknown(node, value, positional[2])
        return value

    def _builtin_setattr(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        if len(positional) != 3:
            raise NotKnown
        owner, name, value = positional
        if isinstance(name, str):
            self.set_attribute(owner, name, value, node)
        else:
            self.lose_all([owner], self.text(node))
            call = self.record("setattr", node, positional, keywords)
            self.happen(refs_of([owner]), ".setattr=", call)
        return None

    def _builtin_delattr(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        self.lose_all(positional[:1], self.text(node))
        return None

    def _builtin_isinstance(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        value, kind = positional if len(positional) == 2 else (None, None)
        if type(kind) is tuple:
            results = [self._builtin_isinstance([value, one], keywords, node) for one in kind]
            return any(results)
        if not isinstance(kind, Library) or not kind.name.startswith(HOMES):
            raise NotKnown
        if kind.last not in (*TYPES, *MAPPINGS, *CONTAINERS):
            raise NotKnown
        if isinstance(value, PLAIN):
            return kind.last in TYPES and isinstance(value, TYPES[kind.last])
        if isinstance(value, FilePath):
            return kind.last == "Path"
        item = self.at(value) if isinstance(value, Ref) else None
        if item is None or item.kind not in ("list", "dict", "set") or item.cls not in (None, OMEGACONF):
            raise NotKnown
        if item.kind == "dict" and kind.last in MAPPINGS:
            return True
        if item.cls == OMEGACONF:
            return item.kind == "dict" and kind.last == "DictConfig"
        return item.kind == kind.last

    def _builtin_hasattr(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        owner, name = positional if len(positional) == 2 else (None, None)
        if not isinstance(owner, Ref) or not isinstance(name, str):
            raise NotKnown
        item = self.at(owner)
        is_record = item.cls in (OMEGACONF, "namespace") and not item.is_open
        if not is_record or is_maybe(item.slots.get(name)):
            raise NotKnown
        return name in item.slots
