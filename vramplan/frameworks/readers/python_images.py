"""Caps on images that a script's processor is loaded with."""

from __future__ import annotations

from vramplan.errors import UnsupportedError
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.python_ast import Script

PROCESSORS = ("Processor", "ImageProcessor", "ImageProcessorFast")
"""Ends of the names of classes whose from_pretrained returns an image processor."""
RESIZES = ("max_image_size", "do_image_splitting", "crop_to_patches", "max_patches", "do_pan_and_scan", "num_crops")
"""Arguments of an image processor that change an image's tokens and are refused."""
AREA = 4096
"""Above this the edges in `size` are numbers of pixels, as in Qwen's processors, not sides (transformers 5.23)."""


def image_caps(script: Script) -> dict[str, ConfigValue]:
    """Caps on images that a processor is loaded with.

    Raises:
        UnsupportedError: for other arguments that change its images.
    """
    caps: dict[str, ConfigValue] = {}
    for call in script.named("from_pretrained"):
        if not call.name.rpartition(".")[0].endswith(PROCESSORS):
            continue
        size = call.keywords.get("size")
        arguments = {name: value for name, value in call.keywords.items() if name in ("min_pixels", "max_pixels")}
        if size is not None and isinstance(size.value, dict) and size.value.get("longest_edge", 0) > AREA:
            edges = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
            arguments |= {name: ConfigValue(size.value[e], size.place) for name, e in edges.items() if e in size.value}
        elif size is not None:
            raise UnsupportedError(f"{size.place}: {call.name}(size=...) is not modelled yet; give max_pixels")
        for name in RESIZES:
            if name in call.keywords:
                raise UnsupportedError(f"{call.keywords[name].place}: {call.name}({name}=...) is not modelled yet")
        caps |= arguments
    return caps
