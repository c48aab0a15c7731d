"""PyTorch's CUDA build on emulated GPUs as the referee of the estimates: jobs, their runs, the comparison.

    python -m tests.emulated run [--only TEXT] [--fresh] [--processes N]   # where PyTorch's CUDA build is installed
    python -m tests.emulated check [--sample N]                            # there, too
    vramplan accuracy --emulated tests/emulated.jsonl                      # anywhere

``run`` needs `vramplan emulate --install` and writes a row for each job to emulated.jsonl; jobs that are there already
are passed over, unless --fresh. ``check`` runs some of the jobs anew, and fails if one differs from its row. Models,
settings and GPUs are drawn by chance, with a fixed seed, so that nothing is chosen by how well it is estimated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import vramplan
from vramplan.errors import VramplanError
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.load import load_model
from vramplan.measurements.emulated import largest_estimated
from vramplan.memory.measurement import Request
from vramplan.memory.overheads import outside_bytes
from vramplan.planner.job_defaults import complete_job

ROWS = Path(__file__).with_name("emulated.jsonl")
SECONDS = 420
"""That one job may take."""

TEXT = {  # model: the largest micro-batch and length that are drawn
    "qwen2.5-0.5b": (8, 4096), "qwen2.5-1.5b": (4, 4096), "qwen2.5-7b": (2, 4096), "qwen3-0.6b": (8, 4096),
    "qwen3-4b": (4, 4096), "llama-3.2-1b": (8, 8192), "llama-3.1-8b": (4, 8192), "mistral-7b-v0.1": (3, 4096),
    "gemma-2-2b": (4, 4096), "gemma-3-1b-it": (4, 4096), "phi-3-mini-4k-instruct": (2, 4096), "phi-2": (2, 2048),
    "gpt2": (8, 1024), "gpt2-xl": (4, 1024), "pythia-410m": (8, 2048), "pythia-1.4b": (4, 2048), "opt-1.3b": (4, 2048),
    "bloom-560m": (4, 2048), "falcon-7b": (2, 2048), "starcoder2-3b": (2, 4096), "smollm3-3b": (4, 4096),
    "olmo-2-0425-1b": (4, 4096), "olmoe-1b-7b-0924": (2, 2048), "qwen3-30b-a3b": (1, 2048),
    "deepseek-v2-lite": (1, 2048), "gpt-oss-20b": (1, 2048), "c4ai-command-r7b-12-2024": (1, 4096),
}  # fmt: skip
OTHERS = {
    "bert-base-uncased": (32, 512), "roberta-base": (32, 512), "modernbert-base": (8, 2048), "t5-base": (16, 512),
    "whisper-small": (16, 448), "vit-base-patch16-224-in21k": (64, 0), "deberta-v3-base": (16, 512),
}  # fmt: skip
VISION = {
    "qwen2-vl-2b-instruct": 2, "qwen2.5-vl-3b-instruct": 1, "llava-1.5-7b-hf": 2, "internvl3-1b": 2, "gemma-3-4b-it": 1,
}  # fmt: skip
GPUS = ("t4", "rtx3090", "rtx4090", "l4", "a100-40gb", "a100-80gb", "h100-sxm", "b200", "rtx5090")
SHARDED = ("qwen2.5-0.5b", "llama-3.2-1b", "qwen3-0.6b", "gemma-2-2b", "qwen2.5-1.5b")


def jobs() -> list[tuple[str, str, str, dict[str, Any]]]:
    """(name, model, GPU, settings) of every job: 130 of text models, 28 of others, 20 of vision, 40 on several GPUs."""
    drawn = random.Random(20)
    cases = [(model, draw_text(drawn, *limits)) for model, limits in TEXT.items() for _ in range(5)]
    cases += [(model, draw_other(drawn, *limits)) for model, limits in OTHERS.items() for _ in range(4)]
    cases += [(model, draw_vision(drawn, limit)) for model, limit in VISION.items() for _ in range(4)]
    cases += [(model, draw_sharded(drawn)) for model in SHARDED for _ in range(8)]
    named = []
    for number, (model, settings) in enumerate(cases):
        gpu = drawn.choice(GPUS)
        settings = adapted(model, settings)
        if not find_gpu(gpu).supports("bf16"):
            sharded = str(settings.get("strategy", "")).startswith("zero")  # DeepSpeed has no autocast
            stored = "fp32" if settings["method"] == "full" and not sharded else "fp16"  # as the gradient scaler asks
            settings = {**settings, "dtype": stored, "autocast": "none" if sharded else "fp16"}
        named.append((f"{number:03} {model} {gpu}", model, gpu, settings))
    return named


def searches() -> list[tuple[str, str, str, dict[str, Any]]]:
    """(name, model, GPU, settings) of 100 searches for the largest micro-batch, of text models."""
    drawn = random.Random(100)
    named = []
    while len(named) < 100:
        model = drawn.choice(list(TEXT))
        settings = draw_text(drawn, 1, TEXT[model][1])
        settings["sequence_length"] = max(1024, settings["sequence_length"])  # else hundreds of samples fit
        gpu = drawn.choice(("rtx3090", "rtx4090", "l4", "a100-40gb", "rtx5090"))
        del settings["micro_batch_size"]
        named.append((f"S{len(named):02} {model} {gpu}", model, gpu, adapted(model, settings)))
    return named


def adapted(model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as transformers and PEFT run the model."""
    if model.startswith(("gemma-2", "bloom")):  # no SDPA
        settings = {**settings, "attention": "eager"}
    if (
        model.startswith(("olmoe", "qwen3-30b", "gpt-oss", "deepseek")) and settings["method"] == "dora"
    ):  # stacked experts
        settings = {**settings, "method": "lora"}
    return settings


