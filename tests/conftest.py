"""Which tests share a process: those of a file, and all that ask for the matrix, which is worked out once in each."""

from __future__ import annotations

from typing import Any

import pytest

MATRIX = {"tests/test_traced.py", "tests/test_docs.py"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The groups are handed out in order: the longest goes first."""
    items.sort(key=lambda item: _group(item.nodeid) != "matrix")


@pytest.hookimpl(optionalhook=True)  # a run may do without pytest-xdist: -p no:xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Not `--dist loadgroup`, whose marks pytest-xdist 3.8 loses under pytest 9.2."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return ByGroup(config, log)


def _group(nodeid: str) -> str:
    path = nodeid.split("::")[0]
    return "matrix" if path in MATRIX else path
