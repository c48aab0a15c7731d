"""Token budgets: what fits whatever the shapes and their order, and in whose words it is printed."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

import vramplan
from tests.helpers import ROOT, answered_once, card_of, cli, cli_json, spec_of
from vramplan.analytic.job_steps import JobSteps
from vramplan.analytic.mixed_batches import BatchShape
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.token_keys import TOKEN_KEYS
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.mixed_runs import MixedRuns, in_turn
from vramplan.planner.token_budget import job_of, token_budget
from vramplan.planner.token_search import full_shapes

QWEN = "Qwen/Qwen2.5-0.5B"
GPU = "rtx3060"


BUDGET_ONCE = answered_once(token_budget)


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line computes the budgets of each question once."""
    monkeypatch.setattr("vramplan.planner.token_budget.token_budget", BUDGET_ONCE)


@pytest.fixture(scope="module")
def found() -> vramplan.TokenBudgets:
    return token_budget(QWEN, GPU, sequence_length=2048, global_tokens=30_000, attention="flash")


def test_a_full_micro_batch_fits_in_every_shape_and_a_larger_one_does_not(found: vramplan.TokenBudgets) -> None:
    padded, packed = found.budgets
    assert (padded.counting, packed.counting) == ("padded", "packed")
    given = {"attention": "flash", "expandable_segments": True, "gradient_accumulation_steps": 2}
    for length in (2048, 1500, 700, 333, 100, 40):
        shape = {"sequence_length": length, "micro_batch_size": padded.max_tokens // length}
        assert vramplan.estimate(QWEN, GPU, batches="padded", **given, **shape).fits, shape
    assert vramplan.estimate(QWEN, GPU, batches="packed", sequence_length=packed.max_tokens, **given).fits
    larger = round(1.03 * packed.max_tokens)
    assert not vramplan.estimate(QWEN, GPU, batches="packed", sequence_length=larger, **given).fits
    larger = round(1.03 * padded.max_tokens)
    for samples in (3, 6, 12):
        shape = {"sequence_length": larger // samples, "micro_batch_size": samples}
        assert not vramplan.estimate(QWEN, GPU, batches="padded", **given, **shape).fits, shape


@pytest.mark.full
def test_shorter_samples_get_no_smaller_budget() -> None:
    given = {"batches": "padded", "attention": "flash"}
    budgets = [
        token_budget(QWEN, GPU, sequence_length=length, **given).budgets[0].max_tokens for length in (128, 700, 2048)
    ]
    assert min(budgets) > 0.95 * max(budgets)


def test_tokens_of_an_optimizer_step(found: vramplan.TokenBudgets) -> None:
    for budget in found.budgets:
        assert budget.gradient_accumulation_steps is not None
        assert budget.micro_batch_tokens is not None
        assert budget.micro_batch_tokens <= budget.max_tokens
        assert budget.gradient_accumulation_steps * budget.micro_batch_tokens >= 30_000
        assert (budget.gradient_accumulation_steps - 1) * budget.max_tokens < 30_000
    on_two = token_budget(QWEN, GPU, global_tokens=30_000, batches="packed", attention="flash", num_gpus=2).budgets[0]
    assert on_two.gradient_accumulation_steps == -(-15_000 // on_two.max_tokens)


def test_a_longest_sample_that_does_not_fit() -> None:
    found = token_budget(QWEN, GPU, sequence_length=100_000, batches="padded")
    (budget,) = found.budgets
    assert not found.fits
    assert 0 < budget.longest_sample < 100_000
    assert (budget.max_tokens, budget.estimate.fits) == (0, False)
    done = cli("suggest", QWEN, "--gpu", GPU, "--tokens", "--batches", "padded", "--seq-len", "100000")
    assert done.returncode == 1
    assert f"samples of {budget.longest_sample:,} tokens fit, 100,000 do not" in done.stdout


def test_a_table_of_positions_limits_samples_and_not_packed_rows() -> None:
    (packed,) = token_budget("openai-community/gpt2", "t4", batches="packed").budgets
    assert packed.longest_sample == 1024
    assert packed.max_tokens > 4 * 1024


@pytest.mark.full
def test_blocks_of_other_shapes_lower_the_budget_of_the_default_allocator() -> None:
    """PyTorch's own code agrees: docs/guides/token-budget.md."""
    given = {"batches": "packed", "quantize": "nf4", "attention": "flash"}
    equal = token_budget("Qwen/Qwen2.5-7B", "rtx4090", **given).budgets[0].max_tokens
    mixed = token_budget("Qwen/Qwen2.5-7B", "rtx4090", expandable_segments=False, **given).budgets[0].max_tokens
    assert 0.6 * equal < mixed < 0.9 * equal


@pytest.mark.parametrize(
    "settings",
    [
        {"batches": "padded"},
        {"batches": "padded", "method": "full", "attention": "flash"},
        {"batches": "padded", "strategy": "zero2", "num_gpus": 2, "autocast": "none"},
        {"batches": "packed", "strategy": "fsdp", "num_gpus": 2, "attention": "flash"},
        {"batches": "padded", "quantize": "nf4", "loop": "plain", "checkpointing": "none"},
    ],
    ids=str,
)
def test_mixed_shapes_leave_nothing_behind(settings: dict[str, Any]) -> None:
    """Behind a step of a mixed run the same is alive as behind one of equal micro-batches."""
    job = complete_job(spec_of(QWEN), card_of(), {"gradient_accumulation_steps": 2, **settings})
    shapes = full_shapes(job, 4096, 2048)[::3]
    steps = JobSteps(spec_of(QWEN), job, card_of())
    alone = {shape: steps.mixed([[shape, shape]] * 3) for shape in shapes}
    order = Random(0).choices(shapes, k=16)
    mixed = steps.mixed([list(pair) for pair in pairwise(order)])
    for number, timeline in mixed.items():
        left = {shape: timelines[number].live_bytes()[-1] for shape, timelines in alone.items()}
        assert timeline.live_bytes()[-1] == pytest.approx(left[order[-1]], abs=2 << 20)
        peaks = [timelines[number].peak_bytes() for timelines in alone.values()]
        assert timeline.peak_bytes() <= max(peaks) + (2 << 20)


def test_random_runs_of_full_micro_batches_survive(found: vramplan.TokenBudgets) -> None:
    gpu = card_of(GPU)
    for budget in found.budgets:
        runs = MixedRuns(spec_of(QWEN), budget.estimate.job, gpu)
        shapes = full_shapes(runs.job, budget.max_tokens, 2048)
        assert all(runs.survives(in_turn(shapes, seed, 24)) for seed in range(100, 104))
        much = [BatchShape(shape.samples, round(1.2 * shape.length)) for shape in shapes]
        assert not runs.survives(in_turn(much, 0, 24))


@pytest.mark.usefixtures("once")
def test_the_command_line(found: vramplan.TokenBudgets) -> None:
    packed = found.budgets[1]
    asked = (
        "suggest",
        QWEN,
        "--gpu",
        GPU,
        "--tokens",
        "--seq-len",
        "2048",
        "--attention",
        "flash",
        "--batches",
        "packed",
    )
    shown = cli(*asked, "--global-tokens", "30000").stdout
    assert f"{packed.max_tokens:,} packed tokens, {packed.gradient_accumulation_steps} micro-batches of" in shown
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True" in shown
    (printed,) = cli_json(*asked, "--global-tokens", "30000")["budgets"]
    assert (printed["max_tokens"], printed["estimate"]["fits"]) == (packed.max_tokens, True)


@pytest.mark.usefixtures("once")
@pytest.mark.one_of(3)
@pytest.mark.parametrize("project", TOKEN_KEYS)
def test_the_keys_of_each_project(project: str) -> None:
    keys = TOKEN_KEYS[project]
    for counting in keys.ways:
        assert "12345" in keys.text(counting, 12345, None)
        assert "{" not in keys.text(counting, 12345, 7)
    done = cli("suggest", QWEN, "--gpu", GPU, "--tokens", "--global-tokens", "9999", "--for", project)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr.startswith("vramplan: the budget is for a training step of transformers' Trainer")


@pytest.mark.full
def test_a_configuration_with_packed_rows(found: vramplan.TokenBudgets) -> None:
    asked = ("suggest", QWEN, "--gpu", GPU, "--tokens", "--global-tokens", "30000", "--attention", "flash")
    done = cli(*asked, "--seq-len", "2048", "--for", "axolotl")
    padded, budget = found.budgets
    assert f"sequence_len: {budget.max_tokens}\n" in done.stdout
    assert f"gradient_accumulation_steps: {budget.gradient_accumulation_steps}\n" in done.stdout
    assert "sample_packing: true" in done.stdout
    other = cli(*asked, "--seq-len", "2048", "--for", "trl")  # by another loss, for which there is another budget
    assert re.search(r"as trl takes it, [\d,]+ tokens fit, not", other.stderr)
    (length,) = re.findall(r"max_length: (\d+)", other.stdout)
    assert int(length) > 2 * budget.max_tokens
    refused = cli(*asked, "--for", "llamafactory")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "not as packed rows" in refused.stderr
    with pytest.raises(ConfigError, match="frameworks count samples"):
        job_of(padded)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--global-batch", "8"), "--global-batch has no meaning with --tokens"),
        (("--lengths", "3-9"), "--lengths has no meaning with a token budget"),
        (("--global-tokens", "0"), "expected a whole number of tokens"),
        (("--seq-len", "-4"), "expected a whole number of tokens"),
        (("--batches", "unpadded"), "token budgets are for padded and for packed batches"),
        (("--for", "xyz"), "nothing is written for it with --tokens"),
        (("--for", "cosmos-rl", "--batches", "packed"), "counts tokens of padded batches"),
        (("--num-gpus", "auto"), "expected a whole number with --tokens"),
    ],
)
def test_bad_input(words: tuple[str, ...], message: str) -> None:
    done = cli("suggest", QWEN, "--gpu", GPU, "--tokens", *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert message in done.stderr


def test_where_tokens_are_not_asked_for() -> None:
    done = cli("suggest", QWEN, "--gpu", GPU, "--global-batch", "8", "--global-tokens", "5")
    assert (done.returncode, done.stderr) == (2, "vramplan: --global-tokens is about token budgets: add --tokens\n")
    assert "give --global-batch" in cli("suggest", QWEN, "--gpu", GPU).stderr


def test_models_of_other_inputs() -> None:
    with pytest.raises(UnsupportedError, match="causal language models"):
        token_budget("google-t5/t5-small", GPU)
    with pytest.raises(UnsupportedError, match="do not count images"):
        token_budget("Qwen/Qwen2-VL-2B-Instruct", GPU)
    with pytest.raises(ConfigError, match="micro_batch_size has no meaning"):
        token_budget(QWEN, GPU, micro_batch_size=2)


@pytest.mark.parametrize(
    ("name", "text", "project", "setting"),
    [
        ("run.yaml", "policy:\n  sequence_packing:\n    train_mb_tokens: 8192\n", "NeMo RL", "train_mb_tokens"),
        (
            "run.sh",
            "python -m skyrl.train.main_sft max_tokens_per_microbatch=8192\n",
            "SkyRL",
            "max_tokens_per_microbatch",
        ),
    ],
)
def test_a_budget_in_a_file_that_is_not_read(tmp_path: Path, name: str, text: str, project: str, setting: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    done = cli("check", str(tmp_path / name), "--gpu", "h100")
    assert done.returncode == 2
    assert f"{project} is not read yet; " in done.stderr
    assert setting in done.stderr
    assert "8,192 is its token budget" in done.stderr


def test_the_guide_says_what_the_benchmark_measured() -> None:
    rows = json.loads((ROOT / "benchmarks/token_budgets.json").read_text())
    text = " ".join((ROOT / "docs/guides/token-budget.md").read_text().split())
    assert sum(row["out_of_memory"] for row in rows) == 0
    assert f"{sum(row['runs'] for row in rows):,} runs with samples drawn" in text
    for expandable, words in ((True, "3 % more tokens, {} of {} did"), (False, "10 % more, {} of {} did")):
        some = [row for row in rows if row["expandable_segments"] == expandable]
        counts = (sum(row[key] for row in some) for key in ("larger_out_of_memory", "larger_runs"))
        assert words.format(*counts) in text
