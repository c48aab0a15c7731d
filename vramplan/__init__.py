"""vramplan: what a training run needs of a GPU, before it runs.

>>> import vramplan
>>> answer = vramplan.suggest("Qwen/Qwen2.5-0.5B", gpu="rtx3060", global_batch=8)
>>> answer.recommended.global_batch_size
8
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramplan.errors import VramplanError
    from vramplan.inputs.gpu import Gpu
    from vramplan.inputs.job import Job
    from vramplan.inputs.load import load_gpu, load_model
    from vramplan.inputs.model_spec import ModelSpec
    from vramplan.measurements.probe import find_max, probe, probe_device, prove
    from vramplan.memory.estimate import Estimate, Term
    from vramplan.memory.measurement import Measured
    from vramplan.planner.check import check
    from vramplan.planner.compare import Comparison, compare
    from vramplan.planner.estimate import estimate
    from vramplan.planner.fix import Fix, fix
    from vramplan.planner.hardware_plan import Hardware, HardwarePlan
    from vramplan.planner.hardware_search import suggest_hardware
    from vramplan.planner.out_of_memory import Explanation, explain
    from vramplan.planner.search_result import Plan, Search
    from vramplan.planner.suggest import suggest
    from vramplan.planner.table import Table, table
    from vramplan.planner.token_budget import TokenBudget, TokenBudgets, token_budget
    from vramplan.planner.verdict import Verdict
    from vramplan.render.report import report
    from vramplan.trainer_callback import DoesNotFit, Preflight, preflight
    from vramplan.version import __version__

_HOME = {
    "__version__": "version",
    "estimate": "planner.estimate",
    "suggest": "planner.suggest",
    "token_budget": "planner.token_budget",
    "TokenBudget": "planner.token_budget",
    "TokenBudgets": "planner.token_budget",
    "suggest_hardware": "planner.hardware_search",
    "Hardware": "planner.hardware_plan",
    "HardwarePlan": "planner.hardware_plan",
    "check": "planner.check",
    "fix": "planner.fix",
    "Fix": "planner.fix",
    "Explanation": "planner.out_of_memory",
    "explain": "planner.out_of_memory",
    "DoesNotFit": "trainer_callback",
    "Preflight": "trainer_callback",
    "preflight": "trainer_callback",
    "Comparison": "planner.compare",
    "compare": "planner.compare",
    "report": "render.report",
    "Table": "planner.table",
    "table": "planner.table",
    "Verdict": "planner.verdict",
    "probe": "measurements.probe",
    "probe_device": "measurements.probe",
    "find_max": "measurements.probe",
    "prove": "measurements.probe",
    "load_model": "inputs.load",
    "load_gpu": "inputs.load",
    "Gpu": "inputs.gpu",
    "VramplanError": "errors",
    "Estimate": "memory.estimate",
    "Term": "memory.estimate",
    "Job": "inputs.job",
    "Measured": "memory.measurement",
    "Plan": "planner.search_result",
    "Search": "planner.search_result",
    "ModelSpec": "inputs.model_spec",
}

_FORMER = {"Card": "Gpu", "load_card": "load_gpu"}
"""Names of the release before, kept until 0.2."""

__all__ = [
    "Comparison",
    "DoesNotFit",
    "Estimate",
    "Explanation",
    "Fix",
    "Gpu",
    "Hardware",
    "HardwarePlan",
    "Job",
    "Measured",
    "ModelSpec",
    "Plan",
    "Preflight",
    "Search",
    "Table",
    "Term",
    "TokenBudget",
    "TokenBudgets",
    "Verdict",
    "VramplanError",
    "__version__",
    "check",
    "compare",
    "estimate",
    "explain",
    "find_max",
    "fix",
    "load_gpu",
    "load_model",
    "preflight",
    "probe",
    "probe_device",
    "prove",
    "report",
    "suggest",
    "suggest_hardware",
    "table",
    "token_budget",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used: ``import vramplan`` itself costs nothing."""
    if name in _FORMER:
        from warnings import warn

        warn(f"vramplan.{name} is now vramplan.{_FORMER[name]}", DeprecationWarning, stacklevel=2)
        name = _FORMER[name]
    if name not in _HOME:
        raise AttributeError(f"module 'vramplan' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"vramplan.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """The public names."""
    return __all__
