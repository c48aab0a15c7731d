"""A model from a folder or a config.json on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vramplan.bounded_read import is_file, read_json
from vramplan.errors import SpecError
from vramplan.inputs.images import PROCESSORS, VIDEO_PROCESSORS
from vramplan.inputs.model_spec import IMPORT_PATH, ModelSpec
from vramplan.inputs.remote_configs import REMOTE_CONFIGS
from vramplan.inputs.safetensors_header import elements_by_dtype

if TYPE_CHECKING:
    from pydantic import ValidationError

PARTS = ("text_config", "vision_config")
"""Keys of a configuration that hold another one."""
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Configuration files of image processors; the second since transformers 5."""
VIDEO_FILE = "video_preprocessor_config.json"
"""Configuration file of video processors, if the second of those does not contain it."""
ADAPTERS = "adapter_config.json"
"""Configuration file of adapters that PEFT saved."""
SAFETENSORS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
"""Dtype of jobs by the name in safetensors headers."""


def from_folder(folder: Path) -> ModelSpec:
    """A model from a folder: its config.json and, if there are weights, their headers.

    Raises:
        SpecError: if config.json is missing or broken.
    """
    if not (folder / "config.json").is_file():
        adapters = "; it holds adapters: name the model that they are of" if is_file(folder / ADAPTERS) else ""
        raise SpecError(f"{folder}: no config.json in this folder{adapters}")
    spec = from_config_file(folder / "config.json")
    return spec.model_copy(update=stored_fields(elements_by_dtype(folder)))


def from_config_file(path: Path) -> ModelSpec:
    """A model from its config.json and the configuration files of its processors in the same folder.

    Raises:
        SpecError: if a file cannot be read or is not a model configuration.
    """
    config = json_object(path)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type in ("", IMPORT_PATH):
        raise SpecError(
            f"{path}: no 'model_type'; is this a transformers config.json?"
            " `vramplan check` reads training configurations"
        )
    for part in PARTS:
        if not isinstance(config.get(part), (dict, type(None))):
            raise SpecError(f"{path}: {part} = {str(config[part])[:40]!r}; expected an object")
    names = config.get("architectures")
    if not (names is None or (isinstance(names, list) and all(isinstance(name, str) for name in names))):
        raise SpecError(f"{path}: architectures = {str(names)[:40]}; expected a list of names")
    processor: dict[str, Any] = {}
    if model_type in REMOTE_CONFIGS:
        config, processor = REMOTE_CONFIGS[model_type](config, str(path))
        model_type = config["model_type"]
    processor_file = next((path.parent / name for name in PROCESSOR_FILES if (path.parent / name).is_file()), None)
    processors = json_object(processor_file) if model_type in PROCESSORS and processor_file is not None else {}
    video_processor, video_file = processors.get("video_processor", {}), path.parent / VIDEO_FILE
    if model_type in VIDEO_PROCESSORS and not video_processor and video_file.is_file():
        video_processor = json_object(video_file)
    try:
        return ModelSpec(
            name=str(path),
            model_type=model_type,
            config=config,
            processor={**processors.get("image_processor", processors), **processor},
            video_processor=video_processor,
            sources=(str(path),),
        )
    except ValueError as error:  # of which pydantic's is one
        message = cast("ValidationError", error).errors()[0]["msg"]
        raise SpecError(f"{path}: {message}") from error


def json_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        SpecError: if it cannot be read, is no object, or holds numbers of more than 64 bits.
    """
    raw = read_json(path, error=SpecError)
    if not isinstance(raw, dict):
        raise SpecError(f"{path}: expected a JSON object with a model's configuration")
    try:
        _check_numbers(raw, str(path))
    except RecursionError as error:
        raise SpecError(f"{path}: nested too deeply") from error
    return raw


def _check_numbers(value: Any, where: str) -> None:
    """Refuse numbers beyond 64 bits: no size is, and they take no float."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_numbers(inner, f"{where}: {key[:80]}")
    elif isinstance(value, list):
        for inner in value:
            _check_numbers(inner, where)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise SpecError(f"{where}: a number of more than 64 bits")


def stored_fields(stored: Mapping[str, int]) -> dict[str, Any]:
    """Fields of a ModelSpec from the elements of its weights by dtype; empty if there are no weights."""
    if not stored:
        return {}
    main_dtype = max(stored, key=lambda name: stored[name])
    return {"stored_parameters": sum(stored.values()), "stored_dtype": SAFETENSORS.get(main_dtype)}
