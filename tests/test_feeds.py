"""Models that are no causal language models: what they take, what they refuse, that `--by trace` says the same."""

from __future__ import annotations

from typing import Any

import pytest

import vramplan
from tests.helpers import card_of, spec_of
from vramplan.errors import VramplanError
from vramplan.inputs.input_checks import check_inputs
from vramplan.inputs.model_inputs import MODEL_INPUTS, trained_as
from vramplan.inputs.model_spec import Config
from vramplan.planner.job_defaults import complete_job

BERT, VIT, CLIP = "google-bert/bert-base-uncased", "google/vit-base-patch16-224-in21k", "openai/clip-vit-base-patch32"
T5, WHISPER = "google-t5/t5-small", "openai/whisper-tiny"


@pytest.mark.parametrize(
    ("model", "given", "shapes"),
    [
        (BERT, {}, {"input_ids": (512,), "labels": (512,), "attention_mask": (512,)}),
        (BERT, {"loop": "plain", "sequence_length": 128}, {"input_ids": (128,), "labels": (128,)}),
        (VIT, {}, {"pixel_values": (3, 224, 224), "labels": ()}),
        (VIT, {"image_size": "384x240"}, {"pixel_values": (3, 240, 384), "labels": ()}),
        (CLIP, {}, {"input_ids": (77,), "pixel_values": (3, 224, 224), "attention_mask": (77,)}),
        ("google/siglip-base-patch16-224", {}, {"input_ids": (64,), "pixel_values": (3, 224, 224)}),
        (T5, {"sequence_length": 1024}, {"input_ids": (1024,), "labels": (128,), "attention_mask": (1024,)}),
        (T5, {"sequence_length": 64}, {"input_ids": (64,), "labels": (64,), "attention_mask": (64,)}),
        (T5, {"target_length": 32}, {"input_ids": (2048,), "labels": (32,), "attention_mask": (2048,)}),
        (WHISPER, {}, {"input_features": (80, 3000), "labels": (448,)}),
        ("openai/whisper-large-v3", {"sequence_length": 225}, {"input_features": (128, 3000), "labels": (225,)}),
    ],
)
def test_what_one_sample_is(model: str, given: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    spec = spec_of(model)
    job = complete_job(spec, card_of(), given)
    inputs = MODEL_INPUTS[spec.model_type].inputs(Config(spec.config, spec.name), job)
    assert {one.name: one.shape for one in inputs} == shapes
    assert trained_as(spec, job).startswith(MODEL_INPUTS[spec.model_type].model_class)


@pytest.mark.parametrize(
    ("model", "given", "words"),
    [
        (BERT, {"sequence_length": 513}, "table of 512 positions"),
        ("FacebookAI/roberta-base", {"sequence_length": 513}, "table of 512 positions"),
        (CLIP, {"sequence_length": 78}, "table of 77 positions"),
        (WHISPER, {"sequence_length": 449}, "table of 448 positions"),
        (VIT, {"sequence_length": 512}, "takes no text"),
        (VIT, {"image_size": (8, 8)}, "patches of 16 x 16"),
        (VIT, {"images": 2}, "one image a sample"),
        (VIT, {"max_tiles": 4}, "max_tiles"),
        (BERT, {"image_size": (224, 224)}, "takes no images"),
        (BERT, {"target_length": 64}, "target_length"),
        ("openai-community/gpt2", {"target_length": 64}, "target_length=64"),
        (BERT, {"batches": "packed"}, "batches=packed"),
        (BERT, {"loss": "liger"}, "loss=liger"),
        (T5, {"attention": "flash"}, "sdpa, eager"),
        (T5, {"dtype": "fp16", "autocast": "none", "loop": "plain"}, "dtype=fp16"),
    ],
)
def test_one_line_says_what_is_wrong(model: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(VramplanError, match=words) as caught:
        vramplan.estimate(model, "h100", **{"method": "full", **given})
    assert "\n" not in str(caught.value)


def test_another_class_of_the_same_type_is_refused() -> None:
    spec = spec_of(BERT, architectures=["BertForQuestionAnswering"])
    with pytest.raises(VramplanError, match="BertForQuestionAnswering is not supported"):
        check_inputs(spec, complete_job(spec, card_of(), {}))
    labelled = spec_of(BERT, architectures=["BertForSequenceClassification"])
    assert complete_job(labelled, card_of(), {}).task == "sequence_classification"
    check_inputs(spec_of(BERT, architectures=["BertForPreTraining"]), complete_job(spec, card_of(), {}))


def test_the_search_finds_a_batch() -> None:
    found = vramplan.suggest(BERT, "rtx4090", 64, method="full", sequence_length=512)
    assert found.recommended is not None
    assert found.recommended.global_batch_size == 64
    assert vramplan.estimate(VIT, "rtx4090", method="full", image_size=(384, 384), micro_batch_size=8).fits


@pytest.mark.parametrize("model", [BERT, VIT, CLIP, T5, WHISPER])
def test_the_trace_says_the_same(model: str) -> None:
    pytest.importorskip("torch", reason="the trace needs the extra vramplan[probe]")
    length = {} if model == VIT else {"sequence_length": 64}
    mine, traced = (
        vramplan.estimate(spec_of(model), "h100", by=by, method="full", micro_batch_size=2, **length)
        for by in ("analytic", "trace")
    )
    assert mine.num_parameters == traced.num_parameters
    assert mine.peak_allocated_bytes == pytest.approx(traced.peak_allocated_bytes, rel=0.01)
    assert mine.assumptions[0] == traced.assumptions[0]
