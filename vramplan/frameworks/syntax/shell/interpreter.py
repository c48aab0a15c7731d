"""Follows a script over all its paths, and lists its commands with what is known of their words there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.shell.calls import CallReader
from vramplan.frameworks.syntax.shell.conditions import NO_ARGUMENTS, ConditionReader, Truth
from vramplan.frameworks.syntax.shell.expansion import Expander
from vramplan.frameworks.syntax.shell.grammar import parse
from vramplan.frameworks.syntax.shell.loops import Loop, LoopReader
from vramplan.frameworks.syntax.shell.patterns import matches
from vramplan.frameworks.syntax.shell.state import NAME, State, Variable, join
from vramplan.frameworks.syntax.shell.tree import (
    UNKNOWN,
    AndOr,
    Calculation,
    Case,
    Command,
    Conditional,
    For,
    Function,
    If,
    Node,
    Opaque,
    Pipeline,
    Redirect,
    Redirected,
    Sequence,
    Simple,
    Span,
    Subshell,
    While,
)  # fmt: skip

MAX_WORK = 20_000
MAX_DEPTH = 24
"""Functions that call each other."""
_SAFE_TARGETS = ("/dev/null", "/dev/stderr", "/dev/stdout")


class Interpreter:
    """One reading of a script. A state that is None is a place that is not reached."""

    def __init__(self, where: str, environment: Mapping[str, str], path: str = "", start: str = "") -> None:
        self.where, self.environment = where, environment
        self.commands: list[Command] = []
        self.work = self.depth = self.substitutions = self.sourced = 0
        self.line = 1
        self.span: Span = (0, 0)
        self.loops: list[Loop] = []
        self.returns: list[State | None] = []
        self.locals: dict[str, Variable | None] | None = None
        """What a function's local variables hide; None outside functions."""
        self.expander = Expander(self.capture, self.spend, path, start)
        self.calls = CallReader(self)
        loops = LoopReader(self)
        self.nodes: dict[type, Callable[..., State | None]] = {
            Simple: self.calls.simple, Pipeline: self._pipeline, AndOr: self._and_or, Sequence: self.sequence,
            If: self._if, While: loops.while_loop, For: loops.for_loop, Case: self._case, Function: self._function,
            Subshell: self._subshell, Conditional: self._conditional, Calculation: self._calculation,
            Redirected: self._redirected,
        }  # fmt: skip

    def start(self) -> State:
        """The state before the first command."""
        variables = {
            name: Variable(value, exported=True)
            for name, value in self.environment.items()
            if NAME.fullmatch(name) and name != "IFS"
        }
        return State(variables)

    def spend(self, work: int) -> None:
        """Count work, which is bounded."""
        self.work += work
        if self.work > MAX_WORK:
            raise ConfigError(f"{self.where}:{self.line}: the script does too much for it to be read without a run")

    def run(self, node: Node, state: State) -> State | None:
        """The state behind a command."""
        self.spend(1)
        return self.nodes[type(node)](node, state)

    def copied(self, state: State) -> State:
        self.spend(1 + len(state.variables) // 20)
        return state.copy()

    # -- lists

    def sequence(self, node: Sequence, state: State) -> State | None:
        after: State | None = state
        for item, in_background in node.items:
            if after is None:
                return None
            if in_background:
                self.isolated(item, self.copied(after))
                after.set_status(0)
            else:
                after = self.run(item, after)
        return after

    def isolated(self, node: Node, state: State) -> State | None:
        """The state behind a command in a subshell, which the shell itself does not see."""
        loops, self.loops = self.loops, []
        returns, self.returns = self.returns, []
        try:
            return self.run(node, state)
        finally:
            self.loops, self.returns = loops, returns

    def capture(self, body: Sequence, state: State, silently: bool) -> str | None:
        """What commands in ``$(...)`` write; `silently` for a process substitution."""
        inner = self.copied(state)
        inner.output = ""
        self.substitutions += not silently
        after = self.isolated(body, inner)
        self.substitutions -= not silently
        if not silently:
            state.set_status(None)
        if after is None or (len(body.items) == 1 and self._reads_file(body)):
            return None
        return after.output

    @staticmethod
    def _reads_file(body: Sequence) -> bool:
        node = body.items[0][0]
        return isinstance(node, Simple) and not node.words and bool(node.redirects)

    def _pipeline(self, node: Pipeline, state: State) -> State | None:
        after: State | None = state
        if len(node.parts) == 1:
            after = self.run(node.parts[0], state)
            if after is not None and node.negated:
                truth = Truth(None if after.status is None else after.status == 0, after.presumed).negated()
                self.conclude(after, truth)
            return after
        stdin, output = state.input, state.output
        text: str | None = stdin
        for number, part in enumerate(node.parts):
            is_last = number == len(node.parts) - 1
            inner = state if is_last and "lastpipe" in state.options else self.copied(state)
            inner.input, inner.output = text, ""
            behind = self.run(part, inner) if inner is state else self.isolated(part, inner)
            text = behind.output if behind is not None else None
            if is_last and inner is state:
                after = behind
        if after is not None:
            after.input, after.output = stdin, output
            after.write(text)
            after.set_status(None)
        return after

    def conclude(self, state: State, truth: Truth) -> None:
        """Set the status from a truth."""
        state.set_status(None if truth.known is None else int(not truth.known), truth.presumed)

    def _and_or(self, node: AndOr, state: State) -> State | None:
        after = self.run(node.first, state)
        for operator, part in node.rest:
            if after is None:
                return None
            after = self._either_way(after, operator == "&&", part)
        return after

    def _either_way(self, state: State, wants_success: bool, part: Node) -> State | None:
        """The state behind a command that runs only if the last one succeeded (or failed)."""
        if state.status is not None:
            return self.run(part, state) if (state.status == 0) == wants_success else state
        presumed, other = state.presumed, self.copied(state)
        state.set_status(0 if wants_success else None)
        returns = list(self.returns)
        followed = self.run(part, state)
        if presumed is not None and presumed != wants_success:  # what returns there is presumed not to
            self.returns[:] = returns
        if followed is None:
            other.set_status(None if wants_success else 0)
            return other
        if presumed is None:
            followed.set_status(None)
            other.set_status(None)
            return join(followed, other)
        return followed if presumed == wants_success else other

    # -- compound commands

    def _if(self, node: If, state: State) -> State | None:
        current: State | None = state
        result: State | None = None
        for condition, body in node.branches:
            current = self.run(condition, current) if current is not None else None
            if current is None:
                return result
            if current.status == 0:
                return join(result, self.run(body, current))
            if current.status is None:
                presumed = current.presumed
                inner = self.copied(current)
                inner.set_status(0)
                returns = list(self.returns)
                behind = self.run(body, inner)
                if presumed is False:
                    self.returns[:] = returns
                if presumed is True and behind is not None:
                    current.set_status(None)
                    self._rest(node, condition, self.copied(current))
                    return join(result, behind)
                if presumed is not False:
                    result = join(result, behind)
        if current is None:
            return result
        if node.otherwise is None:
            current.set_status(0 if current.presumed is None and current.status is not None else None)
            return join(result, current)
        return join(result, self.run(node.otherwise, current))

    def _rest(self, node: If, condition: Sequence, state: State) -> None:
        """Commands of the branches behind one that is presumed to be taken."""
        place = next(number for number, branch in enumerate(node.branches) if branch[0] is condition)
        rest = If(node.branches[place + 1 :], node.otherwise)
        if rest.branches:
            self._if(rest, state)
        elif rest.otherwise is not None:
            self.run(rest.otherwise, state)

    def _case(self, node: Case, state: State) -> State | None:
        subject = self.expander.text(node.subject, state)
        result: State | None = None
        current: State | None = state
        falling: State | None = None
        for patterns, body, ending in node.items:
            hit = False
            possible: State | None = falling
            falling = None
            for pattern in patterns:
                if current is None:
                    break
                text, mask = self.expander.pattern(pattern, current)
                is_match = matches(subject, text, mask) if UNKNOWN not in subject + text else None
                if UNKNOWN not in text and mask == "*":
                    is_match = True
                if "nocasematch" in state.options and mask != "*":
                    is_match = None
                if is_match is not False:
                    possible = join(possible, self.copied(current))
                if is_match:
                    hit = True
                    break
            if hit:
                current = None
            if possible is None:
                continue
            behind = self.run(body, possible)
            if ending == ";;":
                result = join(result, behind)
            elif ending == ";&":
                falling = behind
            else:
                current = join(current, behind)
            if current is None and falling is None:
                return result
        if current is not None:
            current.set_status(None)
        return join(join(result, falling), current)

    def _function(self, node: Function, state: State) -> State | None:
        state.functions[node.name] = (node.body,)
        state.set_status(0)
        return state

    def _subshell(self, node: Subshell, state: State) -> State | None:
        output = state.output
        behind = self.isolated(node.body, self.copied(state))
        state.output = behind.output if behind is not None and output is not None else None
        state.set_status(None if behind is None else behind.status)
        return state

    def _conditional(self, node: Conditional, state: State) -> State | None:
        self.conclude(state, ConditionReader(node, self.expander, state).truth())
        return state

    def _calculation(self, node: Calculation, state: State) -> State | None:
        text = self.expander.text(node.inner, state, tilde=False)
        is_presumed = NO_ARGUMENTS in text
        number = self.expander.calculate(text.replace(NO_ARGUMENTS, "0"), state)
        truth = None if number is None else number != 0
        self.conclude(state, Truth(None, truth) if is_presumed else Truth(truth))
        return state

    def redirect(self, redirects: tuple[Redirect, ...], state: State) -> bool:
        """Expand redirections; whether one may fail, so that the command does not run.

        What they assign stays for some commands only.
        """
        if not redirects:
            return False
        shell, inner = state, self.copied(state)
        may_fail = self._redirected_to(redirects, inner)
        shell.forget([name for name, value in inner.variables.items() if value != shell.variables.get(name)])
        shell.input, shell.output, shell.lost = inner.input, inner.output, inner.lost
        return may_fail

    def _redirected_to(self, redirects: tuple[Redirect, ...], state: State) -> bool:
        may_fail = False
        for redirect in redirects:
            if redirect.operator == "<<":
                text = "".join(self.expander.text(document, state, tilde=False) for document in redirect.document)
                state.input = None if UNKNOWN in text else text
                continue
            parts = redirect.target.parts
            written = parts[0].body if len(parts) == 1 and isinstance(parts[0], Opaque) else None
            if redirect.operator == "<" and not redirect.descriptor and written is not None:  # < <(...)
                output = self.capture(written, state, True)
                state.input = None if output is None or UNKNOWN in output else output
                continue
            target = self.expander.text(redirect.target, state)
            if redirect.descriptor.startswith("{"):
                state.forget([redirect.descriptor.strip("{}")])
            if redirect.operator == "<<<":
                state.input = None if UNKNOWN in target else f"{target}\n"
                continue
            if redirect.operator.startswith("<"):
                state.input = None
            if target not in _SAFE_TARGETS and not target.strip("-").isdigit() and target != "-":
                may_fail = True
            if redirect.descriptor != "2":
                state.output = None
        return may_fail

    def _redirected(self, node: Redirected, state: State) -> State | None:
        stdin, output = state.input, state.output
        before = self.copied(state)
        may_fail = self.redirect(node.redirects, state)
        behind = self.run(node.body, state)
        if behind is not None:
            behind.input = stdin
            if output is None or any(redirect.descriptor != "2" for redirect in node.redirects):
                behind.output = None
        if not may_fail:
            return behind
        before.set_status(None)
        if behind is not None:
            behind.set_status(None)
        before.output = None
        return join(behind, before)

    # -- texts that the script runs

    def text(self, text: str, state: State) -> State | None:
        """The state behind a text that ``eval`` or ``bash -c`` runs."""
        self.spend(1 + len(text) // 50)
        return self.sequence(parse(text, self.where, self.line, self.span), state)

    def isolated_text(self, text: str, state: State) -> State | None:
        """The state behind a text that runs in a shell of its own."""
        self.spend(1 + len(text) // 50)
        return self.isolated(parse(text, self.where, self.line, self.span), state)

    def script(self, text: str) -> list[Command]:
        """The commands of a whole script."""
        tree = parse(text, self.where)
        self.sequence(tree, self.start())
        return self.commands
