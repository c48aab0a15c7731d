"""Images: what processors make of them, how large they may be, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import card_of, cli, cli_json, spec_of
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.inputs.images import IMAGE_PROCESSORS, ProcessedImage, Size, processed_image
from vramplan.inputs.images.types import image_size
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner import check, images
from vramplan.planner.job_defaults import complete_job

INTERNVL = "OpenGVLab/InternVL2_5-8B"
SIZES = ((336, 336), (1344, 896), (3000, 4000))


def seen(model: str, size: tuple[int, int], **job: object) -> ProcessedImage:
    spec = spec_of(model)
    given = {"sequence_length": 1 << 20, "image_size": size, **job}
    found = processed_image(spec, complete_job(spec, card_of(), given))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        (INTERNVL, (256, 1792, 3328)),
        ("llava-hf/llava-1.5-7b-hf", (576, 576, 576)),
        ("llava-hf/llava-v1.6-vicuna-7b-hf", (1176, 2144, 2352)),
        ("Qwen/Qwen2.5-VL-7B-Instruct", (144, 1536, 15301)),
        ("Qwen/Qwen3-VL-8B-Instruct", (100, 1176, 11750)),
        ("google/gemma-3-4b-it", (256, 256, 256)),
        ("google/paligemma-3b-pt-448", (1024, 1024, 1024)),
        ("HuggingFaceM4/Idefics3-8B-Llama3", (2873, 2197, 2197)),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", (144, 1536, 2310)),
        ("zai-org/GLM-4.1V-9B-Thinking", (144, 1536, 7500)),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", (1, 1, 1)),
    ],
)
def test_tokens(model: str, tokens: tuple[int, ...]) -> None:
    """As the real processors count them: tests/test_processors.py runs those on many more sizes."""
    assert tuple(seen(model, size).tokens for size in SIZES) == tokens


def test_llamas_images_are_keys_of_cross_attention() -> None:
    """Four tiles whatever the image fills; one token in the text; a mask for every token, image and tile."""
    small, large = (seen("meta-llama/Llama-3.2-11B-Vision-Instruct", size) for size in (SIZES[0], SIZES[2]))
    assert (small.description, large.description) == ("1 x 1 of 4 tiles", "2 x 2 of 4 tiles")
    assert small.patches == large.patches == 4 * 1600
    shapes = {tensor.name: tensor.batched(2, 3, 100) for tensor in small.tensors}
    assert shapes["pixel_values"] == (2, 3, 4, 3, 560, 560)
    assert shapes["aspect_ratio_ids"] == (2, 3)
    assert shapes["aspect_ratio_mask"] == (2, 3, 4)
    assert shapes["cross_attention_mask"] == (2, 100, 3, 4)


def test_more_text_costs_llama_a_wider_mask() -> None:
    """Keys of images do not stand in the text, but every token has a mask over all 6404 of them."""
    model = "meta-llama/Llama-3.2-11B-Vision-Instruct"
    one, two = (
        vramplan.estimate(model, "h100", images=1, sequence_length=length, loss="liger") for length in (1024, 2048)
    )
    masks = [next(term.num_bytes for term in found.terms if "mask of images" in term.label) for found in (one, two)]
    assert masks == [1024 * 6404 * 2, 2048 * 6404 * 2]


def test_limits_are_the_users_the_models_the_classes() -> None:
    model = "Qwen/Qwen2.5-VL-7B-Instruct"
    assert seen(model, (3000, 4000), max_pixels=1_003_520).tokens == 1230
    assert seen(model, (30, 30), min_pixels=100_352).tokens == 144
    assert seen(INTERNVL, (3000, 4000), max_tiles=6).tiles == 7
    assert seen(INTERNVL, (3000, 4000), max_tiles=1).tiles == 1


@pytest.mark.parametrize("model_type", IMAGE_PROCESSORS)
def test_every_shipped_model_that_sees_takes_any_image(model_type: str) -> None:
    from vramplan.inputs.catalog import load_spec, model_names

    specs = [spec for name in model_names() if (spec := load_spec(name)).model_type == model_type]
    for spec in specs:
        for size in ((1, 1), (10, 13), (500, 300), (9999, 9999), (200, 1), (1, 200)):
            if (
                model_type in ("mistral3", "llava")
                and 200 in size
                and spec.config["vision_config"]["model_type"] == "pixtral"
            ):
                size = (200, 200)  # flatter ones lose a side
            found = seen(spec.name, size)
            assert found.tokens > 0
            assert found.patches >= 1
            assert found.num_bytes > 0


@pytest.mark.parametrize(
    ("model", "job", "said"),
    [
        ("Qwen/Qwen2.5-0.5B", {"images": 1}, "takes text alone"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", {"image_size": (4000, 10)}, "one side is 400 times the other"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", {"min_pixels": 90000, "max_pixels": 9000}, "swapped?"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", {"max_pixels": 100}, "one token alone takes 28 x 28"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", {"max_tiles": 3}, "no such limit"),
        (INTERNVL, {"max_pixels": 100_000}, "no such limit"),
        (INTERNVL, {"image_size": (0, 5)}, "sides must be 1 to"),
        (INTERNVL, {"image_size": "12 by 3"}, "expected WIDTHxHEIGHT"),
        (INTERNVL, {"image_size": (3000, 4000), "sequence_length": 2048}, "makes 3,330 tokens alone"),
        (INTERNVL, {"images": -1}, "greater than or equal to 0"),
        (INTERNVL, {"vision": "train"}, "PEFT freezes all weights without an adapter"),
        (INTERNVL, {"method": "full", "projector": "lora"}, "frozen or train"),
        (INTERNVL, {"vision": "melt"}, "vision='melt'"),
    ],
)
def test_refusals(model: str, job: dict[str, object], said: str) -> None:
    with pytest.raises(VramplanError) as error:
        vramplan.estimate(model, "h100", **job)  # type: ignore[arg-type]
    assert said in str(error.value)


def test_a_vision_tower_that_is_not_supported_is_named() -> None:
    spec = spec_of("llava-hf/llava-1.5-7b-hf")
    other = {**spec.config, "vision_config": {**spec.config["vision_config"], "model_type": "eva"}}
    with pytest.raises(UnsupportedError, match="eva"):
        vramplan.estimate(spec.model_copy(update={"config": other}), "h100")


def test_sizes_are_read_however_they_come() -> None:
    assert image_size("1344x896") == image_size(" 1344 X 896") == image_size([1344, 896]) == (1344, 896)


def test_text_alone_on_a_model_that_sees() -> None:
    """The tower lies in memory, and nothing else of it."""
    blind, one = (vramplan.estimate(INTERNVL, "h100", images=count, sequence_length=4096) for count in (0, 1))
    assert blind.num_parameters == one.num_parameters == 8_075_365_376
    assert blind.num_vision_parameters == one.num_vision_parameters == 304_012_288 + 33_570_816
    assert blind.image_tokens_per_sample == 0
    assert blind.peak_allocated_bytes < one.peak_allocated_bytes


def test_a_frozen_tower_saves_nothing_unless_a_gradient_goes_through() -> None:
    """Checkpointing has transformers give every embedding a gradient, the tower's patches too."""
    common = {"images": 1, "image_size": (1344, 896), "sequence_length": 2048, "loss": "liger"}
    frozen = vramplan.estimate(INTERNVL, "h100", checkpointing="none", **common)  # type: ignore[arg-type]
    adapted = vramplan.estimate(INTERNVL, "h100", checkpointing="none", vision="lora", **common)  # type: ignore[arg-type]
    tower = 7 * 1025 * 1024 * 24  # elements of one tensor in every layer
    assert adapted.peak_allocated_bytes - frozen.peak_allocated_bytes > 20 * tower
    ticking = vramplan.estimate(INTERNVL, "h100", checkpointing="full", **common)  # type: ignore[arg-type]
    kept = sum(t.num_bytes for t in ticking.terms if t.formula == "7 x 1025 x 1024 bf16" and t.category == "activation")
    assert kept >= 2 * tower


