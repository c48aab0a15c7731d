"""Models that read waveforms: traces of the real classes, names that people give, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import vramplan
from tests import speech_cases
from tests.traced_table import name_of
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.export import written_as

ROWS = speech_cases.TABLE.load()
EVERY = 8
"""One job of so many is in the sample of a family; the full run takes all."""


def check(family: str, jobs: list[Job]) -> list[float]:
    """Every phase's peak, the operations and the parameters counted."""
    return [speech_cases.TABLE.check(family, job, ROWS) for job in jobs]


@pytest.mark.parametrize(("number", "family"), list(enumerate(speech_cases.FAMILIES)))
def test_a_sample_agrees_with_traces(number: int, family: str) -> None:
    check(family, speech_cases.TABLE.jobs_of(family)[number % EVERY :: EVERY])


@pytest.mark.full
def test_estimates_agree_with_traces() -> None:
    table = speech_cases.TABLE
    errors = [error for family in speech_cases.FAMILIES for error in check(family, table.jobs_of(family))]
    assert median(errors) <= 1.5e-3


def test_every_case_has_been_traced() -> None:
    assert {name_of(*case) for case in speech_cases.cases()} == set(ROWS)


def test_seconds_decide_the_frames_and_the_letters() -> None:
    small = vramplan.estimate("facebook/wav2vec2-base-960h", "rtx4090", audio_seconds=10, method="full")
    assert small.job.sequence_length == 150
    assert "10 seconds of sound at 16 kHz with 150 letters" in str(small.assumptions)
    classes = vramplan.estimate("facebook/hubert-base-ls960", "rtx4090", task="sequence_classification", num_labels=35)
    assert classes.job.sequence_length == 999  # 20 seconds, unless others are given
    assert "HubertForSequenceClassification with 35 labels" in classes.assumptions[0]
    assert "20 seconds of sound (not given)" in str(classes.assumptions)


def test_convolutions_that_train_need_more() -> None:
    settings = {"audio_seconds": 15.0, "method": "lora", "checkpointing": "none"}
    frozen, trained = (
        vramplan.estimate("wav2vec2-base", "h100", freeze_feature_encoder=frozen, **settings)
        for frozen in (True, False)
    )
    assert trained.peak_allocated_bytes > 1.3 * frozen.peak_allocated_bytes
    assert trained.num_trainable_parameters == frozen.num_trainable_parameters


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("wav2vec2-base", {"audio_seconds": 2, "sequence_length": 100}, ConfigError, "99 frames"),
        ("wav2vec2-base", {"audio_seconds": 0.01}, ConfigError, "shorter than one frame"),
        ("wav2vec2-base", {"task": "sequence_classification", "sequence_length": 7}, ConfigError, "is no text"),
        ("wav2vec2-base", {"task": "token_classification"}, UnsupportedError, "no Wav2Vec2ForTokenClassification"),
        ("wav2vec2-base", {"images": 2}, ConfigError, "takes no images"),
        ("wav2vec2-base", {"strategy": "zero3", "num_gpus": 2}, UnsupportedError, "weight norm"),
        ("whisper-tiny", {"audio_seconds": 10}, ConfigError, "reads no waveforms"),
        ("whisper-tiny", {"images": 1}, ConfigError, "takes no images"),
        ("t5-small", {"images": 1}, ConfigError, "takes no images"),
        ("qwen2.5-0.5b", {"audio_seconds": 10}, ConfigError, "reads no waveforms"),
    ],
)
def test_what_is_refused(name: str, settings: dict[str, Any], error: type[VramplanError], message: str) -> None:
    with pytest.raises(error, match=message):
        vramplan.estimate(name, "h200", **settings)


@pytest.mark.parametrize("key", ["add_adapter", "use_weighted_layer_sum"])
def test_variants_are_refused_by_name(key: str) -> None:
    spec = speech_cases.spec_for("wav2vec2")
    with pytest.raises(UnsupportedError, match=f"{key} = True"):
        vramplan.estimate(spec.model_copy(update={"config": {**spec.config, key: True}}), "h200")


def test_a_malformed_configuration_is_refused(tmp_path: Path) -> None:
    spec = speech_cases.spec_for("wav2vec2")
    for broken in ([512] * 3, "512", [0] * 7):
        with pytest.raises(VramplanError, match="conv_dim, conv_stride, conv_kernel"):
            vramplan.estimate(spec.model_copy(update={"config": {**spec.config, "conv_dim": broken}}), "h200")


FLAGS = "--output_dir out --per_device_train_batch_size 16 --gradient_checkpointing --fp16 --layerdrop 0.0"
COMMANDS: dict[str, dict[str, Any]] = {
    f"run_speech_recognition_ctc.py --model_name_or_path facebook/wav2vec2-xls-r-300m {FLAGS}"
    " --max_duration_in_seconds 12 --chars_to_ignore , ? . ! - --freeze_feature_encoder --length_column_name n": {
        "audio_seconds": 12.0,
        "sequence_length": 180,
        "freeze_feature_encoder": True,
        "task": None,
    },
    f"run_audio_classification.py --model_name_or_path facebook/wav2vec2-base {FLAGS} --freeze_feature_encoder False": {
        "audio_seconds": 20.0,
        "freeze_feature_encoder": False,
        "task": "sequence_classification",
        "checkpointing": "full",
    },
}


