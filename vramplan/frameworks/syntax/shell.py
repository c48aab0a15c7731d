"""Shell scripts as commands: continuations, quotes, variables, exports, sums. Nothing is executed."""

from __future__ import annotations

import ast
import re
import shlex
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, floordiv, mod, mul, sub

from vramplan.errors import ConfigError

UNKNOWN = "\ue000"
"""Marks the part of a value that only a running shell knows."""
PREFIXES = {
    "then", "do", "else", "elif", "if", "while", "until", "{", "(", "!", "time", "nohup", "exec", "env", "sudo",
    "command", "numactl", "stdbuf", "nice",
}  # fmt: skip
"""Words that may stand before a command."""
ITEM = "\ue001"
"""Separates the items of an array."""
_ARRAY = re.compile(r"[A-Za-z_]\w*\+?=\(")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*|\d|[@*#?$!-]")
_PARAMETER = re.compile(r"([A-Za-z_]\w*|\d|[@*#])(?:\[[@*]\])?(?:(:?[-=?+])(.*))?", re.DOTALL)
_SUM = re.compile(r"[\d\s()+*/%-]+")


_OPERATIONS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: floordiv, ast.FloorDiv: floordiv, ast.Mod: mod}

Lookup = Callable[[str], "str | None"]
"""A variable's value, if it has one."""
Span = tuple[int, int]
"""Begin and end in a text, in characters."""


@dataclass(slots=True)
class Command:
    """One simple command."""

    words: list[str]
    line: int
    environment: dict[str, str] = field(default_factory=dict)
    """Variables exported to it."""
    unexported: dict[str, str] = field(default_factory=dict)
    """Variables of the shell that are not exported to it."""
    spans: list[Span] = field(default_factory=list)
    """The place of each word in the text; words from one expansion share a place."""


def typed(words: Sequence[str]) -> str:
    """The words of a command as a line that a shell splits into them.

    >>> typed(["A=x y", "swift", "sft", "--system", "be kind"]).rstrip()
    "A='x y' swift sft --system 'be kind'"
    """
    rest, assignments = list(words), []
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        assignments.append(f"{name}={shlex.quote(value)}")
    return " ".join([*assignments, *map(shlex.quote, rest)]) + "\n"


def commands(text: str, where: str, environment: Mapping[str, str]) -> list[Command]:
    """All simple commands of a script in order, as far as they are known without running it.

    Raises:
        ConfigError: for a quote that is not closed.
    """
    exported, variables, parsed = dict(environment), dict[str, str](), []
    depth = 0
    for line, words, spans in _split(text, where, lambda name: variables.get(name, exported.get(name))):
        depth += (words[0] in ("if", "case")) - (words[0] in ("fi", "esac"))
        assigned: dict[str, str] = {}
        while words and (words[0] in PREFIXES or _ASSIGNMENT.fullmatch(words[0])):
            pair = _ASSIGNMENT.fullmatch(words.pop(0))
            if pair is not None:
                assigned[pair[1]] = pair[2]
        if not words:
            for name, value in assigned.items():
                if depth > 0 and variables.get(name, exported.get(name, value)) != value:
                    value = f"{UNKNOWN}${name}"  # another branch, or an earlier line, sets another value
                (exported if name in exported else variables)[name] = value
        elif words[0] in ("export", "declare", "set", "setenv"):
            for word in words[1:]:
                pair = _ASSIGNMENT.fullmatch(word)
                if pair is not None:
                    exported[pair[1]] = pair[2]
                elif word in variables:
                    exported[word] = variables.pop(word)
        elif words[0] == "unset":
            for name in words[1:]:
                exported.pop(name, None)
                variables.pop(name, None)
        else:
            new = {name: value for name, value in exported.items() if environment.get(name) != value}
            parsed.append(Command(words, line, new | assigned, dict(variables), spans[-len(words) :]))
    return parsed


def _split(text: str, where: str, lookup: Lookup) -> Iterator[tuple[int, list[str], list[Span]]]:
    """(line, words, their places) of each command; comments, redirections and heredocs left out."""
    reader = _Reader(text, where, lookup)
    while not reader.ended:
        line, placed = reader.command()
        if placed:
            yield (
                line,
                [word for word, _ in placed],
                [(reader.original(at), reader.original(end)) for _, (at, end) in placed],
            )


