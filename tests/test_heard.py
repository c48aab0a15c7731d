"""Models that hear beside a text: traces of the real classes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest

import vramplan
from tests import heard_cases
from tests.helpers import spec_of
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs.images import sounds
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import Config

ROWS = heard_cases.TABLE.load()
EVERY = 4
"""One job of so many is in the sample of a family; the full run takes all."""


@pytest.mark.parametrize(("number", "family"), list(enumerate(heard_cases.FAMILIES)))
def test_a_sample_agrees_with_traces(number: int, family: str) -> None:
    for job in heard_cases.TABLE.jobs_of(family)[number::EVERY]:
        heard_cases.TABLE.check(family, job, ROWS)


@pytest.mark.full
@pytest.mark.parametrize("family", heard_cases.FAMILIES)
def test_estimates_agree_with_traces(family: str) -> None:
    errors = [heard_cases.TABLE.check(family, job, ROWS, phase=0.005) for job in heard_cases.TABLE.jobs_of(family)]
    assert median(errors) <= 1e-3


def test_more_sound_needs_more() -> None:
    short, long = (
        vramplan.estimate("mistralai/Voxtral-Mini-3B-2507", "h200", audio_seconds=seconds, seq_len=2048)
        for seconds in (30, 120)
    )
    assert short.peak_allocated_bytes < long.peak_allocated_bytes
    assert long.image_tokens_per_sample == 4 * 375 + 1
    assert any("1 sound of 120 seconds" in one for one in long.assumptions)


def test_what_a_model_that_hears_does_not_take() -> None:
    spec = heard_cases.spec_for("voxtral")
    for setting in ({"images": 1}, {"image_size": (300, 200)}, {"videos": 1}):
        with pytest.raises(ConfigError, match="takes sounds, and no images"):
            vramplan.estimate(spec, "h200", **setting)
    with pytest.raises(UnsupportedError, match="not modelled yet with sounds"):
        vramplan.estimate(spec, "h200", task="dpo")
    with pytest.raises(ConfigError, match="1,001 tokens alone"):
        vramplan.estimate(spec, "h200", audio_seconds=240, sequence_length=512)
    for name in ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-VL-7B-Instruct", "google/vit-base-patch16-224-in21k"):
        with pytest.raises(ConfigError, match="sounds"):
            vramplan.estimate(spec_of(name), "h200", sounds=1)


def test_check_trains_a_tower_that_a_script_does_not_freeze(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "from transformers import Trainer, TrainingArguments, VoxtralForConditionalGeneration\n"
        'model = VoxtralForConditionalGeneration.from_pretrained("mistralai/Voxtral-Mini-3B-2507", dtype="bfloat16")\n'
        'args = TrainingArguments(output_dir="out", per_device_train_batch_size=2, bf16=True)\n'
        "Trainer(model=model, args=args, train_dataset=None).train()\n"
    )
    checked = vramplan.check(str(script), "h200", look_further=False).estimate.job
    assert (checked.vision, checked.projector, checked.sounds, checked.images) == ("train", "train", 1, 0)


@pytest.mark.full
def test_tokens_of_qwen2_audio_are_what_its_tower_says() -> None:
    pytest.importorskip("transformers")
    from transformers.models.qwen2_audio.modeling_qwen2_audio import Qwen2AudioEncoder

    c = Config(spec_of("Qwen/Qwen2-Audio-7B").config, "")
    for seconds in (0.1, 0.5, 3.33, 12.0, 29.99, 30.0):
        sound = sounds.qwen2_audio(c, Job(audio_seconds=seconds))
        _, tokens = Qwen2AudioEncoder._get_feat_extract_output_lengths(None, round(100 * seconds))  # type: ignore[arg-type]
        assert sound.tokens == tokens


def test_what_qwen2_audio_does_not_do() -> None:
    spec = heard_cases.spec_for("qwen2_audio")
    with pytest.raises(ConfigError, match="hears 10 seconds"):
        vramplan.estimate(spec, "h200", audio_seconds=11)
    with pytest.raises(UnsupportedError, match="a loss of its own"):
        vramplan.estimate(spec, "h200", loss="liger")
