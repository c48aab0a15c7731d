"""Branches, loops and exceptions: paths are followed on copies of the heap that are joined behind them."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from vramplan.frameworks.syntax.python.functions import Functions
from vramplan.frameworks.syntax.python.machine import Raised
from vramplan.frameworks.syntax.python.memory import Heap
from vramplan.frameworks.syntax.python.modules import imported
from vramplan.frameworks.syntax.python.values import Unknown

PRESENT = ("torch", "transformers", "trl", "peft", "datasets", "accelerate", "sentence_transformers", "yaml", "numpy")
"""Packages that are taken to be installed where a script trains."""


MOST_SIZE = 10_000
"""Turns of a loop, multiplied by the parts of its syntax, that are gone through one by one in any case."""


def _size(node: ast.AST) -> int:
    """The number of the parts of a statement's syntax."""
    size = getattr(node, "vramplan_size", None)
    if size is None:
        size = sum(1 for _ in ast.walk(node))
        node.vramplan_size = size  # type: ignore[attr-defined]
    return int(size)


def _names(caught: ast.expr | None) -> list[str]:
    """The names of the exceptions that a handler catches; an empty one for others."""
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return [kind.id if isinstance(kind, ast.Name) else "" for kind in kinds]


class Loops(Functions):
    """Follows paths."""

    def branch(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Two paths of which one is taken."""
        other, certain = self.fork(), self.certain
        self.certain = False
        self._path(first)
        first_heap, self.live = self.live, other
        self._path(second)
        second_heap = self.live
        self.certain = certain
        self.live = self.join(first_heap, second_heap)

    def _path(self, follow: Callable[[], None]) -> None:
        try:
            follow()
        except Raised:
            self.live = None

    def _do_for(self, node: ast.For | ast.AsyncFor) -> None:
        source = self.value(node.iter)
        items = self.iterated(source)
        turns = self.turns * max(1, len(items or ()))
        few = turns <= self.most_turns() or (self.certain and turns * _size(node) <= MOST_SIZE)
        if items is not None and few and not isinstance(node, ast.AsyncFor):
            outer, self.turns = self.turns, turns
            try:
                self._unrolled(node, items)
            finally:
                self.turns = outer
            return
        item = self.part(source, self.text(node.target), "[]")
        self._repeated(node, lambda: self.bind(node.target, item), True)

    _do_asyncfor = _do_for

    def _unrolled(self, node: ast.For | ast.AsyncFor, items: list[Any]) -> None:
        """A loop over known items, one after the other."""
        breaks: list[Heap] = []
        certain = self.certain
        for item in items:
            if self.live is None:
                break
            continues: list[Heap] = []
            self.loops.append((breaks, continues))
            try:
                self.bind(node.target, item)
                self.block(node.body)
            finally:
                self.loops.pop()
            for heap in continues:
                self.live = self.join(self.live, heap)
            if breaks:
                self.certain = False
        self.certain = certain
        if self.live is not None:
            self.block(node.orelse)
        for heap in breaks:
            self.live = self.join(self.live, heap)

    def _do_while(self, node: ast.While) -> None:
        truth = self.truth(node.test)
        if truth is False:
            self.block(node.orelse)
            return
        is_endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        self._repeated(node, lambda: None if is_endless else self._ignored(node.test), not is_endless)

    def _ignored(self, node: ast.expr) -> None:
        self.value(node)

    def _repeated(self, node: ast.For | ast.AsyncFor | ast.While, start: Callable[[], None], ends: bool) -> None:
        """A loop of any number of turns: what a turn writes is not known before any of them."""
        guesses = {(self.scope if id is None else id, key) for id, key in self.guesses.get(node, ())}
        changed = {(id, key) for id, key in guesses if id in self.heap.objects}
        new, certain = set(changed), self.certain
        while True:
            for id, key in new:
                self.lose(id, key)
            before, log = self.fork(), set[tuple[int, Any]]()
            marks = self.marks()
            breaks: list[Heap] = []
            self.logs.append(log)
            self.certain = certain and isinstance(node, ast.While) and not ends
            try:
                self._turn(node, start, breaks)
            finally:
                self.logs.pop()
                self.certain = certain
            new = {(id, key) for id, key in log if id in before.objects and key != "\0history"} - changed
            if not new:
                break
            self.back_to(marks)
            self.live = before
            changed |= new
            self.guesses[node] = {(None if id == self.scope else id, key) for id, key in changed}
        self.live = after = self.join(self.live, before) if ends else None
        if after is not None:
            self.block(node.orelse)
        for heap in breaks:
            self.live = self.join(self.live, heap)

    def marks(self) -> list[int]:
        """How much has been recorded, to go back to."""
        return [len(self.script.calls), len(self.script.trainings), len(self.things)] + [
            len(frame.returns) for frame in self.frames
        ]

    def back_to(self, marks: list[int]) -> None:
        """Forget what has been recorded since."""
        records: list[list[Any]] = [self.script.calls, self.script.trainings, self.things]
        records += [frame.returns for frame in self.frames]
        for record, length in zip(records, marks, strict=True):
            del record[length:]

    def _is_sure_import(self, node: ast.Try) -> bool:
        """Whether it guards nothing but imports of what a training has to have, or of the script's own modules."""
        caught = [name for handler in node.handlers for name in _names(handler.type)]
        if not caught or not all(name in ("ImportError", "ModuleNotFoundError") for name in caught):
            return False
        for statement in node.body:
            if isinstance(statement, ast.Import):
                modules = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
                modules = [statement.module]
            else:
                return False
            if not all(module in PRESENT or imported(self, module) is not None for module in modules):
                return False
        return True

    def _turn(self, node: ast.For | ast.AsyncFor | ast.While, start: Callable[[], None], breaks: list[Heap]) -> None:
        continues: list[Heap] = []
        self.loops.append((breaks, continues))
        try:
            self._path(start)
            self.block(node.body)
        finally:
            self.loops.pop()
        for heap in continues:
            self.live = self.join(self.live, heap)

    def _do_try(self, node: ast.Try) -> None:
        if self._is_sure_import(node):
            self.block([*node.body, *node.orelse, *node.finalbody])
            return
        start, log = self.fork(), set[tuple[int, Any]]()
        returns, certain = len(self.frames[-1].returns), self.certain
        self.logs.append(log)
        try:
            self.block(node.body)
        finally:
            self.logs.pop()
        finished = self.live
        events = [id for id, key in log if finished and key == "\0history" and id in start.objects]
        histories = {id: self.at(id).history for id in events}
        if finished is not None and node.orelse:
            self.block(node.orelse)
            finished = self.live
        self.certain = False
        for handler in node.handlers:
            self.live = start
            self.live = self.fork()
            for id, key in log:
                if id in start.objects and key != "\0history":
                    self.lose(id, key)
            for id, history in histories.items():
                item = self.change(id, "\0history")
                rest = history[len(item.history) :]
                item.history += tuple(event._replace(certain=False) for event in rest)
            if handler.type is not None:
                self._ignored(handler.type)
            if handler.name:
                self.assign(handler.name, Unknown(handler.name))
            self.block(handler.body)
            finished = self.join(finished, self.live)
        self.certain = certain
        self.live = finished
        if not node.finalbody:
            return
        pending = self.frames[-1].returns[returns:]
        del self.frames[-1].returns[returns:]
        if self.live is not None:
            self.block(node.finalbody)
        ended = self.live
        for value, heap in pending:
            self.live = heap
            self.block(node.finalbody)
            if self.live is not None:
                self.frames[-1].returns.append((value, self.live))
        self.live = ended

    _do_trystar = _do_try