class _Reader:
    def __init__(self, text: str, where: str, lookup: Lookup) -> None:
        self.text, self.where, self.lookup = text.replace("\r\n", "\n"), where, lookup
        self.at = 0
        self.returns = [found.start() - number for number, found in enumerate(re.finditer("\r\n", text))]

    def original(self, at: int) -> int:
        """An index of the original text, whose lines may end in two characters."""
        return at + bisect_left(self.returns, at)

    @property
    def ended(self) -> bool:
        return self.at >= len(self.text)

    @property
    def line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def command(self) -> tuple[int, list[tuple[str, Span]]]:
        """The next command's words, each with its place."""
        words: list[tuple[str, Span]] = []
        self._skip_blanks()
        line = self.line
        while not self.ended:
            self._skip_blanks()
            if self.ended:
                break
            here = self.text[self.at]
            if here == "#":
                self._skip_line()
                continue
            if here in "\n;&|()":
                self.at += 1
                if here == "&" and self.text[self.at : self.at + 1] == ">":  # &> file
                    self.at += 1
                    self._skip_blanks()
                    self._word()
                    continue
                break
            if here in "<>":
                self._redirection()
                continue
            if _ARRAY.fullmatch(self.text[self.at : self.at + 80].partition("(")[0] + "("):
                start = self.at
                words.append((self._array(), (start, self.at)))
                continue
            start = self.at
            several = self._words()
            word = several[0] if len(several) == 1 else ""
            if word.isdigit() and self.text[self.at : self.at + 1] in ("<", ">") and self.text[self.at - 1].isdigit():
                continue  # 2> file
            words += [(one, (start, self.at)) for one in several]
        return line, words

    def _array(self) -> str:
        """``NAME=(one two)`` as an assignment of its items."""
        end = self.text.index("(", self.at)
        name, self.at = self.text[self.at : end], end + 1
        items: list[str] = []
        while not self.ended and self.text[self.at] != ")":
            if self.text[self.at] in " \t\n":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "#":
                self._skip_line()
            else:
                items += self._words() if self.text[self.at] not in ";&|(<>" else [self.text[self.at]]
                self.at += self.text[self.at : self.at + 1] in tuple(";&|(<>")
        self.at += 1
        return name + ITEM.join(items)

    def _skip_blanks(self) -> None:
        while not self.ended:
            if self.text[self.at] in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            else:
                return

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _redirection(self) -> None:
        start = self.at
        while self.text[self.at : self.at + 1] in ("<", ">", "&", "|"):
            self.at += 1
        here_document = self.text[start : self.at] == "<<"
        if here_document and self.text[self.at : self.at + 1] == "-":
            self.at += 1
        self._skip_blanks()
        target = self._word()
        if here_document:
            end = re.compile(rf"^\s*{re.escape(target)}$", re.MULTILINE).search(self.text, self.at)
            self.at = end.end() if end else len(self.text)

    def _word(self) -> str:
        """The next word, as one text."""
        return " ".join(self._words())

    def _words(self) -> list[str]:
        """The next word; several if an unquoted variable or an array holds several."""
        made: list[str] = []
        done: list[str] = []
        seen = False

        def expand(value: str, quoted: bool) -> None:
            assigns = _ASSIGNMENT.fullmatch("".join(made)) is not None
            pieces = [value] if assigns else value.split(ITEM) if quoted or ITEM in value else value.split()
            if not quoted and not assigns and value[:1].isspace() and made:
                done.append("".join(made))
                made.clear()
            for number, piece in enumerate(pieces):
                if number:
                    done.append("".join(made))
                    made.clear()
                made.append(piece)

        while not self.ended:
            here = self.text[self.at]
            if here in " \t\n;&|()<>":
                break
            self.at += 1
            if self.text.startswith('"$@"', self.at - 1):  # the script's own arguments: none here
                self.at += 3
                continue
            seen = seen or here not in "$`"
            if here == "'":
                made.append(self._until("'"))
            elif here == '"':
                expand(self._double_quoted(), quoted=True)
            elif here == "\\":
                if self.text[self.at : self.at + 1] != "\n":
                    made.append(self.text[self.at : self.at + 1])
                self.at += 1
            elif here in "$`":
                self.at -= 1
                expand(self._expansion(), quoted=False)
            else:
                made.append(here)
        last = "".join(made)
        return [*done, last] if last or seen or done else []

    def _until(self, mark: str) -> str:
        end = self.text.find(mark, self.at)
        if end < 0:
            raise ConfigError(f"{self.where}:{self.line}: a quote {mark} never ends")
        found, self.at = self.text[self.at : end], end + len(mark)
        return found

    def _double_quoted(self) -> str:
        made: list[str] = []
        start = self.line
        while not self.ended:
            here = self.text[self.at]
            self.at += 1
            if here == '"':
                return "".join(made)
            if here == "\\" and self.text[self.at : self.at + 1] in ('"', "\\", "$", "`", "\n"):
                made.append(self.text[self.at].replace("\n", ""))
                self.at += 1
            elif here in "$`":
                self.at -= 1
                made.append(self._expansion())
            else:
                made.append(here)
        raise ConfigError(f'{self.where}:{start}: a quote " never ends')

    def _expansion(self) -> str:
        start = self.at
        if self.text[start] == "`":
            self.at += 1
            return _computed(self._until("`"), self.lookup)
        self.at += 1
        if self.text.startswith("((", self.at):
            self.at += 2
            return _computed(self._until("))"), self.lookup)
        if self.text.startswith("(", self.at):
            self.at += 1
            return _computed(self._until(")"), self.lookup)
        if self.text.startswith("{", self.at):
            self.at += 1
            return self._parameter(self._until("}"))
        name = _NAME.match(self.text, self.at)
        if name is None:
            return "$"
        self.at = name.end()
        return self._value(name[0])

    def _parameter(self, inside: str) -> str:
        """``${NAME}``, ``${NAME:-other}``; other expansions are unknown."""
        match = _PARAMETER.fullmatch(inside)
        if match is None:
            return f"{UNKNOWN}${{{inside}}}"
        name, mark, other = match.groups(default="")
        value = self.lookup(name)
        if mark in (":-", "-", ":=", "="):
            return value or other
        if mark in (":+", "+"):
            return other if value else ""
        return self._value(name)

    def _value(self, name: str) -> str:
        if name in ("@", "*"):  # the script's own arguments: none here
            return ""
        value = self.lookup(name)
        return f"{UNKNOWN}${name}" if value is None else value


def _computed(text: str, lookup: Lookup) -> str:
    """Arithmetic of whole numbers, ``$((a / b))`` or ``$(expr a / b)``; other substitutions are unknown."""
    body = re.sub(r"^\s*expr\s", "", text).replace("\\*", "*").replace('"', "").replace("'", "")
    body = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: lookup(name[1]) or name[0], body)
    if not _SUM.fullmatch(body):
        return f"{UNKNOWN}$({text.strip()})"
    try:
        return str(_sum(ast.parse(body.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return f"{UNKNOWN}$({text.strip()})"


def _sum(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_sum(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return int(_OPERATIONS[type(node.op)](_sum(node.left), _sum(node.right)))
    raise ValueError
