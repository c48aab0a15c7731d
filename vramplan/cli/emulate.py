"""`vramplan emulate`."""

from __future__ import annotations

import sys
from typing import Annotated

from vramplan.cli import completion
from vramplan.cli.options import progress, say
from vramplan.cli.panels import MODEL, REAL, SEVERAL
from vramplan.cli.parameters import Option, Rest
from vramplan.errors import ConfigError


def emulate(
    command: Annotated[
        list[str] | None,
        Rest(metavar="COMMAND...", help="A command that trains, such as python train.py.", shows_default=False),
    ] = None,
    gpu: Annotated[
        str | None,
        Option(help="GPU by name; `vramplan gpus` lists them.", panel=MODEL, complete=completion.gpu_names),
    ] = None,
    num_gpus: Annotated[int, Option(help="Number of such GPUs.", min=1, panel=SEVERAL)] = 1,
    install: Annotated[
        bool,
        Option("--install", help="Compile the libraries for the installed PyTorch; needs a C compiler.", panel=REAL),
    ] = False,
) -> int:
    """Run a command on a GPU that is not there: PyTorch's CUDA build, its memory counted, without kernels."""
    from vramplan.emulated_gpu import build

    if install:
        if command or gpu:
            raise ConfigError("--install takes neither --gpu nor a command")
        with progress() as tell:
            libraries = build.install(tell)
        say(f"GPUs are emulated for torch {libraries.torch.version}: {libraries.folder}")
        return 0
    if not command:
        if gpu is not None:
            raise ConfigError("give the command to run after --, such as: -- python train.py")
        libraries = build.installed()
        say(f"GPUs are emulated for torch {libraries.torch.version}: {libraries.folder}")
        return 0
    if gpu is None:
        raise ConfigError("give --gpu, the GPU to emulate; `vramplan gpus` lists them")
    return _run(command, gpu, num_gpus)


def _run(command: list[str], gpu_name: str, num_gpus: int) -> int:
    from vramplan.emulated_gpu import run
    from vramplan.inputs.catalog import find_gpu
    from vramplan.memory.overheads import context_bytes
    from vramplan.units import format_bytes

    gpu = find_gpu(gpu_name)
    finished = run.run(command, gpu, num_gpus, context_bytes(gpu))
    sys.stdout.flush()
    for number, peak in enumerate(finished.peak_bytes):
        used = f"at most {format_bytes(peak)} in use" if peak else "not used"
        say(f"vramplan: emulated {gpu.title} {number}: {used} of {format_bytes(gpu.usable_bytes)}", file=sys.stderr)
    return finished.exit_code
