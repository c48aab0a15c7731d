"""A Python script's calls and their literal arguments, from its syntax tree. Nothing in it is executed."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.shell import UNKNOWN
from vramplan.inputs.gpu import Gpu

BF16_QUERIES = ("is_bf16_supported", "is_torch_bf16_gpu_available", "is_torch_bf16_available")
"""Functions of torch and transformers that are true on every GPU: bf16 is emulated (torch 2.13, cuda/__init__.py)."""
COMPUTED: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
}
COMPARED: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
LARGEST = 1 << 40
"""Larger numbers are not settings."""


FREEZES = ("requires_grad", "requires_grad_")
"""Attribute and method that set which weights train; setting the attribute counts as a call here."""


class NotLiteral(Exception):
    """The value of an expression is only known in a run."""


@dataclass(slots=True)
class Call:
    """One call, with the values of its literal arguments."""

    name: str
    """Dotted: AutoModelForCausalLM.from_pretrained; a method of an unknown object begins with a dot."""
    line: int
    place: str
    positional: list[Any] = field(default_factory=list)
    keywords: dict[str, ConfigValue] = field(default_factory=dict)

    @property
    def last(self) -> str:
        """Last part of its name."""
        return self.name.rpartition(".")[2]


@dataclass(slots=True)
class Script:
    """The calls and imports of a script."""

    where: str
    calls: list[Call] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    """Packages, by their first part."""

    def named(self, *names: str) -> list[Call]:
        """Calls by the last part of their names."""
        return [call for call in self.calls if call.last in names]


def read_script(
    text: str, where: str, flags: Mapping[str, ConfigValue] | None = None, gpu: Gpu | None = None
) -> Script:
    """The calls of a script; `flags` are its command's and override the defaults of its argparse.

    `gpu` answers what it asks of its GPU; without one, bf16 is supported.

    Raises:
        ConfigError: if it is not Python, naming the line.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(f"{where}:{error.lineno or 1}: is no Python: {error.msg}") from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise ConfigError(f"{where}: is no Python that can be read ({error})") from error
    try:
        return _Reader(where, flags or {}, gpu).read(tree)
    except RecursionError as error:
        raise ConfigError(f"{where}: nested too deeply") from error


