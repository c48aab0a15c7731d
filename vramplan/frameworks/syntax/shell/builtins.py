"""Builtins that change what is known: export, declare, read, set, eval, cd and the like."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from vramplan.frameworks.syntax.shell import sourced
from vramplan.frameworks.syntax.shell.call import Call, done
from vramplan.frameworks.syntax.shell.conditions import NOT_KNOWN, of_test
from vramplan.frameworks.syntax.shell.declarations import declare, unset
from vramplan.frameworks.syntax.shell.expansion import Field
from vramplan.frameworks.syntax.shell.programs import PROGRAMS
from vramplan.frameworks.syntax.shell.read_line import lines_of, read_values
from vramplan.frameworks.syntax.shell.state import NAME, Array, State, join, unknown, unknown_array
from vramplan.frameworks.syntax.shell.tree import UNKNOWN

if TYPE_CHECKING:
    from vramplan.frameworks.syntax.shell.interpreter import Interpreter

HARMLESS = re.compile(r"(^|/)(activate|conda\.sh|mamba\.sh)$")
"""Files that set only variables of their own when they are sourced: a virtual environment's, conda's."""
HOOK = re.compile(r"\$\((['\"]?[\w./~$-]*\b(conda|mamba|micromamba)['\"]?)\xa0.*hook")
_PLAIN = re.compile(r"[\w./:=,+@%-]*", re.ASCII)
"""What no shell changes."""


MAPFILE = ("mapfile", "readarray")
Builtin = Callable[["Interpreter", Call, State], "State | None"]


def _set(run: Interpreter, call: Call, state: State) -> State | None:
    texts = call.texts
    if any(UNKNOWN in text for text in texts) and "--" not in texts[:1]:
        state.forget_all(f"line {call.line}: set")
        return state
    at = 0
    while at < len(texts) and re.fullmatch(r"[-+][A-Za-z]+", texts[at]):
        flag = texts[at]
        names = {"f": "noglob", "a": "allexport"}
        letters = [names.get(letter, letter) for letter in flag[1:] if letter != "o"]
        at += 1
        if "o" in flag[1:] and at < len(texts):
            letters.append(texts[at])
            at += 1
        for option in letters:
            if option in ("noglob", "allexport"):
                state.options = (state.options - {f"perhaps {option}"}) | {option}
                if flag[0] == "+":
                    state.options -= {option}
            elif option in ("B", "braceexpand", "posix", "n", "noexec", "t", "onecmd", "k", "keyword"):
                state.lost = True
    if at < len(texts) and texts[at] in ("--", "-"):
        at += 1
        state.arguments = call.behind(at).arguments
    elif at < len(texts):
        state.arguments = call.behind(at).arguments
    return done(state)


def _shift(run: Interpreter, call: Call, state: State) -> State | None:
    count = call.texts[0] if call.texts else "1"
    if state.arguments is None:
        return done(state, None)
    items = state.arguments.items
    if not count.isdigit() or state.arguments.split or call.is_loose:
        state.arguments = Array((unknown("$@"),), frozenset({0}))
    elif int(count) <= len(items):
        state.arguments = Array(items[int(count) :])
    return done(state, None)


def _assigns_words(run: Interpreter, call: Call, state: State) -> State | None:
    """read, mapfile, getopts, wait -p: variables that are named get values that are not known."""
    name = call.fields[0].text
    if name == "wait" and "-p" not in call.texts:
        return done(state, None)
    if any(UNKNOWN in text for text in call.texts):
        state.forget_all(f"line {call.line}: {name}")
        return state
    values = read_values(call, state) if name == "read" else lines_of(call) if name in MAPFILE else None
    if values is not None:
        for variable, value in values.items():
            state.store(variable, value)
        return done(state, None)
    names = [text for text in call.texts if NAME.fullmatch(text)] + re.findall(r"(?<=-a)\w+", " ".join(call.texts))
    if name in MAPFILE or any(text.startswith("-") and "a" in text for text in call.texts):
        for array in names or ["MAPFILE"]:
            state.store(array, unknown_array(array))
    state.forget(names)
    is_option = name == "getopts" and state.arguments is None
    state.set_status(None, False if is_option else None)
    return state


def _printf(run: Interpreter, call: Call, state: State) -> State | None:
    texts = call.texts
    if texts[:1] == ["-v"] and len(texts) > 1:
        name = texts[1]
        output = PROGRAMS["printf"](texts[2:], None) if call.is_known else None
        if not NAME.fullmatch(name):
            base = name.replace(UNKNOWN, "").partition("[")[0]
            if not NAME.fullmatch(base):
                state.forget_all(f"line {call.line}: printf")
                return state
            state.store(base, unknown_array(base))
        else:
            state.store(name, unknown(f"${name}") if output is None else output)
        return done(state, None)
    if any(UNKNOWN in text for text in texts[:1]):
        state.forget_all(f"line {call.line}: printf")
    return _echo(run, call, state)


def _echo(run: Interpreter, call: Call, state: State) -> State | None:
    run.calls.list_command(call, state)
    name = call.fields[0].text
    state.write(PROGRAMS[name](call.texts, state.input) if call.is_known else None)
    return done(state, 0 if name in ("echo", "true", ":") else 1 if name == "false" else None)


def _let(run: Interpreter, call: Call, state: State) -> State | None:
    number: int | None = None
    for field in call.fields[1:]:
        number = run.expander.calculate(field.text, state)
        if field.split:
            state.forget_all(f"line {call.line}: let")
    return done(state, None if number is None else int(number == 0))


def _test(run: Interpreter, call: Call, state: State) -> State | None:
    fields, words = call.fields[1:], call.words[1:]
    if call.fields[0].text == "[":
        if not fields or fields[-1].text != "]":
            return done(state, None)
        fields, words = fields[:-1], words[:-1]
    truth = of_test(fields, words, state)
    run.conclude(state, truth if fields else NOT_KNOWN)
    return state


def _is_plain(field: Field) -> bool:
    return _PLAIN.fullmatch(field.text.partition(UNKNOWN)[0]) is not None


def _eval(run: Interpreter, call: Call, state: State) -> State | None:
    if call.is_known:
        return run.text(" ".join(call.texts), state)
    text = " ".join(call.texts)
    if HOOK.search(text):
        return done(state, None)
    fields = [
        Field(field.text, field.split or UNKNOWN in field.text) for field in call.fields[1:]
    ]  # fmt: skip
    place = next((place for place, field in enumerate(call.fields[1:]) if not _is_plain(field)), len(fields))
    if place < len(fields):  # a quote may reach over the words behind it
        fields = [*fields[:place], Field(unknown(text), True)]
    run.calls.list_command(call._replace(fields=fields, spans=call.spans[1 : len(fields) + 1]), state)
    state.forget_all(f"line {call.line}: eval")
    return state


def _source(run: Interpreter, call: Call, state: State) -> State | None:
    run.calls.list_command(call, state)
    name = call.texts[0].replace(UNKNOWN, "") if call.texts else ""
    if HARMLESS.search(name):
        return done(state, None)
    path = sourced.path_of(run, call.texts[0], state) if call.is_known and len(call.texts) == 1 else None
    if path is not None:
        is_followed, after = sourced.follow(run, path, run.copied(state))
        if is_followed:
            return after
    state.forget_all(f"line {call.line}: source {name}", separators=False)
    return state


def _trap(run: Interpreter, call: Call, state: State) -> State | None:
    texts = call.texts
    if not texts or texts[0] in ("-p", "-l", "-", ""):
        return done(state)
    handler, signals = (texts[1], texts[2:]) if texts[0] == "--" and len(texts) > 1 else (texts[0], texts[1:])
    if all(signal.upper() in ("EXIT", "0") for signal in signals) and not call.is_loose:
        if UNKNOWN not in handler:
            before = state.copy()
            before.forget(list(before.variables))
            run.isolated_text(handler, before)
    elif not call.is_known:
        state.lost = True
    else:
        before = state.copy()
        before.forget(list(before.variables))
        former = dict(before.variables)
        behind = run.isolated_text(handler, before)
        changes = behind is not None and (behind.variables != former or behind.functions != state.functions)
        state.lost = state.lost or changes
    return done(state)


def _cd(run: Interpreter, call: Call, state: State) -> State | None:
    run.calls.list_command(call, state)
    texts = [text for text in call.texts if text not in ("-P", "-L", "--")]
    is_known = call.fields[0].text == "cd" and len(texts) == 1 and call.is_known and texts[0] not in ("-", "")
    has_path = "CDPATH" in state.variables
    if not is_known or has_path:
        state.folder = unknown("$PWD")
    elif texts[0].startswith("/"):
        state.folder = texts[0]
    elif UNKNOWN not in state.folder:
        state.folder = texts[0] if state.folder == "." else f"{state.folder.rstrip('/')}/{texts[0]}"
    state.set_status(None, True if run.expander.working_folder(state) else None)
    return state


def _shopt(run: Interpreter, call: Call, state: State) -> State | None:
    options = {text for text in call.texts if not text.startswith("-")}
    if not call.is_known or options & {"expand_aliases", "assoc_expand_once"}:
        state.lost = True
    if "-s" in call.texts:
        state.options |= options & {"nullglob", "failglob", "lastpipe", "nocasematch"}
    if "-u" in call.texts:
        state.options -= options & {"lastpipe"}
    return done(state, None)


def _exit(run: Interpreter, call: Call, state: State) -> State | None:
    return None


def _return(run: Interpreter, call: Call, state: State) -> State | None:
    texts = call.texts
    if texts:
        state.set_status(int(texts[0]) % 256 if texts[0].isdigit() else None)
    if run.returns:
        run.returns[-1] = join(run.returns[-1], state)
        return None
    return None


def _break(run: Interpreter, call: Call, state: State) -> State | None:
    if not run.loops:
        return done(state)
    count = call.texts[0] if call.texts else "1"
    if not count.isdigit() or int(count) < 1:
        for loop in run.loops:
            loop.breaks = join(loop.breaks, state.copy())
            loop.continues = join(loop.continues, state.copy())
        return state
    loop = run.loops[-min(int(count), len(run.loops))]
    state.set_status(0)
    if call.fields[0].text == "break":
        loop.breaks = join(loop.breaks, state)
    else:
        loop.continues = join(loop.continues, state)
    return None


def _alias(run: Interpreter, call: Call, state: State) -> State | None:
    return done(state, None)


def _plain(run: Interpreter, call: Call, state: State) -> State | None:
    """Builtins that change no variable."""
    run.calls.list_command(call, state)
    state.write(None)
    return done(state, None)


def _pwd(run: Interpreter, call: Call, state: State) -> State | None:
    run.calls.list_command(call, state)
    folder = run.expander.working_folder(state)
    state.write(None if folder is None or call.texts not in ([], ["-L"], ["-P"]) else f"{folder}\n")
    return done(state, 0)


BUILTINS: dict[str, Builtin] = {
    **dict.fromkeys(("export", "declare", "typeset", "local", "readonly"), declare),
    **dict.fromkeys(("read", "mapfile", "readarray", "getopts", "wait"), _assigns_words),
    **dict.fromkeys(("echo", "true", "false", ":"), _echo),
    **dict.fromkeys(("cd", "pushd", "popd"), _cd),
    **dict.fromkeys(("break", "continue"), _break),
    **dict.fromkeys(("source", "."), _source),
    **dict.fromkeys(("test", "["), _test),
    **dict.fromkeys(("alias", "unalias", "umask", "ulimit", "hash"), _alias),
    **dict.fromkeys(("type", "jobs", "kill", "times", "command", "dirs", "enable", "help", "history"), _plain),
    "pwd": _pwd, "unset": unset, "set": _set, "shift": _shift, "printf": _printf, "let": _let, "eval": _eval,
    "trap": _trap, "shopt": _shopt, "exit": _exit, "logout": _exit, "return": _return,
}  # fmt: skip