def test_many_sizes() -> None:
    rows = images.image_size_table(INTERNVL, "rtx4090", [images.Size(448, 448), images.Size(1344, 896)])
    assert [row.image.all_tokens for row in rows] == [258, 1794]
    assert [row.sequence_length for row in rows] == [514, 2050]
    assert rows[0].max_micro_batch_size > rows[1].max_micro_batch_size >= 1
    with pytest.raises(ConfigError, match="takes text alone"):
        images.image_size_table("Qwen/Qwen2.5-0.5B", "h100")


@pytest.mark.parametrize("quantity", [name for name in images.QUANTITIES if name != "vllm-share"])
def test_the_largest_that_fits(quantity: str) -> None:
    """It fits; one step more does not, or is not to be had."""
    model = "Qwen/Qwen2.5-VL-7B-Instruct" if quantity == "max-pixels" else INTERNVL
    found = images.solve(model, "rtx4090", quantity, loss="liger")
    assert vramplan.estimate(model, "rtx4090", **found.job).fits
    if found.bounded:
        more = {
            "max-pixels": lambda value: {"max_pixels": value + 784},
            "max-tiles": lambda value: {"max_tiles": value + 1},
            "seq-len": lambda value: {"sequence_length": value + 64},
        }[quantity](found.value)
        job = {**found.job, **more}
        if quantity != "seq-len":
            job.pop("sequence_length")
            job = images.with_sequence_length(spec_of(model), card_of("rtx4090"), job)
        assert not vramplan.estimate(model, "rtx4090", **job).fits
    with pytest.raises(VramplanError, match="known: image-size"):
        images.solve(model, "h100", "colour")


