"""The reader of shell scripts against bash itself, its bounds, and what it promises of any text."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shell_referee import PROGRAMS, Referee, generated
from tests.shell_scripts import exact, realistic
from tests.shell_texts import TEXTS
from vramplan.errors import ConfigError
from vramplan.frameworks.syntax.argv import split
from vramplan.frameworks.syntax.shell import UNKNOWN, Command, commands
from vramplan.frameworks.syntax.shell.grammar import parse

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
MEMORY_FLAGS = {
    "model", "model_name_or_path", "per_device_train_batch_size", "gradient_accumulation_steps", "max_length", "bf16",
    "fp16", "max_seq_length", "block_size", "deepspeed", "train_type", "cutoff_len", "model_max_length", "packing",
    "gradient_checkpointing", "nproc_per_node", "num_gpus", "lora_rank", "lora_r", "use_peft", "micro_batch_size",
    "sequence_len", "finetuning_type", "num_processes", "nnodes",
}  # fmt: skip
NOT_KNOWN = {("usage", "model"), ("count", "nproc_per_node"), ("precision", "bf16")}
"""What no reader can know: an argument without a default, the machine's GPUs."""


@pytest.fixture(scope="module")
def referee() -> Iterator[Referee]:
    referee = Referee()
    yield referee
    referee.close()


def training(text: str) -> list[Command]:
    listed = commands(text, "a.sh", {}, substituted=True)
    return [command for command in listed if command.words[0] in PROGRAMS and "nvidia" not in command.words[0]]


@needs_bash
@pytest.mark.parametrize("block", range(8))
def test_generated(referee: Referee, block: int) -> None:
    _judge(referee, range(block * 25, block * 25 + 25))


@needs_bash
@pytest.mark.full
@pytest.mark.parametrize("block", range(4))
def test_generated_in_full(referee: Referee, block: int) -> None:
    _judge(referee, range(1000 + block * 100, 1100 + block * 100))


def _judge(referee: Referee, seeds: range) -> None:
    words = known = 0
    for seed in seeds:
        verdict = referee.compare(generated(seed))
        assert not verdict.wrong, f"seed {seed}\n{generated(seed)}\n{verdict.wrong}"
        words, known = words + verdict.words, known + verdict.known
    assert known > 0.6 * words, "half of what is generated is known at least, or nothing has been tested"


@needs_bash
@pytest.mark.parametrize("text", exact())
def test_bash_reads_it_so(referee: Referee, text: str) -> None:
    verdict = referee.compare(text)
    assert not verdict.wrong, verdict.wrong


@needs_bash
@pytest.mark.parametrize("name", sorted(realistic()))
def test_scripts_as_people_write_them(referee: Referee, name: str) -> None:
    verdict = referee.compare(realistic()[name])
    assert not verdict.wrong, verdict.wrong
    assert verdict.words > 0


def test_most_words_of_such_scripts_are_known() -> None:
    words = [word for text in realistic().values() for command in training(text) for word in command.words]
    assert sum(UNKNOWN not in word for word in words) > 0.95 * len(words)


@pytest.mark.parametrize("name", sorted(realistic()))
def test_their_memory_flags_are_known(name: str) -> None:
    for command in training(realistic()[name]):
        words = command.words
        for place, word in enumerate(words):
            key = word.lstrip("-").partition("=")[0].replace("-", "_")
            if word.startswith("-") and key in MEMORY_FLAGS and (name, key) not in NOT_KNOWN:
                assert UNKNOWN not in "".join(words[place : place + 2]), words[place : place + 2]


@needs_bash
@pytest.mark.parametrize("text", TEXTS)
def test_it_accepts_what_bash_accepts(text: str) -> None:
    accepted = subprocess.run(["bash", "-n"], input=text.encode(), capture_output=True, check=False).returncode == 0
    if accepted:
        parse(text, "a.sh")
    else:
        with pytest.raises(ConfigError, match=r"^a\.sh:\d+: .") as error:
            parse(text, "a.sh")
        assert "\n" not in str(error.value)


