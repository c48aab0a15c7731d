"""The ledger, what it teaches, and how far estimates are off."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vramplan
from tests import learn
from tests.helpers import ROOT, card_of, cli, cli_json, measured_of, spec_of
from vramplan.errors import ConfigError
from vramplan.inputs.job import Job
from vramplan.measurements import accuracy, ledger, measure
from vramplan.measurements.accuracy import Row, summary
from vramplan.measurements.published import load_published
from vramplan.memory import calibration, overheads, summarize
from vramplan.memory.measurement import Measured
from vramplan.units import GiB, MiB

JOB = Job(micro_batch_size=2, sequence_length=512)


def run_of(job: Job = JOB, factor: float = 1.0, cap_bytes: int | None = None, **more: Any) -> Measured:
    """A run that took `factor` times its estimate."""
    found = vramplan.estimate("Qwen/Qwen2.5-0.5B", "h100", **job.settings)
    one = measured_of(
        job,
        peak_allocated_bytes=int(found.peak_allocated_bytes * factor),
        peak_reserved_bytes=int(found.peak_reserved_bytes * factor),
        context_bytes=500 * MiB,
        **more,
    )
    return one.model_copy(update={"environment": one.environment.model_copy(update={"cap_bytes": cap_bytes})})


# -- files -------------------------------------------------------------------------------------------------------------


def test_an_entry_survives_its_file(tmp_path: Path) -> None:
    one = run_of()
    path = ledger.save(tmp_path, one, [("alloc", 512, 100), ("free_completed", 512, 100)])
    kept = ledger.load(path)
    assert kept.job.settings.items() >= JOB.settings.items()
    assert kept.model_copy(update={"history": None}) == one
    assert ledger.load_history(tmp_path, kept) == [("alloc", 512, 100), ("free_completed", 512, 100)]
    assert ledger.load_all(tmp_path) == [kept]
    ledger.save(tmp_path, one)
    assert len(ledger.load_all(tmp_path)) == 1, "the same run takes its own place"


def test_a_name_tells_runs_apart() -> None:
    others = [
        JOB.model_copy(update=change) for change in ({"lora_rank": 16}, {"micro_batch_size": 3}, {"loss": "liger"})
    ]
    names = {run_of(job).identity for job in (JOB, *others)} | {run_of(cap_bytes=1 << 33).identity}
    assert len(names) == 5
    assert run_of().identity.startswith("qwen2.5-0.5b.lora.b2x1.s512.h100.")


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.save(tmp_path, run_of())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vramplan.atomic_write.os.replace", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        ledger.save(tmp_path, run_of(factor=1.1), [("alloc", 1, 2)])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:100], "invalid JSON"),
        (lambda text: text.replace('"outcome": "ok"', '"outcome": "fine"'), "outcome: input should be 'ok' or 'oom'"),
        (lambda text: text.replace('"micro_batch_size": 2', '"micro_batch_size": -2'), "job.micro_batch_size: "),
        (lambda text: text.replace('"format": 1', '"format": 2'), "format: "),
    ],
)
def test_broken_entries_name_file_and_key(tmp_path: Path, change: Any, said: str) -> None:
    path = ledger.save(tmp_path, run_of())
    path.write_text(change(path.read_text()))
    with pytest.raises(ConfigError, match=f"{path.name}: {said}"):
        ledger.load_all(tmp_path)


def test_a_broken_history(tmp_path: Path) -> None:
    kept = ledger.load(ledger.save(tmp_path, run_of(), [("alloc", 512, 100)]))
    assert kept.history is not None
    (tmp_path / kept.history).write_bytes(b"nothing")
    with pytest.raises(ConfigError, match=r"history\.gz"):
        ledger.load_history(tmp_path, kept)


def test_our_own_ledger_is_sound() -> None:
    for one in ledger.load_all(learn.LEDGER):
        assert (learn.LEDGER / f"{one.identity}.json").exists(), "files are called what they hold"
        assert one.environment.device != "cpu", "only real cards belong here"
        assert spec_of(one.model).config == one.config


# -- the margin --------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=60), st.floats(0.01, 0.99))
def test_the_quantile_covers_what_it_promises(ratios: list[float], confidence: float) -> None:
    """Of n + 1 exchangeable runs each is equally likely to be the new one: so many of them must lie below."""
    bound, vouched = calibration.quantile(ratios, confidence)
    assert bound in ratios
    below = sum(ratio <= bound for ratio in ratios)
    assert below / (len(ratios) + 1) >= min(vouched, len(ratios) / (len(ratios) + 1)) - 1e-9
    assert vouched <= confidence


def held(confidence: float, group: str = "one") -> float:
    """The margin's share of 24 GiB."""
    found = calibration.margin(confidence, group)
    return 1 - (24 - found.outside_bytes / GiB) / (1 + found.share) / 24


