"""A model: its Hub configuration, verbatim, and the source of that."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from vramplan.errors import SpecError
from vramplan.inputs.record import Record, field

IMPORT_PATH = "import-path"
"""The `model_type` of a user's own model, ``package.module:function``, which only a trace supports."""

MAX_SIZE = 1 << 26
"""Of any size in a configuration; the largest, positions, reach ten million."""
MAX_LAYERS = 512
"""Of one stack: each is simulated on its own where they differ."""
LAYERS = frozenset(
    {
        "num_hidden_layers",
        "num_layers",
        "num_decoder_layers",
        "num_global_layers",
        "n_layer",
        "n_layers",
        "encoder_layers",
        "decoder_layers",
        "depth",
        "layers",
    }
)
"""Keys that hold a number of layers."""

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
"""Dtype of jobs by torch's name, for dtypes that weights are published in."""


class ModelSpec(Record):
    """One model architecture. Shapes only; no weights."""

    name: str = field(min_length=1)
    """Hub id, or the path it was read from."""
    aliases: tuple[str, ...] = ()
    """Other Hub ids with the same architecture and parameter count."""
    model_type: str = field(min_length=1)
    """transformers' name of the architecture."""
    config: Mapping[str, Any]
    """The keys of the Hub's config.json that fix shapes, verbatim."""
    processor: Mapping[str, Any] = field(default_factory=dict)
    """The keys of preprocessor_config.json that decide the size of a processed image, verbatim."""
    video_processor: Mapping[str, Any] = field(default_factory=dict)
    """The same of video_preprocessor_config.json for videos; if it is empty, transformers reads `processor`."""
    stored_dtype: str | None = None
    """Dtype of the published weights (bf16, fp16 or fp32) if the configuration names none."""
    alias_configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Keys of the configuration that differ for an alias, by its name; they change no shape of a weight."""
    num_parameters: int | None = field(default=None, gt=0)
    """Official number of distinct parameters, tied ones counted once; None if it is unknown."""
    stored_parameters: int | None = field(default=None, gt=0)
    """Elements in the published safetensors files, if their number differs (buffers, a copy of a tied head)."""
    counted_from: str = ""
    """Source of `num_parameters`."""
    sources: tuple[str, ...] = ()
    """Sources of the configuration."""
    confidence: str = "given"
    """verified (two sources agree or the total matches), single-source, or given by the user."""
    note: str = ""
    """A remark for the user."""

    @property
    def config_dtype(self) -> str | None:
        """The dtype that the configuration names, as jobs name it; None if it names none or another."""
        text = self.config.get("text_config")
        for part in (self.config, text if isinstance(text, Mapping) else {}):
            dtype = part.get("dtype") or part.get("torch_dtype")
            if dtype is not None:
                return DTYPES.get(str(dtype).removeprefix("torch."))
        return None

    @property
    def published_dtype(self) -> str | None:
        """The dtype that ``dtype="auto"`` loads: the configuration's, or if it names none that of the weights."""
        return self.config_dtype or self.stored_dtype


class Config:
    """A model configuration read by key; a missing required key is an error that names it."""

    __slots__ = ("_owner", "_values")

    def __init__(self, values: Mapping[str, Any], owner: str) -> None:
        self._values = values
        self._owner = owner

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`; `default` (transformers' own) if it is absent or null."""
        value = self._values.get(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Whether `key` is present, null included."""
        return key in self._values

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number.

        Raises:
            SpecError: if the key is missing without a default, or is not a positive integer that a model may have.
        """
        value = self.get(key, default)
        if value is None:
            raise SpecError(f"{self._owner}: config.json has no {key!r}")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError(f"{self._owner}: {key} = {value!r}; expected a positive whole number")
        most = MAX_LAYERS if key in LAYERS else MAX_SIZE
        if value > most:
            raise SpecError(f"{self._owner}: {key} = {value}; expected at most {most}")
        return value

    def number(self, key: str, default: float) -> float:
        """A number.

        Raises:
            SpecError: if it has another type.
        """
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            raise SpecError(f"{self._owner}: {key} = {value!r}; expected a number")
        return float(value)

    def part(self, key: str) -> Config:
        """A nested configuration.

        Raises:
            SpecError: if it is missing or not a mapping.
        """
        value = self.get(key)
        if not isinstance(value, Mapping):
            raise SpecError(
                f"{self._owner}: config.json has no {key!r}"
                if value is None
                else f"{self._owner}: {key} = {value!r}; expected an object"
            )
        return Config(value, f"{self._owner}: {key}")

    def updated(self, values: Mapping[str, Any]) -> Config:
        """The same configuration with some values in the place of its own."""
        return Config({**self._values, **values}, self._owner) if values else self

    def flag(self, key: str, default: bool) -> bool:
        """A boolean.

        Raises:
            SpecError: if it has another type.
        """
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise SpecError(f"{self._owner}: {key} = {value!r}; expected true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """A string.

        Raises:
            SpecError: if it has another type.
        """
        value = self.get(key, default)
        if not isinstance(value, str):
            raise SpecError(f"{self._owner}: {key} = {value!r}; expected a string")
        return value
