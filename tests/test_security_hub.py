"""A hostile Hub: names that leave the cache, answers without end, tensors that fill the memory."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from tests.hub_server import Fault, HubServer
from tests.test_hub import CONFIG, client, server  # noqa: F401  (fixtures)
from vramplan.errors import HubError
from vramplan.inputs import hub
from vramplan.inputs.resolve import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize("bad", ["../../../../evil", "/tmp/evil", "..", "a/b", "a\\b", "x" * 5000, "%2e%2e/e", ".evil"])
@pytest.mark.parametrize("name", ["ETag", "X-Linked-Etag", "X-Repo-Commit"])
def test_no_answer_writes_outside_the_cache(server: HubServer, tmp_path: Path, name: str, bad: str) -> None:  # noqa: F811
    headers = {"ETag": '"abc"', "X-Repo-Commit": COMMIT, name: f'"{bad}"' if "tag" in name.lower() else bad}
    server.faults.append(Fault("HEAD", status=200, headers=headers))
    with pytest.raises(HubError, match="invalid"):
        resolve_model("org/one")
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if "evil" in str(path) or path.parts[0] not in ("hub", "harnesses.json")], (
        written
    )


def test_a_packed_answer_is_refused(server: HubServer) -> None:  # noqa: F811
    """A few kilobytes may unpack to any size; the client asks for none."""
    server.faults.append(Fault("GET /org/one", status=200, headers={"Content-Encoding": "gzip"}))
    with pytest.raises(HubError, match="packed"):
        resolve_model("org/one")


def test_redirects_in_a_circle(server: HubServer) -> None:  # noqa: F811
    location = f"{server.url}/org/one/resolve/main/config.json"
    server.faults.append(Fault("/org/one", status=302, headers={"Location": location}))
    began = time.monotonic()
    with pytest.raises(HubError):
        resolve_model("org/one")
    assert time.monotonic() - began < hub.TIMEOUT_SECONDS + 2


def test_a_file_that_never_ends(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Also of the configuration itself, which the client reads as a stream."""
    monkeypatch.setattr(hub, "MAX_RESPONSE_BYTES", 100_000)
    server.repos["org/one"].files["config.json"] = CONFIG + b" " * 3_000_000
    with pytest.raises(HubError, match="too long"):
        resolve_model("org/one")


@pytest.mark.parametrize("shape", ['["a", 10000000000]', f"[{'9' * 5000}]", "[[1]]", "[-1]", "[1e400]", '{"a": 1}'])
def test_tensors_of_no_size(server: HubServer, shape: str) -> None:  # noqa: F811
    header = f'{{"a": {{"dtype": "F32", "shape": {shape}, "data_offsets": [0, 4]}}}}'.encode()
    server.repos["org/one"].files["model.safetensors"] = struct.pack("<Q", len(header)) + header
    assert resolve_model("org/one").stored_parameters is None