@pytest.mark.parametrize("group", calibration.GROUPS)
def test_the_margin_grows_with_confidence(group: str) -> None:
    shares = [held(confidence, group) for confidence in (0.0, 0.5, 0.8, 0.9, 0.95)]
    assert shares == sorted(shares)
    assert shares[0] == 0.0
    assert 0.05 < shares[3] < 0.16
    for bad in (1.0, -0.1, 2.0):
        with pytest.raises(ConfigError, match="confidence="):
            calibration.margin(bad)


def test_a_margin_says_what_it_rests_on() -> None:
    assert re.search(r"learned from \d+ published runs \(one GPU\), covers \d+%", calibration.margin(0.9).source)
    assert "too few for 99%" in calibration.margin(0.99).source
    assert "since none with several GPUs is known" in calibration.margin(0.9, "several").source
    assert held(0.9, "several") > held(0.9, "one")


def test_each_publication_counts_alike() -> None:
    assert calibration.grouped_quantile([[0.0] * 98 + [1.0], [0.5, 0.6]], 0.9) == 0.6
    assert calibration.grouped_quantile([[0.0] * 99, [0.5]], 0.5) == 0.0


def test_coverage_is_of_runs_that_were_left_out() -> None:
    published = {"one": {"a": [[1.0, 0.0]] * 4, "b": [[1.1, 0.0], [1.0, 0.0]]}}
    assert calibration.left_out_coverage(published, "one", 0.9, 0) == 0.75  # b is half covered by a, a whole by b


def test_our_own_runs_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"contexts": {}, "ledger": {"one": [1.0 + i / 1000 for i in range(30)]}, "published": {}, "outside": [0]}
    monkeypatch.setattr(calibration, "facts", lambda: own)
    calibration.margin.cache_clear()
    try:
        found = calibration.margin(0.9)
    finally:
        calibration.margin.cache_clear()
    assert found.share == pytest.approx(0.027)
    assert found.outside_bytes == 0
    assert "30 measured runs" in found.source


def test_the_verdict_leaves_the_margin_free() -> None:
    names = ("Qwen/Qwen2.5-7B-Instruct", "rtx4090")
    sure = vramplan.estimate(*names, micro_batch_size=2)
    bold = vramplan.estimate(*names, micro_batch_size=2, confidence=0.0)
    assert not sure.fits
    assert sure.fits_without_margin
    assert bold.fits
    assert bold.peak_reserved_bytes == sure.peak_reserved_bytes, "a margin changes the verdict, no figure"
    assert sure.margin_bytes == pytest.approx(sure.capacity_bytes * held(0.9) / 24 * 24, rel=0.02)
    searched = vramplan.suggest(*names, 16)
    assert searched.max_micro_batch_size == 1
    assert searched.rejected[0].reason == "fits only without the safety margin"
    assert vramplan.suggest(*names, 16, confidence=0.0).max_micro_batch_size == 2


def test_what_was_learned_is_up_to_date() -> None:
    """``python -m tests.learn`` writes it."""
    assert learn.LEARNED.read_text() == learn.dumps({**learn.learn(), "published": learn.learn_published()})


def test_contexts_come_from_measured_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {**calibration.facts(), "contexts": {"h100-sxm": {"bytes": 520 * MiB, "runs": 7, "driver": "580.1"}}}
    monkeypatch.setattr(calibration, "facts", lambda: facts)
    (term,) = overheads.outside_terms(Job(), card_of("h100"))
    assert (term.num_bytes, term.formula) == (520 * MiB, "measured in 7 runs, driver 580.1")
    assert overheads.outside_terms(Job(), card_of("a100"))[0].formula.startswith("not measured on this GPU: 61 MiB")
    assert "CUDA context and NCCL" not in vramplan.estimate("qwen2.5-0.5b", "h100").assumptions[-1]
    assert summarize.PHASES[0] == "loaded"


