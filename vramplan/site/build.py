"""Assembles the site: Pyodide, one archive of Python packages, the page and its worker, in one folder.

The folder needs a server of static files and nothing else; no other host is asked.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from vramplan import atomic_write
from vramplan.errors import ConfigError
from vramplan.frameworks.registry import writers
from vramplan.inputs.catalog import all_gpus, model_names
from vramplan.planner.report import GPUS
from vramplan.render.figures import free_gib
from vramplan.render.report import FRAMEWORKS
from vramplan.render.web.frame import as_json, frame, source
from vramplan.render.web.matrix import table
from vramplan.site import parts as site_parts
from vramplan.version import __version__

PACKAGE = Path(__file__).parent.parent
SPECS = "model_specs"
PYODIDE_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
"""What a browser loads of Pyodide's archive (its README: "the core files")."""
WORKER = "worker.js"
POLICY = (
    "default-src 'self'; img-src data:; worker-src 'self'; style-src 'self' 'unsafe-inline';"
    " script-src 'self' 'wasm-unsafe-eval' 'unsafe-inline'"
)
"""Nothing comes from another host; Pyodide compiles WebAssembly."""
ARCHIVE = "packages.zip"
CORE = "passes.wasm"
"""The compiled passes as an Emscripten side module, if they were built (hatch_build.py)."""
CORE_IN_ARCHIVE = "vramplan/memory/_passes.abi3.so"
LEFT_OUT = ("emulated_gpu", "torch_backend", "adaptive", "measurements", "site")
"""Folders of this package that need a process, a GPU or torch."""
SAYS_WHAT_IS_MISSING = ("vramplan/torch_backend/__init__.py", "vramplan/torch_backend/dependencies.py")
"""Files in them that tell a model's user that only a trace would estimate it."""
LEFT_OUT_ENDINGS = (".pyc", ".pyi", ".c", ".h", ".so", ".pyd", ".dist-info/RECORD", ".cyclonedx.json")
EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The time of every file in the archive: the same parts make the same bytes."""


def build(out: Path, parts: Path | None = None) -> dict[str, int]:
    """Write the site into a folder, which is made if it is missing; `parts` is a folder of downloaded files.

    Returns:
        The bytes of each file by its name in the folder.

    Raises:
        ConfigError: if a part is missing or not the one that is known, or a file cannot be written.
    """
    with TemporaryDirectory() as folder:
        if parts is None:
            site_parts.download(Path(folder))
        files = assembled(site_parts.contents(parts or Path(folder)))
    for name, content in files.items():
        path = out / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path.parent}: cannot be made ({error.strerror})") from error
        atomic_write.write(path, content)
    return {name: len(content) for name, content in files.items()}


def has_core() -> bool:
    """Whether this installation has the passes compiled for browsers; without them an answer takes far longer."""
    return Path(__file__).with_name(CORE).is_file()


def assembled(contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """The site's files by name, from the contents of the parts.

    Raises:
        ConfigError: if Pyodide's archive lacks a file.
    """
    pyodide, wheels = site_parts.parts()
    here = Path(__file__).parent
    return {
        "index.html": _page().encode(),
        WORKER: (here / WORKER).read_bytes(),
        **{f"pyodide/{name}": content for name, content in _pyodide(contents[pyodide.file]).items()},
        ARCHIVE: _archive([contents[wheel.file] for wheel in wheels]),
        "licences.txt": _licences().encode(),
    }


def _page() -> str:
    """The page: the report's frame with controls, and lists of what can be chosen."""
    here = Path(__file__).parent
    gpus = sorted(all_gpus(), key=lambda gpu: (gpu.vendor != "NVIDIA", gpu.usable_bytes))
    lists = {
        "models": model_names(),
        "gpus": [[gpu.name, gpu.title, free_gib(gpu.usable_bytes)] for gpu in gpus],
        "rows": GPUS,
        "frameworks": [[name, writers()[name][0].name] for name in FRAMEWORKS],
        "matrix": table(),
    }
    controls = (here / "controls.html").read_text(encoding="utf-8")
    style = (here / "site.css").read_text(encoding="utf-8")
    scripts = [
        f'<script type="application/json" id="lists">{as_json(lists)}</script>',
        f"<script>\n{source('page.js')}</script>",
        f"<script>\n{(here / 'app.js').read_text(encoding='utf-8')}</script>",
    ]
    return frame("vramplan: what a training run needs of a GPU", POLICY, scripts, f"<style>{style}</style>{controls}")


def _pyodide(archive: bytes) -> dict[str, bytes]:
    """The files of npm's archive that are loaded."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for name in PYODIDE_FILES:
            try:
                stream = tar.extractfile(f"package/{name}")
            except KeyError:
                stream = None
            if stream is None:
                raise ConfigError(f"Pyodide's archive has no {name}")
            files[name] = stream.read()
    return files


def _archive(wheels: list[bytes]) -> bytes:
    """This package and the wheels as one archive, to be unpacked into a folder of modules."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in sorted({**dict(_in_wheels(wheels)), **dict(_own())}.items()):
            info = zipfile.ZipInfo(name, EARLIEST)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content, compresslevel=9)
    return out.getvalue()


def _in_wheels(wheels: list[bytes]) -> Iterator[tuple[str, bytes]]:
    for wheel in wheels:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            for name in archive.namelist():
                is_library = name.endswith(".so")  # theirs are for the browser
                if is_library or not name.endswith((*LEFT_OUT_ENDINGS, "/")):
                    yield name, archive.read(name)


def _own() -> Iterator[tuple[str, bytes]]:
    """This package's files by their names in the archive, with the core for browsers if there is one."""
    specs = PACKAGE / SPECS if (PACKAGE / SPECS).is_dir() else PACKAGE.parent / SPECS  # a wheel, or a checkout
    for root, prefix in ((PACKAGE, "vramplan"), (specs, f"vramplan/{SPECS}")):
        for path in root.rglob("*"):
            name = PurePosixPath(prefix, path.relative_to(root).as_posix())
            is_kept = name.parts[1] not in LEFT_OUT or str(name) in SAYS_WHAT_IS_MISSING
            if path.is_file() and is_kept and not path.name.endswith(LEFT_OUT_ENDINGS):
                yield str(name), path.read_bytes()
    if has_core():
        yield CORE_IN_ARCHIVE, Path(__file__).with_name(CORE).read_bytes()


def _licences() -> str:
    """What the site ships, and under which licences; the texts of the wheels are in the archive."""
    pyodide, wheels = site_parts.parts()
    lines = (f"{part.name} {part.version}: {part.licence}\n" for part in (pyodide, *wheels))
    return f"vramplan {__version__}: Apache-2.0\n{''.join(lines)}"
