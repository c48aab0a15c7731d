"""Simple commands: assignments, functions, builtins, programs."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING

from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.shell.builtins import BUILTINS
from vramplan.frameworks.syntax.shell.call import Call
from vramplan.frameworks.syntax.shell.expansion import Field
from vramplan.frameworks.syntax.shell.hosted import hosted_text, with_parameters
from vramplan.frameworks.syntax.shell.programs import PROGRAMS
from vramplan.frameworks.syntax.shell.state import NAME, Array, State, Value, Variable, join, unknown, unknown_array
from vramplan.frameworks.syntax.shell.tree import (
    UNKNOWN,
    Assignment,
    Command,
    Simple,
    Span,
    Substitution,
    Word,
)  # fmt: skip
from vramplan.frameworks.syntax.shell.wrappers import unwrap

if TYPE_CHECKING:
    from vramplan.frameworks.syntax.shell.interpreter import Interpreter

MAX_LENGTH = 1 << 18
"""Characters of a value."""


class CallReader:
    """Follows simple commands."""

    def __init__(self, run: Interpreter) -> None:
        self.run = run

    def simple(self, node: Simple, state: State) -> State | None:
        run = self.run
        run.line = node.line
        fields, spans, words = list[Field](), list[Span](), list[Word]()
        assignments: list[Assignment] = []
        for word in node.words:
            if isinstance(word, Assignment):
                assignments.append(word)
                continue
            expanded = run.expander.fields(word, state)
            run.spend(len(expanded) // 4)
            fields += expanded
            spans += [(word.begin, word.end)] * len(expanded)
            words.append(word)
            run.span = (word.begin, word.end)
        if not fields:
            return self._assign_all(node, state)
        before = self._copied(state) if node.redirects else None
        given = state.input
        may_fail = run.redirect(node.redirects, state)
        own = state.input if any(redirect.operator in ("<<", "<<<", "<") for redirect in node.redirects) else None
        behind = self._with_variables(node, Call(fields, spans, words, assignments, node.line, own), state)
        if behind is not None:
            behind.input = given
        if may_fail and before is not None and self._has_effect(fields[0].text, state):
            before.set_status(None)
            before.output = None
            behind = join(behind, before)
        return behind

    def _copied(self, state: State) -> State:
        return self.run.copied(state)

    @staticmethod
    def _has_effect(name: str, state: State) -> bool:
        return name in BUILTINS or name in state.functions or UNKNOWN in name

    def _assign_all(self, node: Simple, state: State) -> State | None:
        """A command of assignments alone."""
        before = self._copied(state) if node.redirects else None
        given = state.input
        may_fail = self.run.redirect(node.redirects, state)
        state.input = given
        for assignment in node.assignments:
            self.assign(assignment, state)
        values = [assignment.value for assignment in node.assignments]
        words = [word for word in (*values, *node.words) if isinstance(word, Word)]
        substitutes = any(isinstance(part, Substitution) for word in words for part in word.parts)
        state.set_status(None if substitutes else 0)
        if may_fail and before is not None:
            before.set_status(None)
            return join(state, before)
        return state

    # -- assignments

    def assign(self, assignment: Assignment, state: State, exported: bool | None = None) -> None:
        """Make an assignment."""
        name = assignment.name
        old = state.variables.get(name, Variable(None)).value if name in state.variables else None
        if state.sourced and name not in state.variables:
            old = unknown(f"${name}")
        if isinstance(assignment.value, tuple):
            state.store(name, self._array(assignment, old, state), exported)
        elif assignment.index is not None:
            state.store(name, self._with_item(assignment, old, state), exported)
        else:
            text = self.run.expander.text(assignment.value, state)
            if assignment.appends:
                value = self._appended(assignment, old, text, state)
            else:
                value = self._number(name, text, state)
            if isinstance(value, str) and len(value) > MAX_LENGTH:
                raise self._too_long(name)
            state.store(name, value, exported)

    def _too_long(self, name: str) -> ConfigError:
        place = f"{self.run.where}:{self.run.line}"
        return ConfigError(f"{place}: {name}: a value of more than {MAX_LENGTH:,} characters")

    def _number(self, name: str, text: str, state: State) -> str:
        """What is assigned: for an integer variable, the value of an expression."""
        if name in state.variables and state.variables[name].integer:
            number = self.run.expander.calculate(text, state)
            return unknown(f"${name}") if number is None else str(number)
        return text

    def _appended(self, assignment: Assignment, old: Value | None, text: str, state: State) -> Value:
        name = assignment.name
        if name in state.variables and state.variables[name].integer:
            return self._number(name, f"{old or 0}+({text})" if isinstance(old, str | None) else UNKNOWN, state)
        if isinstance(old, Array):
            if not old.items or old.split:
                return unknown_array(name)
            return replace(old, items=(old.items[0] + text, *old.items[1:]))
        if old is None and state.is_never_set(name):
            old = unknown(f"${name}")
        return (old or "") + text

    def _array(self, assignment: Assignment, old: Value | None, state: State) -> Value:
        if assignment.index is not None or not isinstance(assignment.value, tuple):
            return unknown_array(assignment.name)
        items, split = list[str](), set[int]()
        if assignment.appends and old is not None:
            if isinstance(old, str):
                items, split = [old], {0} if UNKNOWN in old else set()
            else:
                items, split = list(old.items), set(old.split)
        for item in assignment.value:
            fields = self.run.expander.fields(item.word, state)
            if item.indexed and any("]=" in field.text or UNKNOWN in field.text for field in fields):
                return unknown_array(assignment.name)
            for field in fields:
                if field.split:
                    split.add(len(items))
                items.append(field.text)
        self.run.spend(len(items) // 4)
        if sum(map(len, items)) > MAX_LENGTH:
            raise self._too_long(assignment.name)
        if assignment.name in state.variables and state.variables[assignment.name].integer:
            return unknown_array(assignment.name)
        return Array(tuple(items), frozenset(split))

    def _with_item(self, assignment: Assignment, old: Value | None, state: State) -> Value:
        assert assignment.index is not None
        assert isinstance(assignment.value, Word)
        number = self.run.expander.calculate(self.run.expander.text(assignment.index, state, tilde=False), state)
        text = self.run.expander.text(assignment.value, state)
        array = Array() if old is None else Array((old,)) if isinstance(old, str) else old
        is_known = number is not None and not array.split and not (isinstance(old, str) and UNKNOWN in old)
        integer = assignment.name in state.variables and state.variables[assignment.name].integer
        if not is_known or number is None or assignment.appends or not 0 <= number <= len(array.items) or integer:
            return unknown_array(assignment.name)
        return Array((*array.items[:number], text, *array.items[number + 1 :]))

    # -- calls

    def _with_variables(self, node: Simple, call: Call, state: State) -> State | None:
        """A call with assignments before it, which hold during the call only."""
        if not node.assignments:
            return self._call(call, state)
        names = {assignment.name for assignment in node.assignments}
        kept = {name: state.variables.get(name) for name in names}
        for assignment in node.assignments:
            if state.variables.get(assignment.name, Variable(None)).readonly:
                state.lost = True
            hidden = state.variables.get(assignment.name)
            if hidden is not None and isinstance(hidden.value, Array) and not assignment.appends:
                del state.variables[assignment.name]
            if isinstance(assignment.value, tuple) or assignment.index is not None:
                state.forget([assignment.name])
            else:
                self.assign(assignment, state, exported=True)
        behind = self._call(call, state)
        if behind is not None:
            for name, variable in kept.items():
                if variable is None:
                    behind.variables.pop(name, None)
                else:
                    behind.variables[name] = variable
            is_assigning = call.fields[0].text in BUILTINS and call.fields[0].text not in ("read", "echo", "printf")
            if is_assigning or UNKNOWN in call.fields[0].text or call.fields[0].text in state.functions:
                behind.forget(names)
        return behind

    def _call(self, call: Call, state: State) -> State | None:
        name = call.fields[0].text
        if UNKNOWN in name:
            self.list_command(call, state)
            state.forget_all(f"line {call.line}: {name.replace(UNKNOWN, '')}")
            return state
        bodies = state.functions.get(name)
        if bodies is None or bodies == (None,):
            return self._program(call, state)
        result: State | None = None
        for number, body in enumerate(bodies):
            inner = state if number == len(bodies) - 1 else self._copied(state)
            behind = self._program(call, inner) if body is None else self._function(body, call, inner)
            result = join(result, behind)
        return result

    def _function(self, body: object, call: Call, state: State) -> State | None:
        from vramplan.frameworks.syntax.shell.interpreter import MAX_DEPTH  # which imports this file

        run = self.run
        if run.depth >= MAX_DEPTH:
            raise ConfigError(f"{run.where}:{call.line}: functions call each other more than {MAX_DEPTH} deep")
        arguments, locals_ = state.arguments, run.locals
        state.arguments = call.arguments
        loops, run.loops = run.loops, []
        run.locals = {}
        run.returns.append(None)
        run.depth += 1
        behind = run.run(body, state)  # type: ignore[arg-type]
        run.depth -= 1
        behind = join(behind, run.returns.pop())
        saved, run.locals, run.loops = run.locals, locals_, loops
        if behind is not None:
            behind.arguments = arguments
            for name, variable in saved.items():
                if variable is None:
                    behind.variables.pop(name, None)
                else:
                    behind.variables[name] = variable
        return behind

    def _program(self, call: Call, state: State) -> State | None:
        """A builtin or a program."""
        run = self.run
        name = call.fields[0].text
        wrapped = unwrap([field.text for field in call.fields])
        inner = call.behind(wrapped.first)
        runs_here = set(wrapped.names) <= {"command", "builtin", "exec"}
        if not inner.fields:
            state.set_status(None)
            if wrapped.names and not state.output:
                state.write(None)
            return state
        name = inner.fields[0].text
        if UNKNOWN in name and runs_here:
            self.list_command(inner, state)
            state.forget_all(f"line {call.line}: {name.replace(UNKNOWN, '')}")
            return state
        builtin = BUILTINS.get(name) if runs_here else None
        if builtin is not None:
            if wrapped.names and call.assignments:
                state.forget(assignment.name for assignment in call.assignments)
            behind = builtin(run, inner, state)
            return None if "exec" in wrapped.names else behind
        self.list_command(inner, state, wrapped.assigned, wrapped.removed, wrapped.clears)
        self._text_of_shell(inner, state)
        self._output(inner, state, bool(wrapped.names))
        state.set_status(None)
        if "exec" in wrapped.names:
            return None
        return state

    def _output(self, call: Call, state: State, is_wrapped: bool) -> None:
        if state.output is None:
            return
        texts = [field.text for field in call.fields]
        program = PROGRAMS.get(texts[0])
        folder = self.run.expander.working_folder(state)
        if texts[0] in ("realpath", "readlink") and folder and not texts[-1].startswith("-"):
            texts = [*texts[:-1], posixpath.join(folder, texts[-1])]
        is_known = program is not None and not is_wrapped and not call.is_loose and UNKNOWN not in "".join(texts)
        state.write(program(texts[1:], state.input) if program is not None and is_known else None)

    def _text_of_shell(self, call: Call, state: State) -> None:
        """``bash -c TEXT``, also behind srun and the like: a script of its own, that sees what is exported."""
        hosted = hosted_text([field.text for field in call.fields], state.input)
        if hosted is None or any(field.split for field in call.fields[hosted.first :]):
            return
        text, unknowns = with_parameters(hosted.text)
        child = self._copied(state)
        child.variables = {
            name: variable if variable.exported else Variable(unknown(f"${name}"), exported=None)
            for name, variable in state.variables.items()
            if variable.exported is not False and hosted.inherits
        }
        for name, value in hosted.assigned.items():
            child.store(name, value, exported=True)
        for name, value in unknowns.items():
            child.variables[name] = Variable(value)
        child.functions, child.arguments, child.options = {}, Array(hosted.arguments), frozenset()
        run = self.run
        line, locals_, run.locals = run.line, run.locals, None
        path, run.expander.path = run.expander.path, ""
        run.depth += 1
        if run.depth > 20:
            raise ConfigError(f"{run.where}:{line}: shells that start each other too deep")
        first = len(run.commands)
        try:
            run.isolated_text(text, child)
        except ConfigError:
            if not unknowns:  # else it may be what is not known that does not parse
                raise
        if hosted.launches:
            self._behind_launcher(call, hosted.first, run.commands[first:])
        run.depth -= 1
        run.line, run.locals, run.expander.path = line, locals_, path

    @staticmethod
    def _behind_launcher(call: Call, count: int, commands: list[Command]) -> None:
        """Put the first words of a call, which start a shell as several processes, before what the shell runs."""
        fields = call.fields[:count]
        for command in commands:
            if command.words[0] not in BUILTINS and command.words[0] not in PROGRAMS:
                command.words = [*(field.text for field in fields), *command.words]
                command.spans = [*call.spans[:count], *command.spans]
                loose = {number for number, field in enumerate(fields) if field.split}
                command.split = frozenset(loose | {number + count for number in command.split})

    def list_command(
        self,
        call: Call,
        state: State,
        assigned: dict[str, str] | None = None,
        removed: frozenset[str] = frozenset(),
        clears: bool = False,
    ) -> None:
        run = self.run
        run.spend(1 + len(state.variables) // 10)
        environment, unexported = dict[str, str](), dict[str, str]()
        gone = set(removed)
        for name, variable in state.variables.items():
            value = variable.value
            text = value if isinstance(value, str) else unknown(f"${name}") if value and value.split else None
            if isinstance(value, Array) and not value.split and value.items and variable.exported is False:
                text = value.items[0]
            if state.lost:
                text = unknown(f"${name}")
            if variable.exported is False or clears:
                if text is not None and not clears:
                    unexported[name] = text
                gone.add(name)
            elif text is None:
                gone.add(name)
            elif variable.exported is None:
                environment[name] = unknown(f"${name}")
            elif run.environment.get(name) != text:
                environment[name] = text
        gone |= {name for name in run.environment if name not in state.variables and NAME.fullmatch(name)}
        environment = {name: value for name, value in environment.items() if name not in removed} | (assigned or {})
        run.commands.append(
            Command(
                [field.text for field in call.fields], call.line, environment, unexported, list(call.spans),
                frozenset(name for name in gone if name in run.environment and name not in environment),
                unknown("$PWD") if state.lost else state.folder,
                state.sourced or ("an earlier command" if state.lost else ""),
                frozenset(number for number, field in enumerate(call.fields) if field.split),
                run.substitutions > 0,
            )
        )  # fmt: skip
