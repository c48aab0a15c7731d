"""`check --dataset`: how long samples are, and what that makes of a job."""

from __future__ import annotations

import json
import random
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import cli
from vramplan.errors import ConfigError, MissingDependencyError, VramplanError
from vramplan.inputs import dataset, hub
from vramplan.inputs.dataset import readers as rows_module
from vramplan.inputs.dataset.length_statistics import LengthDistribution
from vramplan.inputs.dataset.readers import rows
from vramplan.inputs.dataset.schemas import sample
from vramplan.inputs.dataset.token_counts import by_characters
from vramplan.planner import check
from vramplan.progress import silent

QWEN = "model_name_or_path: Qwen/Qwen2.5-7B-Instruct\nstage: sft\nfinetuning_type: lora\nbf16: true\n"
MESSAGES = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "three"}]
CHAT = {"messages": MESSAGES}
SHARED = {"conversations": [{"from": "human", "value": "<image>one"}, {"from": "gpt", "value": "two"}], "system": "be"}
PARTS = [{"type": "image", "image": "a.png"}, {"type": "image_url", "image_url": "b"}, {"type": "text", "text": "what"}]


def chat(words: int) -> dict[str, Any]:
    """About so many tokens: three characters each, and ten around two messages."""
    return {"messages": [{"role": "user", "content": "abc" * (words - 11)}, {"role": "assistant", "content": "a"}]}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def config(folder: Path, text: str) -> Path:
    path = folder / "train.yaml"
    path.write_text(QWEN + text)
    return path


@pytest.mark.parametrize(
    ("row", "text", "messages", "images"),
    [
        (CHAT, "one\nthree", 2, 0),
        (SHARED, "<image>one\ntwo\nbe", 3, 1),
        ({"messages": [{"role": "user", "content": PARTS}], "images": ["a.png", "b.png"]}, "what", 1, 2),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"f": 1}]}]}, '[{"f": 1}]', 1, 0),
        ({"instruction": "do", "input": "", "output": "done", "history": [["a", "b"]]}, '["a", "b"]\ndo\ndone', 3, 0),
        ({"query": "q", "response": "r", "system": "s", "image": "a.png"}, "q\nr\ns", 3, 1),
        ({"prompt": "p", "completion": "c"}, "p\nc", 2, 0),
        ({"prompt": MESSAGES[:1], "completion": MESSAGES[1:]}, "one\nthree", 2, 0),
        ({"text": "all of it", "id": 4}, "all of it", 0, 0),
        ({"segments": [{"text": "a", "label": True}, {"text": "b", "label": False}]}, "a\nb", 2, 0),
        ("a line", "a line", 0, 0),
    ],
)
def test_shapes(row: Any, text: str, messages: int, images: int) -> None:
    assert sample(row, "x:1") == (text, messages, images)


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("a.jsonl", b"", "a.jsonl: is empty"),
        ("a.jsonl", b"\n \n", "a.jsonl: is empty"),
        ("a.jsonl", b"PK\0\1", "a.jsonl: is binary"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', "a.jsonl:3: is not JSON"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xe9"}\n', "a.jsonl:2: is not UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n5\n', "a.jsonl:2: expected an object with a sample's fields, found a int"),
        ("a.jsonl", b'{"id": 1, "label": 2}\n', "a.jsonl:1: no known text"),
        ("a.jsonl", b'{"id": 1, "label": 2}\n', "it has id, label"),
        ("a.jsonl", b'{"instruction": "a"}\n', "a.jsonl:1: has instruction, but none of output"),
        ("a.jsonl", b'{"messages": []}\n', "a.jsonl:1: messages is empty"),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}\n', "a.jsonl:1: messages[0] has none of content"),
        ("a.jsonl", b'{"text": "a", "videos": ["b.mp4"]}\n', "a.jsonl:1: videos are not modelled"),
        ("a.jsonl", b"[" * 100_000, "nested too deeply"),
        ("a.json", b'[{"text": "a"},\n {"text": }]', "a.json:2: broken JSON in this row"),
        ("a.json", b'[{"text": "a"},\n', "a.json:2: broken JSON"),
        ("a.csv", b"id,label\n1,2\n", "a.csv:2: no known text"),
        ("a.parquet", b"PAR1", "read as .jsonl, .json, .csv, .tsv, .txt, not as .parquet"),
        ("gone.jsonl", None, "gone.jsonl: cannot be read"),
    ],
)
def test_files_that_are_broken(tmp_path: Path, name: str, raw: bytes | None, message: str) -> None:
    if raw is not None:
        (tmp_path / name).write_bytes(raw)
    with pytest.raises(VramplanError) as error:
        dataset.measure(tmp_path / name, by_characters(None), silent)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("chunk", [3, 16, 1 << 20])