BOUNDS = {
    "blank lines": "\n" * (4 << 20),
    "parentheses": "(" * 100_000,
    "closed parentheses": f"{'(' * 100_000}a{')' * 100_000}",
    "substitutions": "$(" * 50_000,
    "quoted substitutions": '"$(' * 50_000,
    "sums": "$((" * 50_000,
    "a sum": f"echo $(({'(' * 50_000}1{')' * 50_000}))\n",
    "commands": "echo a b c\n" * 300_000,
    "words": "a " * 2_000_000,
    "comments": "# x\n" * 1_000_000,
    "carriage returns": "\r\n" * 2_000_000,
    "continuations": "\\\n" * 1_000_000,
    "backquotes": "`" * 100_001,
    "quotes": "'a\n" * 99_999,
    "dollars": "$" * 500_000,
    "double quotes": f'"{"$a" * 1_000_000}"\n',
    "a long word": f"swift {'x' * 4_000_000}\n",
    "here-documents": "cat <<A\n" * 20_000,
    "substitutions in a here-document": f"cat <<A\n{'$(a)' * 100_000}\nA\n",
    "conditions": "if a; then " * 2000 + "b;" + " fi;" * 2000,
    "a doubled value": "A=x\n" + 'A="$A$A"\n' * 34 + "swift $A\n",
    "a doubled array": "A=(a a a a)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 34,
    "a range": "swift {1..1000000000}\n",
    "braces": f"echo {'{a,b}' * 40}\n",
    "functions that call two": "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(10_000)) + "f0\n",
    "functions in a row": "".join(f"f{n}() {{ f{n - 1}; }}\n" for n in range(10_000)) + "f9999\n",
    "a function that calls itself": "f() { f; f; }\nf\n",
    "loops": "for i in 1 2 3 4 5 6 7 8 9 10; do " * 12 + "x;" + " done;" * 12,
    "variables": "".join(f"v{n}=1\n" for n in range(20_000)) + "if a; then b; fi\n" * 5000,
    "eval of itself": 'A=\'eval "$A"\'\neval "$A"\n',
    "a shell in a shell": 'export A=\'bash -c "$A"\'\nbash -c "$A"\n',
    "pipes": "a|" * 30_000 + "a\n",
    "lists": "a&&" * 30_000 + "a\n",
    "cases": "case $x in " + "a) b;; " * 10_000 + "esac\n",
    "powers": "echo $((9**9**9**9)) $(( " + "9" * 9000 + " ))\n",
    "negations": "[[ " + "! " * 20_000 + "a ]]\n",
    "patterns": f"A={'a' * 4000}\n" + "B=${A%%*a*b*a}\nC=${A//*a*b/c}\n" * 20,
    "indices": "a[" * 20_000 + "\n",
}


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_bounds(name: str) -> None:
    """A reading or one line, soon: the time that the process itself takes."""
    start = time.process_time()
    try:
        commands(BOUNDS[name], "a.sh", {})
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017
    assert time.process_time() - start < 2


PIECES = [
    'swift', ' ', '\n', ';', '&', '|', '&&', '||', '(', ')', '{', '}', '$(', '${', '$((', '))', '`', "'", '"',
    '\\', '#', '<<E\n', 'E\n', '<', '>', '<(', 'if ', 'then ', 'fi', 'for x in ', 'do ', 'done', 'case x in ',
    'esac', ';;', 'a=', 'A=(', '$A', '${A:=', '${A[@]}', '[[ ', ' ]]', '((', 'let ', 'eval ', 'export ',
    'declare -n ', 'local ', 'f()', '{a,b}', '*', '~', '=', '+=', '[', ']', 'set -- ', '$@', 'trap ',
    'return', 'break', 'exit', 'IFS=', '1', 'x', '!', 'é', '\r', '\x00', UNKNOWN, 'while ', 'read ',
    'printf -v ', 'unset ', 'shift', 'source ', 'bash -c ', '-', '--a ',
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text(max_size=200))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        listed = commands(text, "a.sh", {"HOME": "/h", "A": "1"}, substituted=True)
    except ConfigError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        for command in listed:
            assert len(command.spans) == len(command.words)
            assert all(0 <= begin <= end <= len(text) for begin, end in command.spans)


def test_places_in_the_text() -> None:
    text = "A=1\r\nswift sft \\\r\n  --bs $A \\\r\n  --x 'y z'\r\n"
    (command,) = commands(text, "a.sh", {})
    assert [text[slice(*span)] for span in command.spans] == ["swift", "sft", "--bs", "$A", "--x", "'y z'"]
    assert command.line == 2


def test_what_leaves_the_environment() -> None:
    environment = {"NPROC_PER_NODE": "4", "KEPT": "1"}
    first, second = commands("unset NPROC_PER_NODE\nswift a\nenv -u KEPT swift b\n", "a.sh", environment)
    assert first.removed == {"NPROC_PER_NODE"}
    assert second.removed == {"NPROC_PER_NODE", "KEPT"}
    (third,) = commands("NPROC_PER_NODE=8\nswift a\n", "a.sh", environment)
    assert third.environment == {"NPROC_PER_NODE": "8"}


def test_the_working_folder() -> None:
    text = "cd src && swift a; (cd /data; swift b); swift c; cd $X; swift d\n"
    folders = [command.folder for command in training(text)]
    assert folders[:3] == ["src", "/data", "src"]
    assert UNKNOWN in folders[3]


def test_a_sourced_file_may_set_anything() -> None:
    before, after = training("BS=1\nswift $BS\nsource env.sh\nswift $BS ${N:-2}\n")
    assert (before.words, before.sourced) == (["swift", "1"], "")
    assert all(UNKNOWN in word for word in after.words[1:])
    assert after.sourced == "line 3: source env.sh"
    (activated,) = training("BS=1\nsource venv/bin/activate\nswift $BS\n")
    assert activated.words == ["swift", "1"]


def test_a_number_that_is_not_known_leaves_the_rest_known() -> None:
    text = "N=$(nproc); M=$((N * 2 / (X - 1))); declare -i K=$N L=N*2; C=$((N++ > 3 ? N : -N, N)); BS=4\nswift $BS\n"
    assert training(text)[-1].words == ["swift", "4"]


@pytest.mark.parametrize("words", ["--bf16 $EXTRA_ARGS", "--a=1 $X", '--x "${ARGS[@]}"', "a $X", "$X"])
def test_words_that_may_hold_flags_are_refused(words: str) -> None:
    (command,) = commands(f"swift {words}\n", "a.sh", {})
    with pytest.raises(ConfigError, match="is not known without running the script"):
        split(command.words[1:])


def test_a_value_that_is_not_known_is_kept_as_its_flags() -> None:
    (command,) = commands("swift --output_dir $OUT --bs 1\n", "a.sh", {})
    assert split(command.words[1:])[1]["bs"].value == "1"
