"""Images to tokens: the real image processors of transformers beside ours, on images of many sizes and shapes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="transformers' processors need the extra vramplan[probe]")

import numpy
import torch

from tests.helpers import spec_of
from vramplan.errors import ConfigError
from vramplan.inputs.images import IMAGE_PROCESSORS, Limits, ProcessedImage, Size
from vramplan.inputs.model_spec import Config


def sizes(count: int, longest: int = 4000) -> Iterator[Size]:
    """Of any shape, tiny ones and very flat ones among them."""
    draw = random.Random(0)
    for number in range(count):
        low, high = ((1, longest), (1, 60), (1, longest))[number % 3]
        other = (1, 100) if number % 3 == 2 else (low, high)
        yield Size(draw.randint(low, high), draw.randint(*other))


@cache
def processor_of(model: str) -> Callable[[Size, Limits], ProcessedImage]:
    spec = spec_of(model)
    return partial(IMAGE_PROCESSORS[spec.model_type].processor, Config(spec.config, "c"), Config(spec.processor, "p"))


def ours(model: str, size: Size, limits: Limits = Limits()) -> ProcessedImage:
    return processor_of(model)(size, limits)


def agree(
    model: str, size: Size, limits: Limits, real: Callable[[], int], mine: Callable[[ProcessedImage], int]
) -> None:
    try:
        expected: int | None = real()
    except (ValueError, ZeroDivisionError):
        expected = None
    try:
        found: int | None = mine(ours(model, size, limits))
    except ConfigError:
        found = None
    assert found == expected, (model, size, limits)


def test_internvl() -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

    real = GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, crop_to_patches=True)
    for number, size in enumerate(sizes(1500)):
        most = (1, 2, 6, 12, 24)[number % 5]
        agree(
            "OpenGVLab/InternVL2_5-8B",
            size,
            Limits(max_tiles=most),
            lambda size=size, most=most: real.get_number_of_image_patches(
                size.height, size.width, {"max_patches": most}
            ),  # type: ignore[misc]
            lambda picture: picture.tiles,
        )


@pytest.mark.parametrize(
    ("model", "patch"),
    [("Qwen/Qwen2-VL-7B-Instruct", 14), ("Qwen/Qwen2.5-VL-7B-Instruct", 14), ("Qwen/Qwen3-VL-8B-Instruct", 16)],
)
def test_qwen(model: str, patch: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    @cache
    def real_of(least: int, most: int) -> Any:
        return Qwen2VLImageProcessorPil(min_pixels=least, max_pixels=most, patch_size=patch)

    for number, size in enumerate(sizes(1200)):
        least, most = (3136, 65536)[number % 2], (12845056, 1003520, 200704)[number % 3]
        real = real_of(least, most)
        agree(
            model,
            size,
            Limits(least, most),
            lambda size=size, real=real: real.get_number_of_image_patches(size.height, size.width),  # type: ignore[misc]
            lambda picture: picture.patches,
        )


def test_glm4v() -> None:
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize

    from vramplan.inputs.images import native_resolution

    empty = Config({"vision_config": {}}, "c")
    for size in sizes(1200):
        try:
            height, width = smart_resize(2, size.height, size.width, 2, 28, 112 * 112, 28 * 28 * 15000)
            expected: Any = (height // 14, width // 14)
        except ValueError:
            expected = None
        try:
            picture = native_resolution.glm4v(empty, Config({}, "p"), size, Limits())
            found: Any = (picture.rows, picture.columns)
        except ConfigError:
            found = None
        assert found == expected, size


def test_mllama() -> None:
    from transformers.models.mllama import image_processing_pil_mllama as real

    from vramplan.inputs.images import fixed_tiles

    for most, tile in ((4, 560), (4, 448), (6, 336), (12, 224)):
        config = Config({"vision_config": {"max_num_tiles": most, "image_size": tile}}, "c")
        for size in sizes(900):
            height, width = real.get_optimal_tiled_canvas(size.height, size.width, most, tile)
            rows, columns = int(height) // tile, int(width) // tile
            picture = fixed_tiles.mllama(config, Config({}, "p"), size, Limits())
            assert picture.description == f"{columns} x {rows} of {most} tiles", size
            named = {tensor.name: tensor.values for tensor in picture.tensors}
            assert named["aspect_ratio_ids"] == tuple(
                real.convert_aspect_ratios_to_ids_np([[(rows, columns)]], most).flatten()
            )
            assert sum(named["aspect_ratio_mask"] or ()) == rows * columns


def test_gemma4() -> None:
    from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

    from vramplan.inputs.images import native_resolution

    for budget in (70, 280, 1120):
        processor = Config({"max_soft_tokens": budget}, "p")
        for size in sizes(900):
            try:
                height, width = get_aspect_ratio_preserving_size(size.height, size.width, 16, budget * 9, 3)
                expected: Any = (height // 16, width // 16)
            except ValueError:
                expected = None
            try:
                picture = native_resolution.gemma4(Config({"vision_config": {}}, "c"), processor, size, Limits())
                found: Any = (picture.rows, picture.columns)
                assert picture.tensors[0].shape[1] == budget * 9
                assert sum(place >= 0 for place in picture.tensors[1].values or ()) == 2 * picture.patches
            except ConfigError:
                found = None
            assert found == expected, size


def test_llama4() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torchvision", reason="the real processor needs it")
    from transformers.image_utils import SizeDict
    from transformers.models.llama4 import image_processing_llama4 as real

    from vramplan.inputs.images import adaptive_tiles

    for most in (4, 12, 16):
        real.find_supported_resolutions.cache_clear()
        known = torch.tensor(real.find_supported_resolutions(most, SizeDict(height=336, width=336)))
        for size in sizes(900):
            height, width = real.get_best_fit((size.height, size.width), known, False).tolist()
            vision = {"vision_config": {"image_size": 336}}
            picture = adaptive_tiles.llama4(Config(vision, "c"), Config({}, "p"), size, Limits(max_tiles=most))
            count = height // 336 * (width // 336)
            assert picture.tiles == count + (count > 1), size


def test_phi4_multimodal() -> None:
    """The tensors that a trace feeds the model, and the processor's own count of tokens."""
    pytest.importorskip("torchvision", reason="the real processor needs it")
    from transformers.models.phi4_multimodal.image_processing_phi4_multimodal import Phi4MultimodalImageProcessor

    from vramplan.inputs.images import adaptive_tiles

    real = Phi4MultimodalImageProcessor()
    for size in sizes(60, 1200):
        image = numpy.zeros((size.height, size.width, 3), numpy.uint8)
        try:
            found = real(image, return_tensors="np")
        except ValueError:
            with pytest.raises(ConfigError):
                adaptive_tiles.phi4(Config({"vision_config": {}}, "c"), Config({}, "p"), size, Limits())
            continue
        picture = adaptive_tiles.phi4(Config({"vision_config": {}}, "c"), Config({}, "p"), size, Limits())
        assert picture.tokens == found["num_img_tokens"][0], size
        for tensor in picture.tensors:
            assert found[tensor.name].shape == tensor.shape, size
            assert tensor.values is None or tuple(found[tensor.name].flatten()) == tensor.values, size