def draw_text(drawn: random.Random, largest_batch: int, longest: int) -> dict[str, Any]:
    """Settings of a text model's job; half of them are LoRA with checkpointing, as most people train."""
    settings: dict[str, Any] = {
        "method": drawn.choice(("lora", "lora", "lora", "full", "full", "dora")),
        "checkpointing": drawn.choice(("full", "full", "none")),
        "sequence_length": drawn.choice([n for n in (256, 512, 1000, 1024, 2048, 3000, 4096, 8192) if n <= longest]),
        "micro_batch_size": drawn.randint(1, largest_batch),
        "gradient_accumulation_steps": drawn.choice((1, 1, 2, 4)),
        "batches": drawn.choice(("unpadded", "unpadded", "padded", "packed")),
        "attention": drawn.choice(("sdpa", "sdpa", "sdpa", "eager")),
        "dtype": drawn.choice(("bf16", "bf16", "bf16", "fp32")),
        "optimizer": drawn.choice(("adamw_torch_fused", "adamw_torch_fused", "adamw_torch", "sgd", "adafactor")),
        "loop": drawn.choice(("trainer", "trainer", "plain")),
        "expandable_segments": drawn.choice((False, False, True)),
    }
    settings["autocast"] = drawn.choice(("bf16", "none")) if settings["dtype"] == "fp32" else "bf16"
    if settings["method"] != "full":
        settings["lora_rank"] = drawn.choice((4, 8, 16, 64))
    return settings


def draw_other(drawn: random.Random, largest_batch: int, longest: int) -> dict[str, Any]:
    """Settings of an encoder's, an encoder-decoder's or an image model's job."""
    settings: dict[str, Any] = {
        "method": drawn.choice(("full", "full", "lora")),
        "checkpointing": drawn.choice(("none", "none", "full")),
        "micro_batch_size": drawn.randint(1, largest_batch),
        "dtype": drawn.choice(("fp32", "bf16")),
        "autocast": "bf16",
    }
    if longest:
        settings["sequence_length"] = drawn.choice([n for n in (128, 256, 448, 512, 2048) if n <= longest])
    return settings


def draw_vision(drawn: random.Random, largest_batch: int) -> dict[str, Any]:
    """Settings of a vision-language model's job."""
    method = drawn.choice(("lora", "lora", "full"))
    return {
        "method": method,
        "checkpointing": drawn.choice(("full", "none")),
        "images": drawn.choice((1, 1, 2)),
        "micro_batch_size": drawn.randint(1, largest_batch),
        "sequence_length": drawn.choice((3072, 6144)),
        "vision": drawn.choice(("frozen", "frozen", "train" if method == "full" else "lora")),
    }


def draw_sharded(drawn: random.Random) -> dict[str, Any]:
    """Settings of a job on 2 or 4 GPUs."""
    settings = {
        "strategy": drawn.choice(("ddp", "fsdp", "zero1", "zero2", "zero3")),
        "num_gpus": drawn.choice((2, 2, 4)),
        "method": drawn.choice(("full", "lora")),
        "checkpointing": drawn.choice(("full", "none")),
        "sequence_length": drawn.choice((512, 1024, 2048)),
        "micro_batch_size": drawn.randint(1, 3),
    }
    if settings["strategy"] == "fsdp" and settings["method"] == "lora":
        settings["lora_dtype"] = "bf16"
    return settings


