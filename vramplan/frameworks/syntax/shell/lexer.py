"""Words of a shell script, with quotes and expansions taken apart as bash does it."""

from __future__ import annotations

import re
from collections.abc import Callable

from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.shell.braces import expand_braces
from vramplan.frameworks.syntax.shell.quoting import ansi_c
from vramplan.frameworks.syntax.shell.text_reader import MAX_ARITHMETIC, TextReader
from vramplan.frameworks.syntax.shell.tree import (
    Arithmetic,
    ArrayItem,
    Assignment,
    Opaque,
    Parameter,
    Part,
    Sequence,
    Span,
    Substitution,
    Text,
    Word,
)  # fmt: skip

MAX_WORDS = 20_000
_RUN = re.compile(r"[^ \t\n\"'$`\\;&|()<>]+")
_QUOTED_RUN = re.compile(r"[^\"$`\\]+")
_BRACED_RUN = re.compile(r"[^\"'$`\\}<>/]+")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=|\[)", re.ASCII)
_PARAMETER = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", re.ASCII)
_OPERATOR = re.compile(r":?[-=?+]|##?|%%?|//?|\^\^?|,,?|@|:")


class Lexer(TextReader):
    """Reads words at `at`; `parse_list` reads the commands of a substitution up to its closing mark."""

    def __init__(self, text: str, where: str, first_line: int = 1, span: Span | None = None) -> None:
        super().__init__(text, where, first_line, span)
        self.words = 0
        self.pending: list[tuple[str, bool, bool, list[Word]]] = []
        self.parse_list: Callable[[str], Sequence] = lambda closing: Sequence(())

    def newline(self) -> None:
        """Over a newline, and the here-documents that begin behind it."""
        self.at += 1
        waiting, self.pending = self.pending, []
        for delimiter, strips, quoted, place in waiting:
            self._here_document(delimiter, strips, quoted, place)

    def _here_document(self, delimiter: str, strips: bool, quoted: bool, place: list[Word]) -> None:
        begin, continued = self.at, False
        while self.at < len(self.text):
            start = self.at
            end = self.text.find("\n", start)
            end = len(self.text) if end < 0 else end
            line = self.text[start:end]
            self.at = min(end + 1, len(self.text))
            self.step()
            if not continued and (line.lstrip("\t") if strips else line) == delimiter:
                break
            continued = not quoted and (len(line) - len(line.rstrip("\\"))) % 2 == 1
        else:
            start = len(self.text)
        if quoted:
            parts: list[Part] = [Text(self.text[begin:start], True)]
        else:
            after, self.at = self.at, begin
            parts = self._quoted_parts("", start)
            self.at = after
        if strips:
            parts = [Opaque("<<-", True), *(part for part in parts if not isinstance(part, Text))]
        place.append(Word(tuple(parts), begin, start))

    def word(self) -> Word:
        """The word that begins here; empty if none does."""
        begin, parts = self.at, list[Part]()
        self._unquoted(parts)
        return self._counted_word(parts, begin)

    def several(self) -> list[Word]:
        """The words that begin here: several if braces make several."""
        begin = self.at
        word = self.word()
        return expand_braces(word, self.text[begin : self.at], self._of_text)

    def has_braces(self, assignment: Assignment, begin: int) -> bool:
        """Whether braces make several words of an assignment, as they do in an argument."""
        if not isinstance(assignment.value, Word):
            return False
        return expand_braces(assignment.value, self.text[begin : self.at], self._of_text) != [assignment.value]

    def _of_text(self, text: str, begin: int, end: int) -> Word:
        other = Lexer(text, self.where, self.first_line, (begin, end))
        word = other.word()
        self.words += 1
        if other.at < len(text) or self.words > MAX_WORDS:
            raise self.error("braces that cannot be read")
        return word

    def _counted_word(self, parts: list[Part], begin: int) -> Word:
        self.words += 1
        if self.words > MAX_WORDS:
            raise self.error(f"more than {MAX_WORDS:,} words; is it a script?")
        return Word(tuple(parts), *self.place(begin))

    def assignment(self) -> Assignment | None:
        """The assignment that begins here."""
        begin = self.at
        head = _ASSIGNMENT.match(self.text, begin)
        if head is None:
            return None
        index = None
        self.at = head.end()
        if head[2] == "[":
            end = self.closing_bracket()
            operator = re.compile(r"\+?=").match(self.text, end + 1) if end else None
            if operator is None:
                self.at = begin
                return None
            index = Word(tuple(self._quoted_parts("", end)), head.end(), end)
            self.at = operator.end()
        appends = self.text[self.at - 2] == "+"
        if self.peek() == "(":
            items = self._array()
            return Assignment(head[1], index, appends, items, *self.place(begin))
        value = self.word()
        return Assignment(head[1], index, appends, value, *self.place(begin))

    def _array(self) -> tuple[ArrayItem, ...]:
        start = self.at
        self.at += 1
        items: list[ArrayItem] = []
        while True:
            self.step()
            self.skip_blanks()
            here = self.peek()
            if here == ")":
                self.at += 1
                return tuple(items)
            if here == "\n":
                self.newline()
            elif not here:
                raise self.error("a parenthesis ( never ends", start)
            elif here in ";&|(" or (here in "<>" and self.peek(2) not in ("<(", ">(")):
                raise self.error(f"{here!r} in an array")
            else:
                indexed = here == "["
                items += [ArrayItem(word, indexed) for word in self.several()]

    def _unquoted(self, parts: list[Part]) -> None:
        while self.at < len(self.text):
            here = self.text[self.at]
            run = _RUN.match(self.text, self.at)
            if run is not None:
                self.at = run.end()
                if self.peek() == "(" and run[0][-1] in "?*+@!" and run[0] != "!":
                    self._extended_pattern(parts, run.start())
                else:
                    parts.append(Text(run[0], False))
            elif here == "'":
                parts.append(Text(self.until("'"), True))
            elif here == '"':
                self._double_quoted(parts)
            elif here == "\\":
                if self.at + 1 >= len(self.text):
                    parts.append(Text("\\", True))
                elif self.text[self.at + 1] != "\n":
                    parts.append(Text(self.text[self.at + 1], True))
                self.at = min(self.at + 2, len(self.text))
            elif here in "$`":
                parts.append(self._expansion(quoted=False))
            elif self.peek(2) in ("<(", ">("):
                start = self.at
                self.at += 2
                body = self.parse_list(")")
                parts.append(Opaque(self.text[start : self.at], True, body))
            else:
                return
            self.step()

    def _extended_pattern(self, parts: list[Part], start: int) -> None:
        end = self.matching_parenthesis(self.at + 1)
        self.at = end + 1
        parts.append(Opaque(self.text[start : self.at]))

    def _double_quoted(self, parts: list[Part]) -> None:
        begin = self.at
        self.at += 1
        inner = self._quoted_parts('"', len(self.text))
        if self.peek() != '"':
            raise self.error('a quote " never ends', begin)
        self.at += 1
        parts += inner or [Text("", True)]

    def _quoted_parts(self, mark: str, end: int) -> list[Part]:
        """The parts up to `mark` or `end` as in double quotes."""
        parts: list[Part] = []
        while self.at < end:
            here = self.text[self.at]
            if here == mark:
                return parts
            run = _QUOTED_RUN.match(self.text, self.at, end)
            if run is not None:
                parts.append(Text(run[0], True))
                self.at = run.end()
            elif here == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                if following != "\n":
                    escapes = following and following in f"$`\\{mark}"
                    parts.append(Text(following if escapes else here + following, True))
                self.at += 2
            elif here in "$`":
                parts.append(self._expansion(quoted=True))
            else:
                parts.append(Text(here, True))
                self.at += 1
            self.step()
        if self.at > end and not mark:
            raise self.error("an expansion that never ends")
        return parts

    def _expansion(self, quoted: bool) -> Part:
        start = self.at
        if self.text[start] == "`":
            return self._backquoted(quoted)
        after = self.peek(3)[1:]
        self.at += 1
        if after == "((":
            end = self.matching_parenthesis(start + 3)
            if self.text[end + 1 : end + 2] == ")":
                inner = self.calculation(start + 3, end)
                return Arithmetic(self.text[start : self.at], quoted, inner)
        if after[:1] == "(":
            self.at += 1
            body = self.parse_list(")")
            return Substitution(self.text[start : self.at], quoted, body)
        if after[:1] == "[":
            end = self._closing_bracket_of_sum(start + 2)
            inner = self.calculation(start + 2, end)
            self.at = end + 1
            return Arithmetic(self.text[start : self.at], quoted, inner)
        if after[:1] == "{":
            self.at += 1
            return self._braced(start, quoted)
        if after[:1] == "'" and not quoted:
            text, self.at = ansi_c(self.text, start + 2)
            if self.at < 0:
                raise self.error("a quote ' never ends", start)
            return Text(text, True) if text is not None else Opaque(self.text[start : self.at], True)
        if after[:1] == '"' and not quoted:
            inner_parts: list[Part] = []
            self._double_quoted(inner_parts)
            return inner_parts[0] if len(inner_parts) == 1 else Opaque(self.text[start : self.at], True)
        name = _PARAMETER.match(self.text, self.at)
        if name is None:
            return Text("$", quoted)
        self.at = self.at + 1 if name[0].isdigit() else name.end()
        return Parameter(self.text[start : self.at], quoted, self.text[start + 1 : self.at])

    def calculation(self, begin: int, end: int) -> Word:
        """An arithmetic expression as a quoted word; leaves `at` behind its ``))``.

        Double quotes are removed, as in ``(( "$#" ))`` (bash 5.2: "Arithmetic Expansion").
        """
        self.at = begin
        parts = self._quoted_parts("", end)
        word = Word(tuple(part for part in parts if not (isinstance(part, Text) and part.text == '"')), begin, end)
        self.at = end + 2
        return word

    def _closing_bracket_of_sum(self, at: int) -> int:
        end = self.text.find("]", at, at + MAX_ARITHMETIC)
        if end < 0:
            raise self.error("a bracket [ never ends", at - 1)
        return end

    def _backquoted(self, quoted: bool) -> Part:
        start = self.at
        end = start + 1
        while self.text[end : end + 1] != "`":
            end += 2 if self.text[end : end + 1] == "\\" else 1
            if end >= len(self.text):
                raise self.error("a quote ` never ends", start)
        escapes = r"\\([$`\\\"])" if quoted else r"\\([$`\\])"
        inner = re.sub(escapes, r"\1", self.text[start + 1 : end])
        self.at = end + 1
        try:
            return Substitution(self.text[start : self.at], quoted, self._read_again(inner, start))
        except ConfigError:  # bash finds that out when it runs the script
            return Opaque(self.text[start : self.at], quoted)

    def _read_again(self, text: str, at: int) -> Sequence:
        from vramplan.frameworks.syntax.shell.grammar import parse  # which imports this file

        return parse(text, self.where, self.line_at(at), self.place(at), self)

    def _braced(self, start: int, quoted: bool) -> Part:
        """``${...}``, from behind its brace."""
        prefix = ""
        if self.peek() == "!" and _PARAMETER.match(self.text, self.at + 1) and self.peek(2) != "!}":
            prefix = "!"
            self.at += 1
        elif self.peek() == "#" and _PARAMETER.match(self.text, self.at + 1):
            prefix = "#"
            self.at += 1
        name = _PARAMETER.match(self.text, self.at)
        index = argument = None
        operator = ""
        if name is not None:
            self.at = name.end()
            if self.peek() == "[":
                self.at += 1
                end = self.closing_bracket()
                if end:
                    index = Word(tuple(self._quoted_parts("", end)), self.at, end)
                    self.at = end + 1
            match = _OPERATOR.match(self.text, self.at)
            if match is not None:
                operator = match[0]
                self.at = match.end()
                argument = self._braced_argument(start, quoted and operator.lstrip(":")[:1] in ("-", "=", "?", "+", ""))
        if name is None or self.peek() != "}":
            self._braced_argument(start, quoted)
            self.at += 1
            return Opaque(self.text[start : self.at], quoted, fails=True)
        self.at += 1
        return Parameter(self.text[start : self.at], quoted, name[0], prefix, index, operator, argument)

    def _braced_argument(self, start: int, quoted: bool) -> Word:
        """The word behind ``${NAME:-``, up to the closing brace."""
        begin, parts = self.at, list[Part]()
        while self.peek() != "}":
            here = self.peek()
            if not here:
                raise self.error("a brace ${ never ends", start)
            run = _BRACED_RUN.match(self.text, self.at)
            if run is not None:
                parts.append(Text(run[0], quoted))
                self.at = run.end()
            elif here == "'" and not quoted:
                parts.append(Text(self.until("'"), True))
            elif here == '"':
                self._double_quoted(parts)
            elif here == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                keeps = quoted and following not in ("$", "`", '"', "\\", "}", "\n")
                parts.append(Text((here if keeps else "") + following.replace("\n", ""), True))
                self.at += 2
            elif here in "$`":
                parts.append(self._expansion(quoted))
            else:
                parts.append(Text(here, quoted))
                self.at += 1
            self.step()
        return Word(tuple(parts), begin, self.at)
