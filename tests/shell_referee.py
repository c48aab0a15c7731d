"""Real bash as the referee of the reader of shell scripts: scripts run with stand-ins, and what those saw is compared.

The stand-ins write down their words and environment and do nothing else. A script runs in an empty folder with its own
PATH, no network where the kernel allows it, and limits of time, memory and output.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.shell import UNKNOWN, Command, commands

PROGRAMS = (
    "swift", "torchrun", "accelerate", "deepspeed", "python", "python3", "llamafactory-cli", "axolotl", "trl",
    "nvidia-smi", "srun", "train",
)  # fmt: skip
TOOLS = ("tr", "wc", "expr", "seq", "cat", "basename", "dirname", "date", "sleep", "tee", "mkdir", "env", "nohup",
         "grep", "awk", "sed", "head", "nproc", "hostname", "true", "rm", "touch", "bash", "sh", "cut",
         "realpath", "readlink")  # fmt: skip
WATCHED = ("BS", "A", "B", "C", "D", "X", "N", "CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE", "OMP_NUM_THREADS", "MODEL")
"""Variables whose values are compared too."""
STAND_IN = """#!/bin/bash -p
builtin unset -f builtin printf
words=("${0##*/}" "$@")
builtin printf -v record '%s\\037' "${words[@]}"
record+=$'\\035'
for name in WATCHED; do [ -n "${!name+x}" ] && record+="$name=${!name}"$'\\037'; done
builtin printf '%s\\036' "$record" >> "LOG"
exit 0
"""
"""Writes all at once, as several may run at a time."""


class Ran(NamedTuple):
    """A command that bash ran."""

    words: tuple[str, ...]
    environment: dict[str, str]


class Verdict(NamedTuple):
    """How a reading compares."""

    wrong: list[str]
    """What it has wrong or lacks."""
    words: int
    known: int


class Referee:
    """A folder with stand-ins, for many scripts."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="referee"))
        self.log = self.folder / "log"
        tools = self.folder / "bin"
        tools.mkdir()
        text = STAND_IN.replace("LOG", str(self.log)).replace("WATCHED", " ".join(WATCHED))
        for name in PROGRAMS:
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        for name in TOOLS:
            path = shutil.which(name)
            if path is not None and not (tools / name).exists():
                (tools / name).symlink_to(path)
        unshare, bash = shutil.which("unshare"), shutil.which("bash")
        assert bash is not None
        isolates = unshare and subprocess.run([unshare, "-rn", bash, "-c", ":"], check=False).returncode == 0
        self.command = [unshare, "-rn", bash] if unshare and isolates else [bash]

    def close(self) -> None:
        shutil.rmtree(self.folder)

    def run(self, script: str) -> list[Ran]:
        """The commands that bash runs."""
        self.log.write_bytes(b"")
        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            path = Path(work) / "script" / "run.sh"
            path.parent.mkdir()
            path.write_text(script)
            (Path(work) / "empty").mkdir()
            limits = "ulimit -t 1 -v 2000000 -f 20000; exec bash ../script/run.sh"
            with open(Path(work) / "out", "wb") as out:
                process = subprocess.Popen(
                    [*self.command, "-c", limits], cwd=Path(work) / "empty", stdin=subprocess.DEVNULL, stdout=out,
                    stderr=out, env={"PATH": str(self.folder / "bin"), "HOME": work}, start_new_session=True,
                )  # fmt: skip
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)  # what runs in the background too
                process.wait()
            self.output = (Path(work) / "out").read_text(errors="replace")[-2000:]
        runs = []
        for record in self.log.read_text(errors="replace").split("\36")[:-1]:
            words, _, variables = record.partition("\35")
            pairs = [pair.partition("=") for pair in variables.split("\37") if pair]
            runs.append(Ran(tuple(words.split("\37")[:-1]), {name: value for name, _, value in pairs}))
        return runs

    def compare(self, script: str) -> Verdict:
        """What the reader has wrong; a script that it refuses has nothing wrong and nothing known."""
        try:
            listed = commands(script, "run.sh", {}, substituted=True)
        except ConfigError:
            return Verdict([], 0, 0)
        wrong = []
        for ran in self.run(script):
            if not any(agrees(command, ran) for command in listed):
                near = [c for c in listed if _same_words(c.words, c.split, list(ran.words))]
                near = near or [c for c in listed if c.words[:1] == list(ran.words[:1])] or listed
                read = [(command.words, command.environment, command.sourced) for command in near]
                wrong.append(f"ran {list(ran.words)} {ran.environment}; read {read}")
        own = [word for command in listed if command.words[0] in PROGRAMS for word in command.words]
        return Verdict(wrong, len(own), sum(UNKNOWN not in word for word in own))


