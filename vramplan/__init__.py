"""vramplan: what a training run needs of a GPU, before it runs.

>>> import vramplan
>>> answer = vramplan.suggest("Qwen/Qwen2.5-0.5B", gpu="rtx3060", global_batch=8)
>>> answer.recommended.global_batch_size
8
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vramplan.api import estimate, load_card, load_model, suggest
    from vramplan.callback import DoesNotFit, Preflight, preflight
    from vramplan.card import Card
    from vramplan.comparing import Comparison, compare
    from vramplan.errors import VramplanError
    from vramplan.fixing import Fix, fix
    from vramplan.job import Job
    from vramplan.measured import Measured
    from vramplan.plan import Plan, Search
    from vramplan.probing import find_max, probe, prove
    from vramplan.render.report import report
    from vramplan.result import Estimate, Term
    from vramplan.spec import ModelSpec
    from vramplan.tables import Table, table
    from vramplan.verdict import Verdict, check
    from vramplan.version import __version__

_HOME = {
    "__version__": "version",
    "estimate": "api",
    "suggest": "api",
    "check": "verdict",
    "fix": "fixing",
    "Fix": "fixing",
    "DoesNotFit": "callback",
    "Preflight": "callback",
    "preflight": "callback",
    "Comparison": "comparing",
    "compare": "comparing",
    "report": "render.report",
    "Table": "tables",
    "table": "tables",
    "Verdict": "verdict",
    "probe": "probing",
    "find_max": "probing",
    "prove": "probing",
    "load_model": "api",
    "load_card": "api",
    "Card": "card",
    "VramplanError": "errors",
    "Estimate": "result",
    "Term": "result",
    "Job": "job",
    "Measured": "measured",
    "Plan": "plan",
    "Search": "plan",
    "ModelSpec": "spec",
}

__all__ = [
    "Card",
    "Comparison",
    "DoesNotFit",
    "Estimate",
    "Fix",
    "Job",
    "Measured",
    "ModelSpec",
    "Plan",
    "Preflight",
    "Search",
    "Table",
    "Term",
    "Verdict",
    "VramplanError",
    "__version__",
    "check",
    "compare",
    "estimate",
    "find_max",
    "fix",
    "load_card",
    "load_model",
    "preflight",
    "probe",
    "prove",
    "report",
    "suggest",
    "table",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used: ``import vramplan`` itself costs nothing."""
    if name not in _HOME:
        raise AttributeError(f"module 'vramplan' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"vramplan.{_HOME[name]}"), name)