@pytest.mark.parametrize("kind", ["llava_next", "llava_onevision"])
def test_anyres(kind: str) -> None:
    """The processors' own count of features, separators included."""
    from transformers.image_processing_utils import select_best_resolution
    from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
    from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor

    from vramplan.inputs.images import fixed_tiles

    model = "llava-hf/llava-v1.6-vicuna-7b-hf" if kind == "llava_next" else "llava-hf/llava-onevision-qwen2-7b-ov-hf"
    spec = spec_of(model)
    tile = spec.config["vision_config"]["image_size"]
    across = tile // spec.config["vision_config"]["patch_size"]
    canvases = spec.config.get(
        "image_grid_pinpoints", fixed_tiles.NEXT if kind == "llava_next" else fixed_tiles.ONEVISION
    )
    owner: Any = LlavaNextProcessor if kind == "llava_next" else LlavaOnevisionProcessor
    real = object.__new__(owner)
    real.vision_aspect_ratio = "anyres_max_9"
    for size in sizes(900):
        height, width = select_best_resolution([size.height, size.width], canvases)
        unpadded, newlines = owner._get_unpadded_features(
            real, size.height, size.width, across, across, height // tile, width // tile
        )
        picture = ours(model, size)
        assert picture.tokens == across**2 + unpadded + newlines, size
        assert picture.tiles == 1 + height // tile * (width // tile)


def test_idefics3() -> None:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    for model, tile in (("HuggingFaceM4/Idefics3-8B-Llama3", 364), ("HuggingFaceTB/SmolVLM-256M-Instruct", 512)):
        real = Idefics3ImageProcessorPil(size={"longest_edge": 4 * tile}, max_image_size={"longest_edge": tile})
        for size in sizes(600):
            count, rows, columns = real.get_number_of_image_patches(size.height, size.width, {})
            picture = ours(model, size)
            assert picture.tiles == count, (model, size)
            assert picture.extra_tokens == 3 + 2 * rows * columns + rows


