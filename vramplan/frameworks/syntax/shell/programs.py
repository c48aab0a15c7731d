"""What small programs write whose words and input are known: echo, printf, expr, tr, wc, basename and the like."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from posixpath import normpath

MAX_NUMBERS = 1000
_PRINTF = re.compile(r"%%|%[sd]|\\n|\\t|\\\\|%|\\")
_TRAINS = re.compile(
    r"python[\d.]*|torchrun|accelerate|deepspeed|swift|megatron|llamafactory-cli|axolotl|tune|trl|litgpt|xtuner"
)
_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)


def echo(words: Sequence[str], stdin: str | None) -> str | None:
    """Words and a newline."""
    ends = "\n"
    if words[:1] == ["-n"]:
        words, ends = words[1:], ""
    if words[:1] and re.fullmatch(r"-[neE]+", words[0]):
        return None
    return " ".join(words) + ends


def printf(words: Sequence[str], stdin: str | None) -> str | None:
    r"""Formats of ``%s``, ``%d`` and ``\n``, used again while there are values."""
    if not words or words[0].startswith("-") or len(words) > MAX_NUMBERS:
        return None
    values = list(words[1:])
    texts = [_formatted(words[0], values)]
    while values and texts[-1] is not None and len(texts) <= len(words):
        texts.append(_formatted(words[0], values))
    return None if values or None in texts else "".join(text or "" for text in texts)


def _formatted(form: str, values: list[str]) -> str | None:
    """A format with the first of the values, which are taken away."""
    pieces: list[str] = []
    at, before = 0, len(values)
    for match in _PRINTF.finditer(form):
        pieces.append(form[at : match.start()])
        at = match.end()
        if match[0] in ("%s", "%d"):
            value = values.pop(0) if values else "" if match[0] == "%s" else "0"
            if match[0] == "%d" and not re.fullmatch(r"0|-?[1-9]\d{0,17}", value, re.ASCII):
                return None
            pieces.append(value)
        elif match[0] in ("%", "\\"):
            return None
        else:
            pieces.append({"%%": "%", "\\n": "\n", "\\t": "\t", "\\\\": "\\"}[match[0]])
    return None if values and len(values) == before else "".join([*pieces, form[at:]])


def expr(words: Sequence[str], stdin: str | None) -> str | None:
    """Sums from the left, all operators of one rank."""
    numbers, operators = words[::2], set(words[1::2])
    if len(words) % 2 == 0 or not all(_NUMBER.fullmatch(number) for number in numbers):
        return None
    if not (operators <= {"+", "-"} or operators <= {"*", "/", "%"}):
        return None
    total = int(numbers[0])
    for operator, text in zip(words[1::2], numbers[1:], strict=True):
        number = int(text)
        if operator in ("/", "%"):
            if number == 0:
                return None
            quotient = abs(total) // abs(number) * (1 if (total < 0) == (number < 0) else -1)
            total = quotient if operator == "/" else total - quotient * number
        else:
            total = {"+": total + number, "-": total - number, "*": total * number}[operator]
    return f"{total}\n" if len(words) > 1 else f"{numbers[0]}\n"


def seq(words: Sequence[str], stdin: str | None) -> str | None:
    """Whole numbers."""
    if not 1 <= len(words) <= 3 or not all(re.fullmatch(r"0|-?[1-9]\d{0,8}", word, re.ASCII) for word in words):
        return None
    numbers = [int(word) for word in words]
    first, step, last = (
        (1, 1, *numbers) if len(words) == 1 else (numbers[0], 1, numbers[1]) if len(words) == 2 else numbers
    )
    if step == 0 or abs(last - first) // abs(step) >= MAX_NUMBERS:
        return None
    return "".join(f"{number}\n" for number in range(first, last + (1 if step > 0 else -1), step))


def tr(words: Sequence[str], stdin: str | None) -> str | None:
    """One character to another, or deleted."""
    names = {"\\n": "\n", "\\t": "\t", "[:space:]": " \t\n\r\f\v"}
    words = [names.get(word, word) for word in words]
    if stdin is None or len(words) != 2:
        return None
    first, second = words
    if first == "-d":
        is_set = second == names["[:space:]"]
        if len(second) != 1 and not is_set:
            return None
        return "".join(character for character in stdin if character not in second)
    if len(first) == 1 and len(second) == 1 and first not in "\\[-":
        return stdin.replace(first, second)
    return None


def wc(words: Sequence[str], stdin: str | None) -> str | None:
    """Lines, words or characters of the input."""
    if stdin is None or len(words) != 1 or not stdin.isascii():
        return None
    counts = {"-l": stdin.count("\n"), "-w": len(re.findall(r"[^ \t\n\r\f\v]+", stdin)), "-c": len(stdin)}
    return f"{counts[words[0]]}\n" if words[0] in counts else None


def basename(words: Sequence[str], stdin: str | None) -> str | None:
    """The last part of a path."""
    if not 1 <= len(words) <= 2 or words[0].startswith("-") or not words[0].strip("/"):
        return None
    name = words[0].rstrip("/").rsplit("/", 1)[-1]
    suffix = words[1] if len(words) == 2 else ""
    return f"{name[: -len(suffix)] if suffix and name != suffix and name.endswith(suffix) else name}\n"


def dirname(words: Sequence[str], stdin: str | None) -> str | None:
    """A path without its last part."""
    words = words[1:] if words[:1] == ["--"] else words
    if len(words) != 1 or words[0].startswith("-") or "//" in words[0] or not words[0].strip("/"):
        return None
    folder, mark, _ = words[0].rstrip("/").rpartition("/")
    return f"{folder or '/' if mark else '.'}\n"


def which(words: Sequence[str], stdin: str | None) -> str | None:
    """Where a program lies: its name, for those that train, which are presumed to be installed."""
    return f"{words[0]}\n" if len(words) == 1 and _TRAINS.fullmatch(words[0]) else None


def real_path(words: Sequence[str], stdin: str | None) -> str | None:
    """A full path, without looking for links in it: ``realpath FILE``, ``readlink -f FILE``."""
    paths = [word for word in words if word not in ("-f", "-e", "-m", "-s")]
    return f"{normpath(paths[0])}\n" if len(paths) == 1 and paths[0].startswith("/") else None


def read_link(words: Sequence[str], stdin: str | None) -> str | None:
    """The same, with one of the flags that make it so."""
    return real_path(words, stdin) if {"-f", "-e", "-m"} & set(words[:1]) else None


def cat(words: Sequence[str], stdin: str | None) -> str | None:
    """The input."""
    return None if words else stdin


def awk(words: Sequence[str], stdin: str | None) -> str | None:
    """The number of fields: ``awk -F, '{print NF}'``."""
    if stdin is None or stdin.count("\n") != 1 or not stdin.endswith("\n"):
        return None
    if words[:1] == ["-F"]:
        words = [f"-F{words[1]}" if len(words) > 1 else "", *words[2:]]
    if (
        len(words) != 2
        or not re.fullmatch(r"-F[,:;]", words[0])
        or not re.fullmatch(r"\{ *print +NF *;? *\}", words[1])
    ):
        return None
    line = stdin[:-1]
    return f"{line.count(words[0][2]) + 1 if line else 0}\n"


def grep(words: Sequence[str], stdin: str | None) -> str | None:
    """``grep -o ,``: each match on its line."""
    if stdin is None or len(words) != 2 or words[0] != "-o" or not re.fullmatch(r"[,:;\w]", words[1], re.ASCII):
        return None
    return f"{words[1]}\n" * stdin.count(words[1])


def silent(words: Sequence[str], stdin: str | None) -> str | None:
    """Nothing."""
    return ""


PROGRAMS: dict[str, Callable[[Sequence[str], str | None], str | None]] = {
    "echo": echo, "printf": printf, "expr": expr, "seq": seq, "tr": tr, "wc": wc, "basename": basename,
    "dirname": dirname, "cat": cat, "awk": awk, "grep": grep, "true": silent, "false": silent, ":": silent,
    "which": which, "readlink": read_link, "realpath": real_path, "test": silent, "[": silent,
}  # fmt: skip
