// Runs vramplan in Pyodide, beside the page. No number is computed here.
//
// In:  {id, topic, request}   request as vramplan/cli/answers.py takes it; topic is optional. A request that still waits
//                             when a newer one of its topic comes is dropped.
// Out: {stage}                "python", "packages", "ready": what is being loaded
//      {id, answer, seconds, heap}  the answer of answers.py, and the bytes that Python has taken, which never become less
//      {id, dropped: true}
//      {failure}              the worker cannot work: why, in one line
import { loadPyodide } from "./pyodide/pyodide.mjs";

const MODULES = "/lib/vramplan";
const waiting = new Map();
let answer = null;
let heap = () => 0;
let isScheduled = false;

self.onmessage = ({ data }) => {
  const topic = data.topic ?? `request ${data.id}`;
  const older = waiting.get(topic);
  if (older) self.postMessage({ id: older.id, dropped: true });
  waiting.delete(topic); // or it would keep its place before requests that came since
  waiting.set(topic, data);
  schedule();
};

// Not at once: messages that have already been sent come first, and may replace what waits.
function schedule() {
  if (isScheduled || !answer || !waiting.size) return;
  isScheduled = true;
  setTimeout(() => {
    isScheduled = false;
    const [topic, { id, request }] = waiting.entries().next().value;
    waiting.delete(topic);
    const start = performance.now();
    try {
      const text = answer(JSON.stringify(request));
      self.postMessage({ id, answer: JSON.parse(text), seconds: (performance.now() - start) / 1000, heap: heap() });
    } catch (error) {
      self.postMessage({ id, failure: lastLine(error) });
    }
    schedule();
  });
}

function lastLine(error) {
  return String(error.message ?? error).trim().split("\n").at(-1);
}

async function fetched(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}

async function load() {
  self.postMessage({ stage: "python" });
  const archive = fetched("packages.zip");
  archive.catch(() => {}); // reported where it is awaited
  const python = await loadPyodide({
    indexURL: new URL("pyodide/", import.meta.url).href,
    env: { HOME: "/home/pyodide", VRAMPLAN_NO_CACHE: "1", PYDANTIC_DISABLE_PLUGINS: "1", PYTHONDONTWRITEBYTECODE: "1" },
  });
  self.postMessage({ stage: "packages" });
  python.unpackArchive(await archive, "zip", { extractDir: MODULES });
  python.runPython(`import sys; sys.path.insert(0, "${MODULES}")`);
  heap = () => python._module.HEAPU8.length;
  answer = python.pyimport("vramplan.cli.answers").answer;
  self.postMessage({ stage: "ready" });
  schedule();
}

load().catch((error) => self.postMessage({ failure: lastLine(error) }));
