"""A model's name as configurations write it: a path on another machine, a folder of a cache, a mirror's id.

Only an exact name counts. A name that says nothing certain is refused with what to give instead; nothing is guessed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from vramplan.bounded_read import expand_home, is_file
from vramplan.errors import ConfigError, HubError, UnknownNameError, UnsupportedError, nearest_names, setting
from vramplan.inputs.catalog import find_model, known_model_names
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.resolve import resolve_model

QUANTIZED = re.compile(
    r"[-_.](?:unsloth-)?(?P<kind>bnb|awq|gptq|gguf|ggml|exl2|hqq|aqlm|eetq|mlx|int[348]|[348]bit|[348]-bit|fp8|nf4|nvfp4"
    r"|mxfp[48]|w\da\d+|q\d_k_[msl])(?=[-_.:]|$)",
    re.IGNORECASE,
)
"""What names of checkpoints with quantized weights say."""
LOCAL_FOLDERS = frozenset(
    """
    checkpoint checkpoints ckpt ckpts data downloads exp experiments hf_models llm llms model model_weights models out
    output output_models outputs pretrained pretrained_models results runs save saved saves tmp weights work_dirs
    workspace
    """.split()  # noqa: SIM905
)
"""First parts of a name that are folders, not organisations on the Hub."""
MODELSCOPE = frozenset(("ai-modelscope", "llm-research", "modelscope", "shanghai_ai_laboratory", "zhipuai"))
"""Organisations on ModelScope that publish others' models under their names; the Hub has none of these."""
OWN_FOLDER = re.compile(
    r"(?:checkpoint|step|epoch|iter|global_step|v\d+)[-_]?[\dx]*(?:-merged|-hf)?|final|best|last|sft|lora"
)
"""Names of folders that a run writes, which say nothing about the model."""
PLACEHOLDER = re.compile(r"[$<>{}%]|path[/_]to|/your[-_/]|^your[-_]", re.IGNORECASE)


class NamedModel(NamedTuple):
    """A model, and a remark if its name alone says what it is."""

    spec: ModelSpec
    note: str = ""


def named_model(name: str) -> NamedModel:
    """The model that a configuration means.

    In this order: a folder with a config.json here; a shipped name or alias; the model on the Hub; the last parts of a
    path, or of an id that the Hub does not answer for, if they are exactly a shipped name.

    Raises:
        ConfigError: if the name says nothing certain.
        UnsupportedError: for a quantized checkpoint.
        VramplanError: as :func:`vramplan.inputs.resolve.resolve_model` does.
    """
    name = name.strip()
    path = expand_home(name)
    if is_file(path) or is_file(path / "config.json"):
        return NamedModel(resolve_model(name))
    shipped = find_model(name)
    if shipped is not None:
        return NamedModel(shipped)
    parts = _parts(name)
    _refuse_quantized(name, parts)
    organisation = parts[0].lower() if len(parts) == 2 else ""
    if _is_path(name, parts) or organisation in MODELSCOPE:
        spec = _by_last_parts(parts)
        if spec is not None:
            reason = "is ModelScope's copy" if organisation in MODELSCOPE else "is not here"
            return NamedModel(spec, f"{name} {reason}: taken as {spec.name} by its name")
        if organisation not in MODELSCOPE:
            raise ConfigError(f"{name} {_unknown(name, parts)}")
    try:
        return NamedModel(resolve_model(name))
    except HubError as error:
        spec = _by_last_parts(parts)
        if spec is None:
            raise
        reason = re.split(r" \(|;", str(error).partition(": ")[2])[0]
        return NamedModel(spec, f"{name} {reason}: taken as {spec.name} by its name")


def _parts(name: str) -> list[str]:
    """The folders of a name, without what caches add: snapshots, revisions, ``___`` for a dot."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..", "~")]
    for part in parts:
        if part.startswith("models--"):  # the Hub client's cache
            return part.split("--")[1:]
    if len(parts) > 2 and parts[-2] in ("snapshots", "tree", "blob"):
        parts = parts[:-2]
    return [part.replace("___", ".") for part in parts]  # ModelScope's cache


def _is_path(name: str, parts: list[str]) -> bool:
    """Whether a name can only be a folder or a URL, so that the Hub need not be asked."""
    if PLACEHOLDER.search(name) or "://" in name or name.startswith((".", "/", "~")) or "\\" in name:
        return True
    if not parts or len(parts) > 2:
        return True
    return len(parts) == 2 and (parts[0].lower() in LOCAL_FOLDERS or OWN_FOLDER.fullmatch(parts[1].lower()) is not None)


def _by_last_parts(parts: list[str]) -> ModelSpec | None:
    """The shipped model that the last two parts, or the last one, are exactly the name of."""
    for candidate in ("/".join(parts[-2:]), *parts[-1:]):
        try:
            spec = find_model(candidate)
        except UnknownNameError:  # shared by several organisations
            continue
        if spec is not None:
            return spec
    return None


def _refuse_quantized(name: str, parts: list[str]) -> None:
    last = parts[-1] if parts else ""
    match = QUANTIZED.search(last)
    if match is None:
        return
    base = _by_last_parts([*parts[:-1], last[: match.start()]])
    advice = f"name the model that it was made from, {base.name}" if base else "name the model that it was made from"
    raise UnsupportedError(f"{name}: {match['kind']}: quantized checkpoints are not modelled yet; {advice}")


def _unknown(name: str, parts: list[str]) -> str:
    last = parts[-1] if parts else ""
    if PLACEHOLDER.search(name) or OWN_FOLDER.fullmatch(last.lower()):
        return f"does not say which model it is; give {setting('model')}"
    known = {known.rpartition("/")[2]: known for known in known_model_names()}
    nearest = nearest_names(last, known, 1)
    hint = f" (the nearest is {known[nearest[0]]})" if nearest else ""
    return f"is not here, and no model is known as {last}{hint}; give {setting('model')}"
