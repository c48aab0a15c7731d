"""Build hook: compiles vramplan/memory/_passes.c if there is a C compiler, and lists the shipped models' names.

Without a compiler, the same runs in Python. With clang and wasm-ld, the passes are compiled for browsers as well, for
the site that ``vramplan site`` writes (on Debian: ``apt install clang lld wasi-libc``).

``python hatch_build.py`` compiles both in place, for a checkout that is on PYTHONPATH and not installed.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import sysconfig
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
SOURCE = "vramplan/memory/_passes.c"
HEADER = "vramplan/memory/_allocator.h"
WASM_CONFIG = "vramplan/memory/_wasm32_pyconfig.h"
OLDEST = "cp310"
"""The library serves this Python and all later ones: Py_LIMITED_API in the source."""
LIBRARIES = (".so", ".pyd")
FOR_BROWSERS = "vramplan/site/passes.wasm"
"""The passes as a side module of Emscripten, which Pyodide loads as an extension module of any Python from 3.10 on."""
LLVM_VERSIONS = ("", *(f"-{version}" for version in range(25, 14, -1)))
"""Ends of the names of LLVM's programs, as Debian has them."""
C_HEADERS = Path(os.environ.get("WASI_HEADERS", "/usr/include/wasm32-wasi"))
"""wasi-libc's, of which a few types and declarations are used; the functions are Pyodide's."""


class NotCompiled(Exception):
    """There is no library, and why."""


class PassesBuildHook(BuildHookInterface):
    """Adds the compiled library to a wheel, which then is for one platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a folder of the wheel's own; in place for an editable installation."""
        self.folder = TemporaryDirectory()
        if version != "editable":
            self._add_index(build_data)
        self._add_for_browsers(version, build_data)
        try:
            library = build(Path(self.folder.name))
        except NotCompiled as reason:
            self.app.display_warning(f"vramplan's core is not compiled, it runs in Python: {reason}")
            if version == "editable":
                remove_from_place()
            return
        if version == "editable":
            put_in_place(library)
            return
        build_data["force_include"][str(library)] = str(Path(SOURCE).with_name(library.name))
        build_data["pure_python"] = False
        build_data["tag"] = f"{OLDEST}-abi3-{platform_tag()}"

    def _add_for_browsers(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile for browsers if the programs are there, else take what was compiled from these sources before."""
        compiled_before = ROOT / FOR_BROWSERS
        try:
            module = build_for_browsers(Path(self.folder.name) / "browsers")
        except NotCompiled:  # `vramplan site` says so
            if not is_of_these_sources(compiled_before):
                if version == "editable":
                    compiled_before.unlink(missing_ok=True)
                return
            module = compiled_before
        if version != "editable":
            build_data["force_include"][str(module)] = FOR_BROWSERS
        elif module != compiled_before:
            put_in_place(module, compiled_before)

    def _add_index(self, build_data: dict[str, Any]) -> None:
        """Add the list of the shipped models' names, which spares a command from reading all of them."""
        sys.path.insert(0, str(ROOT))
        try:
            from vramplan.inputs.model_index import INDEX, write_index
        finally:
            sys.path.remove(str(ROOT))
        index = Path(self.folder.name) / INDEX
        write_index(ROOT / "model_specs", index)
        build_data["force_include"][str(index)] = f"vramplan/model_specs/{INDEX}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the folder."""
        self.folder.cleanup()


def build(folder: Path) -> Path:
    """Compile the library into a folder.

    Raises:
        NotCompiled: if there is no compiler, it fails, or this Python cannot load such a library.
    """
    if os.environ.get("VRAMPLAN_PURE_PYTHON", "0") not in ("", "0"):
        raise NotCompiled("VRAMPLAN_PURE_PYTHON is set")
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise NotCompiled("this Python has no stable ABI")
    try:
        from setuptools import Distribution, Extension
        from setuptools.errors import BaseError, CCompilerError
    except ImportError:
        raise NotCompiled("setuptools is not installed") from None
    macros = [("VRAMPLAN_VERSION", f'"{package_version()}"'), ("VRAMPLAN_SOURCE", f'"{source_digest()}"')]
    # some Pythons add debugging information, three times the library
    flags = ["-g0"] if os.name == "posix" and "CFLAGS" not in os.environ else []
    extension = Extension("_passes", [SOURCE], define_macros=macros, extra_compile_args=flags, py_limited_api=True)
    command = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
    command.build_lib = str(folder)
    command.build_temp = str(folder / "objects")
    command.ensure_finalized()
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output):
            command.run()
    except (BaseError, CCompilerError):  # what the compiler says is on stderr
        raise NotCompiled("the C compiler is missing or fails") from None
    (library,) = (path for path in folder.iterdir() if path.suffix in LIBRARIES)
    return library