class _Reader:
    """Walks a tree in the order of its lines, with the values of the names there."""

    def __init__(self, where: str, flags: Mapping[str, ConfigValue], gpu: Gpu | None) -> None:
        self.script = Script(where)
        self.flags, self.gpu = flags, gpu
        self.names: dict[str, Any] = {}
        self.parsed: set[str] = set()
        """Names of argparse's namespaces."""
        self.defaults: dict[str, Any] = {}

    def read(self, tree: ast.Module) -> Script:
        for node, inner in self._statements(tree.body, False):
            self._imports(node)
            for call in _calls(node):
                self._call(call)
            if isinstance(node, ast.Assign) and any(
                getattr(target, "attr", "") == FREEZES[0] for target in node.targets
            ):
                self.script.calls.append(Call(f".{FREEZES[0]}", node.lineno, f"{self.script.where}:{node.lineno}"))
            self._assign(node, inner)
        return self.script

    def _statements(self, body: list[ast.stmt], inner: bool) -> Iterator[tuple[ast.stmt, bool]]:
        """(statement, whether it stands in a branch) in order, without branches that are known not to run."""
        for node in body:
            yield node, inner
            parts: tuple[str, ...] = ("body", "orelse", "finalbody")
            branch = inner or isinstance(node, (ast.If, ast.For, ast.While, ast.Try))
            if isinstance(node, ast.If):
                with suppress(NotLiteral):
                    parts, branch = (("body",) if self.value(node.test) else ("orelse",)), inner
            for part in parts:
                yield from self._statements(getattr(node, part, None) or [], branch)
            for handler in getattr(node, "handlers", None) or []:
                yield from self._statements(handler.body, True)

    def _imports(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Import):
            self.script.imports |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            self.script.imports.add(node.module.partition(".")[0])

    def _assign(self, node: ast.stmt, inner: bool) -> None:
        """Record the names that a statement binds; a name that branches bind differently is unknown."""
        if isinstance(node, (ast.AugAssign, ast.For)):
            for name_node in ast.walk(node.target):
                if isinstance(name_node, ast.Name):
                    self.names.pop(name_node.id, None)
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(node.value, ast.Call) and _dotted(node.value.func).endswith(("parse_args", "parse_known_args")):
            self.parsed |= {
                name_node.id for target in targets for name_node in ast.walk(target) if isinstance(name_node, ast.Name)
            }
            return
        for target in targets:
            for name, value in _bound(target, node.value):
                try:
                    literal = self.value(value)
                except NotLiteral:
                    self.names.pop(name, None)
                    continue
                if inner and name in self.names and self.names[name] != literal:
                    self.names.pop(name)  # another branch binds another value
                else:
                    self.names[name] = literal

    def _call(self, node: ast.Call) -> None:
        name = _dotted(node.func)
        place = f"{self.script.where}:{node.lineno}"
        if name.endswith(".add_argument"):
            self._argument(node)
        call = Call(name, node.lineno, place, [self._or_unknown(argument) for argument in node.args])
        for keyword in node.keywords:
            line = f"{self.script.where}:{keyword.value.lineno}"
            if keyword.arg is not None:
                call.keywords[keyword.arg] = ConfigValue(self._or_unknown(keyword.value, keyword.arg), line)
                continue
            spread = self._or_unknown(keyword.value)
            if isinstance(spread, dict):
                call.keywords |= {str(key): ConfigValue(value, line) for key, value in spread.items()}
            else:
                call.keywords["**"] = ConfigValue(f"{UNKNOWN}**{ast.unparse(keyword.value)}", line)
        self.script.calls.append(call)

    def _argument(self, node: ast.Call) -> None:
        """Record the default of an argparse option."""
        keywords = {argument.arg: argument.value for argument in node.keywords if argument.arg is not None}
        options = [self._or_unknown(argument) for argument in node.args]
        long = next((argument for argument in options if str(argument).startswith("--")), options[0] if options else "")
        name = self._or_unknown(keywords["dest"]) if "dest" in keywords else str(long).lstrip("-").replace("-", "_")
        try:
            if "default" in keywords:
                self.defaults[str(name)] = self.value(keywords["default"])
            elif "action" in keywords and self.value(keywords["action"]) in ("store_true", "store_false"):
                self.defaults[str(name)] = self.value(keywords["action"]) == "store_false"
        except NotLiteral:
            pass

    def _or_unknown(self, node: ast.expr, key: str = "") -> Any:
        try:
            return self.value(node)
        except NotLiteral:
            text = ast.unparse(node)
            return f"{UNKNOWN}{key}{'=' if key else ''}{text if len(text) < 60 else text[:57] + '...'}"

    def value(self, node: ast.expr) -> Any:
        """The value of an expression, if it is known without running anything.

        Raises:
            NotLiteral: if it is not.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
            pairs = zip(node.keys, node.values, strict=True)
            return {str(self.value(key)): self._or_unknown(value) for key, value in pairs if key is not None}
        if isinstance(node, ast.Name) and node.id in self.names:
            return self.names[node.id]
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.BoolOp):
            return self._chained(node)
        if isinstance(node, ast.BinOp) and type(node.op) in COMPUTED:
            return _number(COMPUTED[type(node.op)], self.value(node.left), self.value(node.right))
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARED:
            return _compared(COMPARED[type(node.ops[0])], self.value(node.left), self.value(node.comparators[0]))
        if isinstance(node, ast.IfExp):
            return self.value(node.body if self.value(node.test) else node.orelse)
        if isinstance(node, ast.Call):
            return self._called(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            container, key = self.value(node.value), self.value(node.slice)
            if isinstance(container, dict) and str(key) in container:
                return container[str(key)]
            if isinstance(container, list) and isinstance(key, int) and 0 <= key < len(container):
                return container[key]
        raise NotLiteral

    def _chained(self, node: ast.BoolOp) -> Any:
        """``a and b``, ``a or b``: the first operand that decides, else the last."""
        *operands, last = node.values
        for operand in operands:
            value = self.value(operand)
            if bool(value) != isinstance(node.op, ast.And):
                return value
        return self.value(last)

    def _unary(self, node: ast.UnaryOp) -> Any:
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return not value
        if isinstance(node.op, ast.USub) and isinstance(value, (int, float)):
            return -value
        raise NotLiteral

    def _called(self, node: ast.Call) -> Any:
        name = _dotted(node.func)
        if name == "torch.cuda.is_available":
            return True
        function = name.rpartition(".")[2]
        if function == "get_device_capability" and self.gpu is not None and self.gpu.compute_capability:
            return list(self.gpu.capability)
        include_emulation = [keyword.value for keyword in node.keywords if keyword.arg == "including_emulation"]
        if function in BF16_QUERIES and (not include_emulation or self.value(include_emulation[0])):
            return True
        if function == "is_bfloat16_supported" or function in BF16_QUERIES:  # the former is unsloth's
            return self.gpu is None or self.gpu.supports("bf16")
        if name == "dict" and not node.args and all(keyword.arg for keyword in node.keywords):
            return {str(keyword.arg): self._or_unknown(keyword.value) for keyword in node.keywords}
        if name in ("int", "float", "str", "list", "tuple") and len(node.args) == 1 and not node.keywords:
            return self.value(node.args[0])
        raise NotLiteral

    def _attribute(self, node: ast.Attribute) -> Any:
        """torch.bfloat16, TaskType.CAUSAL_LM, args.batch_size, Config.batch_size."""
        name = _dotted(node)
        first = name.partition(".")[0]
        if first in self.parsed and name.count(".") == 1:
            if node.attr in self.flags:
                return self.flags[node.attr].value
            if node.attr in self.defaults:
                return self.defaults[node.attr]
        if first == "torch" and name.count(".") == 1:
            return node.attr
        if first[:1].isupper() and node.attr.isupper():
            return node.attr
        if name in self.names:
            return self.names[name]
        raise NotLiteral


def _calls(node: ast.stmt) -> Iterator[ast.Call]:
    """Calls of a statement, inner ones first, without those of the statements nested in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.excepthandler)):
            yield from _within(child)