def agrees(command: Command, ran: Ran) -> bool:
    """Whether a reading may be that of a command that ran: equal where it is known."""
    if not _same_words(list(command.words), command.split, list(ran.words)):
        return False
    if command.sourced and not command.environment:
        return True
    for name in WATCHED:
        value = command.environment.get(name)
        if value is None and name in ran.environment and not command.sourced:
            return False
        if value is not None and UNKNOWN not in value and ran.environment.get(name) != value:
            return False
    return True


def _same_words(words: list[str], split: frozenset[int], ran: list[str]) -> bool:
    """Words that are not known stand for any word; unquoted ones for any number."""
    reached = {0}
    for number, word in enumerate(words):
        following: set[int] = set()
        prefix, mark, _ = word.partition(UNKNOWN)
        for place in reached:
            if not mark:
                if place < len(ran) and ran[place] == word:
                    following.add(place + 1)
            elif number in split:
                if not prefix:
                    following |= set(range(place, len(ran) + 1))
                elif place < len(ran) and ran[place].startswith(prefix):
                    following |= set(range(place + 1, len(ran) + 1))
            elif place < len(ran) and ran[place].startswith(prefix):
                following.add(place + 1)
        reached = following
    return len(ran) in reached


def generated(seed: int) -> str:
    """A script out of the grammar's constructs."""
    return _Writer(random.Random(seed)).script()


