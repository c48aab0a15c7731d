"""A model by name: shipped, in a folder, or on the Hub. Only this file talks to the Hub; it never fetches weights."""

from __future__ import annotations

import json
import logging
import os
import re
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vramplan.errors import ConfigError, HubError, SpecError, UnknownNameError, nearest_names
from vramplan.inputs.catalog import find_model, known_model_names
from vramplan.inputs.images import PROCESSORS, VIDEO_PROCESSORS
from vramplan.inputs.model_spec import IMPORT_PATH, ModelSpec
from vramplan.inputs.remote_configs import DIALECTS

TIMEOUT_SECONDS = 10.0
"""For all requests about one model together."""
MOST_BYTES = 32_000_000
"""Of one answer: a safetensors header is far below, a server that ignores ranges would send the weights."""
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
"""Where an image processor says what it does; the second since transformers 5."""
VIDEO_FILE = "video_preprocessor_config.json"
"""The same for videos, where the second does not say it too."""
TOKENIZER = "tokenizer.json"
SAFETENSORS = {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}
"""Dtypes as their headers name them, and as jobs do."""
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_IMPORT_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def resolve_model(name: str) -> ModelSpec:
    """The model called `name`: a shipped name, a folder, a config.json, a Hub id, or ``package.module:function``.

    Raises:
        SpecError: when a configuration is broken.
        UnknownNameError: when it is neither shipped nor a path nor a Hub id; names the nearest.
        HubError: when the Hub has no such model, keeps it gated, or does not answer.
    """
    if not name.strip():
        raise UnknownNameError("model", name, (), "give a name, a folder or a config.json")
    if _IMPORT_PATH.fullmatch(name):
        return ModelSpec(name=name, model_type=IMPORT_PATH, config={})
    path = Path(name).expanduser()
    if path.is_dir():
        return from_folder(path)
    if path.is_file():
        return from_config_file(path)
    shipped = find_model(name)
    if shipped is not None:
        return shipped
    if name.endswith(".json") or name.startswith((".", "/", "~")):
        raise SpecError(f"{name}: no such file or folder")
    if not _HUB_ID.fullmatch(name):
        raise UnknownNameError("model", name, _short_and_long(), "give a Hub id (org/name), a folder or a config.json")
    return from_hub(name)


def _short_and_long() -> list[str]:
    known = known_model_names()
    return [*known, *(name.rpartition("/")[2] for name in known)]


# -- from disk ---------------------------------------------------------------------------------------------------------


def from_folder(folder: Path) -> ModelSpec:
    """A model folder: its config.json and, where weights lie beside it, their headers.

    Raises:
        SpecError: when config.json is missing or broken.
    """
    if not (folder / "config.json").is_file():
        raise SpecError(f"{folder}: no config.json in this folder")
    spec = from_config_file(folder / "config.json")
    return spec.model_copy(update=_published(in_folder(folder)))


def from_config_file(path: Path) -> ModelSpec:
    """A model from its config.json, and what its processors say in the files beside it.

    Raises:
        SpecError: when a file cannot be read or is no model configuration.
    """
    config = _json_object(path)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise SpecError(f"{path}: no 'model_type'; is this a transformers config.json?")
    processor: dict[str, Any] = {}
    if model_type in DIALECTS:
        config, processor = DIALECTS[model_type](config, str(path))
        model_type = config["model_type"]
    beside = next((path.parent / name for name in PROCESSOR_FILES if (path.parent / name).is_file()), None)
    own = _json_object(beside) if model_type in PROCESSORS and beside is not None else {}
    video, own_file = own.get("video_processor", {}), path.parent / VIDEO_FILE
    if model_type in VIDEO_PROCESSORS and not video and own_file.is_file():
        video = _json_object(own_file)
    try:
        return ModelSpec(
            name=str(path),
            model_type=model_type,
            config=config,
            processor={**own.get("image_processor", own), **processor},
            video_processor=video,
            sources=(str(path),),
        )
    except ValidationError as error:
        raise SpecError(f"{path}: {error.errors()[0]['msg']}") from error


