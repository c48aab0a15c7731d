"""Records by name, in modules that are imported when one of their records is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

T = TypeVar("T")


class LazyTable(Mapping[str, T]):
    """A mapping made of the mappings of several modules; its names are known before any of them is imported."""

    def __init__(self, package: str, attribute: str, names: Mapping[str, str]) -> None:
        """`names` are those in the mapping `attribute` of each module of `package`, between spaces."""
        self._package, self._attribute = package, attribute
        self._module_of = {name: module for module, words in names.items() for name in words.split()}

    @property
    def modules(self) -> set[str]:
        """Names of the modules."""
        return {*self._module_of.values()}

    def module_of(self, name: str) -> str:
        """The module that holds a record."""
        return self._module_of[name]

    def records_of(self, module: str) -> Mapping[str, T]:
        """The mapping of one module."""
        records: Any = getattr(import_module(f"{self._package}.{module}"), self._attribute)
        return records  # type: ignore[no-any-return]

    def __getitem__(self, name: str) -> T:
        return self.records_of(self._module_of[name])[name]

    def __contains__(self, name: object) -> bool:
        return name in self._module_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._module_of)

    def __len__(self) -> int:
        return len(self._module_of)
