"""Immutable records with checked fields: jobs, GPUs and models.

A record is declared as pydantic's models are, and has their methods. Pydantic checks what comes from outside, but
loading it takes longer than most answers: values that plainly fit their fields pass without it, and it decides about
all others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from functools import cache
from operator import itemgetter
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

if TYPE_CHECKING:
    from pydantic import BaseModel, GetCoreSchemaHandler
    from pydantic_core import CoreSchema
    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Callable[[type], type]:
        """For type checkers alone."""
        return lambda cls: cls


REQUIRED: Any = object()
"""The default of a field that has to be given."""


class Field:
    """A field of a record."""

    __slots__ = ("bounds", "default", "default_factory", "former", "name", "owner")

    def __init__(
        self, default: Any, default_factory: Callable[[], Any] | None, former: str, bounds: Mapping[str, Any]
    ) -> None:
        self.default, self.default_factory, self.former, self.bounds = default, default_factory, former, bounds
        """`former` is an earlier name that is still read; `bounds` are gt, ge, lt, le or min_length."""
        self.name = ""
        self.owner: Any = None

    @property
    def annotation(self) -> Any:
        """The type of its values."""
        return _annotation(self.owner, self.name)

    def default_value(self) -> Any:
        """The value if none is given."""
        return self.default if self.default_factory is None else self.default_factory()

    def takes(self, value: Any) -> bool:
        """Whether a value plainly fits; where it does not, pydantic may still take it."""
        return _fits(value, self.annotation) and all(_BOUNDS[name](value, end) for name, end in self.bounds.items())


_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "gt": lambda value, end: value is None or value > end,
    "ge": lambda value, end: value is None or value >= end,
    "lt": lambda value, end: value is None or value < end,
    "le": lambda value, end: value is None or value <= end,
    "min_length": lambda value, end: len(value) >= end,
}


def field(
    *, default: Any = REQUIRED, default_factory: Callable[[], Any] | None = None, former: str = "", **bounds: Any
) -> Any:
    """A field with bounds of its value, or with an earlier name that is still read."""
    return Field(default, default_factory, former, bounds)


@cache
def _annotation(owner: type[Any], name: str) -> Any:
    return eval(owner.__annotations__[name], vars(sys.modules[owner.__module__]))


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin is Annotated:
        return _fits(value, hint.__origin__)
    if origin is Literal:
        return type(value) is str and value in get_args(hint)
    if origin in (UnionType, Union):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is tuple:
        kinds = get_args(hint)
        if type(value) is not tuple:
            return False
        if kinds[-1] is ...:
            kinds = kinds[:1] * len(value)
        return len(value) == len(kinds) and all(map(_fits, value, kinds))
    return hint in (int, str, float, bool, NoneType) and type(value) is hint


class Replaced:
    """In an annotation: values of earlier releases are replaced before they are checked."""

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        self.replace = replace

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.replace, handler(source))


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Record:
    """Fields that cannot be changed; the methods are those of pydantic's models.

    Raises:
        pydantic.ValidationError: if a value is out of range, has the wrong type or belongs to no field.
    """

    model_fields: ClassVar[dict[str, Field]] = {}
    """The fields by name."""
    _defaults: ClassVar[dict[str, Any]] = {}
    _values_of: ClassVar[itemgetter[Any]]

    if TYPE_CHECKING:

        @property
        def model_fields_set(self) -> set[str]:
            """Names of the fields that were given."""

    def __init_subclass__(cls) -> None:
        cls.model_fields = {}
        for name in cls.__annotations__:
            declared = cls.__dict__.get(name, REQUIRED)
            record_field = declared if isinstance(declared, Field) else Field(declared, None, "", {})
            record_field.name, record_field.owner = name, cls
            cls.model_fields[name] = record_field
            if declared is not REQUIRED:
                delattr(cls, name)
        cls._defaults = {name: each.default for name, each in cls.model_fields.items() if each.default is not REQUIRED}
        if cls.model_fields:
            cls._values_of = itemgetter(*cls.model_fields)

    def __init__(self, **values: Any) -> None:
        fields = self.model_fields
        names = set(values)
        if not all(name in fields and fields[name].takes(value) for name, value in values.items()) or any(
            name not in values and each.default is REQUIRED and each.default_factory is None
            for name, each in fields.items()
        ):
            checked = self._model().model_validate(values)
            values, names = vars(checked), checked.model_fields_set
        self._fill(values, names)

    def _fill(self, values: Mapping[str, Any], names: set[str]) -> None:
        filled = self.__dict__
        filled.update(self._defaults)
        filled.update(values)
        for name, each in self.model_fields.items():
            if each.default_factory is not None and name not in filled:
                filled[name] = each.default_factory()
        filled["model_fields_set"] = names

    @classmethod
    def model_construct(cls, _fields_set: set[str] | None = None, **values: Any) -> Self:
        """A record from values that are known to be valid."""
        record = object.__new__(cls)
        record._fill(values, set(values) if _fields_set is None else _fields_set)
        return record

    @classmethod
    def model_validate(cls, values: Any, *, strict: bool = True) -> Self:
        """A record from a dictionary; a record is returned as it is. Not `strict`: lists become tuples, and so on.

        Raises:
            pydantic.ValidationError: as above.
        """
        if isinstance(values, cls):
            return values
        if strict and isinstance(values, dict) and all(isinstance(name, str) for name in values):
            return cls(**values)
        return cls._of_model(cls._model().model_validate(values, strict=strict))

    @classmethod
    def model_validate_json(cls, text: str | bytes) -> Self:
        """A record from JSON.

        Raises:
            pydantic.ValidationError: as above.
        """
        return cls._of_model(cls._model().model_validate_json(text))

    @classmethod
    def _model(cls) -> type[BaseModel]:
        """The model with which pydantic checks the values."""
        record: Any = cls
        return _model_of(record)

    @classmethod
    def _of_model(cls, model: BaseModel) -> Self:
        return cls.model_construct(model.model_fields_set, **vars(model))

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Self:
        """A copy with other values for some fields, which are not checked."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        if update:
            copy.__dict__.update(update)
            copy.__dict__["model_fields_set"] = self.model_fields_set | update.keys()
        return copy

    def model_dump(
        self,
        *,
        mode: str = "python",
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        exclude_unset: bool = False,
        exclude_defaults: bool = False,
    ) -> dict[str, Any]:
        """The values by field; with `mode` json as JSON has them, tuples as lists."""
        dumped = {}
        for name, each in self.model_fields.items():
            value = self.__dict__[name]
            if (
                (include is not None and name not in include)
                or name in exclude
                or (exclude_unset and name not in self.model_fields_set)
                or (exclude_defaults and value == each.default_value())
            ):
                continue
            if isinstance(value, Record):
                value = value.model_dump(mode=mode, exclude_unset=exclude_unset, exclude_defaults=exclude_defaults)
            dumped[name] = _as_json(value) if mode == "json" else value
        return dumped

    def model_dump_json(self, **options: Any) -> str:
        """The same as JSON text."""
        import json

        return json.dumps(self.model_dump(mode="json", **options), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        """The JSON schema of the values."""
        return cls._model().model_json_schema()

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; model_copy makes another")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; model_copy makes another")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return bool(self._values_of(self.__dict__) == self._values_of(other.__dict__))

    def __hash__(self) -> int:
        return hash((type(self), self._values_of(self.__dict__)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in self.model_fields)})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """How pydantic reads and writes a record inside of a model of its own."""
        from pydantic_core import core_schema

        def read(value: Any, check: Callable[[Any], Any]) -> Any:
            return value if isinstance(value, cls) else cls._of_model(check(value))

        def write(record: Record, info: Any) -> dict[str, Any]:
            return record.model_dump(
                mode=info.mode, exclude_unset=info.exclude_unset, exclude_defaults=info.exclude_defaults
            )

        model = handler(cls._model())
        return core_schema.json_or_python_schema(
            core_schema.no_info_after_validator_function(cls._of_model, model),
            core_schema.no_info_wrap_validator_function(read, model),
            serialization=core_schema.plain_serializer_function_ser_schema(write, info_arg=True),
        )


def _as_json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _as_json(item) for key, item in value.items()}
    return value


@cache
def _model_of(record: type[Any]) -> type[BaseModel]:
    import pydantic

    texts = _docstrings(record)
    definitions: dict[str, Any] = {}
    for name, each in record.model_fields.items():
        options = {"description": texts.get(name), **each.bounds}
        if each.former:
            options["validation_alias"] = pydantic.AliasChoices(name, each.former)
        if each.default_factory is not None:
            options["default_factory"] = each.default_factory
        else:
            options["default"] = ... if each.default is REQUIRED else each.default
        definitions[name] = (each.annotation, pydantic.Field(**options))
    config = pydantic.ConfigDict(frozen=True, strict=True, extra="forbid")
    model: type[BaseModel] = pydantic.create_model(
        record.__name__, __config__=config, __doc__=record.__doc__, __module__=record.__module__, **definitions
    )
    return model


def _docstrings(record: type[Record]) -> dict[str, str]:
    """The text below each field, for schemas; none where the source is not at hand."""
    import ast
    import inspect
    from textwrap import dedent

    try:
        body = ast.parse(dedent(inspect.getsource(record))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            text = following.value if isinstance(following, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                texts[statement.target.id] = inspect.cleandoc(text.value)
    return texts
