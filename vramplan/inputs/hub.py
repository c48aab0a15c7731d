"""A model from the Hub. Only this file talks to the Hub; it never fetches weights."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from vramplan.bounded_read import expand_home, is_file
from vramplan.errors import (
    ConfigError,
    HubError,
    nearest_names,
)
from vramplan.inputs.catalog import HUB_ID, names_with_and_without_organisation
from vramplan.inputs.images import PROCESSORS, VIDEO_PROCESSORS
from vramplan.inputs.model_folder import (
    PROCESSOR_FILES,
    VIDEO_FILE,
    from_config_file,
    json_object,
    stored_fields,
)
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.safetensors_header import elements_by_dtype, is_header

TIMEOUT_SECONDS = 10.0
"""Limit of all requests about one model together."""
MAX_RESPONSE_BYTES = 32_000_000
"""Limit of one response. A safetensors header is far smaller; a server that ignores ranges would send the weights."""
TOKENIZER = "tokenizer.json"
NAMING_HEADERS = ("etag", "x-linked-etag", "x-repo-commit")
"""Headers of the Hub by which its client names files of the cache (huggingface_hub 2.4, file_download.py)."""
_FILE_NAME = re.compile(r'(?:W/)?"?[A-Za-z0-9][A-Za-z0-9_+=-]{0,200}"?')


def tokenizer_file(name: str, needed: bool = False) -> Path | None:
    """The tokenizer.json of a folder, beside a config.json, or in the Hub client's cache; nothing is downloaded.

    Raises:
        ConfigError: if there is none and one is `needed`; then `name` may also be the tokenizer file itself.
    """
    path = expand_home(name)
    if needed and is_file(path):
        return path
    file = (path.parent if is_file(path) else path) / TOKENIZER
    if is_file(file):
        return file
    if HUB_ID.fullmatch(name):
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

    The client's cache is used, online and offline; if the count is not available it is left out.

    Raises:
        HubError: if the Hub has no such model, the model is gated, the rate is limited, or the Hub does not answer.
        SpecError: if its config.json is broken.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        import huggingface_hub as hub
        from huggingface_hub.utils import logging as hub_logging
    except ModuleNotFoundError:  # in a browser (vramplan.site)
        raise HubError(f"{repo}: is not a shipped model, and the Hub is not asked here; give its config.json") from None

    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity(logging.ERROR)  # no warnings about retries; a failure is raised below
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
    return spec.model_copy(update={**stored_fields(stored), "sources": (f"Hub: {repo}",)})


def _fetch_processor(repo: str, config: Path) -> None:
    """Download the processors' files of a vision-language model beside config.json; without them, defaults are used."""
    model_type = json_object(config).get("model_type")
    if model_type in PROCESSORS:
        next((name for name in PROCESSOR_FILES if _fetch(repo, name)), None)
    if model_type in VIDEO_PROCESSORS:
        _fetch(repo, VIDEO_FILE)


def _fetch(repo: str, name: str) -> bool:
    """Download an optional file; returns whether it exists."""
    import huggingface_hub as hub

    try:
        hub.hf_hub_download(repo, name)
    except Exception as error:
        if not isinstance(error, (OSError, ValueError, *_transport_errors())):
            raise
        return False
    return True


def _on_hub(repo: str, snapshot: Path) -> Mapping[str, int]:
    """Elements in the published files by dtype; empty if they are not available (no safetensors, offline, broken)."""
    import huggingface_hub as hub
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    local = elements_by_dtype(snapshot)
    if local:
        return local
    try:
        metadata = hub.HfApi().get_safetensors_metadata(repo)
    except Exception as error:
        documented = (NotASafetensorsRepoError, SafetensorsParsingError, OSError, ValueError)
        undocumented = (AttributeError, TypeError)  # if a header is JSON of another shape
        if isinstance(error, (*documented, *undocumented, *_transport_errors())):
            return {}
        raise
    return {str(name): count for name, count in metadata.parameter_count.items()}