def request_of(model: str, gpu: str, settings: dict[str, Any]) -> Request:
    """The job as a probe runs it.

    Raises:
        VramplanError: if it is no job.
    """
    spec, card = load_model(model), find_gpu(gpu)
    return Request(spec=spec, job=complete_job(spec, card, settings), card=card, device="emulated")


# ---------------------------------------------------------------- running: one process imports, its forks run the jobs


def serve() -> None:
    """Run the requests on standard input, a line each, in forks of this process, which has imported everything."""
    import transformers.models.auto.modeling_auto  # noqa: F401  (peft is left to the forks: bitsandbytes starts CUDA)

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(measure(Request.model_validate_json(line))) + "\n")
        answers.flush()


def measure(request: Request) -> dict[str, Any]:
    """The row of a job, or {"error": ...}; the highest figures of all ranks."""
    ranks = request.job.num_gpus
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(ranks):
            meeting = f"file://{folder}/meeting" if ranks > 1 else None
            update = {"rank": rank, "local_rank": rank, "meeting_point": meeting}
            child = os.fork()
            if child == 0:
                os.setsid()
                _run_rank(request.model_copy(update=update), Path(folder))
            children.append(child)
        deadline = time.monotonic() + SECONDS
        waiting = set(children)
        while waiting:
            done, _ = os.waitpid(-1, os.WNOHANG)
            waiting.discard(done)
            failed = [rank for rank in range(ranks) if _outcome(folder, rank) not in ("", "ok")]
            if time.monotonic() > deadline or (failed and ranks > 1):
                for child in waiting:
                    os.killpg(child, signal.SIGKILL)
            if not done:
                time.sleep(0.05)
        answers = [json.loads(_text(folder, rank) or '{"error": "no answer"}') for rank in range(ranks)]
    bad = next((a for a in answers if a.get("outcome") == "oom"), None) or next(
        (a for a in answers if "error" in a), None
    )
    if bad is not None:
        return bad
    row = answers[0]
    highest = (
        {}
        if row["outcome"] == "oom"
        else {k: max(a[k] for a in answers) for k in ("allocated_bytes", "reserved_bytes")}
    )
    return row | highest


def _text(folder: str, rank: int) -> str:
    path = Path(folder) / f"{rank}.json"
    return path.read_text() if path.exists() else ""


def _outcome(folder: str, rank: int) -> str:
    text = _text(folder, rank)
    return json.loads(text).get("outcome", "error") if text else ""


def _run_rank(request: Request, folder: Path) -> None:
    """The rest of a fork's life."""
    from vramplan.emulated_gpu import build, environment

    outside = outside_bytes(request.job, request.card)
    state = folder / "state"
    variables = environment.variables(build.installed(), request.card, outside, request.job.num_gpus, state)
    os.environ.update({name: value for name, value in variables.items() if name != "LD_PRELOAD"})
    if request.settings:
        os.environ["PYTORCH_ALLOC_CONF"] = request.settings
    try:
        from vramplan.torch_backend.probe import run

        measured, _ = run.run(request, lambda what, share: None)
        answer: dict[str, Any] = {
            "outcome": measured.outcome,
            "allocated_bytes": measured.peak_allocated_bytes,
            "reserved_bytes": measured.peak_reserved_bytes,
            "torch": measured.environment.versions["torch"],
        }
    except BaseException as error:  # a fork must not return into the server
        answer = {"error": f"{type(error).__name__}: {error}"[:500]}
    path = folder / f"{request.rank}.json"
    path.with_suffix(".part").write_text(json.dumps(answer))
    path.with_suffix(".part").rename(path)
    os._exit(0)


