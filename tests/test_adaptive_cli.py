"""`vramplan adapt`: the ladder that it prints, and recorded runs that policies are shown."""

from __future__ import annotations

import json
import random
import re
from math import cos, pi
from pathlib import Path

import pytest

import vramplan
from tests.helpers import answered_once, cli, cli_json
from tests.test_adaptive_policies import norms
from vramplan.adaptive.controller import Controller, Observation
from vramplan.adaptive.ladder import ladder, plan_ladder
from vramplan.adaptive.policies.constant import Constant
from vramplan.adaptive.record import read_record, record_line
from vramplan.adaptive.simulate import simulate
from vramplan.errors import ConfigError
from vramplan.render.json_schema import adapter_of

C_LOCALE = {"LC_ALL": "C", "PYTHONIOENCODING": "", "PYTHONUTF8": ""}
WIDTHS = (40, 60, 80, 120)
JOB = {"sequence_length": 1024}
PLAN = ["adapt", "plan", "qwen2.5-7b", "--gpu", "rtx4090", "--global-batch", "8", "--seq-len", "1024"]


def observations(count=1200, batch=16):
    noise = random.Random(1)
    told = []
    for step in range(1, count + 1):
        samples = step * batch
        known = norms(noise, 1.0, 10 + samples / 200, batch // 2, 2)
        rate = 1e-3 * (1 + cos(pi * step / count)) / 2
        loss = 4 - step / 600 + noise.gauss(0, 0.05)
        told.append(
            Observation(step=step, samples=samples, tokens=100 * samples, loss=loss, learning_rate=rate, **known)
        )
    return told


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapt") / "run.jsonl"
    path.write_text("".join(f"{record_line(observation)}\n" for observation in observations()))
    return path


# -- the ladder --------------------------------------------------------------------------------------------------------


def test_every_rung_is_a_plan_of_the_planner():
    rungs = ladder("qwen2.5-7b", "rtx4090", 8, 64, **JOB)
    assert [rung.global_batch_size for rung in rungs] == [8, 16, 32, 64]
    for rung in rungs:
        batch = rung.global_batch_size
        search = vramplan.suggest("qwen2.5-7b", "rtx4090", batch, advice=False, expandable_segments=True, **JOB)
        by_micro = {plan.micro_batch_size: plan for plan in search.plans}
        ways = (rung, *rung.alternatives)
        assert [way.micro_batch_size for way in ways] == sorted(by_micro, reverse=True)
        for way in ways:
            estimate = by_micro[way.micro_batch_size].estimate
            assert estimate.fits
            assert (way.need_bytes, way.step_seconds) == (estimate.device_total_bytes, estimate.step_time.seconds)
            assert way.gradient_accumulation_steps == estimate.gradient_accumulation_steps


def test_a_micro_batch_that_does_not_fit_behind_a_smaller_one_gives_way():
    """Alone it fits, and with expandable segments it fits behind every other."""
    job = {"method": "full", "sequence_length": 512}
    joined = plan_ladder("gpt2", "t4", 8, 128, **job)
    apart = plan_ladder("gpt2", "t4", 8, 128, expandable_segments=False, **job)
    assert [rung.global_batch_size for rung in joined.rungs] == [rung.global_batch_size for rung in apart.rungs]
    assert [max(rung.micro_batch_size for rung in found.rungs) for found in (joined, apart)] == [32, 16]
    alone = vramplan.estimate("gpt2", "t4", micro_batch_size=32, gradient_accumulation_steps=2, **job)
    assert alone.fits
    assert joined.switches_checked
    assert apart.switches_checked
    varied = plan_ladder("gpt2", "t4", 8, 16, lengths="100-512", **job)
    assert not varied.switches_checked
    assert "switches between them are not simulated" in " ".join(
        cli("adapt", "plan", "gpt2", "--gpu", "t4", "--lengths", "100-512", "--global-batch", "8",
            "--largest-global-batch", "16").stdout.split()
    )  # fmt: skip


def test_rungs_of_several_gpus():
    rungs = ladder("qwen2.5-0.5b", "rtx4090", 8, 40, num_gpus=4, **JOB)
    assert [(rung.num_gpus, rung.global_batch_size) for rung in rungs] == [(4, 8), (4, 16), (4, 32)]
    with pytest.raises(ConfigError, match="global_batch=6 is not a multiple of 4 GPUs"):
        ladder("qwen2.5-0.5b", "rtx4090", 6, 12, num_gpus=4, **JOB)


def test_a_model_that_does_not_fit_has_no_ladder():
    found = plan_ladder("qwen2.5-7b", "rtx3060", 8, 64, method="full")
    assert (found.rungs, found.too_large) == ((), 8)
    done = cli(*["adapt", "plan", "qwen2.5-7b", "--gpu", "rtx3060", "--method", "full", "--global-batch", "8"])
    assert done.returncode == 1
    assert "DOES NOT FIT" in done.stdout
    assert (
        cli_json(*["adapt", "plan", "qwen2.5-7b", "--gpu", "rtx3060", "--method", "full", "--global-batch", "8"])[
            "too_large"
        ]
        == 8
    )


def test_the_largest_batch_is_16_times_the_first_if_none_is_given():
    answer = cli_json(*PLAN)
    adapter_of("adapt plan").validate_json(json.dumps(answer), strict=True)
    assert [rung["global_batch_size"] for rung in answer["rungs"]] == [8, 16, 32, 64, 128]
    assert [rung["tokens"] for rung in answer["rungs"]] == [1024 * 8 * 2**number for number in range(5)]
    assert [round(rung["learning_rate_factor"] ** 2, 9) for rung in answer["rungs"]] == [1, 2, 4, 8, 16]
    assert answer["too_large"] is None
    sgd = cli_json(*PLAN, "--optimizer", "sgd")
    assert (sgd["learning_rate_rule"], sgd["rungs"][-1]["learning_rate_factor"]) == ("linear", 16)


# -- recorded runs -----------------------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written(record):
    assert read_record(record) == observations()


def test_what_is_not_known_is_left_out_and_numbers_that_are_not_finite_are_kept(tmp_path):
    told = [
        Observation(step=1, samples=4, tokens=40, loss=float("inf")),
        Observation(step=2, samples=8, tokens=80, biased=True),
    ]
    lines = [record_line(observation) for observation in told]
    assert lines[1] == '{"step": 2, "samples": 8, "tokens": 80, "biased": true}'
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join([*lines, '{"kind": "grow", "step": 2}', ""]))
    assert read_record(path) == told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": no observation in it"),
        ('{"kind": "grow"}', ": no observation in it"),
        ("[]", ":1: expected a JSON object with step, samples, tokens and more"),
        ('{"step": 1\n', ":1:1: broken JSON"),
        ('{"step": 0, "samples": 1, "tokens": 1}', ":1: step: expected a whole number from 1 on"),
        ('{"step": 1, "samples": 1.5, "tokens": 1}', ":1: samples: expected a whole number from 0 on"),
        ('{"step": 1, "samples": 1}', ":1: tokens: expected a whole number from 0 on"),
        ('{"step": 1, "samples": 1, "tokens": 1, "loss": "x"}', ":1: loss: expected a number"),
        ('{"step": 1, "samples": 1, "tokens": 1, "los": 1}', ":1: los: no such key; did you mean loss?"),
        (
            '{"step": 1, "samples": 1, "tokens": 1, "small_batch": 0}',
            ":1: small_batch: expected a positive number",
        ),
        ('{"step": 1, "samples": 1, "tokens": 1, "biased": 1}', ":1: biased: expected true or false"),
        (
            '{"step": 2, "samples": 2, "tokens": 2}\n\n{"step": 3, "samples": 1, "tokens": 3}',
            ":3: fewer samples or tokens than at step 2",
        ),
    ],
)
def test_a_file_that_is_no_record(tmp_path, text, message):
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    done = cli("adapt", "simulate", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"vramplan: {path}{message}")