def test_pixtral() -> None:
    from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

    for model, step, longest in (
        ("mistral-community/pixtral-12b", 16, 1024),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 28, 1540),
    ):
        for size in sizes(900):
            image = numpy.empty((size.height, size.width, 3), numpy.uint8)
            height, width = get_resize_output_image_size(image, (longest, longest), (step, step), "channels_last")
            try:
                picture = ours(model, size)
            except ConfigError:
                assert 0 in (height, width)
                continue
            assert (picture.tokens, picture.extra_tokens) == (height // step * (width // step), height // step), size


@pytest.mark.parametrize(
    "model",
    [
        "OpenGVLab/InternVL2_5-8B",
        "Qwen/Qwen2.5-VL-7B-Instruct",
        "HuggingFaceM4/Idefics3-8B-Llama3",
        "zai-org/GLM-4.1V-9B-Thinking",
        "meta-llama/Llama-3.2-11B-Vision-Instruct",
    ],
)
def test_the_tensors_themselves(model: str) -> None:
    """Random images through the whole processor: the shapes that a trace feeds the model."""
    from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
    from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    made: dict[str, Callable[[], Any]] = {
        "internvl": lambda: GotOcr2ImageProcessorPil(size={"height": 448, "width": 448}, crop_to_patches=True),
        "qwen2_5_vl": lambda: Qwen2VLImageProcessorPil(min_pixels=3136, max_pixels=12845056),
        "idefics3": lambda: Idefics3ImageProcessorPil(),
        "glm4v": lambda: Glm4vImageProcessorPil(),
        "mllama": lambda: MllamaImageProcessorPil(size={"height": 560, "width": 560}, max_image_tiles=4),
    }
    real = made[spec_of(model).model_type]()
    for size in (Size(336, 336), Size(700, 300), Size(90, 500)):
        image = numpy.random.default_rng(0).integers(0, 255, (size.height, size.width, 3), numpy.uint8)
        found = real(image, return_tensors="np")
        for tensor in ours(model, size).tensors:
            if tensor.layout == "tokens":
                continue  # made with the text
            assert tuple(found[tensor.name].shape) == tensor.batched(1, 1, 0), (tensor.name, size)
            if tensor.values is not None:
                assert tuple(found[tensor.name].flatten()) == tensor.values


LFM2_VL = {(300, 200): (70, 2, 1), (512, 512): (256, 2, 1), (640, 480): (234, 2, 1), (1200, 900): (1770, 9, 7)}
"""Tokens, as Lfm2VlImageProcessor's own functions count them; marks around them; tiles."""


def test_lfm2_vl() -> None:
    for size, expected in LFM2_VL.items():
        picture = ours("LiquidAI/LFM2-VL-1.6B", Size(*size))
        assert (picture.tokens, picture.extra_tokens, picture.tiles) == expected
        mask, shapes = (tensor.values or () for tensor in picture.tensors[1:])
        assert sum(mask) == 4 * picture.tokens == sum(a * b for a, b in zip(shapes[::2], shapes[1::2], strict=True))


def test_lfm2_vl_of_any_size() -> None:
    pytest.importorskip("torchvision", reason="its processor needs torchvision")
    from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor

    real = Lfm2VlImageProcessor()

    def tokens(size: Size) -> int:
        width, height = real.smart_resize(size.height, size.width, 2, 64, 256, 16)
        tiles = 0
        if real._is_image_too_large(size.height, size.width, 256, 16, 2, 2.0):
            *_, tiles = real._get_grid_layout(size.height, size.width, 2, 10, 512)
        return width // 32 * (height // 32) + 256 * tiles

    for size in sizes(1500):
        agree("LiquidAI/LFM2-VL-1.6B", size, Limits(), partial(tokens, size), lambda picture: picture.tokens)


@pytest.mark.parametrize(("tower", "side"), [("siglip_vision_model", 384), ("clip_vision_model", 336)])
def test_llava_next_keeps_a_class_token_only_where_its_tower_has_one(tower: str, side: int) -> None:
    from types import SimpleNamespace

    from transformers.models.llava_next.modeling_llava_next import LlavaNextModel

    from vramplan.inputs.images import fixed_tiles

    vision = {"model_type": tower, "image_size": side, "patch_size": 14}
    pinpoints = [[side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
    config = {
        "vision_feature_select_strategy": "full" if tower == "siglip_vision_model" else "default",
        "image_grid_pinpoints": pinpoints,
    }
    ours = fixed_tiles.llava_next(
        Config({**config, "vision_config": vision}, "mine"), Config({}, "mine"), Size(500, 400), Limits()
    )
    own: Any = SimpleNamespace(
        config=SimpleNamespace(vision_config=SimpleNamespace(**vision), image_grid_pinpoints=pinpoints)
    )
    features = torch.empty(ours.tiles, (side // 14) ** 2, 8)
    packed, _ = LlavaNextModel.pack_image_features(
        own, [features], torch.tensor([[400, 500]]), config["vision_feature_select_strategy"], torch.empty(8)
    )
    assert packed[0].shape[0] == ours.tokens