class Server:
    """A process that runs requests, one after the other."""

    def __init__(self) -> None:
        from vramplan.emulated_gpu import build, environment

        variables = environment.variables(build.installed(), find_gpu("a100-80gb"), 0)
        log = tempfile.TemporaryFile() if not os.environ.get("LOG") else None  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.emulated", "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, **variables, "OMP_NUM_THREADS": "1", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
        )

    def run(self, request: Request) -> dict[str, Any]:
        """The answer to a request."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(request.model_dump_json(exclude_unset=True) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def run_all(only: str, fresh: bool, processes: int) -> None:
    """Run the jobs that have no row yet, in several servers."""
    from concurrent.futures import ThreadPoolExecutor
    from queue import SimpleQueue

    rows = {} if fresh else {row["name"]: row for row in read_rows()}
    left = [case for case in (*jobs(), *searches()) if case[0] not in rows and re.search(only, case[0])]
    random.Random(1).shuffle(left)  # what is there when this is stopped is a sample
    servers: SimpleQueue[Server] = SimpleQueue()
    for _ in range(processes):
        servers.put(Server())

    def run_case(case: tuple[str, str, str, dict[str, Any]]) -> dict[str, Any]:
        name, model, gpu, settings = case
        row = {"name": name, "model": model, "gpu": gpu, "job": settings}
        server = servers.get()
        try:
            if name.startswith("S"):
                return row | search(server, model, gpu, settings)
            return row | server.run(request_of(model, gpu, settings))
        except VramplanError as error:
            return row | {"error": str(error)}
        finally:
            servers.put(server)

    with ThreadPoolExecutor(processes) as pool:
        for row in pool.map(run_case, left):
            print(row["name"], row.get("error") or compare(row), flush=True)
            if "error" not in row:
                rows[row["name"]] = row
                write_rows(list(rows.values()))


def search(server: Server, model: str, gpu: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The largest micro-batch that runs, looked for around the estimate's.

    Raises:
        VramplanError: if there is no estimate.
    """
    largest = max(1, largest_estimated(model, gpu, settings))
    outcomes: dict[int, dict[str, Any]] = {}

    def runs(size: int) -> bool:
        if size not in outcomes:
            outcomes[size] = server.run(request_of(model, gpu, {**settings, "micro_batch_size": size}))
        return outcomes[size].get("outcome") == "ok"

    while largest and not runs(largest):
        if "error" in outcomes[largest]:
            return outcomes[largest]
        largest -= 1
    while runs(largest + 1):
        largest += 1
    versions = next((o["torch"] for o in outcomes.values() if "torch" in o), "")
    error = {name: text for name, text in outcomes[largest + 1].items() if name == "error"}
    return {"outcome": None, "largest_micro_batch": largest, "torch": versions, **error}


def check(sample: int) -> int:
    """Run evenly chosen jobs anew; 1 if one allocates or reserves something else than its row says, 0 otherwise."""
    rows = [row for row in read_rows() if row["outcome"] is not None]
    chosen = rows[:: max(1, len(rows) // sample)]
    server, differing = Server(), 0
    for row in chosen:
        answer = server.run(request_of(row["model"], row["gpu"], row["job"]))
        same = all(answer.get(key) == row.get(key) for key in ("outcome", "allocated_bytes", "reserved_bytes"))
        differing += not same
        print("same" if same else f"DIFFERENT: {answer}", row["name"], compare(row), flush=True)
    return int(differing > 0)


def read_rows() -> list[dict[str, Any]]:
    """The committed rows."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def write_rows(rows: list[dict[str, Any]]) -> None:
    """Write the rows in the order of their names."""
    text = "".join(json.dumps(row) + "\n" for row in sorted(rows, key=lambda row: row["name"]))
    ROWS.with_suffix(".part").write_text(text)
    ROWS.with_suffix(".part").replace(ROWS)


def compare(row: dict[str, Any]) -> str:
    """The errors of a row, in words."""
    try:
        if row["outcome"] is None:
            return (
                f"{row['largest_micro_batch']} run, {largest_estimated(row['model'], row['gpu'], row['job'])} estimated"
            )
        estimate = vramplan.estimate(row["model"], row["gpu"], by="analytic", confidence=0.0, **row["job"])
    except VramplanError as error:
        return f"no estimate: {error}"
    if row["outcome"] == "oom":
        return "out of memory, " + ("ESTIMATED TO FIT" if estimate.fits else "as estimated")
    allocated = estimate.peak_allocated_bytes / row["allocated_bytes"] - 1
    return f"allocated {allocated:+.2%}, reserved {estimate.peak_reserved_bytes / row['reserved_bytes'] - 1:+.2%}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "check", "serve"))
    parser.add_argument("--only", default="")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--sample", type=int, default=36)
    chosen = parser.parse_args()
    if chosen.action == "serve":
        serve()
    elif chosen.action == "run":
        run_all(chosen.only, chosen.fresh, chosen.processes)
    else:
        sys.exit(check(chosen.sample))


if __name__ == "__main__":
    main()