def _explained(repo: str, error: Exception) -> HubError:
    """The client's error as a HubError that says what to do."""
    from huggingface_hub import errors

    cause = error.__cause__ or error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return HubError(f"{repo}: gated on the Hub; accept its terms there, then `hf auth login` or set HF_TOKEN")
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        reason = "no such model on the Hub, or a private one without a token (HF_TOKEN)"
    elif isinstance(error, errors.RevisionNotFoundError):
        reason = "has no main revision on the Hub"
    elif isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        reason = "has no config.json on the Hub; is it a transformers model?"
    elif status == 429:
        reason = "the Hub limits the rate of requests; wait, log in, or give a folder"
    elif status is not None:
        reason = f"the Hub answered with HTTP {status}; try again, or give a folder or a config.json"
    elif _is_offline():
        reason = "not shipped and not in the local cache, and HF_HUB_OFFLINE is set; give a config.json"
    else:
        reason = f"not shipped, and the Hub cannot be reached ({_short(cause)}); give a folder or a config.json"
    nearest = nearest_names(repo, names_with_and_without_organisation())
    return HubError(f"{repo}: {reason}" + (f"; did you mean {', '.join(nearest)}?" if nearest else ""))


def _transport_errors() -> tuple[type[Exception], ...]:
    """Errors of the client's HTTP library, whose name depends on the client's version."""
    errors: list[type[Exception]] = []
    for name in ("httpx2", "httpx", "requests"):
        try:
            errors.append(import_module(name).HTTPError)
        except ImportError:
            continue
    return tuple(errors)


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _short(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return (text[0] if text else type(error).__name__)[:120]


@contextmanager
def _quick_client() -> Iterator[None]:
    """Run the Hub client without retries and with one deadline for all requests.

    By default it tries an unreachable Hub for 23 s, one that does not answer for minutes, and waits for any Retry-After
    (huggingface_hub 2.4). It uses its cache on OfflineModeIsEnabled. Older clients are not changed.
    """
    try:
        import httpx2
        from huggingface_hub.errors import OfflineModeIsEnabled
        from huggingface_hub.utils import _http
    except ImportError:
        yield
        return

    deadline = time.monotonic() + TIMEOUT_SECONDS

    class Quick(httpx2.Client):
        def send(self, request: httpx2.Request, *, stream: bool = False, **kwargs: Any) -> httpx2.Response:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise OfflineModeIsEnabled(f"no answer from {request.url.host} within {TIMEOUT_SECONDS:g} s")
            request.headers["Accept-Encoding"] = "identity"
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), remaining)
            try:
                response = super().send(request, stream=True, **kwargs)
            except httpx2.TransportError as error:
                raise OfflineModeIsEnabled(f"{request.url.host}: {_short(error)}") from error
            _check_names(response.headers, request.url.host)
            response.stream = Bounded(response.stream, request.url.host)
            if response.status_code >= 400:
                try:
                    _http.hf_raise_for_status(response)  # its HfHubHTTPError is never retried
                finally:
                    response.close()
            if not stream:
                response._content = _read(response)
                if request.url.path.endswith(".safetensors") and not is_header(response._content):
                    raise OfflineModeIsEnabled(f"{request.url.host}: a broken header of weights")
            return response

    class Bounded(httpx2.SyncByteStream):
        """The bytes of an answer, at most so many and until the deadline, whoever reads them."""

        def __init__(self, stream: Any, host: str) -> None:
            self.inner, self.host, self.size = stream, host, 0

        def __iter__(self) -> Iterator[bytes]:
            for chunk in self.inner:
                self.size += len(chunk)
                if self.size > MAX_RESPONSE_BYTES or time.monotonic() > deadline:
                    raise OfflineModeIsEnabled(f"{self.host}: the answer is too long or too slow")
                yield chunk

        def close(self) -> None:
            self.inner.close()

    def _check_names(headers: Mapping[str, str], host: str) -> None:
        """Refuse headers that name files of the cache and would leave it, and packed bodies, which may be any size."""
        for name in NAMING_HEADERS:
            if name in headers and not _FILE_NAME.fullmatch(headers[name]):
                raise OfflineModeIsEnabled(f"{host}: an answer with an invalid {name}")
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise OfflineModeIsEnabled(f"{host}: a packed answer")

    def _read(response: httpx2.Response) -> bytes:
        body = bytearray()
        host = response.request.url.host
        try:
            for chunk in response.iter_bytes():
                body += chunk
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
