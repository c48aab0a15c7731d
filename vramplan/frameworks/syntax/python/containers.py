"""Methods of lists and dictionaries, copies, environment variables."""

from __future__ import annotations

import ast
from typing import Any

from vramplan.frameworks.syntax.python.access import OMEGACONF
from vramplan.frameworks.syntax.python.arithmetic import NotKnown
from vramplan.frameworks.syntax.python.builtin_functions import Builtins
from vramplan.frameworks.syntax.python.functions import READ_ONLY
from vramplan.frameworks.syntax.python.values import Library, Ref, Unknown, is_known, is_maybe, refs_of

LAUNCHER_VARIABLES = frozenset(
    ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK"]
)
"""Environment variables that a launcher sets."""


class Containers(Builtins):
    """Follows what changes a container in place."""

    def set_replaced(self, copy: Any, key: str, value: Any) -> None:
        """An attribute of a copy that is made with other values."""
        if isinstance(copy, Ref):
            self.change(copy.id, key).slots[key] = value

    def copied(self, value: Any, deep: bool, node: ast.AST, done: dict[int, Ref] | None = None) -> Any:
        """A copy of a container or of an object."""
        done = {} if done is None else done
        if isinstance(value, Unknown):
            return Unknown(value.text, frozenset() if deep else value.refs, value.path)
        if type(value) is tuple and deep:
            return tuple(self.copied(item, deep, node, done) for item in value)
        if not isinstance(value, Ref) or self.at(value).kind not in ("list", "dict", "set", "instance"):
            return value
        if value.id in done:
            return done[value.id]
        self.step()
        item = self.at(value).copy()
        item.spoiled, item.used = frozenset(), ""
        if item.cls == "environ":
            return self.unknown(node)
        ref = self.new("list")
        done[value.id] = ref
        if deep:
            item.slots = {key: self.copied(inner, deep, node, done) for key, inner in item.slots.items()}
            item.items = None if item.items is None else [self.copied(v, deep, node, done) for v in item.items]
        self.heap.objects[ref.id] = item
        if item.kind == "instance" and isinstance(item.cls, Library):
            self.things.append(ref.id)
        return ref

    def _variable(self, positional: list[Any], keywords: dict[str, Any], node: ast.AST) -> Any:
        """An environment variable: as the script set it, else its default."""
        key = positional[0] if positional else keywords.get("key")
        default = positional[1] if len(positional) > 1 else keywords.get("default")
        item = self.at(self.environ)
        if not isinstance(key, str) or item.is_open:
            return self.unknown(node)
        if key in item.slots:
            return item.slots[key]
        return self.unknown(node) if key in LAUNCHER_VARIABLES else default

    def _text_argument(self, value: Any) -> Any:
        if isinstance(value, Ref):
            items = self.iterated(value)
            if items is None or not all(isinstance(item, str) for item in items):
                raise NotKnown
            return tuple(items)
        if is_known(value):
            return value
        raise NotKnown

    def container_method(
        self, ref: Ref, name: str, positional: list[Any], keywords: dict[str, Any], node: ast.AST, spread: Any
    ) -> Any:
        """A method of a list, dictionary or set."""
        item = self.at(ref)
        key = positional[0] if positional else None
        is_plain = item.cls in (None, OMEGACONF)
        if item.kind == "dict" and (is_plain or item.cls == "environ") and spread is None:
            if name == "get" and item.cls == "environ":
                return self._variable(positional, keywords, node)
            if name in ("get", "pop", "setdefault") and is_known(key) and positional:
                return self._dict_get(ref, name, key, positional[1] if len(positional) > 1 else None, node)
            if name == "update" and is_plain:
                for other in positional:
                    self.update(ref.id, other, self.text(node))
                for other_key, value in keywords.items():
                    self.put(ref.id, other_key, value)
                return None
            if name in ("keys", "values", "items", "copy") and is_plain:
                return self._dict_view(ref, name, node)
        if item.kind == "list" and spread is None and "*" not in item.spoiled:
            result = self._list_method(ref, name, positional, node)
            if result is not NotImplemented:
                return result
        if name in READ_ONLY:
            return self.unknown(node, ref)
        slots = self.change(ref.id, "*").slots
        values = [*positional, *keywords.values()]
        slots["\0lost"] = Unknown("its content", refs_of([*values, slots.get("\0lost")]))
        self.lose(ref.id, "*", self.text(node))
        return self.unknown(node, ref, *values)

    def _dict_get(self, ref: Ref, name: str, key: Any, default: Any, node: ast.AST) -> Any:
        item = self.at(ref)
        if key in item.slots:
            value = item.slots[key]
            if name == "pop":
                if item.spoiled:
                    self.lose(ref.id, key)
                else:
                    self.change(ref.id, key).slots.pop(key)
            if is_maybe(value):
                value = self.unknown(node, value, default)
                if name == "setdefault":
                    self.put(ref.id, key, value)
            return value
        if item.is_open or (item.cls == "environ" and key in LAUNCHER_VARIABLES):
            if name == "setdefault":
                self.put(ref.id, key, self.unknown(node, default))
            return self.unknown(node, ref, default)
        if name == "setdefault":
            self.put(ref.id, key, default)
        return default

    def _dict_view(self, ref: Ref, name: str, node: ast.AST) -> Any:
        item = self.at(ref)
        if name == "copy":
            return self.copied(ref, False, node)
        maybe = any(is_maybe(value) for value in item.slots.values())
        if item.is_open or maybe:
            return self.unknown(node, ref)
        if name == "keys":
            return tuple(item.slots)
        return tuple(item.slots.values()) if name == "values" else tuple(item.slots.items())

    def _list_method(self, ref: Ref, name: str, positional: list[Any], node: ast.AST) -> Any:
        items = self.at(ref).items
        if items is None:
            return NotImplemented
        if name == "copy":
            return self.copied(ref, False, node)
        if name == "append" and len(positional) == 1 and len(items) < 10_000:
            changed = self.change(ref.id, "*").items
            assert changed is not None
            changed.append(positional[0])
            return None
        if name == "extend" and len(positional) == 1:
            more = self.iterated(positional[0])
            if more is not None and len(items) + len(more) < 10_000:
                changed = self.change(ref.id, "*").items
                assert changed is not None
                changed += more
                return None
        index = positional[0] if positional else -1
        if name == "pop" and isinstance(index, int) and -len(items) <= index < len(items):
            changed = self.change(ref.id, "*").items
            assert changed is not None
            return changed.pop(index)
        return NotImplemented
