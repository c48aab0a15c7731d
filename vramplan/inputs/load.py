"""A model and a GPU by name: from the shipped files, a folder, the Hub, or this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import islice
from typing import Any

from vramplan.bounded_read import expand_home, is_file, is_folder
from vramplan.errors import ConfigError, HubError, UnknownNameError, UnsupportedError, VramplanError, setting
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.gpu_by_size import gpu_of_size, is_size
from vramplan.inputs.model_spec import IMPORT_PATH, ModelSpec
from vramplan.inputs.platforms import on_platform
from vramplan.inputs.resolve import resolve_model

OTHER_MODELS = {"reward_model": "reward_dtype", "teacher": "teacher_dtype", "value_model": "value_dtype"}
"""Fields of a job that name a model beside the one that trains."""
MAX_ENTRIES = 4096
"""Entries of a folder that are looked at."""


def load_model(name: str | ModelSpec) -> ModelSpec:
    """A model by shipped name, folder, config.json, Hub id or import path; a loaded one is returned as it is.

    For the user's own argument: a name that a file holds goes to :func:`load_named_model`.

    Raises:
        VramplanError: if the name is unknown.
    """
    return name if isinstance(name, ModelSpec) else resolve_model(name, typed=True)


def load_named_model(name: str) -> ModelSpec:
    """A model that a configuration, a script or another file names: the same without import paths, which run code.

    Raises:
        VramplanError: if the name is unknown, or an import path.
    """
    return resolve_model(name)


def load_other_model(field: str, name: str) -> ModelSpec:
    """A model that a job names in this field, beside the one that trains; a folder is read again when it changes.

    Raises:
        VramplanError: naming the field, if the name is unknown or an import path.
    """
    return _load_other_model(field, name, file_versions(name))


def file_versions(name: str) -> tuple[tuple[str, int, int], ...]:
    """Name, time of change and size of each JSON file in the folder that a name stands for, or of a file's folder."""
    path = expand_home(name)
    folder = path if is_folder(path) else path.parent if is_file(path) else None
    if folder is None:
        return ()
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, MAX_ENTRIES):
            if entry.name.endswith(".json"):
                status = entry.stat()
                found.append((entry.name, status.st_mtime_ns, status.st_size))
    return tuple(sorted(found))


@lru_cache(maxsize=16)
def _load_other_model(field: str, name: str, _: tuple[tuple[str, int, int], ...]) -> ModelSpec:
    with names_setting(field, name):
        spec = resolve_model(name, typed=True)
        if spec.model_type == IMPORT_PATH:
            raise ConfigError("give a Hub id (org/name), a folder or a config.json")
        return spec


def name_of_other_model(field: str, given: object) -> str:
    """The name by which a job keeps another model in this field that was given: a name, or a loaded model that has one.

    Raises:
        VramplanError: if there is no such model, or a loaded one is not what its name stands for.
    """
    name = given.name if isinstance(given, ModelSpec) else str(given)
    spec = load_other_model(field, name)
    if isinstance(given, ModelSpec) and given != spec:
        raise ConfigError(
            f"{setting(field, name)}: the loaded model is not the one of this name; give a folder or a config.json"
        )
    return spec.name


@contextmanager
def names_setting(field: str, value: str) -> Iterator[None]:
    """Errors inside begin with a setting of the job.

    Raises:
        VramplanError: the same, or a ConfigError.
    """
    try:
        yield
    except (UnsupportedError, HubError) as error:
        raise type(error)(f"{setting(field, value)}: {error.text}") from error
    except VramplanError as error:
        raise ConfigError(f"{setting(field, value)}: {error.text}") from error


def other_models(job: Mapping[str, Any]) -> list[ModelSpec]:
    """The models that a job names beside the one that trains.

    Raises:
        VramplanError: if a name is unknown.
    """
    named = [(field, job[field]) for field in OTHER_MODELS if isinstance(job.get(field), str)]
    critics = _within(job, "openrlhf", "critic"), _within(job, "verl", "critic", "model")
    named += [("critic", name) for name in critics if isinstance(name, str)]
    return [load_other_model(field, name) for field, name in named]


def _within(job: Mapping[str, Any], *path: str) -> Any:
    """What a job holds at a path of fields, each a mapping or a record; None if one of them is not set."""
    value: Any = job
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def load_gpu(name: str | Gpu, platform: str | None = None) -> Gpu:
    """A GPU by name or size (24GB); "auto" is the one in this machine; a loaded one is returned as it is.

    `platform` is that of :func:`vramplan.inputs.platforms.on_platform`; the name may have it too: rtx4090@windows.

    Raises:
        VramplanError: if a name is unknown.
    """
    if platform is not None:
        return on_platform(load_gpu(name), platform)
    if isinstance(name, Gpu):
        return name
    if "@" in name:
        return load_gpu(*name.split("@", 1))
    if name.lower().startswith("apple"):
        from vramplan.inputs import apple

        return apple.find(name)
    if name.lower() != "auto":
        if name[:1].isdecimal() and is_size(name):
            return gpu_of_size(name)
        return _named_gpu(name)
    from vramplan.inputs import nvml

    return nvml.local_gpu()


def _named_gpu(name: str) -> Gpu:
    """A GPU of the catalogue as its name was typed, which a number of them may stand beside."""
    from vramplan.inputs.gpu_boards import board_note, counted_gpus

    try:
        gpu = find_gpu(name)
    except UnknownNameError:
        counted = counted_gpus(name)
        if counted is None:
            raise
        count, one = counted
        raise ConfigError(f"{name}: give {setting('gpu', find_gpu(one).name)} {setting('num_gpus', count)}") from None
    note = board_note(name, gpu)
    return gpu.model_copy(update={"platform_note": note}) if note else gpu
