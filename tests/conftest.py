"""Which tests share a process: those of a file, and all that ask for the matrix, which is worked out once in each."""

from __future__ import annotations

import pytest

MATRIX = {"test_traced.py", "test_docs.py"}


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """pytest-xdist keeps a group on one worker, and hands them out in order: the longest goes first."""
    items.sort(key=lambda item: item.path.name not in MATRIX)
    for item in items:
        name = item.path.name
        item.add_marker(pytest.mark.xdist_group("matrix" if name in MATRIX else name))
