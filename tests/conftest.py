"""What all tests share: which cases run by default, one thread a process, a folder of the whole run."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

# before torch is loaded: on small tensors, threads that wait for each other take three times the processor time
os.environ.setdefault("OMP_NUM_THREADS", "1")
# a process that a test starts reads compiled files, whatever is set where the tests run: compiling takes half a second
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
os.environ["VRAMPLAN_NO_CACHE"] = "1"  # every test computes what it compares; those of the cache turn it on


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-of", type=int, default=1, metavar="N", help="of each test's cases, run every N-th")
    parser.addoption("--full-every", type=int, default=1, metavar="N", help="of what is marked full, keep every N-th")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked `one_of(n)`, every n-th case runs by default; the others are marked `full`."""
    counts: Counter[str] = Counter()
    for item in items:
        mark, step = item.get_closest_marker("one_of"), config.getoption("one_of")
        step = max(step, mark.args[0]) if mark is not None else step
        test = item.nodeid.partition("[")[0]
        if counts[test] % step:
            item.add_marker(pytest.mark.full)
        counts[test] += 1
    if (every := config.getoption("full_every")) > 1:
        full = [item for item in items if item.get_closest_marker("full") is not None]
        left_out = {item for number, item in enumerate(full) if number % every}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


MODULES_BETWEEN_FREEZES = 100
OBJECTS_BETWEEN_COLLECTIONS = 50_000
"""As the command line sets it (vramplan/cli/app.py)."""
frozen_modules = 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What was imported is kept from the cycle collector: torch's and transformers' millions of objects stay anyway.

    Libraries collect often (accelerate after each out-of-memory), half a second each time without this.
    """
    global frozen_modules
    if len(sys.modules) - frozen_modules >= MODULES_BETWEEN_FREEZES:
        gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
        gc.collect()
        gc.freeze()
        frozen_modules = len(sys.modules)


def pytest_unconfigure() -> None:
    """At exit all is collected: nanobind, by which triton is built, prints what is left; `vramplan.cli` freezes too."""
    atexit.unregister(gc.freeze)
    gc.unfreeze()


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run that all its processes share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
