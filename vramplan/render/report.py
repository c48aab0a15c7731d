"""`vramplan report`: one HTML file with the answer on several GPUs, which needs no server and no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vramplan.errors import VramplanError
from vramplan.frameworks.registry import writers
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.export import export
from vramplan.planner.report import Report, build
from vramplan.planner.search_result import Plan, Search
from vramplan.render.verdict import subject
from vramplan.render.web.answer import Answer, of_search
from vramplan.render.web.frame import as_json, frame, source
from vramplan.render.web.matrix import matrix, micro_batches

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
FRAMEWORKS = ("swift", "llamafactory", "axolotl", "trl")
"""Frameworks whose lines a page shows."""


def report(model: str | ModelSpec, gpu: str | Gpu, **choices: Any) -> bytes:
    """One page about a job, as HTML; keyword arguments are those of :func:`vramplan.planner.report.build`.

    Raises:
        VramplanError: if the job cannot run or is not supported.
    """
    return page(build(model, gpu, **choices))


def page(found: Report, words: Sequence[str] = ()) -> bytes:
    """The page; `words` are the flags of the job, for the command that gives the same figures."""
    start = f"{found.search.card.name} {found.micro_batch_size}"
    answers = {
        f"{name} {plan.micro_batch_size}": _answer(on, plan, words)
        for name in found.gpus
        if isinstance(on := found.on(name), Search)
        for plan in on.plans
    }
    if start not in answers:  # nothing fits on the GPU that was asked for
        answers[start] = {"parts": of_search(found.search)._asdict(), "commands": own_command(found.search, words)}
    rows = [(gpu, found.on(name)) for name, gpu in found.gpus.items()]
    shown = (found.search.card.name, found.micro_batch_size)
    data = {"start": start, "matrix": matrix(rows, micro_batches(found.search), shown), "answers": answers}
    title = subject(found.search.model, found.search.card.title, found.search.job.num_gpus)
    scripts = [
        f'<script type="application/json" id="answers">{as_json(data)}</script>',
        *(f"<script>\n{source(name)}</script>" for name in ("page.js", "report.js")),
    ]
    return frame(f"{title}: vramplan", POLICY, scripts).encode()


def _answer(search: Search, plan: Plan, words: Sequence[str]) -> dict[str, Any]:
    parts: Answer = of_search(search, plan.micro_batch_size)
    return {"parts": parts._asdict(), "commands": commands(search, plan, words)}


def own_command(search: Search, words: Sequence[str] = (), plan: Plan | None = None) -> dict[str, str]:
    """The command line of vramplan that gives the same answer: `estimate` for a plan that `suggest` does not choose."""
    if plan is None or plan is search.recommended:
        command, batch = "suggest", ["--global-batch", str(search.global_batch_size)]
    else:
        sizes = {"--micro-batch": plan.micro_batch_size, "--accumulation": plan.gradient_accumulation_steps}
        command, batch = "estimate", [text for flag, size in sizes.items() for text in (flag, str(size))]
    flags = " ".join(["--gpu", search.card.name, *batch, *words]).replace(" --", " \\\n  --")
    return {"vramplan": f"vramplan {command} {search.model} \\\n  {flags}\n"}


def commands(
    search: Search, plan: Plan, words: Sequence[str] = (), frameworks: Sequence[str] = FRAMEWORKS
) -> dict[str, str]:
    """What to paste for a plan, by name: vramplan's own command, and the settings of frameworks, read back."""
    texts = own_command(search, words, plan)
    for name in frameworks:
        try:
            written = export(name, search.model, plan.estimate.job, search.card)
        except VramplanError as error:
            texts[writers()[name][0].name] = f"# {error}\n"
        else:
            notes = "".join(f"# {note}\n" for note in written.notes)
            texts[writers()[name][0].name] = (written.text if written.fits else "") + notes
    return texts
