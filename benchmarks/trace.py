"""What a trace costs, as multiples of building the same model on the meta device: time, and this process's memory.

python benchmarks/trace.py [MODEL ...]
"""

from __future__ import annotations

import resource
import sys
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Trainer  # noqa: F401  (imported before the clock starts)

from vramplan.inputs.catalog import find_gpu, find_model
from vramplan.inputs.job import Job
from vramplan.torch_backend.trace import trace

MODELS = ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B")


def main() -> None:
    card = find_gpu("h100")
    small = find_model("Qwen/Qwen2.5-0.5B")
    assert small is not None
    few = small.model_copy(update={"config": {**small.config, "num_hidden_layers": 1}})
    trace.trace(few, Job(), card)  # whatever is loaded on first use
    for name in sys.argv[1:] or MODELS:
        spec = find_model(name)
        assert spec is not None, name
        config = AutoConfig.for_model(spec.model_type, **{k: v for k, v in spec.config.items() if k != "model_type"})
        start = time.perf_counter()
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        built = time.perf_counter() - start
        for method in ("lora", "full"):
            start = time.perf_counter()
            found = trace.trace(spec, Job(method=method, micro_batch_size=2), card)
            took = time.perf_counter() - start
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(
                f"{name:28} {method:5} traced in {took:5.1f} s, {took / built:5.1f} x the meta construction"
                f" ({built:.2f} s); {len(found.timeline.events):,} events; {memory:.2f} GiB at most"
            )


if __name__ == "__main__":
    main()
