"""Expressions: their values, where these are known on every path."""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from vramplan.frameworks.syntax.python.access import MOST_ITEMS, Access
from vramplan.frameworks.syntax.python.arithmetic import NotKnown, bounded, computed
from vramplan.frameworks.syntax.python.machine import Function, Raised
from vramplan.frameworks.syntax.python.memory import MISSING
from vramplan.frameworks.syntax.python.paths import joined_paths
from vramplan.frameworks.syntax.python.values import (
    LARGEST,
    LONGEST,
    FilePath,
    Ref,
    Unknown,
    is_known,
    joined,
    refs_of,
)


class Expressions(Access):
    """Evaluates expressions."""

    def value(self, node: ast.expr | None) -> Any:
        """The value of an expression."""
        if node is None:
            return None
        self.step()
        if self.live is None:
            raise Raised
        method: Callable[[Any], Any] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            values = [self.value(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
            return self.unknown(node, *values)
        return method(node)

    def truth(self, node: ast.expr) -> bool | None:
        """Whether an expression is true; None if it is not known."""
        if isinstance(node, ast.BoolOp):
            return self._chain(node)[0]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.truth(node.operand)
            return None if inner is None else not inner
        return self.truth_of(self.value(node))

    # -- leaves --------------------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Any:
        value = node.value
        if value is ... or isinstance(value, complex):
            return self.unknown(node)
        try:
            return bounded(value)
        except NotKnown:
            return self.unknown(node)

    def _name(self, node: ast.Name) -> Any:
        return self.lookup(node.id)

    def _tuple(self, node: ast.Tuple) -> Any:
        items = self.items(node.elts)
        if items is None:
            return self.unknown(node)
        try:
            return bounded(tuple(items))
        except NotKnown:
            return self.unknown(node, *items)

    def _list(self, node: ast.List) -> Any:
        return self._container("list", node)

    def _set(self, node: ast.Set) -> Any:
        return self._container("set", node)

    def _container(self, kind: str, node: ast.List | ast.Set) -> Any:
        items = self.items(node.elts)
        if items is None:
            return self.new(kind, is_open=self.text(node))
        return self.new(kind, items=items)

    def items(self, nodes: list[ast.expr]) -> list[Any] | None:
        """Values with starred ones unpacked; None if one of these is not known."""
        values: list[Any] | None = []
        for node in nodes:
            if not isinstance(node, ast.Starred):
                value = self.value(node)
                if values is not None:
                    values.append(value)
                continue
            inner = self.iterated(self.value(node.value))
            values = None if inner is None or values is None else values + inner
        return values

    def _dict(self, node: ast.Dict) -> Any:
        ref = self.new("dict")
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            if key_node is None:
                self.update(ref.id, self.value(value_node), self.text(value_node))
            else:
                key = self.value(key_node)
                self.set_item(ref, key, self.value(value_node), key_node)
        return ref

    def _joinedstr(self, node: ast.JoinedStr) -> Any:
        parts: list[str] = []
        unknown = False
        for part in node.values:
            value = self.value(part.value if isinstance(part, ast.FormattedValue) else part)
            plain = isinstance(part, ast.Constant) or (part.format_spec is None and part.conversion == -1)  # type: ignore[attr-defined]
            value = value.text if isinstance(value, FilePath) else value
            if not plain or not isinstance(value, (str, int, float, bool, type(None))):
                unknown = True
            parts.append(str(value) if not unknown else "")
        text = "".join(parts)
        return self.unknown(node) if unknown or len(text) > LONGEST else text

    def _formattedvalue(self, node: ast.FormattedValue) -> Any:
        self.value(node.value)
        return self.unknown(node)

    def _lambda(self, node: ast.Lambda) -> Any:
        return self.function(node)

    def function(self, node: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
        """A function with the values of its defaults, which are taken where it is defined."""
        defaults = tuple(self.value(default) for default in node.args.defaults)
        keyword_defaults = tuple(
            MISSING if default is None else self.value(default) for default in node.args.kw_defaults
        )
        return Function(node, self.scope, defaults, keyword_defaults)

    def _namedexpr(self, node: ast.NamedExpr) -> Any:
        value = self.value(node.value)
        self.bind(node.target, value)
        return value

    def _await(self, node: ast.Await) -> Any:
        return self.value(node.value)

    def _yield(self, node: ast.Yield) -> Any:
        return self.unknown(node, self.value(node.value))

    def _starred(self, node: ast.Starred) -> Any:
        return self.unknown(node, self.value(node.value))

    # -- operators -----------------------------------------------------------------------------------------------------

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            truth = self.truth(node.operand)
            return self.unknown(node) if truth is None else not truth
        value = self.value(node.operand)
        if isinstance(value, (int, float)) and isinstance(node.op, (ast.USub, ast.UAdd, ast.Invert)):
            if isinstance(node.op, ast.Invert):
                return ~value if isinstance(value, int) and abs(value) < LARGEST else self.unknown(node)
            return -value if isinstance(node.op, ast.USub) else +value
        return self.unknown(node, value)

    def _binop(self, node: ast.BinOp) -> Any:
        chain: list[ast.BinOp] = []
        inner: ast.expr = node
        while isinstance(inner, ast.BinOp):
            chain.append(inner)
            inner = inner.left
        value = self.value(inner)
        for step in reversed(chain):
            self.step()
            value = self.operated(type(step.op), value, self.value(step.right), step)
        return value

    def operated(self, kind: type[ast.operator], left: Any, right: Any, node: ast.AST) -> Any:
        """An operator's result."""
        if is_known(left) and is_known(right):
            try:
                return computed(kind, left, right)
            except NotKnown:
                return self.unknown(node)
        if kind is ast.Div and (isinstance(left, FilePath) or isinstance(right, FilePath)):
            with suppress(NotKnown):
                return joined_paths([left, right])
            return self.unknown(node)
        if isinstance(left, Ref) and isinstance(right, Ref):
            one, other = self.at(left), self.at(right)
            if one.kind == other.kind == "dict" and kind is ast.BitOr and one.cls is None:
                result = self.new("dict", slots=dict(one.slots), is_open=one.is_open)
                self.update(result.id, right, self.text(node))
                return result
            if one.kind == other.kind == "list" and kind is ast.Add:
                if one.items is not None and other.items is not None:  # noqa: SIM102
                    if len(one.items) + len(other.items) < LONGEST:
                        self.step((len(one.items) + len(other.items)) // 16)
                        return self.new("list", items=one.items + other.items)
                return self._lost_list(node, left, right)
        if kind is ast.Mult and isinstance(left, Ref) and isinstance(right, int) and self.at(left).kind == "list":
            items = self.at(left).items
            if items is not None and len(items) * max(right, 0) < LONGEST:
                self.step(len(items) * max(right, 0) // 16)
                return self.new("list", items=items * right)
        return self.unknown(node, left, right)

    def _lost_list(self, node: ast.AST, *values: Any) -> Ref:
        lost = Unknown("its items", refs_of(values))
        return self.new("list", slots={"\0lost": lost}, is_open=self.text(node))

    def _boolop(self, node: ast.BoolOp) -> Any:
        return self._chain(node)[1]

    def _chain(self, node: ast.BoolOp) -> tuple[bool | None, Any]:
        """(truth, value) of ``a and b``, ``a or b``; operands that may not run are followed on a path of their own."""
        decides = isinstance(node.op, ast.Or)
        pending: list[Any] = []
        heaps: list[Any] = []
        value: Any = None
        truth: bool | None = None
        certain = self.certain
        for number, operand in enumerate(node.values):
            if isinstance(operand, ast.BoolOp):
                truth, value = self._chain(operand)
            else:
                value = self.value(operand)
                truth = self.truth_of(value)
            if truth is decides or number == len(node.values) - 1:
                break
            if truth is None:
                pending.append(value)
                heaps.append(self.live)
                self.live = self.fork()
                self.certain = False
        for heap in heaps:
            self.live = self.join(self.live, heap)
        self.certain = certain
        if not pending:
            return truth, value
        result = self.unknown(node, value, *pending)
        if truth is decides:  # one operand is known to decide; which one is the value is not known
            return decides, result
        return None, result

    def _compare(self, node: ast.Compare) -> Any:
        left = self.value(node.left)
        results: list[bool | None] = []
        for operation, comparator in zip(node.ops, node.comparators, strict=True):
            right = self.value(comparator)
            results.append(self._compared(type(operation), left, right))
            left = right
        if any(result is False for result in results):
            return False
        return True if all(results) else self.unknown(node)

    def _ifexp(self, node: ast.IfExp) -> Any:
        truth = self.truth(node.test)
        if truth is not None:
            return self.value(node.body if truth else node.orelse)
        other, certain = self.fork(), self.certain
        self.certain = False
        first = self.value(node.body)
        first_heap, self.live = self.live, other
        second = self.value(node.orelse)
        self.live, self.certain = self.join(first_heap, self.live), certain
        return joined(first, second, self.text(node))

    # -- attributes and items ------------------------------------------------------------------------------------------

    def _attribute(self, node: ast.Attribute) -> Any:
        return self.attribute(self.value(node.value), node.attr, node)

    def _subscript(self, node: ast.Subscript) -> Any:
        owner = self.value(node.value)
        if isinstance(node.slice, ast.Slice):
            return self._sliced(owner, node, node.slice)
        return self.item(owner, self.value(node.slice), node)

    def _slice(self, node: ast.Slice) -> Any:
        return self.unknown(node, *(self.value(part) for part in (node.lower, node.upper, node.step)))

    def _sliced(self, owner: Any, node: ast.AST, part: ast.Slice) -> Any:
        bounds = [self.value(bound) for bound in (part.lower, part.upper, part.step)]
        if all(bound is None or isinstance(bound, int) for bound in bounds) and bounds[2] != 0:
            if isinstance(owner, str) or type(owner) is tuple:
                return owner[slice(*bounds)]
            items = self.at(owner).items if isinstance(owner, Ref) and self.at(owner).kind == "list" else None
            if items is not None:
                return self.new("list", items=items[slice(*bounds)])
        return self.part(owner, self.text(node), "[]")

    # -- comprehensions ------------------------------------------------------------------------------------------------

    def _listcomp(self, node: ast.ListComp) -> Any:
        items = self._comprehended(node, node.generators, lambda: self.value(node.elt))
        if isinstance(items, Unknown):
            return self.new("list", slots={"\0lost": items}, is_open=self.text(node))
        return self.new("list", items=items)

    def _setcomp(self, node: ast.SetComp) -> Any:
        items = self._comprehended(node, node.generators, lambda: self.value(node.elt))
        return self.unknown(node, items if isinstance(items, Unknown) else tuple(items))

    def _generatorexp(self, node: ast.GeneratorExp) -> Any:
        items = self._comprehended(node, node.generators, lambda: self.value(node.elt))
        if isinstance(items, Unknown):
            return Unknown(items.text, items.refs, f"{items.path}[]"[:200])
        return self.new("list", items=items)

    def _dictcomp(self, node: ast.DictComp) -> Any:
        pairs = self._comprehended(node, node.generators, lambda: (self.value(node.key), self.value(node.value)))
        if isinstance(pairs, Unknown):
            return self.new("dict", slots={"\0lost": pairs}, is_open=self.text(node))
        ref = self.new("dict")
        for key, value in pairs:
            self.set_item(ref, key, value, node)
        return ref

    def _comprehended(
        self, node: ast.expr, generators: list[ast.comprehension], element: Callable[[], Any]
    ) -> list[Any] | Unknown:
        scope = self.new("scope", cls="comprehension", parent=self.scope)
        frame = self.frames[-1]
        outer, frame.scope = frame.scope, scope.id
        try:
            results: list[Any] | None = []
            results = self._generated(generators, element, results)
            if results is not None:
                return results
            lost, certain = self.fork(), self.certain
            self.certain = False
            reached: list[Any] = []
            for generator in generators:
                source = self.value(generator.iter)
                reached.append(source)
                self._target(generator.target, self.part(source, self.text(generator.iter), "[]"))
                for test in generator.ifs:
                    self.value(test)
            reached.append(element())
            self.live, self.certain = self.join(self.live, lost), certain
            return self.unknown(node, *reached)
        finally:
            frame.scope = outer

    def _generated(
        self, generators: list[ast.comprehension], element: Callable[[], Any], results: list[Any] | None
    ) -> list[Any] | None:
        if not generators:
            if results is None or len(results) >= self.most_turns() * 16:
                return None
            results.append(element())
            return results
        first, *rest = generators
        if first.is_async or any(isinstance(part, ast.NamedExpr) for part in ast.walk(first)):
            return None
        items = self.iterated(self.value(first.iter))
        if items is None or len(items) > MOST_ITEMS:
            return None
        for item in items:
            self._target(first.target, item)
            truths = [self.truth(test) for test in first.ifs]
            if None in truths:
                return None
            if all(truths):
                results = self._generated(rest, element, results)
                if results is None or len(results) > LONGEST:
                    return None
        return results

    def _target(self, target: ast.expr, value: Any) -> None:
        """Bind a comprehension's own names, in its own scope."""
        if isinstance(target, ast.Name):
            self.put(self.scope, target.id, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            items = self.iterated(value)
            fits = items is not None and len(items) == len(target.elts)
            for number, part in enumerate(target.elts):
                inner = items[number] if fits and items else self.part(value, self.text(part), "[]")
                self._target(part.value if isinstance(part, ast.Starred) else part, inner)
        else:
            self.bind(target, value)
