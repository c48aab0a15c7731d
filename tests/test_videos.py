"""Videos: what video processors make of them, beside transformers' own; what is refused, read and said."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import card_of, cli, cli_json, spec_of
from vramplan.errors import ConfigError, VramplanError, as_python, spell
from vramplan.inputs.images import VIDEO_PROCESSORS, Limits, ProcessedImage, Size, fixed_tiles, processed_image, videos
from vramplan.inputs.model_spec import Config, ModelSpec
from vramplan.planner import images
from vramplan.planner.job_defaults import complete_job

QWEN = "Qwen/Qwen2.5-VL-7B-Instruct"
QWEN3 = "Qwen/Qwen3-VL-8B-Instruct"
COUNTS = (1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 64, 200, 768)


def seen(model: str, size: tuple[int, int], frames: int, **job: Any) -> ProcessedImage:
    given = {"sequence_length": 1 << 20, "videos": 1, "frames": frames, "image_size": size, **job}
    spec = spec_of(model)
    found = processed_image(spec, complete_job(spec, card_of(), given))
    assert found is not None
    return found


# -- beside transformers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["qwen2_vl", "qwen3_vl", "glm4v"])
def test_patches(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grids of 1,500 videos of any shape and length, by the classes' own resize."""
    pytest.importorskip("torchvision", reason="the real processors need it")
    torch = pytest.importorskip("torch")
    import transformers
    from transformers.video_processing_utils import BaseVideoProcessor

    owner = {"qwen2_vl": "Qwen2VL", "qwen3_vl": "Qwen3VL", "glm4v": "Glm4v"}[model_type]
    monkeypatch.setattr(BaseVideoProcessor, "resize", lambda self, size, **rest: size)
    draw = random.Random(0)
    for number in range(1500):
        size = Size(*(draw.randint(1, (3000, 60)[number % low == 0]) for low in (2, 3)))
        frames = draw.choice(COUNTS)
        least, most = ((100352, 602112), (4096, 25165824), (12544, 47040000))[number % 3]
        own: dict[str, Any] = {"size": {"shortest_edge": least, "longest_edge": most}}
        if number % 5 == 0 and model_type != "glm4v":
            own["cap_pixels_per_frame"] = True
        real = getattr(transformers, f"{owner}VideoProcessor")(**own)
        film = torch.empty(1, frames, 3, size.height, size.width, device="meta")
        capped = {"cap_pixels_per_frame": own.get("cap_pixels_per_frame", False)}
        try:
            resized = real.resize(film, real.size, None, real.patch_size * 2, temporal_factor=2, **capped)
            expected: Any = (-(-frames // 2), resized.height // real.patch_size, resized.width // real.patch_size)
        except (ValueError, ZeroDivisionError):
            expected = None
        try:
            found = VIDEO_PROCESSORS[model_type](
                Config({"vision_config": {}}, "c"), Config(own, "p"), size, frames, Limits()
            )
            mine: Any = (found.tiles, found.rows, found.columns)
        except ConfigError:
            mine = None
        assert mine == expected, (size, frames, own)


@pytest.mark.parametrize(
    ("model", "owner", "own"),
    [
        (QWEN, "Qwen2VL", {"size": {"shortest_edge": 3136, "longest_edge": 12845056}}),
        (QWEN3, "Qwen3VL", {"size": {"shortest_edge": 4096, "longest_edge": 25165824}}),
        ("zai-org/GLM-4.1V-9B-Thinking", "Glm4v", {}),
        ("OpenGVLab/InternVL2_5-8B", "InternVL", {"size": {"height": 448, "width": 448}}),
        ("llava-hf/llava-onevision-qwen2-7b-ov-hf", "LlavaOnevision", {}),
        ("HuggingFaceTB/SmolVLM2-2.2B-Instruct", "SmolVLM", {"max_image_size": {"longest_edge": 384}}),
        ("gemma4", "Gemma4", {}),
    ],
)
def test_tensors(model: str, owner: str, own: dict[str, Any]) -> None:
    """Random frames through the whole processor: the shapes that a trace feeds the model."""
    pytest.importorskip("torchvision", reason="the real processors need it")
    torch = pytest.importorskip("torch")
    import transformers

    real = getattr(transformers, f"{owner}VideoProcessor")(do_sample_frames=False, **own)
    for frames, size in ((4, Size(320, 240)), (5, Size(90, 400)), (3, Size(500, 281))):
        video = torch.randint(0, 255, (frames, 3, size.height, size.width), dtype=torch.uint8)
        found = real([video], return_tensors="pt")
        if owner == "InternVL":
            found["pixel_values"] = found["pixel_values_videos"].flatten(0, 1)  # processing_internvl.py
        if model == "gemma4":
            mine = videos.gemma4(Config({"vision_config": {}}, "c"), Config({}, "p"), size, frames, Limits())
            assert sum(found["num_soft_tokens_per_video"]) * frames == mine.tokens
        else:
            mine = seen(model, size, frames)
        for tensor in mine.tensors:
            assert tuple(found[tensor.name].shape) == tensor.batched(1, 1, 0), (tensor.name, frames, size)
            if tensor.values is not None:
                assert tuple(found[tensor.name].flatten().tolist()) == tensor.values


def test_pan_and_scan() -> None:
    """Gemma 3's own cropping, beside ours, on 3,000 images."""
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("torch")
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    real, draw = object.__new__(Gemma3ImageProcessorPil), random.Random(0)
    for number in range(3000):
        size = Size(draw.randint(1, 4000), draw.randint(1, (4000, 900)[number % 2]))
        image = numpy.broadcast_to(numpy.uint8(0), (3, size.height, size.width))
        for most in (1, 2, 4, 7):
            crops = real.pan_and_scan(image, 256, most, 1.2)
            assert len(crops) == fixed_tiles.count_crops(size, most), (size, most)


# -- by hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "frames", "tokens", "extra", "runs"),
    [
        (QWEN, 8, 4 * 99, 2, 1),  # 320 x 240 becomes 308 x 252: 11 x 9
        (QWEN, 7, 4 * 99, 2, 1),  # an odd last frame is doubled
        (QWEN3, 8, 4 * 80, 2 + 4 * (2 + 6), 4),  # <0.2 seconds> and two marks around each pair
        (QWEN3, 30, 15 * 80, 2 + 15 * (2 + 6) + 5, 15),  # from 10 seconds on a digit more
        ("zai-org/GLM-4.1V-9B-Thinking", 8, 4 * 99, 2 + 4 * (2 + 1), 4),
        (
            "OpenGVLab/InternVL2_5-8B",
            12,
            12 * 256,
            12 * (2 + 4) + 11 + 3,
            12,
        ),  # Frame1: ... a line each, three of two digits
        ("llava-hf/llava-onevision-qwen2-7b-ov-hf", 8, 8 * 196 + 1, 0, 1),
        ("HuggingFaceTB/SmolVLM2-2.2B-Instruct", 8, 8 * 81, 32 + 8 * (3 + 10), 8),
    ],
)
def test_tokens(model: str, frames: int, tokens: int, extra: int, runs: int) -> None:
    """What stands for the frames, and what the processor writes around them; tokenizers take a digit at a time."""
    found = seen(model, (320, 240), frames)
    assert (found.tokens, found.extra_tokens, found.runs) == (tokens, extra, runs)
    assert len(found.token_kinds) == found.all_tokens
    assert found.token_kinds.count(2) == found.tokens


def test_caps_of_a_frame_and_of_all_frames() -> None:
    """Qwen2.5-VL's processor counts the pixels of a frame, Qwen3-VL's those of all frames."""
    small, large = (seen(QWEN, (1280, 720), frames, max_pixels=100_352) for frames in (2, 64))
    assert (small.rows, small.columns) == (large.rows, large.columns)
    small, large = (seen(QWEN3, (1280, 720), frames, max_pixels=1_003_520) for frames in (2, 64))
    assert small.rows * small.columns > 25 * large.rows * large.columns
    assert large.patches * 16 * 16 * 2 <= 1_003_520


def test_minicpm_sees_frames_as_images_without_numbers() -> None:
    spec = ModelSpec(name="remote", model_type="minicpmv", config={"query_num": 64})
    found = images.process_sizes(spec, [Size(1344, 896)], frames=10)[0][1]
    assert (found.tokens, found.extra_tokens) == (10 * 64, 10 * 3)


def test_more_frames_cost_more() -> None:
    common = {"videos": 1, "image_size": (448, 448), "sequence_length": 8192}
    few, many = (vramplan.estimate(QWEN, "h100", frames=count, **common) for count in (8, 32))  # type: ignore[arg-type]
    assert many.image_tokens_per_sample == 16 * 256 + 2
    assert few.image_tokens_per_sample == 4 * 256 + 2
    assert few.peak_allocated_bytes < many.peak_allocated_bytes


@pytest.mark.parametrize(
    ("model", "job", "said"),
    [
        ("Qwen/Qwen2.5-0.5B", {"videos": 1}, "takes text alone"),
        ("google/gemma-3-4b-it", {"videos": 1}, "frames can be given as images"),
        ("google/vit-base-patch16-224-in21k", {"videos": 1}, "is no vision-language model"),
        (QWEN, {"videos": 1, "images": 1}, "in one sample are not modelled"),
        (QWEN, {"frames": 4}, "has no meaning without videos"),
        (QWEN, {"videos": 1, "frames": 0}, "greater than 0"),
        (QWEN, {"videos": 1, "frames": 64, "sequence_length": 2048}, "a video of 640 x 360 pixels makes"),
        (QWEN3, {"videos": 1, "frames": 1}, "takes at least 2"),
        ("OpenGVLab/InternVL2_5-8B", {"videos": 1, "max_tiles": 3}, "no such limit"),
    ],
)
def test_refusals(model: str, job: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as error:
        vramplan.estimate(model, "h100", **job)
    assert said in str(error.value)


# -- read and said -----------------------------------------------------------------------------------------------------


def test_on_the_command_line() -> None:
    asked = (QWEN, "--gpu", "h100", "--videos", "1", "--frames", "16", "--image-size", "640x360")
    found = cli_json("estimate", *asked)
    assert found["image_tokens_per_sample"] == 8 * 299 + 2
    shown = " ".join(cli("estimate", *asked, "-v").stdout.split())
    assert "1 video of 16 frames of 640 x 360 pixels as 16 frames of 644 x 364: 2,394 tokens" in shown
    table = cli("images", QWEN, "--gpu", "h100", "--videos", "1", "--frames", "8", "--sizes", "320x240,640x360")
    assert "tokens are those of one video" in " ".join(table.stdout.split())
    panned = cli_json(
        "images", "google/gemma-3-4b-it", "--gpu", "h100", "--sizes", "1200x400,500x500", "--max-tiles", "4"
    )
    assert [row["tiles"] for row in panned] == [4, 1]


SWIFT = "swift sft --model {model} --train_type lora --torch_dtype bfloat16 --max_length 8192 --attn_impl sdpa\n"


@pytest.mark.parametrize(
    ("model", "environment", "asked", "frames", "size"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", "FPS_MAX_FRAMES=12 VIDEO_MAX_PIXELS=50176", {}, 12, (420, 224)),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "VIDEO_MAX_PIXELS=50176 VIDEO_MIN_PIXELS=3136", {}, 16, (280, 168)),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "", {"frames": 20}, 20, (644, 364)),
        ("Qwen/Qwen3-VL-8B-Instruct", "VIDEO_MAX_TOKEN_NUM=140", {"frames": 8}, 8, (480, 256)),
        ("OpenGVLab/InternVL2_5-8B", "VIDEO_SEGMENTS=4", {}, 4, (640, 360)),
    ],
)
def test_swifts_variables(
    tmp_path: Path, model: str, environment: str, asked: dict[str, Any], frames: int, size: tuple[int, int]
) -> None:
    """As qwen_vl_utils 0.0.14 resizes frames (fetch_video); its least, 128 tokens, wins over a smaller cap."""
    script = tmp_path / "train.sh"
    script.write_text(f"{environment} {SWIFT.format(model=model)}")
    found = vramplan.check(script, "h100", videos=1, image_size="640x360", look_further=False, **asked).estimate.job
    assert (found.videos, found.frames, found.images) == (1, frames, 0)
    assert found.image_size == size


def test_llamafactorys_keys(tmp_path: Path) -> None:
    """Frames are resized to video_max_pixels, 256 x 256 unless said, before any processor sees them."""
    config = tmp_path / "train.yaml"
    text = f"model_name_or_path: {QWEN}\nstage: sft\nfinetuning_type: lora\ncutoff_len: 16384\nbf16: true\n"
    config.write_text(text + "video_maxlen: 24\n")
    found = vramplan.check(config, "h100", videos=1, image_size="1280x720", look_further=False).estimate.job
    assert (found.frames, found.image_size) == (24, (341, 192))
    with pytest.raises(VramplanError, match="images with videos"):
        vramplan.check(config, "h100", images=1, videos=1)
    assert "videos says that there are any" in " ".join(
        spell(note.text, as_python)
        for note in vramplan.check(config, "h100", look_further=False).reading.notes
        if note.key == "video_maxlen"
    )
