"""What a model is: its Hub configuration, word for word, and where that comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from vramplan.errors import SpecError

IMPORT_PATH = "import-path"
"""The `model_type` of a user's own model, ``package.module:function``: only a trace knows what it is."""

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""torch's names of the dtypes that weights are published in, and ours."""


class ModelSpec(BaseModel):
    """One model architecture. Shapes only; no weights."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True, defer_build=True)

    name: str = Field(min_length=1)
    """Hub id, or the path it was read from."""
    aliases: tuple[str, ...] = ()
    """Other Hub ids with the same architecture and parameter count."""
    model_type: str = Field(min_length=1)
    """transformers' name of the architecture."""
    config: Mapping[str, Any]
    """The keys of the Hub's config.json that fix shapes, verbatim."""
    processor: Mapping[str, Any] = Field(default_factory=dict)
    """The keys of preprocessor_config.json that decide what becomes of an image, verbatim."""
    video_processor: Mapping[str, Any] = Field(default_factory=dict)
    """The same of video_preprocessor_config.json and videos; where it is absent, transformers reads the other."""
    stored_dtype: str | None = None
    """Dtype of the published weights (bf16, fp16 or fp32) where the configuration names none."""
    alias_configs: Mapping[str, Mapping[str, Any]] = Field(default_factory=dict)
    """Keys of the configuration that an alias has otherwise, by its name: what changes no shape of a weight."""
    num_parameters: int | None = Field(default=None, gt=0)
    """Official count of distinct parameters, tied ones once, where one is known."""
    stored_parameters: int | None = Field(default=None, gt=0)
    """Elements in the published safetensors files, where that differs (buffers, a copy of a tied head)."""
    counted_from: str = ""
    """Where `num_parameters` comes from."""
    sources: tuple[str, ...] = ()
    """Where the configuration was read."""
    confidence: str = "given"
    """verified (two sources agree or the total matches), single-source, or given by the user."""
    note: str = ""
    """Anything a reader should know."""

    @property
    def config_dtype(self) -> str | None:
        """The dtype that the configuration names, a dtype of jobs; None where it names none, or another."""
        text = self.config.get("text_config")
        for part in (self.config, text if isinstance(text, Mapping) else {}):
            named = part.get("dtype") or part.get("torch_dtype")
            if named is not None:
                return DTYPES.get(str(named).removeprefix("torch."))
        return None

    @property
    def published_dtype(self) -> str | None:
        """What ``dtype="auto"`` loads: the configuration's dtype, or where that is silent the weights' own."""
        return self.config_dtype or self.stored_dtype


class Config:
    """A model configuration read by key: a missing one is an error that names it, never a guess."""

    __slots__ = ("_owner", "_values")

    def __init__(self, values: Mapping[str, Any], owner: str) -> None:
        self._values = values
        self._owner = owner

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`; `default` (transformers' own) where it is absent or null."""
        value = self._values.get(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Whether `key` is there at all, null included."""
        return key in self._values

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number.

        Raises:
            SpecError: when the key is missing without a default, or is no positive integer below 2**40.
        """
        value = self.get(key, default)
        if value is None:
            raise SpecError(f"{self._owner}: config.json has no {key!r}")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 40:
            raise SpecError(f"{self._owner}: {key} = {value!r}; expected a positive whole number")
        return value

    def number(self, key: str, default: float) -> float:
        """A number.

        Raises:
            SpecError: when it is something else.
        """
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise SpecError(f"{self._owner}: {key} = {value!r}; expected a number")
        return float(value)

    def part(self, key: str) -> Config:
        """A configuration within this one.

        Raises:
            SpecError: when it is missing or something else.
        """
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise SpecError(f"{self._owner}: config.json has no {key!r}" if value is None else f"{self._owner}: {key}?")
        return Config(value, f"{self._owner}: {key}")

    def flag(self, key: str, default: bool) -> bool:
        """A truth value.

        Raises:
            SpecError: when it is something else.
        """
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise SpecError(f"{self._owner}: {key} = {value!r}; expected true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """A word.

        Raises:
            SpecError: when it is something else.
        """
        value = self.get(key, default)
        if not isinstance(value, str):
            raise SpecError(f"{self._owner}: {key} = {value!r}; expected a string")
        return value
