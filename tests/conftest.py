"""Which tests share a process: those of a file, and all that ask for the matrix, which is worked out once in each."""

from __future__ import annotations

import pytest

MATRIX = {"test_traced.py", "test_docs.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest-xdist keeps a group on one worker."""
    for item in items:
        name = item.path.name
        item.add_marker(pytest.mark.xdist_group("matrix" if name in MATRIX else name))
