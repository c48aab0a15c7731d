"""`vramplan images`: what images cost, and how large they may be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vramplan.cli.options import (
    AsJson,
    Confidence,
    GpuName,
    Model,
    Verbose,
    progress,
    say,
    sure,
    with_job_flags,
)
from vramplan.cli.panels import DATA, OUTPUT
from vramplan.cli.parameters import Option
from vramplan.errors import ConfigError

if TYPE_CHECKING:
    from vramplan.inputs.images import Size
    from vramplan.inputs.model_spec import ModelSpec


@with_job_flags
def images(
    model: Model,
    gpu: GpuName,
    sizes: Annotated[
        str | None, Option(help="Image sizes to show: 448x448,1344x896 (the usual ones).", panel=DATA)
    ] = None,
    plot: Annotated[Path | None, Option(help="Draw it: FILE.svg or .png.", panel=OUTPUT)] = None,
    confidence: Confidence = None,
    verbose: Verbose = False,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> int:
    """Show what images of many sizes cost, and the largest micro-batch with each."""
    from vramplan.inputs.images import COUNTED, Size
    from vramplan.inputs.images.types import image_size
    from vramplan.inputs.load import load_gpu, load_model
    from vramplan.planner import images as resolutions

    if given.get("image_size") is not None:
        raise ConfigError("--image-size is what `images` shows many of: use --sizes")
    if given.get("images") == 0 and not given.get("videos"):
        raise ConfigError("--images 0: nothing to see; `estimate` takes samples of text alone")
    wanted = resolutions.SIZES
    if sizes is not None:
        wanted = tuple(Size(*image_size(one)) for one in sizes.split(","))
    card, spec = load_gpu(gpu), load_model(model)
    if spec.model_type in COUNTED:
        _count(spec, wanted, as_json, given, plot)
        return 0
    with progress() as tell:
        rows = resolutions.image_size_table(spec, card, wanted, progress=tell, **sure(confidence), **given)
    from vramplan.render import images as shown

    if plot is not None:
        shown.write(rows, card, plot)
    if as_json:
        from vramplan.render import json_output as as_text

        say(as_text.dumps(as_text.images(rows)))
    else:
        from vramplan.render import terminal

        terminal.print_all(shown.answer(rows, card, verbose))
    return 0 if any(row.max_micro_batch_size for row in rows) else 1


def _count(spec: ModelSpec, sizes: Sequence[Size], as_json: bool, given: dict[str, Any], plot: Path | None) -> None:
    """Tokens alone."""
    from vramplan.inputs.images import USUAL_FRAMES
    from vramplan.planner import images as resolutions
    from vramplan.render import images as shown
    from vramplan.render import json_output as as_text
    from vramplan.render import terminal

    if plot is not None:
        raise ConfigError(f"--plot: the memory of {spec.model_type} is not described, only its tokens are counted")
    limits = {name: given[name] for name in ("min_pixels", "max_pixels", "max_tiles") if name in given}
    frames = given.get("frames", USUAL_FRAMES) if given.get("videos") else None
    rows = resolutions.process_sizes(spec, sizes, **limits, frames=frames)
    if as_json:
        say(as_text.dumps(as_text.counts(rows)))
    else:
        terminal.print_all(shown.counts(spec.name, spec.model_type, rows))