def test_learning_from_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for factor, length in ((1.0, 512), (1.02, 256), (1.04, 128)):
        ledger.save(tmp_path, run_of(JOB.model_copy(update={"sequence_length": length}), factor))
    ledger.save(tmp_path, run_of(JOB.model_copy(update={"lora_rank": 4}), outcome="oom"))
    monkeypatch.setattr(learn, "LEDGER", tmp_path)
    found = learn.learn()
    assert found["contexts"] == {"h100-sxm": {"bytes": 500 * MiB, "runs": 3, "driver": "580.1"}}
    assert len(found["ledger"]["one"]) == 3
    assert found["ledger"]["one"] == sorted(found["ledger"]["one"])


# -- accuracy ----------------------------------------------------------------------------------------------------------


def test_errors_of_a_ledger(tmp_path: Path) -> None:
    for factor, length in ((1.0, 512), (1.01, 256), (0.95, 128)):
        ledger.save(tmp_path, run_of(JOB.model_copy(update={"sequence_length": length}), factor))
    ledger.save(tmp_path, run_of(JOB.model_copy(update={"lora_rank": 4}), outcome="oom", failed_phase="forward"))
    found = accuracy.compare(tmp_path, None, ("analytic",), lambda what, share: None)
    assert found.runs == 4
    allocated = summary(row for row in found.rows if row.metric == "allocated" and "rank" not in row.run)
    assert allocated.worst == pytest.approx(1 / 0.95 - 1, abs=1e-4)
    assert sum(v.said and not v.ran for v in found.verdicts) == 1


def test_the_largest_batch_is_known_where_one_more_failed(tmp_path: Path) -> None:
    for micro, outcome in ((3, "ok"), (4, "ok"), (5, "oom")):
        job = JOB.model_copy(update={"micro_batch_size": micro})
        ledger.save(tmp_path, run_of(job, outcome=outcome, cap_bytes=8 << 30))
    (choice,) = accuracy.compare(tmp_path, None, ("analytic",), lambda what, share: None).choices
    assert choice.largest == 4
    (tmp_path / f"{run_of(JOB.model_copy(update={'micro_batch_size': 4}), cap_bytes=8 << 30).identity}.json").unlink()
    runs = ledger.load_all(tmp_path)
    assert set(measure.frontiers(runs).values()) == {None}, "4 was not tried"


def test_summaries() -> None:
    rows = [Row("", "", "", "allocated", 100, size) for size in range(90, 110)]
    one = summary(rows)
    assert (one.count, one.too_low) == (20, 0.5)
    assert one.median == pytest.approx(-0.005)
    assert one.worst == pytest.approx(-0.1)
    assert one.p95 == pytest.approx(0.09)


def test_published_runs_are_met() -> None:
    """Where all settings are known, what torch allocated is met; what the driver shows, within the margin's reach."""
    rows = [accuracy.published_row(one) for one in load_published(learn.PUBLISHED) if not one.unknown]
    allocated = [abs(row.error) for row in rows if row.metric == "allocated"]
    assert len(allocated) == 14
    assert max(allocated) < 2e-4


def test_published_rows_say_what_is_unknown(tmp_path: Path) -> None:
    rows = load_published(learn.PUBLISHED)
    assert len({row.id for row in rows}) == len(rows) > 150
    assert all(row.unknown or row.grade == "A" for row in rows)
    broken = tmp_path / "rows.jsonl"
    broken.write_text(learn.PUBLISHED.read_text().splitlines()[0] + "\n{}\n")
    with pytest.raises(ConfigError, match=r"rows.jsonl: line 2 is not a published run"):
        load_published(broken)


def test_accuracy_on_the_command_line(tmp_path: Path) -> None:
    ledger.save(tmp_path, run_of(factor=1.01))
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(learn.PUBLISHED.read_text().splitlines()[:4]))
    arguments = ("accuracy", "--ledger", str(tmp_path), "--published", str(few))
    done = cli(*arguments)
    assert done.returncode == 0, done.stderr
    assert "1 measured run in the ledger" in done.stdout
    assert "fms-acceleration" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    found = cli_json(*arguments)
    assert found["ledger"][0]["median"] == pytest.approx(1 / 1.01 - 1, abs=1e-3)
    assert {row["metric"] for row in found["rows"]} >= {"allocated", "reserved", "process"}
    assert "| fms-acceleration | allocated |" in cli(*arguments, "--markdown").stdout
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ledger", "/nowhere"), "/nowhere: no such folder of measured runs"),
        (("--by", "oracle"), "unknown estimator 'oracle'"),
        (("--published", "/nowhere.jsonl"), "/nowhere.jsonl: cannot be read"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], said: str) -> None:
    done = cli("accuracy", *arguments, cwd=ROOT)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