def test_a_record_goes_on_where_its_run_did(tmp_path):
    """Behind a checkpoint steps come again; a killed run leaves half a line."""
    lines = [
        record_line(Observation(step=step, samples=4 * step, tokens=4 * step, loss=float(step))) for step in range(1, 7)
    ]
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join([*lines[:5], *lines[3:], lines[5][:20]]))
    assert [one.step for one in read_record(path)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--policy noise", "unknown policy 'noise'"),
        ("--policy ,", "--policy: name at least one"),
        ("--policy schedule", "--policy schedule: give its points, --schedule"),
        ("--schedule 0:8", "--schedule is about the policy schedule"),
        ("--policy schedule --schedule 0:8,x:16", "--schedule 0:8,x:16: expected POSITION:BATCH"),
        ("--policy schedule --schedule 5:8,5:16", "ascend from 0 on"),
        ("--coupling cubic", "unknown coupling 'cubic'"),
        ("--unit steps", "--unit steps: expected samples or tokens"),
        ("--dwell -1", "--dwell -1: expected 0 or more"),
        ("--half-life 0", "--half-life 0: expected 1 or more"),
        ("--share -1", "--share -1.0: expected a positive number"),
        ("--policy norm-test --eta 0", "--eta 0.0: expected a positive number"),
        ("--largest-global-batch 8", "--largest-global-batch 8 is less than --global-batch 16"),
        ("--plot run.pdf", "--plot run.pdf: the name must end in .svg, .png"),
        ("missing.jsonl", "unexpected extra argument"),
    ],
)
def test_invalid_options_are_one_line(record, options, message):
    done = cli("adapt", "simulate", str(record), *options.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_group_names_its_commands():
    for words in (["adapt"], ["adapt", "--help"]):
        page = cli(*words).stdout
        assert re.findall(r"^  ([a-z]+)  +[A-Z]", page, re.MULTILINE) == ["plan", "simulate"]
    done = cli("adapt", "plans")
    assert done.returncode == 2
    assert "No such command 'plans'" in done.stderr


# -- the simulation ----------------------------------------------------------------------------------------------------


def test_the_output_is_as_its_schema_says_and_adds_up(record):
    done = cli("adapt", "simulate", str(record), "--policy", "noise-scale,norm-test,seesaw,plateau,constant", "--json")
    found = adapter_of("adapt simulate").validate_json(done.stdout, strict=True)
    assert [one["policy"] for one in found] == ["noise-scale", "norm-test", "seesaw", "plateau", "constant"]
    for one in found:
        samples = [0, *(point["samples"] for point in one["points"])]
        batches = [16, *(point["global_batch_size"] for point in one["points"])]
        steps = sum(
            (after - before) / batch for before, after, batch in zip(samples, samples[1:], batches, strict=False)
        )
        assert one["steps"] == pytest.approx(steps)
        assert one["first_batch_steps"] == 1200
        ends = [decision["after"]["global_batch_size"] for decision in one["decisions"]]
        assert one["points"][-1]["global_batch_size"] == (ends or [16])[-1]
    assert found[-1]["steps"] == 1200


def test_the_default_of_a_token_budget_is_that_of_its_samples(record):
    by_samples = cli_json("adapt", "simulate", str(record), "--policy", "noise-scale")
    by_tokens = cli_json("adapt", "simulate", str(record), "--policy", "noise-scale", "--unit", "tokens")
    assert by_tokens == by_samples  # 100 tokens in each sample


def test_the_noise_scale_that_is_shown_is_the_known_one(record):
    (found,) = cli_json("adapt", "simulate", str(record), "--policy", "constant")
    for point in found["points"][600:]:
        half_life_ago = point["samples"] - 16 * 100 / 0.693  # a mean age of the averages
        assert point["noise_scale"] == pytest.approx(10 + half_life_ago / 200, rel=0.1)


def test_a_run_without_norms(tmp_path):
    path = tmp_path / "run.jsonl"
    lines = [record_line(Observation(step=step, samples=8 * step, tokens=8 * step, loss=2.0)) for step in range(1, 50)]
    path.write_text("\n".join(lines))
    done = cli("adapt", "simulate", str(path))
    assert done.returncode == 0
    assert "Noise scale: not known, the record has no norms of two batch sizes" in done.stdout
    assert done.stdout.count("49 of 49 observations: gradient norms were not measured") == 2
    assert "49 of 49 observations: learning rate was not given" in done.stdout


def test_a_simulation_begins_where_the_run_did():
    told = observations(10)
    found = simulate(told, Controller(ladder("qwen2.5-0.5b", "rtx4090", 16, 16, **JOB), Constant()), 100)
    assert (found.steps, found.first_batch_steps, found.decisions) == (10, 10, ())


PLAN_ONCE = answered_once(plan_ladder)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_both_answers_at_every_width(record, width, ascii_only, monkeypatch):
    monkeypatch.setattr("vramplan.adaptive.ladder.plan_ladder", PLAN_ONCE)
    environment = {"COLUMNS": str(width)} | (C_LOCALE if ascii_only else {})
    plan = cli(*PLAN, **environment).stdout
    simulated = cli("adapt", "simulate", str(record), **environment).stdout
    for text in (plan, simulated):
        assert max(len(line.rstrip()) for line in text.splitlines()) <= width
        assert not ascii_only or text.isascii()
        assert "\\u" not in text
    words = " ".join(plan.split())
    for batch in (8, 16, 32, 64, 128):
        assert re.search(rf"\b{batch}\b", words)
        assert f"{batch * 1024:,}" in words
    words = " ".join(simulated.split())
    assert "19,200 samples in 1,200 observations" in words
    for decision in cli_json("adapt", "simulate", str(record), "--policy", "noise-scale")[0]["decisions"]:
        assert f"at {decision['samples']:,} samples" in words
        assert decision["reason"] in words


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_the_picture(record, kind, tmp_path):
    pytest.importorskip("matplotlib")
    paths = [tmp_path / f"{number}.{kind}" for number in range(2)]
    for path in paths:
        assert cli("adapt", "simulate", str(record), "--plot", str(path)).returncode == 0
    content = paths[0].read_bytes()
    assert content == paths[1].read_bytes(), "the same each time"
    assert content.startswith(b"\x89PNG" if kind == "png" else b"<?xml")
    if kind == "svg":
        for text in (b"global batch", b"learning rate", b"noise scale, samples", b"seesaw"):
            assert text in content


def test_a_picture_of_a_run_without_norms_or_rates(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(record_line(Observation(step=step, samples=8 * step, tokens=8)) for step in range(1, 9)))
    picture = Path(tmp_path / "run.svg")
    assert cli("adapt", "simulate", str(path), "--plot", str(picture)).returncode == 0
    assert b"not known: no norms of two batch sizes" in picture.read_bytes()
    assert b"factor of the rate" in picture.read_bytes()