@pytest.mark.parametrize("words", COMMANDS)
def test_example_scripts_are_read(words: str, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"python {words}\n")
    job = vramplan.check(path, gpu="rtx4090", look_further=False).estimate.job
    assert {name: getattr(job, name) for name in COMMANDS[words]} == COMMANDS[words]
    assert (job.method, job.dtype, job.autocast) == ("full", "fp32", "fp16")


SCRIPT = """
from transformers import AutoModelForAudioClassification, Trainer, TrainingArguments, Wav2Vec2ForCTC

model = {model}
{freezes}
args = TrainingArguments("out", per_device_train_batch_size=8, fp16=True, gradient_checkpointing=True)
Trainer(model, args, train_dataset=sounds).train()
"""
CTC = (
    'Wav2Vec2ForCTC.from_pretrained("facebook/wav2vec2-large-xlsr-53", attention_dropout=0.0, mask_time_prob=0.05,'
    ' ctc_loss_reduction="mean", pad_token_id=processor.tokenizer.pad_token_id, vocab_size=len(processor.tokenizer))'
)
SOUNDS = 'AutoModelForAudioClassification.from_pretrained("facebook/hubert-base-ls960", num_labels=35)'


@pytest.mark.parametrize("model", [CTC, SOUNDS])
@pytest.mark.parametrize("freezes", ["", "model.freeze_feature_encoder()"])
def test_python_scripts_are_read(model: str, freezes: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(model=model, freezes=freezes))
    verdict = vramplan.check(path, gpu="rtx4090", audio_seconds=8)
    job = verdict.estimate.job
    assert (job.audio_seconds, job.freeze_feature_encoder) == (8.0, bool(freezes))
    assert (job.task, job.num_labels) == ((None, None) if model == CTC else ("sequence_classification", 35))
    doubts = {note.key for note in verdict.reading.notes if note.kind == "doubt"}
    assert doubts == ({"vocab_size"} if model == CTC else set())  # the seconds are given


def verdict_of(tmp_path: Path, arguments: str) -> Any:
    """check's answer for a script whose model is loaded with these arguments."""
    model = f'Wav2Vec2ForCTC.from_pretrained("{tmp_path / "checkpoint"}", {arguments})'
    path = tmp_path / "train.py"
    script = SCRIPT.format(model=model, freezes="model.freeze_feature_encoder()")
    path.write_text(script.replace(", gradient_checkpointing=True", ""))
    return vramplan.check(path, gpu="rtx4090", audio_seconds=8)


DROPOUTS = ("attention_dropout", "hidden_dropout", "activation_dropout", "feat_proj_dropout", "final_dropout")


@pytest.fixture
def checkpoint(tmp_path: Path) -> dict[str, Any]:
    """A checkpoint that was trained without dropout; its configuration names no dtype."""
    config = {"model_type": "wav2vec2", **speech_cases.SMALL, **dict.fromkeys(DROPOUTS, 0.0), "mask_time_prob": 0.0}
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text(json.dumps(config))
    return config


@pytest.mark.parametrize("key", [*DROPOUTS, "mask_time_prob", "vocab_size"])
def test_what_a_script_sets_in_the_configuration_counts(key: str, checkpoint: dict[str, Any], tmp_path: Path) -> None:
    value = 4000 if key == "vocab_size" else 0.1
    plain, changed = verdict_of(tmp_path, ""), verdict_of(tmp_path, f"{key}={value}")
    spec = ModelSpec(name="same", model_type="wav2vec2", config={**checkpoint, key: value})
    alone = vramplan.estimate(spec, "rtx4090", **changed.estimate.job.model_dump(exclude_unset=True))
    assert changed.estimate.peak_allocated_bytes == alone.peak_allocated_bytes
    if key in ("hidden_dropout", "activation_dropout", "vocab_size"):
        assert changed.estimate.peak_allocated_bytes > plain.estimate.peak_allocated_bytes


def test_a_configuration_that_a_script_makes_is_a_doubt(checkpoint: dict[str, Any], tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, "config=own")
    assert "model_config" in {note.key for note in verdict.reading.notes if note.kind == "doubt"}


def test_the_ctc_example_trains_without_dropout(tmp_path: Path) -> None:
    path, words = tmp_path / "train.sh", next(iter(COMMANDS))
    peaks = []
    for more in ("", " --hidden_dropout 0.1 --activation_dropout 0.1"):
        path.write_text(f"python {words.replace('--gradient_checkpointing', '')}{more}\n")
        peaks.append(vramplan.check(path, gpu="h200").estimate.peak_allocated_bytes)
    assert peaks[0] < peaks[1]


def test_a_configuration_for_sounds_is_not_written() -> None:
    with pytest.raises(UnsupportedError, match="not for wav2vec2"):
        written_as("transformers", "wav2vec2-base", Job(task="sequence_classification", method="full"))
