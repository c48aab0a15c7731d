"""What all tests share: one thread a process, and a folder of the whole run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# before torch is loaded: on small tensors, threads that wait for each other take three times the processor time
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run that all its processes share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
