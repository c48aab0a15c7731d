"""Aya Vision and Granite Vision: traces of the real classes, and the tokens of their tiles."""

from __future__ import annotations

from statistics import median

import pytest

import vramplan
from tests import tiled_cases
from vramplan.errors import SpecError
from vramplan.inputs.images import Limits, Size, fixed_tiles
from vramplan.inputs.model_spec import Config

ROWS = tiled_cases.TABLE.load()
EVERY = 5
"""One job of so many is in the sample of a family; the full run takes all."""


@pytest.mark.parametrize(("number", "family"), list(enumerate(tiled_cases.FAMILIES)))
def test_a_sample_agrees_with_traces(number: int, family: str) -> None:
    for job in tiled_cases.TABLE.jobs_of(family)[number::EVERY]:
        tiled_cases.TABLE.check(family, job, ROWS)


@pytest.mark.full
@pytest.mark.parametrize("family", tiled_cases.FAMILIES)
def test_estimates_agree_with_traces(family: str) -> None:
    errors = [tiled_cases.TABLE.check(family, job, ROWS) for job in tiled_cases.TABLE.jobs_of(family)]
    assert median(errors) <= 1e-3
    assert max(errors) <= 0.005


@pytest.mark.full
def test_tokens_of_aya_vision_are_its_processors() -> None:
    pytest.importorskip("transformers")
    from transformers.models.aya_vision.processing_aya_vision import AyaVisionProcessor
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    real = object.__new__(AyaVisionProcessor)
    real.image_processor = GotOcr2ImageProcessorPil(size={"height": 364, "width": 364}, crop_to_patches=True)
    real.img_size, real.patch_size = 364, 28
    real._merge_kwargs = lambda **_: {"images_kwargs": {"crop_to_patches": True}}
    vision = {"image_size": 364, "patch_size": 14}
    for width in range(30, 3000, 190):
        for height in range(30, 3000, 210):
            processed = fixed_tiles.aya_vision(
                Config({"vision_config": vision}, ""), Config({}, ""), Size(width, height), Limits()
            )
            counted = real._get_num_multimodal_tokens([(height, width)])
            assert [processed.all_tokens] == counted["num_image_tokens"], (width, height)
            assert [processed.tiles] == counted["num_image_patches"], (width, height)


def test_layers_that_a_tower_does_not_have_are_refused() -> None:
    spec = tiled_cases.spec_for("granite_vision")
    for layers in ([-9, -1], [7], ["-1"], "all"):
        wrong = spec.model_copy(update={"config": {**spec.config, "vision_feature_layer": layers}})
        with pytest.raises(SpecError, match=r"vision_feature_layer.*-7 to 6"):
            vramplan.estimate(wrong, "h200", images=1, image_size=(300, 200))