class _Writer:
    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.functions: list[str] = []
        self.depth = 0

    def pick(self, *options: str) -> str:
        return self.chance.choice(options)

    def name(self) -> str:
        return self.pick("A", "B", "C", "D", "BS", "X", "N")

    def number(self) -> str:
        return str(self.chance.choice([0, 1, 2, 3, 4, 8, 16, 64]))

    def script(self) -> str:
        lines = [self.pick("#!/bin/bash", "", "#!/usr/bin/env bash\nset -e", "set -u", "set -f", "set -a")]
        lines += [self.statement() for _ in range(self.chance.randint(3, 12))]
        lines += [self.train(), self.train()]
        return "\n".join(lines) + "\n"

    def value(self) -> str:
        name = self.name()
        return self.pick(
            self.number(), self.number(), "two", "'a b'", '"a  b"', f"${name}", f'"${name}"', f"${{{name}}}",
            f"${{{name}:-{self.number()}}}", f"${{{name}-x}}", f"${{{name}:+y}}", f"${{{name}:={self.number()}}}",
            f"${{{name}%b*}}", f"${{{name}#?}}", f"${{{name}/a/z}}", f"${{{name}//1/2}}", f"${{#{name}}}",
            f"${{{name}^^}}", f"${{!{name}}}", f"${{{name}:0:1}}", f"${{{name}:1}}", f"$(({self.sum()}))",
            f"$(({self.sum()}))", f"$(({self.sum()}))", f"$(echo {name} ${name})", f"$(expr {self.number()} + 3)",
            "$(seq 3)", "$RANDOM", "$?", "$#", "$1", "${1:-q}", "$(nproc)", "'$X'", "\\$x", "~/m", "~", "a~b",
            f"x${name}y", f'"x${name} y"', f"--k=${name}", "$(echo a,b,c | tr ',' '\\n' | wc -l)", "a=b", "{",
            "}", "[x]", "*.py", "--g=*", "{1..3}", "{a,b}", f"${{{name}[0]}}", f"${{{name}[1]}}", f"${{#{name}[@]}}",
            "`echo hi`", "$'t\\tq'", '$"loc"', f"${{{name}:-$(({self.sum()}))}}", '"${UNSET:-"in ner"}"', "$UNSET",
            f'"${{{name}[@]}}"', f"${{{name}[*]}}", f'"${{{name}[*]}}"', "$(date +%s)", "\"a'b\"", "a\\ b",
            f"${{{name}:+--lora --x ${name}}}", f"$(printf '%s-%d' {name} 3)", "$(basename /a/b.json .json)",
        )  # fmt: skip

    def sum(self) -> str:
        name = self.name()
        return self.pick(
            f"{self.number()}+{self.number()}", f"{name}*2", f"{name}++", f"++{name}", f"{name}={self.number()}",
            f"{name}+={self.number()}", f"{name}>2?{self.number()}:7", f"{name}&&1", f"{name}||{name}++",
            "-7/2", "-7%3", "2**10", "010+0x1f", "16#ff", f"(1+{name})*3", "1<<4|3", f"${name}+1", "RANDOM%7", "~5",
            f"!{name}", f"{name},5", "9223372036854775807+1", f"{name}==2", f"{name}--",
        )  # fmt: skip

    def assignment(self) -> str:
        name = self.name()
        return self.pick(
            f"{name}={self.value()}", f"{name}={self.value()}", f"{name}={self.number()}", f"{name}={self.number()}",
            f"{name}+={self.value()}", f"export {name}={self.value()}", f"export {name}", f"unset {name}",
            f"declare {name}={self.value()}",
            f"declare -i {name}={self.number()}", f"declare -x {name}={self.number()}",
            f"typeset {name}", f"{name}=({self.value()} {self.value()})", f"{name}+=({self.value()})",
            f"{name}[1]={self.value()}", f"{name}[{self.number()}]={self.value()}", f"let {name}={self.sum()}",
            f"(({self.sum()}))", f"read {name} <<< {self.value()}", f"printf -v {name} %s {self.value()}",
            f": ${{{name}:={self.value()}}}", f'eval "{name}={self.number()}"', f"export -n {name}",
            f"declare -A {name}", f"mapfile -t {name} <<< 'a'", f"readonly Z{name}={self.number()}",
            f"{name}={self.number()} true", f"IFS=, read -r {name} N <<< 'a,b'",
            f"set -- {self.value()} {self.value()}",
            "shift", f"eval {name}=${name}", f"{name}=`echo 3`", f"declare -u {name}=abc", f"export {name}+=q",
            f"{name}={self.value()} {self.name()}={self.value()}", f"declare -n ref={name}; ref={self.number()}",
            f"trap '{name}=5' {self.pick('DEBUG', 'EXIT', 'INT', 'ERR')}", "IFS=,", "IFS=", "unset IFS",
            f"export {name}=3 N",
            f"readonly {name}", f"printf -v {name}[0] %s x", f"source ./missing; {name}=1", "exec 3>&1",
            f"{name}=$(echo {self.value()})", f"getopts ab {name}", f"wait; {name}={self.number()}",
            "shopt -s nullglob",
            f"{name}={self.number()} > /dev/null", f"{name}={self.number()} < missing", f"read {name} < missing",
            f"cat <<EOF > /dev/null\n${{{name}:=5}} {self.value()}\nEOF", "cd /", "set +f", "set +a",
            f"{name}=~/x:~/y", f"local {name}=3", "shopt -s lastpipe",
        )  # fmt: skip

    def test(self) -> str:
        name = self.name()
        return self.pick(
            f'[ -z "${name}" ]', f'[ -n "${name}" ]', f'[ "${name}" = {self.number()} ]', f"[ ${name} -gt 2 ]",
            f"[[ ${name} == {self.number()} ]]", f"[[ ${name} == a* ]]", f"[[ -z ${name} || ${name} -lt 4 ]]",
            f"(({self.sum()}))", "true", "false", "grep -q x /dev/null", f"[[ ${name} -eq 4 && -n ${name} ]]",
            f"test {self.number()} -le {self.number()}", f"[ -f ${name} ]", f"! [ {self.number()} = 1 ]",
            f"[ -n x -a -z ${name} ]", f"[[ ! ( ${name} > 3 ) ]]", f"[ ${{{name}:=4}} = 4 ]", '[ "$1" = x ]',
            "[ $# -eq 0 ]", "(( $# > 1 ))", f"[[ -v {name} ]]", f'[ -z "${{{name}:-}}" ]', f"[[ ${name} =~ ^[0-9]+$ ]]",
            f"[[ ${name} != \"4\" ]]", f"let {self.sum()}", '[ -z "$UNSET" ]', '[ -n "$UNSET" ]',
            "[[ $((X=3)) -eq 3 ]]",
        )  # fmt: skip

    def train(self) -> str:
        program = self.pick("swift", "torchrun", "train", "accelerate", "python")
        words = " ".join(f"--f{number} {self.value()}" for number in range(self.chance.randint(1, 4)))
        return self.pick(
            f"{program} sft {words}", f"{program} {words}", f"{self.name()}={self.value()} {program} {words}",
            f"{program} \\\n  {words} \\\n  --last ${self.name()}", f"env BS={self.number()} {program} {words}",
            f"{program} {words} 2>&1 | tee log", f"nohup {program} {words} > log 2>&1", f"{program} \\\n # c\n {words}",
            f"{program} {words} > /dev/null {self.value()}",
            f"bash -c '{program} --in $A $BS'", f"eval {program} {words}",
            f"true && {program} {words} || {program} --other", f"time {program} {words}", f"out=$({program} {words})",
            f"{program} {words} <<EOF\n$A\nEOF", f"({program} {words})", f"command {program} {words}",
            f"{program} \"$@\" {words}", f"{program} $@ \"${{A[@]}}\" {words}",
        )  # fmt: skip

    def statement(self) -> str:
        kind = self.chance.random()
        if kind < 0.45 or self.depth > 3:
            return self.assignment()
        if kind < 0.55:
            return self.train()
        self.depth += 1
        text = self.compound()
        self.depth -= 1
        return text

    def block(self) -> str:
        return "\n".join(self.statement() for _ in range(self.chance.randint(1, 3)))

    def compound(self) -> str:
        name, test, block, value = self.name(), self.test, self.block, self.value
        kind = self.chance.randrange(22)
        if kind == 6:
            return self.function(name)
        if kind in (7, 8) and self.functions:
            return f"{self.chance.choice(self.functions)} {value()} {value()}"
        leave = self.pick("break", "continue")
        behind = self.pick("", " > /dev/null", " 2>&1", " | cat", " &", " > missing/log")
        texts: dict[int, Callable[[], str]] = {
            0: lambda: f"if {test()}; then\n{block()}\nfi",
            1: lambda: f"if {test()}; then\n{block()}\nelif {test()}; then\n{block()}\nelse\n{block()}\nfi",
            2: lambda: f"for {name} in {value()} {value()}; do\n{block()}\ndone",
            3: lambda: f"for ((i=0;i<{self.number()};i++)); do\n{block()}\ndone",
            4: lambda: f"i=0; while [ $i -lt {self.number()} ]; do\ni=$((i+1))\n{block()}\ndone",
            5: lambda: (
                f"case {value()} in\n1|2) {block()};;\na*) {block()};{self.pick(';', '&', ';&')}\n*) {block()};;\nesac"
            ),
            9: lambda: f"(\n{block()}\n)",
            10: lambda: f"{{\n{block()}\n}}{behind}",
            11: lambda: f"{test()} && {self.assignment()}",
            12: lambda: f"{test()} || {self.assignment()}",
            13: lambda: f"{self.assignment()} | cat",
            14: lambda: f"while read -r l; do\n{block()}\ndone <<< {value()}",
            15: lambda: f"for {name} in 1 2 3; do\n{block()}\n{test()} && {leave}\n{self.assignment()}\ndone",
            16: lambda: f"if {test()}; then exit 1; fi",
            17: lambda: f"{test()} && {{ {self.assignment()}; swift q ${name}; }}",
            18: lambda: f"until {test()}; do {name}={self.number()}; break; done",
            19: lambda: f"{self.assignment()}; {self.assignment()} & wait",
            20: lambda: f"echo x | while read {name}; do {block()}\ndone",
        }
        other = f"select {name} in a b; do {self.assignment()}\nbreak; done < /dev/null"
        return texts[kind]() if kind in texts else other

    def function(self, name: str) -> str:
        """A function's definition."""
        local = self.pick("", f"local {name}={self.number()}; ", f"local {name}; ")
        tail = self.pick(
            "", "\nreturn", f"\nreturn {self.number()}", f"\n{self.test()} && return", '\nswift in $1 $2 $# "$@"'
        )
        body = f"{local}{self.block()}{tail}"
        self.functions.append(f"f{len(self.functions)}")
        return f"{self.functions[-1]}() {{\n{body}\n}}"
