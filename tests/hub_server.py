"""A Hugging Face Hub in miniature, on the loopback: enough of it for the real client, and faults on request."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

ITEM_BITS = {"F64": 64, "F32": 32, "BF16": 16, "F16": 16, "I64": 64, "I32": 32, "I8": 8, "U8": 8, "F8_E4M3": 8}
RESOLVE = re.compile(r"/(?P<repo>[^/]+(?:/[^/]+)?)/resolve/(?P<rev>[^/]+)/(?P<file>.+)")
INFO = re.compile(r"/api/models/(?P<repo>[^/]+(?:/[^/]+)?)(?:/revision/(?P<rev>[^/]+))?")


def safetensors(tensors: Mapping[str, tuple[str, Sequence[int]]], data: bool = True) -> bytes:
    """A safetensors file of zeros; with data=False only its header, as a file cut short."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * ITEM_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end if data else 0)


def sharded(shards: Mapping[str, Mapping[str, tuple[str, Sequence[int]]]]) -> dict[str, bytes]:
    """The files of a sharded repository: the shards and their index."""
    index = {"metadata": {}, "weight_map": {name: shard for shard, tensors in shards.items() for name in tensors}}
    files = {shard: safetensors(tensors) for shard, tensors in shards.items()}
    return files | {"model.safetensors.index.json": json.dumps(index).encode()}


@dataclass
class Repo:
    files: dict[str, bytes]
    gated: bool = False  # 401 without a token, 403 with one
    cdn: bool = False  # .safetensors files answer with a redirect to another host, as the Hub's large files do
    commit: str = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Fault:
    """What goes wrong with the next `times` requests whose "METHOD /path" contains `match`."""

    match: str = ""
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0  # seconds before the answer
    keep: int | None = None  # send only so many bytes of the body, then hang up
    drop: bool = False  # hang up without an answer
    no_range: bool = False  # ignore the Range header
    times: int = 1_000_000


class HubServer(ThreadingHTTPServer):
    """`with HubServer({"org/name": Repo({"config.json": b"{}"})}) as hub:` and give `hub.url` to the client."""

    def __init__(self, repos: Mapping[str, Repo] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, Repo] = dict(repos or {})
        self.faults: list[Fault] = []
        self.log: list[tuple[str, str, str | None]] = []  # method, path, Authorization
        self.sent = 0  # body bytes
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # a client that hangs up is no news

    def __enter__(self) -> HubServer:
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.log.append((self.command, path, self.headers["Authorization"]))
        self.fault = next((f for f in hub.faults if f.times > 0 and f.match in f"{self.command} {path}"), Fault())
        self.fault.times -= 1
        if self.fault.delay:
            hub.stopping.wait(self.fault.delay)
        if self.fault.drop:
            self.close_connection = True
        elif self.fault.status:
            self.answer(self.fault.status, b'{"error": "a fault"}', self.fault.headers)
        elif path == "/api/agent-harnesses":  # the client asks once per HF_HOME and day
            self.answer(200, b'{"standardEnvVars": [], "harnesses": {}}')
        elif match := INFO.fullmatch(path):
            self.serve(match["repo"], match["rev"] or "main", None)
        elif match := RESOLVE.fullmatch(path.removeprefix("/cdn")):
            self.serve(match["repo"], match["rev"], match["file"], cdn=path.startswith("/cdn"))
        else:
            self.error(404, "", "Sorry, we can't find the page you are looking for.")

    do_HEAD = do_GET

    def serve(self, name: str, rev: str, file: str | None, cdn: bool = False) -> None:
        repo = self.server.repos.get(name)
        if repo is None:
            return self.error(401, "RepoNotFound", "Repository not found")
        if repo.gated and file:  # the Hub still tells of a gated repository, without its files
            return self.error(403 if self.headers["Authorization"] else 401, "GatedRepo", f"{name} is gated.")
        if rev not in ("main", repo.commit):
            return self.error(404, "RevisionNotFound", f"Invalid rev id: {rev}")
        headers = {"X-Repo-Commit": repo.commit}
        if file is None:
            info = {"id": name, "sha": repo.commit, "gated": "manual" if repo.gated else False, "private": False}
            siblings = [{"rfilename": f, "size": len(data)} for f, data in repo.files.items()]
            return self.answer(200, json.dumps(info | {"siblings": siblings}).encode(), headers)
        if file not in repo.files:
            return self.error(404, "EntryNotFound", "Entry not found", headers)
        data = repo.files[file]
        etag = f'"{hashlib.sha1(data).hexdigest()}"'
        if repo.cdn and not cdn and file.endswith(".safetensors"):
            headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": etag}
            headers["Location"] = f"http://localhost:{self.server.server_port}/cdn{self.path}"
            return self.answer(302, b"", headers)
        headers |= {"ETag": etag, "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"] or "")
        if wanted is None or self.fault.no_range:
            return self.answer(200, data, headers)
        first, last = int(wanted[1]), min(int(wanted[2] or len(data)), len(data) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        self.answer(206, data[first : last + 1], headers)

    def error(self, status: int, code: str, message: str, headers: Mapping[str, str] = {}) -> None:
        about = {"X-Error-Code": code, "X-Error-Message": message} if code else {}
        self.answer(status, json.dumps({"error": message}).encode(), {**headers, **about})

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.fault.keep is not None and self.fault.keep < len(body):
            body, self.close_connection = body[: self.fault.keep], True
        self.wfile.write(body)
        self.server.sent += len(body)
