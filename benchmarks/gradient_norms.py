"""What measuring gradient norms adds to an optimizer step: ``python -m benchmarks.gradient_norms``.

A small Llama, trained with AdamW. Steps without and with the norms are taken in turns in one process, with the same
model and data; the result is the median of the ratios of neighbours. Times are processor time on the CPU, so that a
busy machine changes them little. Each variant clips its gradients, as most runs do.

    plain       forward, backward, clip_grad_norm_, AdamW
    hooks       the norm of each micro-batch by hooks, that of the step is the one that clipping returned
    separate    the same, and the norm of the step is computed again
    every 8th   computed from hooks: if each 8th step is measured

``--write`` keeps the result: benchmarks/gradient_norms.json. ``--cuda`` runs on a GPU in bf16.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from vramplan.adaptive.gradient_norms import GradientNorms

RESULT = Path(__file__).with_suffix(".json")
SHAPES = {
    "cpu": {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4,
            "vocab_size": 4096},
    "cuda": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
             "num_key_value_heads": 4, "vocab_size": 32000},
}  # fmt: skip
JOBS = {"cpu": ((4, 4, 256), (1, 4, 256), (1, 4, 64)), "cuda": ((4, 4, 2048), (1, 4, 2048), (1, 4, 256))}
"""(micro-batch, accumulation, sequence length)"""
EVERY = 8


def ratios(device: str, job: tuple[int, int, int], rounds: int) -> dict[str, float]:
    """Time of a step with the norms, as a multiple of one without."""
    micro_batch, accumulation, length = job
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPES[device]))
    model = model.to(device, torch.bfloat16 if device == "cuda" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    norms = GradientNorms(model)
    ids = torch.randint(0, SHAPES[device]["vocab_size"], (micro_batch, length), device=device)

    def step(how: str) -> None:
        for _ in range(accumulation):
            measured: Any = nullcontext() if how == "plain" else norms.micro_batch(micro_batch, 1 / accumulation)
            with measured:
                (model(input_ids=ids, labels=ids).loss / accumulation).backward()
        norm = None
        if how == "separate":
            norms.finish()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if how == "hooks":
            norms.finish(norm)
        optimizer.step()
        optimizer.zero_grad()

    def seconds(how: str) -> float:
        synchronize()
        start = clock()
        step(how)
        synchronize()
        return clock() - start

    clock = perf_counter if device == "cuda" else process_time
    synchronize: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    for how in ("plain", "hooks", "separate"):
        step(how)
    samples: dict[str, list[float]] = {"hooks": [], "separate": []}
    plain = []
    for _ in range(rounds):
        for how, each in samples.items():
            before, with_norms, after = seconds("plain"), seconds(how), seconds("plain")
            each.append(2 * with_norms / (before + after))
            plain += [before, after]
    result = {how: median(each) for how, each in samples.items()}
    return {**result, "every 8th": 1 + (result["hooks"] - 1) / EVERY, "plain_seconds": median(plain)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cuda", action="store_true", help="on a GPU, in bf16")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--write", action="store_true", help="keep the result in the repository")
    options = parser.parse_args()
    device = "cuda" if options.cuda else "cpu"
    name = torch.cuda.get_device_name() if options.cuda else f"CPU, {torch.get_num_threads()} threads"
    results = {}
    print(f"{name}, torch {torch.__version__}, Python {platform.python_version()}")
    for job in JOBS[device]:
        label = "micro-batch {}, accumulation {}, {} tokens".format(*job)
        results[label] = {key: round(value, 4) for key, value in ratios(device, job, options.rounds).items()}
        print(label, results[label])
    if options.write:
        former = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        RESULT.write_text(json.dumps({**former, name: {"torch": torch.__version__, **results}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
