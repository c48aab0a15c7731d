"""The package's dataclasses do what the standard library's do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any

import pytest

from tests.helpers import ROOT
from vramplan.dataclass import dataclass

OPTIONS: tuple[dict[str, bool], ...] = (
    {"frozen": True, "slots": True},
    {"slots": True},
    {"slots": True, "eq": False},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True},
    {"eq": True},
)


def made_by(decorator: Any, **options: bool) -> Any:
    @decorator(**options)
    class Point:
        """A point."""

        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list)
        note: str = field(default="", repr=False, compare=False)
        total: int = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + self.y)

    return Point


@dataclass(frozen=True, slots=True)
class Here:
    """At module level, so that pickle finds it."""

    x: int
    y: tuple[int, ...] = ()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_as_the_standard_librarys(options: dict[str, bool]) -> None:
    ours, theirs = made_by(dataclass, **options), made_by(dataclasses.dataclass, **options)
    assert [one.name for one in fields(ours)] == [one.name for one in fields(theirs)]
    assert getattr(ours, "__slots__", None) == getattr(theirs, "__slots__", None)
    assert ours.__match_args__ == theirs.__match_args__
    results = []
    for cls in (ours, theirs):
        a, b, c = cls(x=1), cls(x=1, note="other"), cls(x=2, y=3, tags=["t"])
        attempts: list[Any] = [repr(a), repr(c), a == b, a == c, a != c, a == 1, asdict(c), replace(c, x=5).total]
        assert a.tags is not b.tags
        for attempt in (
            lambda a=a, b=b: hash((a, 1)) == hash((b, 1)),
            lambda cls=cls: cls(),
            lambda cls=cls: cls(1, 2),
            lambda cls=cls: cls(x=1, z=1),
            lambda a=a: setattr(a, "x", 7),
            lambda a=a: delattr(a, "x"),
            lambda c=c: copy.deepcopy(c).tags,
        ):
            try:
                attempts.append(attempt())
            except (TypeError, AttributeError) as error:
                attempts.append(type(error))
        results.append([repr(one).replace(" object at 0x", "") for one in attempts])
    assert results[0] == results[1]


def test_pickled_and_frozen() -> None:
    here = Here(1, y=(2,))
    assert pickle.loads(pickle.dumps(here)) == here
    assert copy.copy(here) == here
    assert {here: 1}[Here(1, (2,))] == 1
    with pytest.raises(FrozenInstanceError, match="'x'"):
        here.x = 2  # type: ignore[misc]


def test_without_fields() -> None:
    @dataclass(frozen=True, slots=True)
    class Nothing:
        """No fields."""

    assert Nothing() == Nothing()
    assert {Nothing()} == {Nothing()}
    assert repr(Nothing()).endswith("Nothing()")


def test_the_package_uses_them() -> None:
    """The standard library's take three times as long to make."""
    theirs = re.compile(r"^from dataclasses import .*\bdataclass\b", re.MULTILINE)
    using = [path for path in (ROOT / "vramplan").rglob("*.py") if theirs.search(path.read_text())]
    assert {path.stem for path in using} <= {"dataclass"}