def _within(node: ast.AST) -> Iterator[ast.Call]:
    for child in ast.iter_child_nodes(node):
        yield from _within(child)
    if isinstance(node, ast.Call):
        yield node


def _bound(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """(name, expression) pairs of an assignment; two of ``a, b = 1, 2``."""
    if isinstance(target, (ast.Name, ast.Attribute)):
        yield _dotted(target), value
    elif isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
        for number, element in enumerate(target.elts):
            if isinstance(element, (ast.Name, ast.Attribute)):
                yield _dotted(element), values[number] if values else ast.Subscript(value, ast.Constant(number))


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` as it is written, without anything before a call or an index."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ""


def _compared(comparison: Any, left: Any, right: Any) -> bool:
    """The comparison of two values that have an order."""
    try:
        return bool(comparison(left, right))
    except TypeError:
        raise NotLiteral from None


def _number(operation: Any, left: Any, right: Any) -> Any:
    """A small sum or product, or a joined text or list; other operations are not evaluated."""
    plain = (int, float)
    if isinstance(left, plain) and isinstance(right, plain) and max(abs(left), abs(right)) < LARGEST:
        try:
            return operation(left, right)
        except ZeroDivisionError:
            raise NotLiteral from None
    if isinstance(left, str) and isinstance(right, str) and operation is COMPUTED[ast.Add]:
        return left + right
    if isinstance(left, list) and isinstance(right, list) and operation is COMPUTED[ast.Add]:
        return left + right
    raise NotLiteral
