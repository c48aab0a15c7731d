"""verl's actor on padded rows (without ``use_remove_padding``): as `check` reads them, and what they hold."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.test_verl_actor import errors_of, step
from tests.verl_runs import recorded
from vramplan import check
from vramplan.errors import UnsupportedError
from vramplan.frameworks.detect import from_line
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.planner.read_config import read

PADDED = [row for row in recorded() if row["job"]["batches"] == "padded"]
WORST = 0.0001
LOGITS = 16 * 1024 * 151_936 * 2
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
GRPO = (
    "algorithm.adv_estimator=grpo", f"{MODEL}.path=Qwen/Qwen2.5-3B", f"{MODEL}.use_remove_padding=False",
    "data.max_prompt_length=256", "data.max_response_length=768", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8",
)  # fmt: skip


def parsed(*overrides: str, version: str | None = None) -> ParsedConfig:
    return read(from_line(f"python3 -m verl.trainer.main_ppo {shlex.join((*GRPO, *overrides))}", None, {}), 1, version)


@pytest.mark.parametrize(("version", "joins"), [("0.5.0", False), ("0.7.1", False), ("0.8.0", True), ("0.9.1", True)])
def test_what_is_read(version: str, joins: bool) -> None:
    """Prompts and responses of their longest, whose logits are joined from 0.8 on."""
    job = parsed(version=version).job
    assert (job["batches"], job["sequence_length"], job["prompt_length"]) == ("padded", 1024, 256)
    assert (job["verl"].get("joins_rows", False), job["verl"]["scored_tokens"]) == (joins, 8 * 1024)


def test_rows_were_padded_by_default() -> None:
    overrides = [one for one in GRPO if "remove_padding" not in one]
    for version, batches in (("0.6.1", "padded"), ("0.7.1", "unpadded")):
        line = f"python3 -m verl.trainer.main_ppo {shlex.join(overrides)}"
        assert read(from_line(line, None, {}), 1, version).job["batches"] == batches


def test_budgets_of_padded_rows_are_refused() -> None:
    """A budget counts tokens, of which padding makes an unknown number of positions."""
    budget = (f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=8192")
    with pytest.raises(UnsupportedError, match="a budget counts tokens without padding") as caught:
        parsed(*budget, version="0.7.1")
    asked = re.findall(r"set=(\S+)", str(caught.value).partition(" asks about ")[0])
    assert parsed(*budget, *asked, version="0.7.1").job["micro_batch_size"] == 8  # tells that it holds 8


@pytest.mark.parametrize("row", PADDED[::5], ids=lambda row: f"{row['model']} {json.dumps(row['job']['verl'])}")
def test_peaks_agree_with_verl(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramplan.analytic.prepare.check_job", lambda *_: None)
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramplan.analytic.prepare.check_job", lambda *_: None)
    assert len(PADDED) >= 16
    assert max(error for row in PADDED for error in errors_of(row).values()) <= WORST


def phases(**verl: Any) -> dict[str, int]:
    found: dict[str, int] = step(verl=verl, batches="padded", micro_batch_size=16, gradient_accumulation_steps=1).phases
    return found


def test_whole_entropies_of_scoring_hold_fp32() -> None:
    """Half-precision logits and, of responses, probabilities, fp32 logits and their exponentials: 14 bytes a logit."""
    padded, packed = phases(logits="in_place"), step(micro_batch_size=16, gradient_accumulation_steps=1, verl={}).phases
    assert padded["scoring"] - packed["scoring"] == pytest.approx(LOGITS / 2 * 12 * 3 / 4, rel=0.01)


def test_joined_rows_are_copied_whole() -> None:
    """Logits, their copy and a gradient of nested rows; up to 0.7 the copy is of the responses alone."""
    joined, answers = phases(joins_rows=True), phases(logits="in_place")
    assert joined["forward"] - answers["forward"] == pytest.approx(LOGITS / 4, rel=0.01)
    assert joined["backward"] > answers["backward"]


def test_the_answer_says_what_was_compared() -> None:
    notes = step(verl={"joins_rows": True, "logits": "undivided"}, batches="padded").notes
    assert any("of 0.9.1 on two emulated GPUs" in text for text in notes)  # which tests/test_verl_seeing.py holds


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_nested_rows_keep_the_logits_and_get_a_gradient_of_zeros(tmp_path: Path) -> None:
    """What torch allocates on the CPU: logits, joined rows, a nested gradient, then that of a slice."""
    torch = pytest.importorskip("torch")
    from torch.profiler import profile

    rows, length, words = 4, 64, 8192
    lengths, whole = torch.full((rows,), length), rows * length * words * 2
    hidden = torch.randn(rows, length, 16, dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(words, 16, dtype=torch.bfloat16, requires_grad=True)

    def run() -> Any:  # verl 0.9.1, workers/engine/fsdp/transformer_impl.py: prepare_model_outputs
        logits = torch.nn.functional.linear(hidden, weight)
        nested = torch.nested.narrow(logits, 1, torch.zeros_like(lengths), lengths, layout=torch.jagged)
        return torch.cat(list(nested.unbind()))

    with profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        joined = run()
        gradient = torch.zeros_like(joined)
        joined.backward(gradient)
    found.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    memory = sorted((one for one in events if one.get("name") == "[memory]"), key=lambda one: one["ts"])
    sizes = [one["args"]["Bytes"] for one in memory if abs(one["args"]["Bytes"]) >= whole]
    assert [round(size / whole) for size in sizes[:4]] == [1, 1, 1, 1]  # logits, joined, `gradient`, nested gradient
    assert sizes[4] == -whole  # the logits, kept until then
    assert sizes[5] == whole  # the gradient of a slice


@pytest.mark.full
@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2", ""),
        ("actor_rollout_ref.ref.log_prob_micro_batch_size=512", "actor_rollout_ref.ref.log_prob_micro_batch_size=256"),
    ],
)  # fmt: skip
def test_check_proposes_the_most_samples_for_each_scoring_that_fit(reference: str, said: str, tmp_path: Path) -> None:
    """With the micro-batch as it is; a reference that scores fewer keeps its number."""
    script = tmp_path / "grpo.sh"
    own = (*GRPO[:-1], f"{ACTOR}.use_kl_loss=True", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=64", reference)
    script.write_text(f"python3 -m verl.trainer.main_ppo {shlex.join(own)}", encoding="utf-8")
    advice = [effect for effect in check(script, "h100", framework_version="0.7.1").advice if "verl" in effect.update]
    scored = next(effect for effect in advice if "log_prob" in effect.settings[0])
    assert scored.fits
    assert not scored.batch
    key = f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=32"
    assert scored.settings == ((key, said) if said else (key,))


def test_fewer_samples_for_each_scoring_raise_none() -> None:
    """The reference's 2 stay; of all GPUs' 512 as many as 8 GPUs' samples."""
    rollout, ref = (f"actor_rollout_ref.{part}.log_prob_micro_batch_size" for part in ("rollout", "ref"))
    for own, said in ((f"{ref}_per_gpu=2", ""), (f"{ref}=512", f"; {ref} 256")):
        names: Any = parsed(f"{rollout}_per_gpu=64", f"{ACTOR}.use_kl_loss=True", own, version="0.7.1").names["verl"]
        assert f"{rollout}_per_gpu 32{said}" in names.values()
