"""Two jobs side by side: both are what `estimate` or `check` says, and what differs adds up."""

from __future__ import annotations

from pathlib import Path

import pytest

import vramplan
from tests.helpers import cli, cli_json
from vramplan.errors import ConfigError
from vramplan.render.figures import signed

MODEL = "qwen2.5-0.5b"


def test_two_models_on_a_card() -> None:
    found = cli_json(
        "compare", "qwen2.5-7b", "llama-3.1-8b", "--gpu", "a100-40gb", "--seq-len", "1024", "--micro-batch", "2"
    )
    for side, name in zip(found["sides"], ("qwen2.5-7b", "llama-3.1-8b"), strict=True):
        del side["title"]
        alone = cli_json("estimate", name, "--gpu", "a100-40gb", "--seq-len", "1024", "--micro-batch", "2")
        assert side == {key: value for key, value in alone.items() if key not in ("host", "generation")}
    totals = [side["device_total_bytes"] for side in found["sides"]]
    for rows in (found["categories"], found["terms"]):
        assert sum(row["difference"] for row in rows) == totals[1] - totals[0]
        assert all(row["difference"] == row["bytes"][1] - row["bytes"][0] for row in rows)
    assert found["job"] == {}


def test_one_model_on_two_cards() -> None:
    done = cli("compare", "--gpu", "rtx4090,v100-32gb-sxm2", "qwen2.5-7b")
    assert done.returncode in (0, 1), done.stderr
    assert "dtype" in done.stdout  # a card without bf16 runs another job
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 80


def test_two_configurations(tmp_path: Path) -> None:
    common = "model: Qwen/Qwen2.5-0.5B\nmodel_name_or_path: Qwen/Qwen2.5-0.5B\nstage: sft\ndataset: x\ntemplate: qwen\n"
    for name, rank, batch in (("one.yaml", 8, 1), ("two.yaml", 32, 4)):
        text = common.partition("\n")[2] + f"finetuning_type: lora\nlora_target: all\nlora_rank: {rank}\n"
        (tmp_path / name).write_text(f"{text}per_device_train_batch_size: {batch}\ncutoff_len: 1024\nbf16: true\n")
    paths = [str(tmp_path / name) for name in ("one.yaml", "two.yaml")]
    found = cli_json("compare", *paths, "--gpu", "rtx4090")
    assert found["job"]["lora_rank"] == [8, 32]
    assert found["job"]["micro_batch_size"] == [1, 4]
    assert [side["title"] for side in found["sides"]] == ["one.yaml", "two.yaml"]
    for side, path in zip(found["sides"], paths, strict=True):
        assert (
            side["device_total_bytes"] == cli_json("check", path, "--gpu", "rtx4090")["estimate"]["device_total_bytes"]
        )


def test_what_one_side_alone_has_is_a_difference() -> None:
    found = cli_json("compare", "qwen2.5-0.5b", "qwen2.5-1.5b", "--gpu", "h100", "--method", "full")
    assert found["job"] == {}
    assert signed(found["categories"][0]["difference"]).startswith("+")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["qwen2.5-7b", "--gpu", "h100"], "two models or configurations on one GPU"),
        (["qwen2.5-7b", "gpt2", "--gpu", "h100,a100"], "two models or configurations on one GPU"),
        (["qwen2.5-7b", "gtp2", "--gpu", "h100"], "unknown model 'gtp2'"),
        (["qwen2.5-7b", "--gpu", "h100,h10"], "did you mean h100"),
        (["pyproject.toml", "gpt2", "--gpu", "h100"], "the other a model"),
        (["tests/configs/axolotl/lora.yaml", "--gpu", "h100,l40s", "--lora-rank", "4"], "the configuration sets it"),
        (["a", "b"], "Missing option '--gpu'"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str) -> None:
    done = cli("compare", *arguments, HF_HUB_OFFLINE="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_python_takes_the_two_one_by_one() -> None:
    both = vramplan.compare([MODEL, "pythia-160m"], "rtx3060")
    assert vramplan.compare(MODEL, "pythia-160m", gpu="rtx3060") == both
    assert vramplan.compare(MODEL, "pythia-160m", "rtx3060") == both
    assert vramplan.compare([MODEL, "pythia-160m"], ["rtx3060"]) == both
    cards = vramplan.compare(MODEL, gpu=["rtx3060", "t4"])
    assert (
        vramplan.compare(MODEL, gpu="rtx3060,t4")
        == vramplan.compare(vramplan.load_model(MODEL), gpu="rtx3060, t4")
        == cards
    )
    for wrong in ((MODEL,), (MODEL, "pythia-160m"), ()):
        with pytest.raises(ConfigError, match="two models or configurations on one GPU"):
            vramplan.compare(*wrong, gpu=() if len(wrong) > 1 else "rtx3060")
    with pytest.raises(ConfigError, match="a GPU stands where"):
        vramplan.compare(MODEL, vramplan.load_gpu("t4"), gpu="rtx3060")


def test_narrow_terminals_break_no_words() -> None:
    text = cli("compare", MODEL, "pythia-160m", "--gpu", "rtx3060", COLUMNS="40").stdout
    assert max(map(len, text.splitlines())) <= 40
    for words in ("optimizer states: ", "need of the GPU: ", "All settings of the job are the same"):
        assert words in text
