"""Asks the site's worker in headless Chromium: a page hands over command lines, and sends the answers back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
DRIVER = """<!doctype html><script type="module">
const send = (data) => fetch("/told", { method: "POST", body: JSON.stringify(data) });
const requests = await (await fetch("/requests")).json();
const worker = new Worker("/worker.js", { type: "module" });
let asked = 0;
const ask = () =>
  asked < requests.length ? worker.postMessage({ id: asked, request: requests[asked++] }) : send({ end: true });
worker.onmessage = async ({ data }) => {
  await send({ ...data, since: performance.now() / 1000 });
  if ("id" in data) ask();
};
worker.onerror = (event) => send({ failure: String(event.message) });
ask();
</script>"""

VISITOR = """<!doctype html><iframe width="{width}" height="900" src="/index.html{address}"></iframe>
<script type="module">
const send = (data) => fetch("/told", {{ method: "POST", body: JSON.stringify(data) }});
const frame = document.querySelector("iframe");
await new Promise((loaded) => {{ frame.onload = loaded; }});
const page = () => frame.contentDocument;
const controls = () => page().forms[0];
const status = () => page().getElementById("status");
const until = async (isTrue, what) => {{
  for (let tries = 0; !isTrue(); tries++) {{
    if (tries > 3000) throw new Error(`waited in vain for ${{what}}: ${{status().textContent}}`);
    await new Promise((go) => setTimeout(go, 20));
  }}
}};
const answered = () => until(() => !status().textContent || status().classList.contains("bad"), "an answer");
const head = () => page().getElementById("head").textContent;
const rounds = () => Number(controls().dataset.round); // how often the page has asked its worker
const asked = async (act) => {{
  const before = rounds();
  act();
  await until(() => rounds() > before, "a question");
  await answered();
}};
const set = async (name, value) => {{
  const control = controls()[name];
  control.value = value;
  await asked(() => control.dispatchEvent(new Event("input", {{ bubbles: true }})));
}};
try {{
{script}
}} catch (error) {{ await send({{ failure: String(error.stack ?? error) }}); }}
await send({{ end: true }});
</script>"""
"""A visitor of the page: a script with the names above."""


class Told(NamedTuple):
    """What the page sent."""

    data: dict[str, Any]
    cpu_seconds: float
    """Of all of the browser's processes so far, which other work on this machine does not lengthen."""


class _Handler(SimpleHTTPRequestHandler):
    requests: Sequence[Any] = ()
    driver = DRIVER
    told: Queue[dict[str, Any]] = Queue()

    def do_GET(self) -> None:
        inserted = {"/driver.html": ("text/html", self.driver), "/requests": ("text/json", json.dumps(self.requests))}
        if self.path not in inserted:
            return super().do_GET()
        kind, text = inserted[self.path]
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        self.told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def visit(site: Path, script: str, address: str = "", width: int = 1280) -> list[dict[str, Any]]:
    """What a visitor's script sends while it uses the page of the site in this folder."""
    driver = VISITOR.format(script=script, address=address, width=width)
    return [told.data for told in ask(site, (), driver=driver)]


def ask(site: Path, requests: Sequence[Any], timeout: float = 300, driver: str = DRIVER) -> Iterator[Told]:
    """What the worker of the site in this folder tells, one request after the other."""
    assert CHROMIUM is not None
    told: Queue[dict[str, Any]] = Queue()
    handler = type("Handler", (_Handler,), {"requests": requests, "told": told, "driver": driver})
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(site))) as server,
        TemporaryDirectory() as profile,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/driver.html"
        browser = subprocess.Popen(
            [
                *(
                    CHROMIUM,
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--no-first-run",
                    f"--user-data-dir={profile}",
                ),
                *("--disable-background-networking", "--disable-component-update", address),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile},
            start_new_session=True,
        )
        try:
            while not (data := told.get(timeout=timeout)).get("end"):
                yield Told(data, cpu_seconds(browser.pid))
                if "failure" in data:
                    break
        except Empty:
            raise TimeoutError(f"the worker told nothing for {timeout} s") from None
        finally:
            browser.terminate()
            browser.wait(30)
            time.sleep(0.2)  # its processes still write to the profile
            server.shutdown()


def cpu_seconds(group: int) -> float:
    """Of the processes of a session, on Linux."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[3]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
