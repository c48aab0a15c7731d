"""`vramplan images`: what images cost, and how large they may be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vramplan.cli.flags import AsJson, Confidence, Gpu, Model, progress, sure, with_job_flags
from vramplan.errors import ConfigError


@with_job_flags
def images(
    model: Model,
    gpu: Gpu,
    sizes: Annotated[str | None, typer.Option(help="Image sizes to show: 448x448,1344x896 (the usual ones).")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it: FILE.svg or .png.")] = None,
    confidence: Confidence = None,
    as_json: AsJson = False,
    *,
    given: dict[str, Any],
) -> None:
    """Say what images of many sizes cost, and the largest micro-batch with each."""
    from vramplan import api, resolutions
    from vramplan.defaults import image_size
    from vramplan.images import Size

    if given.get("image_size") is not None:
        raise ConfigError("--image-size is what `images` shows many of: use --sizes")
    if given.get("images") == 0:
        raise ConfigError("--images 0: nothing to see; `estimate` takes samples of text alone")
    wanted = resolutions.SIZES
    if sizes is not None:
        wanted = tuple(Size(*image_size(one)) for one in sizes.split(","))
    card = api.load_card(gpu)
    with progress() as tell:
        rows = resolutions.table(model, card, wanted, progress=tell, **sure(confidence), **given)
    from vramplan.render import images as shown

    if plot is not None:
        shown.write(rows, card, plot)
    if as_json:
        from vramplan.render import json as as_text

        print(as_text.dumps(as_text.images(rows)))
    else:
        from vramplan.render import text

        text.print_all(shown.table(rows, card))
    raise typer.Exit(0 if any(row.max_micro_batch_size for row in rows) else 1)
