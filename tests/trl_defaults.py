"""Defaults of TRL's configuration classes by version, in tests/trl_defaults.json.

`python -m tests.trl_defaults FOLDER` reads them from unpacked wheels FOLDER/trl-VERSION; nothing is imported.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "trl_defaults.json"
TASKS = ("dpo", "kto", "orpo", "cpo", "reward", "grpo", "rloo", "gkd", "ppo")
PLACES = ("trainer/base_config.py", "trainer/{}_config.py", "experimental/{}/{}_config.py")
INHERITED = {"gkd": ("trainer/sft_config.py",), "ppo": ("trainer/utils.py",)}
"""Files of classes that a task's configuration inherits beside the base."""
KEYS = frozenset(
    {
        "max_length", "max_prompt_length", "max_completion_length", "num_generations", "beta", "num_iterations",
        "use_vllm", "vllm_mode", "vllm_gpu_memory_utilization", "vllm_tensor_parallel_size", "vllm_enable_sleep_mode",
        "vllm_importance_sampling_correction", "gradient_checkpointing", "bf16", "disable_dropout",
        "precompute_ref_log_probs", "cpo_alpha", "padding_free", "lmbda", "max_new_tokens",
    }
)  # fmt: skip
OWN_KEYS = {"ppo": frozenset({"response_length", "num_mini_batches", "local_rollout_forward_batch_size"})}
"""More of them, which other tasks' classes have without taking them."""


def defaults_of(text: str, keys: frozenset[str]) -> dict[str, Any]:
    """Defaults of the annotated fields of a module's classes, of those in `keys`."""
    found: dict[str, Any] = {}
    for node in (field for cls in ast.parse(text).body if isinstance(cls, ast.ClassDef) for field in cls.body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id not in keys:
            continue
        if isinstance(node.value, ast.Call):
            for keyword in node.value.keywords:
                if keyword.arg == "default":
                    found[node.target.id] = ast.literal_eval(keyword.value)
    return found


def of_version(folder: Path) -> dict[str, dict[str, Any]]:
    """Defaults by task of one unpacked wheel."""
    tables: dict[str, dict[str, Any]] = {}
    for task in TASKS:
        places = (PLACES[0], *INHERITED.get(task, ()), *PLACES[1:])
        paths = [folder / "trl" / place.format(task, task) for place in places]
        own = [defaults_of(path.read_text(), KEYS | OWN_KEYS.get(task, frozenset())) for path in paths if path.exists()]
        has_own = task != "ppo" or any((folder / "trl" / one.format(task, task)).exists() for one in PLACES[1:])
        tables[task] = {key: value for table in own for key, value in table.items()} if has_own else {}
    return tables


def recorded() -> dict[str, dict[str, dict[str, Any]]]:
    """version -> task -> key -> default."""
    table: dict[str, dict[str, dict[str, Any]]] = json.loads(FILE.read_text())
    return table


if __name__ == "__main__":
    versions = {path.name.removeprefix("trl-"): of_version(path) for path in Path(sys.argv[1]).glob("trl-*")}
    ordered = sorted(versions.items(), key=lambda pair: [int(part) for part in pair[0].split(".")])
    lines = (f"{json.dumps(version)}: {json.dumps(tables)}" for version, tables in ordered)
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