def build_for_browsers(folder: Path) -> Path:
    """Compile the passes for wasm32 into a folder, which is made.

    The headers are those of this Python; the limited API is the same on all platforms, but for the sizes in pyconfig.h.

    Raises:
        NotCompiled: if there is no clang with wasm-ld, or one of them fails.
    """
    for version in LLVM_VERSIONS:
        clang, linker = shutil.which(f"clang{version}"), shutil.which(f"wasm-ld{version}")
        if clang and linker and C_HEADERS.is_dir():
            break
    else:
        raise NotCompiled("there is no clang with wasm-ld of the same version, or no wasi-libc")
    headers, compiled, module = folder / "include", folder / "passes.o", folder / Path(FOR_BROWSERS).name
    shutil.copytree(sysconfig.get_path("include"), headers)
    shutil.copy(ROOT / WASM_CONFIG, headers / "pyconfig.h")
    macros = [f'-DVRAMPLAN_VERSION="{package_version()}"', f'-DVRAMPLAN_SOURCE="{source_digest()}"', "-D__wasi__"]
    includes = ["-isystem", str(headers), "-isystem", str(C_HEADERS), "-D_WASI_EMULATED_SIGNAL"]
    target = ["--target=wasm32-unknown-emscripten", "-fPIC", "-fvisibility=hidden", "-O2"]
    for command in (
        [clang, *target, *includes, *macros, "-c", str(ROOT / SOURCE), "-o", str(compiled)],
        [linker, "--experimental-pic", "-shared", "--strip-all", "--unresolved-symbols=import-dynamic",
         "--export=PyInit__passes", str(compiled), "-o", str(module)],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise NotCompiled(f"{Path(command[0]).name} fails: {' '.join(done.stderr.split())[:400]}")
    return module


def put_in_place(library: Path, target: Path | None = None) -> Path:
    """Copy a library to where an editable installation has it."""
    target = target or (ROOT / SOURCE).with_name(library.name)
    replacement = target.with_name(target.name + ".new")
    replacement.write_bytes(library.read_bytes())
    replacement.replace(target)  # a process that has loaded the old one keeps it
    return target


def remove_from_place() -> None:
    """Remove a library that an earlier editable installation compiled."""
    for suffix in LIBRARIES:
        for library in (ROOT / SOURCE).parent.glob(f"_passes*{suffix}"):
            library.unlink()


def package_version() -> str:
    """The version, which the library has to agree with."""
    names: dict[str, str] = {}
    exec((ROOT / "vramplan" / "version.py").read_text(), names)
    return names["__version__"]


def source_digest() -> str:
    """Of the sources, by which a test sees that the library was built from them."""
    return sha256((ROOT / SOURCE).read_bytes() + (ROOT / HEADER).read_bytes()).hexdigest()


def is_of_these_sources(library: Path) -> bool:
    """Whether a library is there and was compiled from the sources as they are."""
    return library.is_file() and source_digest().encode() in library.read_bytes()


def platform_tag() -> str:
    """Of the platform that the library is compiled for (ARCHFLAGS and MACOSX_DEPLOYMENT_TARGET count on macOS)."""
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


if __name__ == "__main__":
    os.chdir(ROOT)
    with TemporaryDirectory() as folder:
        try:
            print(put_in_place(build(Path(folder))).relative_to(ROOT))
        except NotCompiled as reason:
            sys.exit(f"not compiled: {reason}")
        try:
            print(put_in_place(build_for_browsers(Path(folder) / "browsers"), ROOT / FOR_BROWSERS).relative_to(ROOT))
        except NotCompiled as reason:
            print(f"not compiled for browsers: {reason}")
