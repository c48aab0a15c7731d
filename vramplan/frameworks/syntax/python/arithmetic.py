"""Operators and methods of plain values, bounded in size."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from vramplan.frameworks.syntax.python.values import LARGEST, LONGEST, Library, weight

COMPUTED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
TYPES = tuple(f"builtins.{name}" for name in ("bool", "int", "float", "str", "list", "dict", "tuple", "set"))
TEXT_METHODS = frozenset(
    [
        "lower",
        "upper",
        "strip",
        "lstrip",
        "rstrip",
        "split",
        "rsplit",
        "startswith",
        "endswith",
        "replace",
        "join",
        "removeprefix",
        "removesuffix",
        "partition",
        "rpartition",
        "title",
        "capitalize",
        "isdigit",
        "isnumeric",
        "isalpha",
        "count",
        "find",
        "rfind",
        "index",
        "splitlines",
        "format",
        "casefold",
    ]
)
"""Methods of str that are evaluated."""


class NotKnown(Exception):
    """The value is only known in a run, or there is none."""


def computed(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """The result of an operator on known values.

    Raises:
        NotKnown: if it is not evaluated.
    """
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        if kind in (ast.Pow, ast.LShift) and (abs(right) > 64 or abs(left) > LARGEST):
            raise NotKnown
    elif kind is ast.Mult:
        number, items = (left, right) if isinstance(left, int) else (right, left)
        if not isinstance(number, int) or not isinstance(items, (str, tuple)) or number * len(items) > LONGEST:
            raise NotKnown
    elif kind is ast.Mod and isinstance(left, str):
        if "*" in left or any(part[:1].isdigit() and len(part) > 3 for part in left.split("%")):
            raise NotKnown
    elif (
        kind is not ast.Add
        or type(left) is not type(right)
        or not isinstance(left, (str, bytes, tuple))
        or len(left) + len(right) > LONGEST
    ):
        raise NotKnown
    try:
        return bounded(COMPUTED[kind](left, right))
    except (KeyError, ArithmeticError, TypeError, ValueError, MemoryError):
        raise NotKnown from None


def bounded(value: Any) -> Any:
    """A value that is small enough.

    Raises:
        NotKnown: if it is not.
    """
    if isinstance(value, complex) or (isinstance(value, int) and abs(value) > LARGEST):
        raise NotKnown
    if isinstance(value, (str, bytes)) and len(value) > LONGEST:
        raise NotKnown
    if type(value) is tuple and weight(value) >= LONGEST:
        raise NotKnown
    return value


def compared(kind: type[ast.cmpop], left: Any, right: Any) -> bool:
    """A comparison of known values.

    Raises:
        NotKnown: if they cannot be compared.
    """
    if kind in (ast.Is, ast.IsNot):
        if _is_type(left) and _is_type(right):
            return bool(left == right) == (kind is ast.Is)
        if left is not None and right is not None and not (isinstance(left, bool) and isinstance(right, bool)):
            raise NotKnown
        return (left is right) == (kind is ast.Is)
    if isinstance(left, Library) or isinstance(right, Library):
        return _compared_names(kind, left, right)
    if weight(left) + weight(right) > LONGEST:
        raise NotKnown
    try:
        return bool(COMPARED[kind](left, right))
    except (KeyError, TypeError):
        raise NotKnown from None


def _compared_names(kind: type[ast.cmpop], left: Any, right: Any) -> bool:
    """Two dtypes of torch, or two of Python's own types; other names may stand for anything."""
    dtypes = [isinstance(side, Library) and side.name.startswith("torch.") for side in (left, right)]
    if kind not in (ast.Eq, ast.NotEq) or not (all(dtypes) or (_is_type(left) and _is_type(right))):
        raise NotKnown
    return bool(left == right) == (kind is ast.Eq)


def _is_type(value: Any) -> bool:
    """Whether it is one of Python's own types by its name: ``int``."""
    return isinstance(value, Library) and value.name in TYPES


def text_method(text: str, name: str, arguments: list[Any]) -> Any:
    """What a method of str returns.

    Raises:
        NotKnown: if it is not evaluated.
    """
    if name not in TEXT_METHODS or (name == "format" and ("{:" in text or "!" in text or len(text) > 1000)):
        raise NotKnown
    if name == "format" and any(":" in part or "[" in part or "." in part for part in text.split("{")[1:]):
        raise NotKnown
    if name == "replace" and len(arguments) > 1 and (len(text) + 1) * (len(str(arguments[1])) + 1) > LONGEST:
        raise NotKnown
    if name == "join" and arguments and weight(arguments[0]) * (len(text) + 1) > LONGEST:
        raise NotKnown
    try:
        result = getattr(text, name)(*arguments)
    except (TypeError, ValueError, IndexError, KeyError):
        raise NotKnown from None
    return bounded(tuple(result) if isinstance(result, list) else result)
