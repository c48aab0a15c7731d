"""MiniCPM-V 4.6 and 4.7: traces of the real classes, tokens of their slices; MiniCPM-OCR is refused for its images."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median

import pytest

import vramplan
from tests import minicpm_cases
from tests.helpers import spec_of
from vramplan.analytic.architectures.lookup import architecture_of
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.detect import from_text
from vramplan.frameworks.readers.image_limits import settled
from vramplan.inputs.images import Limits, Size, process_image
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.read_config import read

ROWS = minicpm_cases.TABLE.load()
EVERY = 6
"""One job of so many is in the sample of a family; the full run takes all."""


@pytest.mark.parametrize(("number", "family"), list(enumerate(minicpm_cases.FAMILIES)))
def test_a_sample_agrees_with_traces(number: int, family: str) -> None:
    for job in minicpm_cases.TABLE.jobs_of(family)[number::EVERY]:
        minicpm_cases.TABLE.check(family, job, ROWS)


@pytest.mark.full
def test_estimates_agree_with_traces() -> None:
    errors = [minicpm_cases.TABLE.check(family, job, ROWS) for family, job in minicpm_cases.cases()]
    assert median(errors) <= 1e-3
    assert max(errors) <= 0.006


def in_mode(mode: str, model: str = "openbmb/MiniCPM-V-4.6") -> ModelSpec:
    spec = spec_of(model)
    return spec.model_copy(update={"config": {**spec.config, "downsample_mode": mode}})


@pytest.mark.parametrize(
    ("mode", "size", "views", "tokens", "marks"),
    [
        ("16x", Size(448, 448), 1, 64, 5),
        ("16x", Size(900, 500), 3, 194, 9),
        ("16x", Size(1024, 1024), 7, 424, 18),
        ("4x", Size(1024, 1024), 7, 1816, 18),
    ],
)
def test_tokens_of_slices(mode: str, size: Size, views: int, tokens: int, marks: int) -> None:
    image = process_image(in_mode(mode), size, Limits())
    assert (image.tiles, image.tokens, image.extra_tokens) == (views, tokens, marks)


@pytest.mark.one_of(4)
@pytest.mark.parametrize("mode", ["16x", "4x"])
def test_views_are_those_of_the_real_processor(mode: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil

    real, spec, dice = MiniCPMV4_6ImageProcessorPil(), in_mode(mode), random.Random(1)
    for _ in range(400):
        size, most = Size(dice.randint(1, 4000), dice.randint(1, 4000)), dice.choice((1, 2, 4, 9, 36))
        sides = (size.height, size.width)
        grid = real.get_sliced_grid(sides, most, 448)
        views = [real.find_best_resize(sides, 448, 14, mode, allow_upscale=grid is None)]
        if grid is not None:
            height, width = real.get_refine_size(sides, grid, 448, 14, mode, allow_upscale=True)
            views += [(height // grid[0], width // grid[1])] * (grid[0] * grid[1])
        patches = tuple(side // 14 for view in views for side in view)
        assert process_image(spec, size, Limits(max_tiles=most)).tensors[1].values == patches, (size, most)


@pytest.mark.one_of(4)
def test_the_real_processor_makes_these_tensors() -> None:
    pytest.importorskip("transformers")
    import numpy
    from transformers.models.minicpmv4_6.image_processing_pil_minicpmv4_6 import MiniCPMV4_6ImageProcessorPil

    real = MiniCPMV4_6ImageProcessorPil()(numpy.zeros((500, 900, 3), "uint8"), return_tensors="np")
    pixels, grids = process_image(in_mode("16x"), Size(900, 500), Limits()).tensors
    assert tuple(real["pixel_values"].shape) == pixels.shape
    assert tuple(real["target_sizes"].flatten().tolist()) == grids.values


def test_finer_tokens_need_more_memory() -> None:
    job = {"images": 1, "image_size": (1024, 1024), "sequence_length": 2048, "method": "lora", "vision": "lora"}
    whole, fine = (vramplan.estimate(in_mode(mode), "h200", **job) for mode in ("16x", "4x"))
    assert fine.peak_tensor_bytes > whole.peak_tensor_bytes
    assert fine.num_parameters == whole.num_parameters


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"merger_times": 2}, "merger_times = 2"),
        ({"insert_layer_id": -1}, "insert_layer_id = -1"),
        ({"merge_kernel_size": [4, 4]}, "merge_kernel_size"),
    ],
)
def test_other_ways_of_merging_are_refused(changed: dict[str, object], message: str) -> None:
    spec = spec_of("openbmb/MiniCPM-V-4.6")
    spec = spec.model_copy(update={"config": {**spec.config, **changed}})
    with pytest.raises(UnsupportedError, match=message):
        architecture_of(spec).stacks()


def test_what_its_images_cannot_be_trained_with_is_refused() -> None:
    job = {"images": 1, "image_size": (400, 300), "sequence_length": 512}
    with pytest.raises(UnsupportedError, match=r"task=grpo with images of minicpmv4_6: .*target_sizes"):
        vramplan.estimate("openbmb/MiniCPM-V-4.6", "h200", task="grpo", micro_batch_size=8, prompt_length=128, **job)
    with pytest.raises(UnsupportedError, match=r"strategy=fsdp: .*merger"):
        vramplan.estimate("openbmb/MiniCPM-V-4.6", "h200", strategy="fsdp", num_gpus=2, **job)
    with pytest.raises(ConfigError, match=r"those of minicpmv4_6 are not modelled"):
        vramplan.estimate("openbmb/MiniCPM-V-4.6", "h200", videos=1)


def test_the_ocr_model_is_refused_with_the_nearest() -> None:
    config = {**spec_of("openbmb/MiniCPM-V-4.6").config, "model_type": "minicpm_ocr"}
    with pytest.raises(
        UnsupportedError, match=r"--by trace.*downsample_mode 4x.*openbmb/MiniCPM-V-4\.6 is the nearest"
    ):
        vramplan.estimate(ModelSpec(name="mine", model_type="minicpm_ocr", config=config), "h200")


def test_other_models_with_a_tower_are_not_traced_on_text_alone_unasked(tmp_path: Path) -> None:
    """A trace of idefics2 leaves its images out: that is no answer to whoever trains it on them."""
    (tmp_path / "config.json").write_text('{"model_type": "idefics2", "vision_config": {}, "text_config": {}}')
    with pytest.raises(UnsupportedError, match=r"tower and processor are not described; .*by=trace traces it on text"):
        vramplan.estimate(str(tmp_path), "h100", sequence_length=128)


SWIFT = "swift sft --model OpenBMB/MiniCPM-V-4.6 --tuner_type lora --max_length 4096 --torch_dtype bfloat16"


def test_ms_swifts_variables_of_its_template() -> None:
    limited = read(from_text(f"MAX_SLICE_NUMS=4 {SWIFT}", Path("run.sh"), None, {}), 1)
    assert limited.job["max_tiles"] == 4
    assert "max_tiles" not in settled(spec_of("openbmb/MiniCPM-V-4.6"), limited, limited.job)  # not set to None
    with pytest.raises(UnsupportedError, match=r"DOWNSAMPLE_MODE.*config\.json"):
        read(from_text(f"DOWNSAMPLE_MODE=4x {SWIFT}", Path("run.sh"), None, {}), 1)
