"""`vramplan suggest --tokens`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vramplan.cli.options import progress, say, sure
from vramplan.errors import ConfigError

if TYPE_CHECKING:
    from vramplan.inputs.gpu import Gpu
    from vramplan.planner.token_budget import TokenBudgets


def suggest_tokens(
    model: str,
    gpu: str | Gpu,
    num_gpus: str | None,
    global_tokens: int | None,
    no_expandable_segments: bool,
    others: Mapping[str, Any],
    *,
    given: dict[str, Any],
    confidence: float | None,
    for_framework: str | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Search the token budgets and print them; returns the exit code. `others` are options without a meaning here."""
    for flag, value in others.items():
        if value is not None:
            raise ConfigError(f"{flag} has no meaning with --tokens")
    if num_gpus is not None:
        if not num_gpus.isdecimal():
            raise ConfigError(f"--num-gpus {num_gpus}: expected a whole number with --tokens")
        given = {**given, "num_gpus": int(num_gpus)}
    if isinstance(gpu, str) and ("," in gpu or gpu.strip().lower() == "any"):
        raise ConfigError("--tokens is about one kind of GPU: give one --gpu")
    if no_expandable_segments:
        given = {**given, "expandable_segments": False}
    if for_framework is not None:
        given = {**given, "batches": _counting(for_framework, given.get("batches"))}
    from vramplan.planner.token_budget import token_budget

    with progress() as tell:
        found = token_budget(model, gpu, global_tokens=global_tokens, progress=tell, **sure(confidence), **given)
    if for_framework is not None and found.fits:
        return _paste(for_framework, model, found, confidence)
    if as_json:
        from vramplan.render.json_output import dumps
        from vramplan.render.token_json import token_budgets

        say(dumps(token_budgets(found)))
    else:
        from vramplan.render import terminal
        from vramplan.render import token_budget as as_answer

        terminal.print_all(as_answer.answer(found, verbose))
    return 0 if found.fits else 1


def _counting(target: str, batches: str | None) -> str:
    """How a project counts tokens; one that counts in several ways, as the user does.

    Raises:
        ConfigError: for another way of counting.
    """
    from vramplan.frameworks.registry import writers
    from vramplan.frameworks.token_keys import TOKEN_KEYS

    ways = TOKEN_KEYS[target].ways if target in TOKEN_KEYS else ("packed",) if target in writers() else ()
    if not ways:
        known = ", ".join([*writers(), *TOKEN_KEYS])
        raise ConfigError(f"--for {target}: nothing is written for it with --tokens; known: {known}")
    if batches is not None and batches not in ways:
        raise ConfigError(f"--batches {batches}: {target} counts tokens of {' or '.join(ways)} batches")
    return batches or ways[0]


def _paste(target: str, model: str, found: TokenBudgets, confidence: float | None) -> int:
    """Print the budget in a project's own keys."""
    from vramplan.frameworks.token_keys import TOKEN_KEYS

    (budget,) = found.budgets
    if target in TOKEN_KEYS:
        keys = TOKEN_KEYS[target]
        text = keys.text(budget.counting, budget.max_tokens, budget.gradient_accumulation_steps)
        notes, fits = keys.notes(budget.counting), True
    else:
        from vramplan.memory.calibration import CONFIDENCE
        from vramplan.planner.token_export import export_tokens

        text, _, notes, fits = export_tokens(
            target, model, found.gpu, budget, longest=found.longest_asked, global_tokens=found.global_tokens,
            confidence=CONFIDENCE if confidence is None else confidence,
        )  # fmt: skip
    if fits:
        say(text, end="")
    for note in notes:
        say(f"vramplan: {note}", file=sys.stderr)
    return 0 if fits else 1
