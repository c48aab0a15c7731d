"""The dataclasses of this package: as the standard library's, and made in a third of the time.

The standard library compiles up to six methods for every class, which took a quarter of the time of a short command.
Only ``__init__`` is compiled here; the other methods are the same for all classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool = False, slots: bool = False, eq: bool = True, kw_only: bool = False) -> Callable:
        """As :func:`dataclasses.dataclass`, with these of its options."""
        methods = {"__repr__": _repr}
        if eq:
            methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
        if frozen:
            methods |= {"__setattr__": _refuse_set, "__delattr__": _refuse_delete}
        if frozen and slots:
            methods |= {"__getstate__": _get_state, "__setstate__": _set_state}

        def make(cls: type) -> type:
            bases = [base for base in cls.__mro__[:-1] if "__dataclass_fields__" not in vars(base)]
            for name, method in methods.items():
                if not any(name in vars(base) for base in bases):
                    setattr(cls, name, method)
            made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(cls)
            made.__init__ = _init(made, _SETTINGS[frozen, frozen and slots])
            compared = [field.name for field in dataclasses.fields(made) if field.compare]
            made._compared = attrgetter(*compared) if compared else staticmethod(_nothing)
            return made

        return make


_SETTINGS = {
    (False, False): " self.{name} = {value}",
    (True, False): " self.__dict__['{name}'] = {value}",
    (True, True): " set_{name}(self, {value})",
}
"""How ``__init__`` sets a field, by whether the class is frozen and whether it is so with slots: past the refusal to
change it, a slot by its descriptor."""


def _init(cls: type, setting: str) -> Callable[..., None]:
    """``__init__``, compiled."""
    names: dict[str, Any] = {"MISSING": dataclasses.MISSING}
    parameters: list[str] = []
    only_keywords: list[str] = []
    body: list[str] = []
    for field in dataclasses.fields(cls):
        name, value, default = field.name, field.name, ""
        if field.default is not dataclasses.MISSING:
            names[f"default_{name}"], default = field.default, f"=default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"make_{name}"], default = field.default_factory, "=MISSING"
            value = f"make_{name}() if {name} is MISSING else {name}"
        if setting is _SETTINGS[True, True]:
            names[f"set_{name}"] = getattr(cls, name).__set__
        if not field.init:
            if default:
                body.append(setting.format(name=name, value=f"default_{name}"))
            continue
        (only_keywords if field.kw_only else parameters).append(name + default)
        body.append(setting.format(name=name, value=value))
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    listed = ", ".join(["self", *parameters, *(["*", *only_keywords] if only_keywords else [])])
    exec(f"def __init__({listed}):\n" + "\n".join(body or [" pass"]), names)
    init: Callable[..., None] = names["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _nothing(_: object) -> tuple[()]:
    return ()


def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: Any) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _refuse_set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
