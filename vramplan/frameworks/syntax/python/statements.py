"""Statements: branches are followed on copies of the heap that are joined behind them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.python.access import OMEGACONF
from vramplan.frameworks.syntax.python.arithmetic import NotKnown, compared
from vramplan.frameworks.syntax.python.loops import Loops
from vramplan.frameworks.syntax.python.machine import Function, Raised
from vramplan.frameworks.syntax.python.modules import imported, member, public_names
from vramplan.frameworks.syntax.python.star_imports import SHADOWED, STARS, star_names
from vramplan.frameworks.syntax.python.trusted import TRUSTED
from vramplan.frameworks.syntax.python.values import (
    Attributes,
    Bound,
    Library,
    Module,
    Ref,
    Unknown,
    is_known,
    refs_of,
)


class Statements(Loops):
    """Follows statements."""

    def block(self, body: Iterable[ast.stmt]) -> None:
        """Follow statements up to a return, a break, or an exception."""
        for node in body:
            if self.live is None:
                return
            self.step()
            method: Callable[[Any], None] | None = getattr(self, f"_do_{type(node).__name__.lower()}", None)
            if method is None:
                continue
            try:
                method(node)
            except Raised:
                self.ended = self.live or self.ended
                self.live = None
                return

    # -- simple statements ---------------------------------------------------------------------------------------------

    def _do_expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    def _do_assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self.bind(target, value)

    def _do_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value))

    def _do_augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            current = self.lookup(node.target.id)
            assign: Callable[[Any], None] = lambda value: self.bind(node.target, value)  # noqa: E731
        elif isinstance(node.target, ast.Attribute):
            owner, name = self.value(node.target.value), node.target.attr
            current = self.attribute(owner, name, node.target)
            assign = lambda value: self.set_attribute(owner, name, value, node)  # noqa: E731
        else:
            owner, key = self.value(node.target.value), self.value(node.target.slice)
            current = self.item(owner, key, node.target)
            assign = lambda value: self.set_item(owner, key, value, node)  # noqa: E731
        value = self.value(node.value)
        if isinstance(current, Ref) and self.at(current).kind in ("list", "set", "dict"):
            self._extend(current, value, node)
            assign(current)
        elif isinstance(current, Unknown) and current.refs:
            self.lose_all([current], self.text(node))
            assign(self.unknown(node, current, value))
        else:
            assign(self.operated(type(node.op), current, value, node))

    def _extend(self, owner: Ref, value: Any, node: ast.AugAssign) -> None:
        """``+=`` and ``|=`` change a list or dictionary in place."""
        item, items = self.at(owner), self.iterated(value)
        if item.kind == "list" and item.items is not None and items is not None and isinstance(node.op, ast.Add):  # noqa: SIM102
            if len(items) + len(item.items) < 10_000 and "*" not in item.spoiled:
                changed = self.change(owner.id, "*").items
                assert changed is not None
                changed += items
                return
        if item.kind == "dict" and isinstance(node.op, ast.BitOr):
            self.update(owner.id, value, self.text(node))
            return
        slots = self.change(owner.id, "*").slots
        slots["\0lost"] = Unknown("its content", refs_of([value, slots.get("\0lost")]))
        self.lose(owner.id, "*", self.text(node))

    def _do_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                scope = self.scope_of(target.id)
                self.change(scope, target.id).slots.pop(target.id, None)
            elif isinstance(target, ast.Subscript):
                owner, key = self.value(target.value), self.value(target.slice)
                if isinstance(owner, (Ref, Attributes)) and is_known(key) and key in self.at(owner.id).slots:
                    if self.at(owner.id).cls == "environ" or "*" in self.at(owner.id).spoiled:
                        self.lose(owner.id, key)
                    else:
                        self.change(owner.id, key).slots.pop(key)
                else:
                    self.lose_all([owner], self.text(node))
            elif isinstance(target, ast.Attribute):
                owner = self.value(target.value)
                self.set_attribute(owner, target.attr, Unknown(self.text(target)), node)
            else:
                self.lose_targets(target)

    def lose_targets(self, target: ast.AST) -> None:
        """Make the names of a target unknown."""
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                self.assign(name.id, Unknown(name.id))

    def _do_return(self, node: ast.Return) -> None:
        value = self.value(node.value)
        if self.live is not None:
            self.frames[-1].returns.append((value, self.live))
        self.live = None

    def _do_raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self.value(node.exc)
        self.raised = f"{self.place(node)}: ends with {self.text(node.exc) if node.exc is not None else 'an exception'}"
        raise Raised

    def _do_assert(self, node: ast.Assert) -> None:
        self.value(node.test)

    def _do_import(self, node: ast.Import) -> None:
        for alias in node.names:
            package = alias.name.partition(".")[0]
            if package == "__main__":
                raise ConfigError(f"{self.place(node)}: a script that imports itself is not followed")
            self.script.imports.add(package)
            name = alias.name if alias.asname else package
            module = imported(self, alias.name)
            if module is not None and name != alias.name:
                module = imported(self, name)
            self.assign(alias.asname or package, module or Library(name))

    def _do_importfrom(self, node: ast.ImportFrom) -> None:
        module = f"{'.' * node.level}{node.module or ''}"
        package = module.partition(".")[0]
        if module == "__future__":
            self.deferred.add(getattr(node, "vramplan_source", self.source).where)
        if node.module and not node.level:
            self.script.imports.add(package)
        own = imported(self, node.module or "", node.level)
        for alias in node.names:
            name = f"{module}.{alias.name}"[:300]
            if own is not None and alias.name == "*":
                for name, value in public_names(self, own).items():
                    self.assign(name, value)
            elif own is not None:
                self.assign(alias.asname or alias.name, member(self, own, alias.name))
            elif alias.name != "*":
                inner = f"{node.module}.{alias.name}" if node.module else alias.name  # of a folder without __init__.py
                value = imported(self, inner, node.level) or Library(name)
                self.assign(alias.asname or alias.name, self.environ if name == "os.environ" else value)
            else:
                self._import_star(module, package)

    def _import_star(self, module: str, package: str) -> None:
        """``from module import *``: it may bind any name again that the script has bound."""
        if package in STARS:
            for name in star_names(module):
                self.assign(name, self.environ if (module, name) == ("os", "environ") else Library(f"{module}.{name}"))
            return
        if package in TRUSTED:
            stars = self.stars.get(self.module, [])
            self.stars[self.module] = [star for star in stars if star != module] + [module]
        for name, value in list(self.at(self.scope).slots.items()):
            if isinstance(value, (Library, Unknown)) or (package in TRUSTED and name not in SHADOWED):
                continue
            self.lose(self.scope, name)

    def _do_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.assign(node.name, self.decorated(node))

    _do_asyncfunctiondef = _do_functiondef

    def _do_classdef(self, node: ast.ClassDef) -> None:
        self.assign(node.name, self.define_class(node))

    def _do_break(self, node: ast.Break) -> None:
        if self.loops and self.live is not None:
            self.loops[-1][0].append(self.live)
        self.live = None

    def _do_continue(self, node: ast.Continue) -> None:
        if self.loops and self.live is not None:
            self.loops[-1][1].append(self.live)
        self.live = None

    # -- targets -------------------------------------------------------------------------------------------------------

    def bind(self, target: ast.expr, value: Any) -> None:
        """Assign a value to a name, an attribute, an item, or several of them."""
        if isinstance(target, ast.Name):
            self.assign(target.id, value)
        elif isinstance(target, ast.Attribute):
            self.set_attribute(self.value(target.value), target.attr, value, target)
        elif isinstance(target, ast.Subscript):
            self.set_item(self.value(target.value), self.value(target.slice), value, target)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, self.unknown(target, value))
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value)

    def _unpack(self, target: ast.Tuple | ast.List, value: Any) -> None:
        items = self.iterated(value)
        stars = [number for number, part in enumerate(target.elts) if isinstance(part, ast.Starred)]
        if items is not None and len(stars) == 1 and len(items) >= len(target.elts) - 1:
            first, behind = stars[0], len(target.elts) - stars[0] - 1
            end = len(items) - behind
            items = [*items[:first], self.new("list", items=items[first:end]), *items[end:]]
        elif items is not None and (stars or len(items) != len(target.elts)):
            items = None
        whole = isinstance(value, Unknown) and not value.path
        for number, part in enumerate(target.elts):
            if items is not None:
                inner = items[number]
            elif whole:  # several results of a function, of which each may be what it was given
                inner = Unknown(self.text(part), value.refs, "", value.is_library)
            else:
                inner = self.part(value, self.text(part), "[]")
            self.bind(part.value if isinstance(part, ast.Starred) else part, inner)

    def set_attribute(self, owner: Any, name: str, value: Any, node: ast.AST) -> None:
        """``owner.name = value``."""
        if isinstance(owner, Ref) and self.at(owner).kind in ("instance", "class"):
            if isinstance(self.at(owner).cls, Library):
                call = self.record(f".{name}=", node, [value], {})
                self.happen([owner.id], f".{name}=", call)
            self.put(owner.id, name, value)
        elif isinstance(owner, Ref) and self.at(owner).cls == OMEGACONF:
            self.set_item(owner, name, value, node)
        elif isinstance(owner, Module):
            self.put(owner.scope, name, value)
        elif isinstance(owner, Library):
            self.record(f"{owner.name}.{name}=", node, [value], {})
        elif isinstance(owner, Unknown):
            call = self.record(f"{owner.path}.{name}=", node, [value], {})
            self.happen(owner.refs, f"{owner.path}.{name}=", call)
            if not owner.path:
                for id in owner.refs:
                    if id in self.heap.objects and self.at(id).kind in ("instance", "class"):
                        self.lose(id, name)
        if not isinstance(owner, Library):
            self.escape([value])

    # -- branches ------------------------------------------------------------------------------------------------------

    def _do_if(self, node: ast.If) -> None:
        truth = self.truth(node.test)
        if truth and self.is_alone and "argv" in self.text(node.test):
            truth = None  # a script read alone does not end for want of arguments
        if truth is not None:
            self.block(node.body if truth else node.orelse)
        else:
            self.branch(lambda: self._under(self.text(node.test), node.body), lambda: self._under("", node.orelse))

    def _under(self, condition: str, body: list[ast.stmt]) -> None:
        """One of two paths, with the condition under which it is taken; empty for the other one."""
        outer, self.condition = self.condition, condition
        try:
            self.block(body)
        finally:
            self.condition = outer

    def _do_match(self, node: ast.Match) -> None:
        self._cases(self.value(node.subject), node.cases)

    def _cases(self, subject: Any, cases: list[ast.match_case]) -> None:
        if not cases:
            return
        case, *rest = cases
        matches = self._matches(subject, case.pattern)
        if matches is False:
            self._cases(subject, rest)
            return
        for part in ast.walk(case.pattern):
            name = getattr(part, "name", None) or getattr(part, "rest", None)
            if isinstance(name, str):
                whole = part is case.pattern and isinstance(part, ast.MatchAs) and part.pattern is None
                self.assign(name, subject if whole else Unknown(name, refs_of([subject])))
        guard = self.truth(case.guard) if case.guard is not None else True
        if matches and guard is not None:
            self.block(case.body) if guard else self._cases(subject, rest)
        else:
            self.branch(lambda: self.block(case.body), lambda: self._cases(subject, rest))

    def _matches(self, subject: Any, pattern: ast.pattern) -> bool | None:
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            return True
        if isinstance(pattern, ast.MatchOr):
            results = [self._matches(subject, part) for part in pattern.patterns]
            return True if results[0] else None if None in results or True in results else False
        if isinstance(pattern, (ast.MatchValue, ast.MatchSingleton)):
            value = self.value(pattern.value) if isinstance(pattern, ast.MatchValue) else pattern.value
            try:
                return compared(ast.Eq, self.comparable(subject), self.comparable(value))
            except NotKnown:
                return None
        return None

    # -- exceptions ----------------------------------------------------------------------------------------------------

    def _do_with(self, node: ast.With | ast.AsyncWith) -> None:
        swallows = False
        for item in node.items:
            manager = self.value(item.context_expr)
            if isinstance(manager, Ref) and self.at(manager).cls == "file":
                if item.optional_vars is not None:
                    self.bind(item.optional_vars, manager)
                continue
            name = self.text(item.context_expr)
            own = isinstance(manager, (Function, Ref)) and not isinstance(manager, Bound)
            swallows = swallows or "suppress(" in name or (own and "raises" not in name)
            if item.optional_vars is not None:
                self.bind(item.optional_vars, self.unknown(item.optional_vars, manager, path=".__enter__()"))
        if not swallows:
            self.block(node.body)
            return
        handler = ast.ExceptHandler(type=None, name=None, body=[])
        attempt = ast.Try(body=node.body, handlers=[handler], orelse=[], finalbody=[])
        self._do_try(ast.copy_location(attempt, node))

    _do_asyncwith = _do_with
