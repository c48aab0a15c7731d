"""A Python script's calls and their literal arguments: its text is read as a tree, nothing in it is executed."""

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

EMULATED = ("is_bf16_supported", "is_torch_bf16_gpu_available", "is_torch_bf16_available")
"""torch's and transformers' questions for bf16: true on all cards, which emulate it (torch 2.13, cuda/__init__.py)."""
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
"""Numbers and texts beyond are no settings."""


FREEZES = ("requires_grad", "requires_grad_")
"""What is set, or called, to say by hand which weights train; the first counts as a call here."""


class NotLiteral(Exception):
    """What only a run would tell."""


@dataclass(slots=True)
class Call:
    """One call, its arguments evaluated where they are literal."""

    name: str
    """Dotted: AutoModelForCausalLM.from_pretrained; a method of an unknown object begins with a dot."""
    line: int
    place: str
    positional: list[Any] = field(default_factory=list)
    keywords: dict[str, ConfigValue] = field(default_factory=dict)

    @property
    def last(self) -> str:
        """The last part of its name."""
        return self.name.rpartition(".")[2]


@dataclass(slots=True)
class Script:
    """What a script says by itself."""

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
    """Every call of a script; `flags` are its command's, which go before what its argparse defaults to.

    What it asks of the card is answered by `card`; bf16 is taken for granted where none is known.

    Raises:
        ConfigError: where it is no Python, naming the line.
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
    """Goes through a tree in the order of its lines, with what the names hold there."""

    def __init__(self, where: str, flags: Mapping[str, ConfigValue], gpu: Gpu | None) -> None:
        self.script = Script(where)
        self.flags, self.gpu = flags, gpu
        self.names: dict[str, Any] = {}
        self.parsed: set[str] = set()
        """Names that hold argparse's namespace."""
        self.defaults: dict[str, Any] = {}

    def read(self, tree: ast.Module) -> Script:
        for node, inner in self._statements(tree.body, False):
            self._imports(node)
            for call in _calls(node):
                self._call(call)
            if isinstance(node, ast.Assign) and any(getattr(one, "attr", "") == FREEZES[0] for one in node.targets):
                self.script.calls.append(Call(f".{FREEZES[0]}", node.lineno, f"{self.script.where}:{node.lineno}"))
            self._assign(node, inner)
        return self.script

    def _statements(self, body: list[ast.stmt], inner: bool) -> Iterator[tuple[ast.stmt, bool]]:
        """Every statement in order, and whether it stands in a branch; branches that are known not to run are not."""
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
            self.script.imports |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            self.script.imports.add(node.module.partition(".")[0])

    def _assign(self, node: ast.stmt, inner: bool) -> None:
        """Names that a statement binds; where branches differ, the name is not known."""
        if isinstance(node, (ast.AugAssign, ast.For)):
            for one in ast.walk(node.target):
                if isinstance(one, ast.Name):
                    self.names.pop(one.id, None)
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(node.value, ast.Call) and _dotted(node.value.func).endswith(("parse_args", "parse_known_args")):
            self.parsed |= {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
            return
        for target in targets:
            for name, value in _bound(target, node.value):
                try:
                    found = self.value(value)
                except NotLiteral:
                    self.names.pop(name, None)
                    continue
                if inner and name in self.names and self.names[name] != found:
                    self.names.pop(name)  # another branch says otherwise
                else:
                    self.names[name] = found

    def _call(self, node: ast.Call) -> None:
        name = _dotted(node.func)
        place = f"{self.script.where}:{node.lineno}"
        if name.endswith(".add_argument"):
            self._argument(node)
        call = Call(name, node.lineno, place, [self._or_unknown(one) for one in node.args])
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
        """What an option of argparse holds where the command does not say."""
        given = {one.arg: one.value for one in node.keywords if one.arg is not None}
        options = [self._or_unknown(one) for one in node.args]
        long = next((one for one in options if str(one).startswith("--")), options[0] if options else "")
        name = self._or_unknown(given["dest"]) if "dest" in given else str(long).lstrip("-").replace("-", "_")
        try:
            if "default" in given:
                self.defaults[str(name)] = self.value(given["default"])
            elif "action" in given and self.value(given["action"]) in ("store_true", "store_false"):
                self.defaults[str(name)] = self.value(given["action"]) == "store_false"
        except NotLiteral:
            pass

    def _or_unknown(self, node: ast.expr, key: str = "") -> Any:
        try:
            return self.value(node)
        except NotLiteral:
            said = ast.unparse(node)
            return f"{UNKNOWN}{key}{'=' if key else ''}{said if len(said) < 60 else said[:57] + '...'}"

    def value(self, node: ast.expr) -> Any:
        """What an expression comes to without running anything.

        Raises:
            NotLiteral: where that cannot be told.
        """
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [self.value(one) for one in node.elts]
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
            held, key = self.value(node.value), self.value(node.slice)
            if isinstance(held, dict) and str(key) in held:
                return held[str(key)]
            if isinstance(held, list) and isinstance(key, int) and 0 <= key < len(held):
                return held[key]
        raise NotLiteral

    def _chained(self, node: ast.BoolOp) -> Any:
        """``a and b``, ``a or b``: the first that decides, else the last."""
        *others, last = node.values
        for one in others:
            held = self.value(one)
            if bool(held) != isinstance(node.op, ast.And):
                return held
        return self.value(last)

    def _unary(self, node: ast.UnaryOp) -> Any:
        held = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return not held
        if isinstance(node.op, ast.USub) and isinstance(held, (int, float)):
            return -held
        raise NotLiteral

    def _called(self, node: ast.Call) -> Any:
        name = _dotted(node.func)
        if name == "torch.cuda.is_available":
            return True
        asked = name.rpartition(".")[2]
        if asked == "get_device_capability" and self.gpu is not None and self.gpu.compute_capability:
            return list(self.gpu.capability)
        emulated = [one.value for one in node.keywords if one.arg == "including_emulation"]
        if asked in EMULATED and (not emulated or self.value(emulated[0])):
            return True
        if asked == "is_bfloat16_supported" or asked in EMULATED:  # the first is unsloth's
            return self.gpu is None or self.gpu.supports("bf16")
        if name == "dict" and not node.args and all(one.arg for one in node.keywords):
            return {str(one.arg): self._or_unknown(one.value) for one in node.keywords}
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
    """Calls of a statement itself, inner ones first; those of the statements in it come with them."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.stmt, ast.excepthandler)):
            yield from _within(child)


def _within(node: ast.AST) -> Iterator[ast.Call]:
    for child in ast.iter_child_nodes(node):
        yield from _within(child)
    if isinstance(node, ast.Call):
        yield node


def _bound(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """(name, what it is bound to) of an assignment; of ``a, b = 1, 2`` both."""
    if isinstance(target, (ast.Name, ast.Attribute)):
        yield _dotted(target), value
    elif isinstance(target, ast.Tuple):
        values = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts) else None
        for number, one in enumerate(target.elts):
            if isinstance(one, (ast.Name, ast.Attribute)):
                yield _dotted(one), values[number] if values else ast.Subscript(value, ast.Constant(number))


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` as it is written; what is before a call or an index is left out."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return ""


def _compared(comparison: Any, left: Any, right: Any) -> bool:
    """Whether it holds of two values that have an order."""
    try:
        return bool(comparison(left, right))
    except TypeError:
        raise NotLiteral from None


def _number(operation: Any, left: Any, right: Any) -> Any:
    """A small sum or product; anything else would be work, not reading."""
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