def _json_object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise SpecError(f"{path}: broken JSON at line {error.lineno}: {error.msg}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read ({error})") from error
    except RecursionError as error:
        raise SpecError(f"{path}: nested too deeply") from error
    if not isinstance(raw, dict):
        raise SpecError(f"{path}: expected a JSON object with a model's configuration")
    return raw


def _published(stored: Mapping[str, int]) -> dict[str, Any]:
    """What the files of a model tell of it; nothing where there are none."""
    if not stored:
        return {}
    most = max(stored, key=lambda name: stored[name])
    return {"stored_parameters": sum(stored.values()), "stored_dtype": SAFETENSORS.get(most)}


def in_folder(folder: Path) -> dict[str, int]:
    """Elements in all safetensors files of a folder by dtype, from their headers; none where one is broken."""
    found: dict[str, int] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with path.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                if length > MOST_BYTES:
                    return {}
                for name, tensor in json.loads(stream.read(length)).items():
                    if name != "__metadata__":
                        found[tensor["dtype"]] = found.get(tensor["dtype"], 0) + prod(tensor["shape"])
        except (OSError, ValueError, struct.error, TypeError, AttributeError, KeyError):
            return {}
    return found


def tokenizer_file(name: str, needed: bool = False) -> Path | None:
    """The tokenizer.json of a folder, beside a config.json, or in the Hub client's cache; nothing is downloaded.

    Raises:
        ConfigError: where there is none and one is `needed`; then a file is the tokenizer itself.
    """
    path = Path(name).expanduser()
    if needed and path.is_file():
        return path
    found = (path.parent if path.is_file() else path) / TOKENIZER
    if found.is_file():
        return found
    if _HUB_ID.fullmatch(name):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, TOKENIZER)
        if isinstance(cached, str):
            return Path(cached)
    if needed:
        raise ConfigError(f"{name}: no {TOKENIZER} there, nor in the Hub client's cache")
    return None


# -- from the Hub ------------------------------------------------------------------------------------------------------


def from_hub(repo: str) -> ModelSpec:
    """A model from the Hub: config.json, and the exact count from the headers of its safetensors files.

    The client's cache is honoured, online and off; a count that cannot be had is left out.

    Raises:
        HubError: when the Hub has no such model, keeps it gated, limits the rate, or does not answer.
        SpecError: when its config.json is broken.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import huggingface_hub as hub
    from huggingface_hub.utils import logging as hub_logging

    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity(logging.ERROR)  # a retry is no news; what fails is said once, below
    try:
        with _quick_client():
            try:
                path = hub.hf_hub_download(repo, "config.json")
            except Exception as error:
                if isinstance(error, (OSError, ValueError, *_transport_errors())):  # OfflineModeIsEnabled is an OSError
                    raise _explained(repo, error) from error
                raise
            _fetch_processor(repo, Path(path))
            spec = from_config_file(Path(path)).model_copy(update={"name": repo})
            stored = _on_hub(repo, Path(path).parent)
    finally:
        hub_logging.set_verbosity(verbosity)
    return spec.model_copy(update={**_published(stored), "sources": (f"Hub: {repo}",)})


def _fetch_processor(repo: str, config: Path) -> None:
    """Get the processors' files beside config.json, for a model that sees; without them, defaults hold."""
    model_type = _json_object(config).get("model_type")
    if model_type in PROCESSORS:
        next((name for name in PROCESSOR_FILES if _fetch(repo, name)), None)
    if model_type in VIDEO_PROCESSORS:
        _fetch(repo, VIDEO_FILE)


def _fetch(repo: str, name: str) -> bool:
    """Get a file that need not be there; whether it was."""
    import huggingface_hub as hub

    try:
        hub.hf_hub_download(repo, name)
    except Exception as error:
        if not isinstance(error, (OSError, ValueError, *_transport_errors())):
            raise
        return False
    return True