def test_on_the_command_line() -> None:
    """The question that people ask, and its inverse."""
    asked = ("--gpu", "rtx4090", "--num-gpus", "2", "--images", "1", "--image-size", "1344x896", "--global-batch", "16")
    found = cli_json("suggest", INTERNVL, *asked, "--method", "lora")
    assert found["recommended"]["micro_batch_size"] * found["recommended"]["gradient_accumulation_steps"] == 8
    assert "3 x 2 tiles + thumbnail: 1,794 tokens" in " ".join(cli("suggest", INTERNVL, *asked, "-v").stdout.split())
    solved = cli_json("suggest", INTERNVL, "--gpu", "rtx4090", "--global-batch", "4", "--solve", "max-tiles")
    assert solved["solved"]["value"] >= 1
    assert solved["recommended"]
    shown = cli("images", INTERNVL, "--gpu", "rtx4090", "--sizes", "448x448,1344x896")
    assert shown.returncode == 0, shown.stderr
    assert "3 x 2 tiles + thumbnail" in shown.stdout
    assert max(len(line.rstrip()) for line in shown.stdout.splitlines()) <= 80
    for bad in (("--sizes", "0x3"), ("--image-size", "3x3"), ("--images", "0"), ("--plot", "x.gif")):
        done = cli("images", INTERNVL, "--gpu", "rtx4090", *bad)
        assert done.returncode == 2, bad
        assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("model_type", "config", "processor", "tokens"),
    [
        ("minicpmv", {"query_num": 96}, {}, (98, 689, 984)),
        ("minicpmv", {"query_num": 64}, {"max_slice_nums": 9}, (69, 466, 665)),
        ("phi3_v", {}, {"num_crops": 16}, (2509, 1921, 1933)),
        ("phi3_v", {}, {"num_crops": 4}, (757, 757, 757)),
        ("deepseek_vl_v2", {"vision_config": {"patch_size": 14}}, {}, (421, 1415, 2017)),
        ("qwen", {"visual": {"image_size": 448, "n_queries": 256}}, {}, (258, 258, 258)),
        ("kimi_vl", {}, {"in_token_limit": 4096}, (148, 1084, 1040)),
        ("kimi_vl", {}, {"in_token_limit": 16384}, (148, 1540, 4204)),
    ],
)
def test_tokens_of_processors_outside_transformers(
    model_type: str, config: dict[str, Any], processor: dict[str, Any], tokens: tuple[int, ...]
) -> None:
    """Against the processors as mlx-vlm 0.7.10 carries them; MiniCPM-V and Qwen-VL by their rules, by hand."""
    spec = ModelSpec(name="remote", model_type=model_type, config=config, processor=processor)
    rows = images.process_sizes(spec, [Size(336, 336), Size(1344, 896), Size(3000, 4000)])
    assert tuple(picture.all_tokens for _, picture in rows) == tokens


def test_counted_models_say_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "minicpmv", "query_num": 64}')
    done = cli("images", str(tmp_path), "--gpu", "h100", "--sizes", "1344x896")
    assert done.returncode == 0
    assert "466" in done.stdout
    assert "its memory is not estimated" in " ".join(done.stdout.split())
    done = cli("estimate", str(tmp_path), "--gpu", "h100", "--images", "1")
    assert done.returncode == 2
    assert "`vramplan images` counts its image tokens" in done.stderr


PROCESSED = (
    "from transformers import AutoModelForImageTextToText, AutoProcessor\nfrom trl import SFTConfig, SFTTrainer\n"
    'model = AutoModelForImageTextToText.from_pretrained("Qwen/Qwen2.5-VL-3B-Instruct", dtype="bfloat16")\n'
    'processor = AutoProcessor.from_pretrained("Qwen/Qwen2.5-VL-3B-Instruct", {})\n'
    'args = SFTConfig("out", max_length=None, per_device_train_batch_size=1)\n'
    "SFTTrainer(model=model, args=args, processing_class=processor)\n"
)


@pytest.mark.parametrize(
    ("said", "given", "tokens"),
    [
        ("max_pixels=512 * 28 * 28", {}, 512),
        ("max_pixels=512 * 28 * 28", {"image_size": "4000x3000"}, 494),
        ('size={"shortest_edge": 3136, "longest_edge": 200704}', {"image_size": "4000x3000"}, 234),
        ("min_pixels=256 * 28 * 28", {"image_size": "56x56"}, 256),
    ],
)
def test_a_scripts_processor(tmp_path: Path, said: str, given: dict[str, Any], tokens: int) -> None:
    """Tokens by smart_resize (transformers, image_processing_qwen2_vl.py)."""
    script = tmp_path / "train.py"
    script.write_text(PROCESSED.format(said))
    estimate = check.check(script, "h100", images=1, **given).estimate
    picture = processed_image(spec_of("Qwen/Qwen2.5-VL-3B-Instruct"), estimate.job)
    assert picture is not None
    assert picture.tokens == tokens


def test_what_a_processor_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROCESSED.format("do_image_splitting=False"))
    with pytest.raises(VramplanError, match=r"train.py:4: .*AutoProcessor.from_pretrained\(do_image_splitting"):
        check.check(script, "h100")
