"""One of two processes that train together on the CPU: ``RANK=0 ... python -m tests.adaptive_ranks OUTPUT loop``.

Runs the scenarios of a name, and writes what this rank found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tests.adaptive_runs import (
    MESSAGE,
    Network,
    constant,
    growing,
    out_of_memory_above,
    out_of_memory_in_backward,
    rungs,
    same,
    samples,
)
from vramplan.adaptive.controller import Controller
from vramplan.adaptive.policies.noise_scale import NoiseScalePolicy
from vramplan.adaptive.step_loader import StepLoader
from vramplan.adaptive.torch_loop import AdaptiveLoop
from vramplan.errors import ConfigError

TIMEOUT = timedelta(seconds=45)
RANK = int(os.environ.get("RANK", 0))


def measuring() -> Controller:
    return Controller(rungs(2), NoiseScalePolicy(half_life=10**9, most_spread=1e-9))


def wrapped(dropout: float = 0.0, buffers: bool = False, **settings: Any) -> DistributedDataParallel:
    model = Network(dropout)
    if buffers:  # DistributedDataParallel broadcasts them in each forward
        model.register_buffer("table", torch.arange(3.0))
    return DistributedDataParallel(model, **settings)


def loop_of(controller: Controller, model: nn.Module, count: int = 40, **settings: Any) -> AdaptiveLoop:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = StepLoader(samples(count), controller, epochs=2, rank=RANK, world_size=2)
    return AdaptiveLoop(controller, model, optimizer, loader, **{"measure_every": 1, **settings})


def weights(model: nn.Module) -> list[float]:
    return [float(number) for weight in model.parameters() for number in weight.detach().flatten()]


def plain() -> dict[str, Any]:
    """A plain loop under DistributedDataParallel, and the same with a controller."""
    found = {}
    for name, controller, settings in (
        ("constant", constant(2), {}),
        ("measuring", measuring(), {"gradient_as_bucket_view": True}),
        ("unused", measuring(), {"find_unused_parameters": True}),
    ):
        torch.manual_seed(RANK)
        model = wrapped(0.1, buffers=True, **settings)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for epoch in range(2):
            order = torch.randperm(40, generator=torch.Generator().manual_seed(epoch)).tolist()
            data = [samples()[number] for number in order]
            # batches of 2, dealt in turns
            mine = [data[at : at + 2] for at in range(2 * RANK, 40, 4)]
            flat = [sample for batch in mine for sample in batch]
            for batch in DataLoader(flat, batch_size=2):  # type: ignore[arg-type]
                model(batch).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()
        torch.manual_seed(RANK)
        loop = loop_of(controller, wrapped(0.1, buffers=True, **settings), max_norm=0.5)
        list(loop.steps(loop.model))
        found[name] = same(model, loop.model)
    return found


def switches() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "decisions.jsonl"
        loop = loop_of(growing(2), wrapped(), count=41, decisions=file)
        steps = list(loop.steps(loop.model))
        lines = file.read_text().splitlines() if file.exists() else []
    return {
        "seen": loop.model.module.samples,
        "batches": [step.global_batch_size for step in steps],
        "losses": [step.loss for step in steps],
        "weights": weights(loop.model),
        "lines": len(lines),
        "decisions": [decision.json_line() for step in steps for decision in step.decisions],
    }


def norms() -> dict[str, Any]:
    """Observations of a run at batch 8, as 2 ranks x 1 or 2 micro-batches."""
    found = {}
    for micro in (4, 2):
        rung = next(one for one in (rungs(2)[1], *rungs(2)[1].alternatives) if one.micro_batch_size == micro)
        controller = Controller([rung], measuring().policy)
        told: list[Any] = []
        controller.observe = told.append  # type: ignore[method-assign, assignment]
        loop = loop_of(controller, wrapped(), count=8)
        list(loop.steps(loop.model))
        found[str(micro)] = [
            [one.small_norm_squared, one.small_batch, one.large_norm_squared, one.large_batch, one.loss] for one in told
        ]
    return found


def out_of_memory() -> dict[str, Any]:
    """One rank fails and the other does not."""
    found = {}
    for name, failing in {"smooth": None, "forward": 1, "backward": 0, "both": 2}.items():
        model = wrapped(buffers=True)
        loop = loop_of(growing(2), model)
        if failing in (RANK, 2):
            limit = out_of_memory_in_backward if name == "backward" else out_of_memory_above
            with limit(model.module.first if name == "backward" else model.module, 2) as failed:
                steps = list(loop.steps(model))
        else:
            failed, steps = [], list(loop.steps(model))
        found[name] = {
            "failed": failed,
            "weights": weights(model),
            "micro": loop.controller.rung.micro_batch_size,
            "losses": [step.loss for step in steps],
        }
    return found


def none_smaller() -> dict[str, Any]:
    """Both ranks end in the same line."""
    model = wrapped()
    loop = loop_of(constant(2), model)

    def loss_of(batch: Any) -> torch.Tensor:
        if RANK == 1:
            raise torch.OutOfMemoryError(MESSAGE)
        return model(batch)

    try:
        list(loop.steps(loss_of))
    except ConfigError as error:
        return {"message": str(error)}
    return {}


def restart() -> dict[str, Any]:
    whole = loop_of(growing(2), wrapped())
    list(whole.steps(whole.model))
    first = loop_of(growing(2), wrapped())
    for step in first.steps(first.model):
        if step.number == 4:
            break
    state = torch.get_rng_state()
    second = loop_of(growing(2), wrapped())
    torch.set_rng_state(state)
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    list(second.steps(second.model))
    return {"same": same(whole.model, second.model), "states": second.state_dict() == whole.state_dict()}


def trainers() -> dict[str, Any]:
    """The Trainer and the adaptive one; a short last step with fewer samples than ranks; an out-of-memory."""
    from tests.test_adaptive_trainer import trainer

    found: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp())
    settings: dict[str, Any] = {
        "ddp_backend": "gloo",
        "gradient_accumulation_steps": 1,
        "ddp_timeout": 45,
        "num_train_epochs": 1,
    }
    for name, controller, more in (
        ("constant", constant(2), {}),
        ("measuring", measuring(), {"average_tokens_across_devices": False}),
    ):
        plain = trainer(folder, None, **settings, **more)
        plain.train()
        adaptive = trainer(folder, controller, **settings, **more)
        adaptive.train()
        found[name] = same(plain.model, adaptive.model)
    one = trainer(folder, growing(2), **settings, count=41, include_num_input_tokens_seen="all")
    one.train()
    found["seen"] = one.seen.samples
    found["tokens"] = one.state.num_input_tokens_seen
    for name in ("smooth", "limited"):
        one = trainer(folder, growing(2), "llama", **settings)
        if name == "limited" and RANK == 0:
            with out_of_memory_above(one.model, 2) as failed:
                one.train()
            found["failed"] = failed
        else:
            one.train()
        found[name] = weights(one.model)[:200]
    return found


def accelerated() -> dict[str, Any]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    controller, model = measuring(), Network(0.0)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    loader = StepLoader(
        samples(), controller, epochs=2, rank=accelerator.process_index, world_size=accelerator.num_processes
    )
    loop = AdaptiveLoop(controller, model, optimizer, loader, accelerator=accelerator, max_norm=0.5, measure_every=1)
    list(loop.steps(model))
    other = loop_of(measuring(), wrapped(), max_norm=0.5)
    list(other.steps(other.model))
    return {"same": same(model, other.model), "kind": type(model).__name__}


def refused() -> dict[str, Any]:
    messages = []
    hooked = wrapped()
    hooked.register_comm_hook(None, lambda state, bucket: torch.futures.Future())  # type: ignore[arg-type]
    for model in (Network(), hooked):
        try:
            loop_of(constant(2), model)
        except Exception as error:
            messages.append(f"{type(error).__name__}: {error}")
    return {"messages": messages}


SCENARIOS: dict[str, list[Callable[[], dict[str, Any]]]] = {
    "loop": [plain, switches, norms, out_of_memory, none_smaller, restart, refused, accelerated],
    "trainer": [trainers],  # transformers takes long to import
}


def main(output: str, name: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    found = {}
    for scenario in SCENARIOS[name]:
        dist.barrier()
        found[scenario.__name__] = scenario()
    Path(output).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort as the interpreter ends