def _on_hub(repo: str, snapshot: Path) -> Mapping[str, int]:
    """Elements in the published files by dtype; none where the Hub does not tell (no safetensors, offline, broken)."""
    import huggingface_hub as hub
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    local = in_folder(snapshot)
    if local:
        return local
    try:
        metadata = hub.HfApi().get_safetensors_metadata(repo)
    except Exception as error:
        known = (NotASafetensorsRepoError, SafetensorsParsingError, OSError, ValueError)
        leaking = (AttributeError, TypeError)  # where a header is JSON of another shape
        if isinstance(error, (known, leaking, _transport_errors())):
            return {}
        raise
    return {str(name): count for name, count in metadata.parameter_count.items()}


def _explained(repo: str, error: Exception) -> HubError:
    """The client's error as one line that says what to do."""
    from huggingface_hub import errors

    cause = error.__cause__ or error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return HubError(f"{repo}: gated on the Hub; accept its terms there, then `hf auth login` or set HF_TOKEN")
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        said = "no such model on the Hub, or a private one without a token (HF_TOKEN)"
    elif isinstance(error, errors.RevisionNotFoundError):
        said = "has no main revision on the Hub"
    elif isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        said = "has no config.json on the Hub; is it a transformers model?"
    elif status == 429:
        said = "the Hub limits the rate of requests; wait, log in, or give a folder"
    elif status is not None:
        said = f"the Hub answered with HTTP {status}; try again, or give a folder or a config.json"
    elif _is_offline():
        said = "not shipped and not in the local cache, and HF_HUB_OFFLINE is set; give a config.json"
    else:
        said = f"not shipped, and the Hub cannot be reached ({_short(cause)}); give a folder or a config.json"
    nearest = nearest_names(repo, _short_and_long())
    return HubError(f"{repo}: {said}" + (f"; did you mean {', '.join(nearest)}?" if nearest else ""))


def _transport_errors() -> tuple[type[Exception], ...]:
    """What the client's HTTP library raises on its own; it has changed its name with the client's versions."""
    found: list[type[Exception]] = []
    for name in ("httpx2", "httpx", "requests"):
        try:
            found.append(import_module(name).HTTPError)
        except ImportError:
            continue
    return tuple(found)


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _short(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:120]


@contextmanager
def _quick_client() -> Iterator[None]:
    """The real client's sessions without its retries, and with one deadline over all requests.

    Left alone it tries an unreachable Hub for 23 s, a silent one for minutes, and waits out any Retry-After
    (huggingface_hub 2.4); OfflineModeIsEnabled is what it takes for "use the cache". Older clients are not changed.
    """
    try:
        import httpx2
        from huggingface_hub.errors import OfflineModeIsEnabled
        from huggingface_hub.utils import _http
    except ImportError:
        yield
        return

    ends = time.monotonic() + TIMEOUT_SECONDS

    class Quick(httpx2.Client):
        def send(self, request: httpx2.Request, *, stream: bool = False, **kwargs: Any) -> httpx2.Response:
            left = ends - time.monotonic()
            if left <= 0:
                raise OfflineModeIsEnabled(f"no answer from {request.url.host} within {TIMEOUT_SECONDS:g} s")
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), left)
            try:
                response = super().send(request, stream=True, **kwargs)
            except httpx2.TransportError as error:
                raise OfflineModeIsEnabled(f"{request.url.host}: {_short(error)}") from error
            if response.status_code >= 400:
                try:
                    _http.hf_raise_for_status(response)  # its HfHubHTTPError is never tried again
                finally:
                    response.close()
            if not stream:
                response._content = _read(response, ends)
            return response

    def _read(response: httpx2.Response, ends: float) -> bytes:
        body = bytearray()
        host = response.request.url.host
        try:
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MOST_BYTES or time.monotonic() > ends:
                    raise OfflineModeIsEnabled(f"{host}: the answer is too long or too slow")
        except httpx2.TransportError as error:
            raise OfflineModeIsEnabled(f"{host}: {_short(error)}") from error
        finally:
            response.close()
        return bytes(body)

    before = _http._GLOBAL_CLIENT_FACTORY
    hooks = {"request": [_http.hf_request_event_hook]}
    hub_client = lambda: Quick(event_hooks=hooks, follow_redirects=True)  # noqa: E731
    _http.set_client_factory(hub_client)
    try:
        yield
    finally:
        _http.set_client_factory(before)