def test_every_kind_of_file(tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows however they are written, and wherever a read ends."""
    monkeypatch.setattr(rows_module, "CHUNK", chunk)
    wanted = [{"prompt": 'a, "b"', "completion": "é ] }"}, {"prompt": "好", "completion": "d"}]
    texts = {
        "a.jsonl": "\ufeff" + "\n\n".join(json.dumps(row, ensure_ascii=False) for row in wanted),
        "a.json": json.dumps(wanted, ensure_ascii=False, indent=1),
        "b.json": "\n".join(json.dumps(row) for row in wanted),
        "a.csv": 'prompt,completion\n"a, ""b""",é ] }\n好,d\n',
        "a.tsv": 'prompt\tcompletion\n"a, ""b"""\té ] }\n好\td\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert [row for _, row in rows(tmp_path / name, silent)] == wanted, name
    assert [line for line, _ in rows(tmp_path / "a.jsonl", silent)] == [1, 3]
    assert [line for line, _ in rows(tmp_path / "a.json", silent)] == [2, 6]
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert [row.strip() for _, row in rows(tmp_path / "a.txt", silent)] == ["one", "two"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_large_file_is_never_whole_in_memory(name: str, tmp_path: Path) -> None:
    row = json.dumps({"text": "x" * 2000})
    with (tmp_path / name).open("w") as stream:
        stream.write("[" if name == "a.json" else "")
        stream.write((",\n" if name == "a.json" else "\n").join([row] * 20_000))
        stream.write("]" if name == "a.json" else "")
    tracemalloc.start()
    found = dataset.measure(tmp_path / name, by_characters(None), silent)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.samples == 20_000
    assert peak < 12 << 20, "of 40 MB"


def test_characters() -> None:
    """Three of Latin a token, one and a half of Chinese, less where the vocabulary is Llama's; always rounded up."""
    texts = ["", "abcd", "你好吗", "привет", "ab你"]
    assert by_characters(152_064).tokens_of(texts) == [0, 2, 2, 6, 2]
    assert by_characters(32_000).tokens_of(texts) == [0, 2, 4, 6, 2]


def test_statistics_against_every_batch() -> None:
    """Quantiles by sorting, and expectations over all ordered batches of two and three."""
    draw = random.Random(4)
    lengths = [draw.choice([3, 5, 8, 13, 40]) for _ in range(24)]
    distribution = LengthDistribution.from_counts((length, 0, 1) for length in lengths)
    assert [distribution.quantile(share) for share in (0.01, 0.5, 0.95, 1.0)] == [
        sorted(lengths)[index] for index in (0, 11, 22, 23)
    ]
    pairs = [max(a, b) for a in lengths for b in lengths]
    assert distribution.expected_longest(2) == pytest.approx(sum(pairs) / len(pairs))
    assert distribution.share_reaching(13, 2) == pytest.approx(sum(one >= 13 for one in pairs) / len(pairs))
    triples = [max(one, c) for one in pairs for c in lengths]
    assert distribution.expected_longest(3) == pytest.approx(sum(triples) / len(triples))
    assert distribution.tokens == sum(lengths)
    assert distribution.count_longer(8) == sum(one > 8 for one in lengths)
    assert distribution.limit_to(8, drops_longer=True).samples == sum(one <= 8 for one in lengths)
    cut = distribution.limit_to(9, drops_longer=False)
    assert (cut.samples, cut.longest, cut.tokens) == (24, 9, sum(min(one, 9) for one in lengths))


def test_the_longest_sample_decides(tmp_path: Path) -> None:
    path = config(tmp_path, "cutoff_len: 16384\nper_device_train_batch_size: 4\n")
    rows = [chat(100)] * 95 + [chat(600)] * 5
    short = check.check(path, "rtx4090", num_gpus=1, dataset=write(tmp_path / "a.jsonl", *rows))
    assert not check.check(path, "rtx4090").fits
    assert short.fits
    assert short.estimate.job.sequence_length == short.data.worst_length == 600
    assert not [note for note in short.reading.notes if "decides" in note.text]
    assert short.data.padded_to == pytest.approx(100 * 0.95**4 + 600 * (1 - 0.95**4))
    assert short.data.near_share == pytest.approx(1 - 0.95**4)
    assert short.data.steps_per_epoch == 25
    assert short.data.fitting_length is None
    long = check.check(path, "rtx4090", num_gpus=1, dataset=write(tmp_path / "b.jsonl", *rows, chat(20_000)))
    assert not long.fits
    assert long.data.worst_length == 16_384
    assert check.check(path, "rtx4090", num_gpus=1, sequence_length=long.data.fitting_length).fits
    assert not check.check(
        path, "rtx4090", num_gpus=1, sequence_length=long.data.fitting_length + 2 * 16_384 // 64
    ).fits
    longer = check.check(path, "rtx4090", num_gpus=1, sequence_length=99_999, look_further=False)
    assert longer.estimate.job.sequence_length == 16_384


@pytest.mark.parametrize(
    ("more", "samples"),
    [
        ("max_samples: 40\n", 40),
        ("val_size: 0.1\n", 90),
        ("val_size: 25\n", 75),
        ("max_samples: 30\nval_size: 0.5\n", 15),
    ],
)
def test_samples_that_are_left_out(tmp_path: Path, more: str, samples: int) -> None:
    path = config(tmp_path, f"per_device_train_batch_size: 4\n{more}")
    found = check.check(path, "rtx4090", dataset=write(tmp_path / "a.jsonl", *[chat(100)] * 100)).data
    assert (found.trained_samples, found.steps_per_epoch) == (samples, -(-samples // 4))


@pytest.mark.parametrize(
    ("more", "samples"),
    [
        ("--split_dataset_ratio 0.015", 99),
        ("--dataset a.jsonl#60", 60),
        ("--dataset a.jsonl#400 --split_dataset_ratio 0.1", 360),
    ],
)
def test_samples_that_ms_swift_leaves_out(tmp_path: Path, more: str, samples: int) -> None:
    words = ["swift", "sft", "--model", "Qwen2.5-7B-Instruct", "--tuner_type", "lora", "--max_length", "2048"]
    data = write(tmp_path / "a.jsonl", *[chat(100)] * 100)
    assert check.check([*words, *more.split()], "rtx4090", dataset=data).data.trained_samples == samples


def test_what_becomes_of_longer_samples(tmp_path: Path) -> None:
    """ms-swift and axolotl leave them out, LLaMA-Factory and TRL cut; packed rows are as long as the limit."""
    data = write(tmp_path / "a.jsonl", chat(100), chat(100), chat(300), chat(5000))
    swift = ["swift", "sft", "--model", "Qwen2.5-7B-Instruct", "--tuner_type", "lora", "--max_length", "2048"]
    found = check.check(swift, "a100-80gb-sxm", dataset=data).data
    assert (found.worst_length, found.trained.samples) == (300, 3)
    cut = check.check([*swift, "--truncation_strategy", "right"], "a100-80gb-sxm", dataset=data).data
    assert (cut.worst_length, cut.trained.samples) == (2048, 4)
    packed = check.check(config(tmp_path, "cutoff_len: 1024\npacking: true\n"), "a100-80gb-sxm", dataset=data).data
    assert (packed.worst_length, packed.near_length, packed.padding_share) == (1024, None, 0.0)
    assert packed.steps_per_epoch == 1
    with pytest.raises(ConfigError, match="every sample has more than 2,048 tokens"):
        check.check(swift, "rtx4090", dataset=write(tmp_path / "b.jsonl", chat(5000)))


def test_images_in_rows(tmp_path: Path) -> None:
    """Those of the row with most count, their tokens beside the text's."""
    words = ["swift", "sft", "--model", "Qwen2.5-VL-7B-Instruct", "--tuner_type", "lora", "--max_length", "4096"]
    rows = [{**CHAT, "images": ["a.png"] * count} for count in (0, 1, 3)]
    found = check.check(words, "a100-80gb-sxm", dataset=write(tmp_path / "a.jsonl", *rows), image_size="448x448")
    assert found.estimate.job.images == 3
    assert found.data.worst_length == 3 * 258 + 1 + 2 + 10
    none = check.check(words, "a100-80gb-sxm", dataset=write(tmp_path / "b.jsonl", CHAT))
    assert none.estimate.job.images == 0


def test_a_tokenizer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_truncation(2)
    made.save(str(tmp_path / "tokenizer.json"))
    data = write(tmp_path / "a.jsonl", {"text": "a b a a long text of ten words more"}, {"text": "a"})
    found = check.check(config(tmp_path, ""), "rtx4090", dataset=data, tokenizer=str(tmp_path)).data
    assert (found.distribution.lengths, found.lengths.exact) == ((1, 10), True)
    with pytest.raises(ConfigError, match="is not a tokenizer"):
        check.check(config(tmp_path, ""), "rtx4090", dataset=data, tokenizer=str(data))
    with pytest.raises(ConfigError, match=r"no tokenizer\.json there"):
        check.check(config(tmp_path, ""), "rtx4090", dataset=data, tokenizer="nobody/nothing")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingDependencyError, match=r"vramplan\[data\]"):
        check.check(config(tmp_path, ""), "rtx4090", dataset=data, tokenizer=str(tmp_path))
    assert hub.tokenizer_file(str(tmp_path)) == tmp_path / "tokenizer.json"
    guess = dataset.counter_for(tmp_path / "tokenizer.json", None)
    assert "vramplan[data]" in guess.source


def test_the_command_line(tmp_path: Path) -> None:
    data = write(tmp_path / "a.jsonl", *[chat(100)] * 9, chat(9000))
    path = str(config(tmp_path, "cutoff_len: 8192\nper_device_train_batch_size: 2\n"))
    done = cli("check", path, "--gpu", "rtx4090", "--dataset", str(data))
    assert done.returncode == 1, done.stderr
    for message in ("a.jsonl: 10 samples", "10.0% are longer than the limit (1): cut", "would fit (cutoff_len: "):
        assert message in " ".join(done.stdout.split())
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    found = json.loads(cli("check", path, "--gpu", "h200-sxm", "--dataset", str(data), "--json").stdout)["dataset"]
    assert (found["samples"], found["tokens"]["longest"], found["worst_length"]) == (10, 9000, 8192)
    wrong = cli("check", path, "--gpu", "rtx4090", "--dataset", str(tmp_path / "gone.jsonl"))
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
