"""Runs of TRL's GRPOTrainer and RLOOTrainer under ZeRO, FSDP and DDP, in tests/trl_sharing_grpo_runs.jsonl.

`python -m tests.trl_sharing_grpo` runs those that the file lacks, as `tests.trl_sharing` does, and adds rank 0's peak
of bytes in each phase. Completions and weights' receivers are stood in for (`tests.trl_sharing_grpo_run`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.recorded_runs import rows_of
from tests.trl_runs import TRL
from tests.trl_sharing import SHALLOW, SHALLOW_UNTIED, SMALL, STRATEGIES, record_missing

RUNS = Path(__file__).parent / "trl_sharing_grpo_runs.jsonl"
SHARED: dict[str, Any] = {
    **SMALL,
    "task": "grpo",
    "prompt_length": 64,
    "num_generations": 2,
    "loss": "chunked",
    "batches": "padded",
}
SERVER: dict[str, Any] = {"generate_with": "vllm_server"}
SLEEP: dict[str, Any] = {"generate_with": "vllm_sleep", "vllm_share": 0.3}
ITSELF: dict[str, Any] = {"generate_with": "transformers"}
OWN = {"full": "model", "lora": "adapters_off"}
"""The reference of each method."""
REWARDED: dict[str, Any] = {"reward_model": "qwen2.5-0.5b"}


def _job(strategy: str, method: str, **more: Any) -> dict[str, Any]:
    stored: dict[str, Any] = {"dtype": "fp32"} if method == "full" and "zero" not in strategy else {}
    if (strategy, method) == ("zero3", "lora"):  # what TRL makes of adapters there
        stored = {"lora_dtype": "bf16"} | ({} if more.get("checkpointing") == "none" else {"reentrant": True})
    return {**SHARED, "method": method, **STRATEGIES[strategy], **stored, **more}


def cases() -> Iterator[dict[str, Any]]:
    """All runs: the model, keys of its configuration, the job."""

    def case(model: tuple[str, dict[str, Any]], *job: Any, **more: Any) -> dict[str, Any]:
        return {"trl": TRL, "model": model[0], "config": model[1], "job": _job(*job, **more)}

    for strategy in ("zero3", "fsdp2"):
        for method, reference in OWN.items():
            for engine in (SERVER, SLEEP, ITSELF):
                yield case(SHALLOW, strategy, method, **engine)
            yield case(SHALLOW, strategy, method, **SERVER, importance_sampling=False, reference=reference)
    for method in OWN:
        yield case(SHALLOW_UNTIED, "zero3", method, **SERVER, gradient_accumulation_steps=2)
        yield case(SHALLOW_UNTIED, "zero3", method, **SLEEP, gradient_accumulation_steps=2)
        yield case(SHALLOW_UNTIED, "fsdp2", method, **SERVER)
    for strategy in ("zero3", "fsdp2", "zero2"):
        yield case(SHALLOW, strategy, "full", **SERVER, **REWARDED)
        yield case(SHALLOW, strategy, "full", **SERVER, task="rloo")
        yield case(SHALLOW, strategy, "full", generate_with="vllm", vllm_share=0.3)
    yield case(SHALLOW, "zero3", "lora", **SERVER, **REWARDED)
    for method, reference in OWN.items():
        yield case(SHALLOW, "zero2", method, **SERVER, reference=reference)
        yield case(SHALLOW, "zero2", method, **SLEEP)
    yield case(SHALLOW, "ddp", "full", **SLEEP)


def recorded() -> list[dict[str, Any]]:
    """The rows of the file."""
    return rows_of(RUNS)


if __name__ == "__main__":
    raise SystemExit(record_missing(RUNS, cases(), "tests.trl_sharing_grpo_run"))
