"""The most tokens of a micro-batch that fit a GPU, for samples that differ in length."""

from __future__ import annotations

from typing import Any, Literal, cast

from vramplan.analytic.mixed_batches import BatchShape
from vramplan.analytic.unfolded_step import no_cycle_collection
from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.inputs.former_names import with_current_names
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import IMAGE_PROCESSORS
from vramplan.inputs.job import Job, with_batch
from vramplan.inputs.model_inputs import MODEL_INPUTS
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.usual_names import accepts_usual_names
from vramplan.memory.calibration import CONFIDENCE
from vramplan.memory.estimate import Estimate
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.load import load_both
from vramplan.planner.monotone_search import LENGTH_STEP
from vramplan.planner.token_search import TokenSearch
from vramplan.progress import Progress, silent
from vramplan.result import Result
from vramplan.units import ceil_div

Counting = Literal["padded", "packed"]
MOST_TOKENS = 10**12
"""Of an optimizer step."""
COUNTED = {
    "padded": "samples times the longest of them, padding included",
    "packed": "the sum of the samples' lengths: padding-free or packed batches",
}
"""What a budget counts."""


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The most tokens of a micro-batch on each GPU, counted in one way."""

    counting: Counting
    max_tokens: int
    """0 if the longest sample does not fit."""
    longest_sample: int
    """Tokens of the longest sample that fits in a micro-batch of its own."""
    gradient_accumulation_steps: int | None
    """Micro-batches of an optimizer step that reach the global tokens; None if these were not given."""
    micro_batch_tokens: int | None
    """Tokens of each of these micro-batches: at most `max_tokens`."""
    fullest: BatchShape
    """The shape of a full micro-batch that needs most memory; that of the longest sample if that does not fit."""
    estimate: Estimate
    """The estimate of that shape."""


@dataclass(frozen=True, slots=True)
class TokenBudgets(Result):
    """The answer to "how many tokens?"."""

    model: str
    gpu: Gpu
    job: Job
    longest_asked: int | None
    """Tokens of the longest sample that there is; None if any that fits may come."""
    global_tokens: int | None
    """Tokens of an optimizer step on all GPUs together."""
    budgets: tuple[TokenBudget, ...]

    @property
    def fits(self) -> bool:
        """Whether there is a budget."""
        return any(budget.max_tokens for budget in self.budgets)


@accepts_usual_names
@no_cycle_collection()
def token_budget(
    model: str | ModelSpec,
    gpu: str | Gpu,
    *,
    sequence_length: int | None = None,
    global_tokens: int | None = None,
    batches: str | None = None,
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    **job: Any,
) -> TokenBudgets:
    """The most tokens of a micro-batch that fit, for samples that differ in length.

    Full micro-batches of all shapes fit, one after another in any order: runs of mixed shapes are replayed through
    PyTorch's caching allocator. `expandable_segments` is on unless it is set to False: without it, blocks of other
    shapes stay in the cache in pieces, so that the budget is smaller.

    Args:
        model: A shipped name, a Hub id, a folder, a config.json, or a loaded model.
        gpu: A name from the catalogue, "auto" for the GPU in this machine, or a loaded one.
        sequence_length: Tokens of the longest sample; None if any that fits may come.
        global_tokens: Tokens of an optimizer step, of all GPUs together.
        batches: "padded" (samples times the longest are counted), "packed" (the sum of lengths, also for padding-free
            batches), or None for both.
        confidence: How sure it is to be that the budget fits, which sets the safety margin; 0 for none.
        progress: Called with what is being done, and the share that is done.
        **job: Fields of :class:`vramplan.Job`.

    Raises:
        VramplanError: for whatever cannot run or is not modelled.
    """
    settings = {"expandable_segments": True} | with_current_names(job)
    for name in ("micro_batch_size", "gradient_accumulation_steps", "lengths"):
        if settings.get(name) is not None:
            raise ConfigError(f"{setting(name)} has no meaning with a token budget, which holds for all samples")
    for name, value in (("sequence_length", sequence_length), ("global_tokens", global_tokens)):
        if value is not None and (type(value) is not int or not 1 <= value <= MOST_TOKENS):
            raise ConfigError(f"{setting(name, value)}: expected a whole number of tokens, from 1 to {MOST_TOKENS:,}")
    if batches not in (None, *COUNTED):
        raise ConfigError(f"{setting('batches', batches)}: token budgets are for padded and for packed batches")
    spec, gpu = load_both(model, gpu, confidence)
    _check_text(spec, settings)
    base = complete_job(spec, gpu, settings)
    budgets: list[TokenBudget] = []
    for counting in (batches,) if batches is not None else COUNTED:
        of_kind = base.model_copy(update={"batches": counting})

        def tell(text: str, number: int = len(budgets), counting: str = counting) -> None:
            progress(f"{counting}, {text}", (0.5 + number) / (1 + (batches is None)))

        search = TokenSearch(spec, of_kind, gpu, tell)
        budgets.append(_budget(search, sequence_length, global_tokens))
    return TokenBudgets(spec.name, gpu, base, sequence_length, global_tokens, tuple(budgets))


def _check_text(spec: ModelSpec, job: dict[str, Any]) -> None:
    if job.get("task") or spec.model_type in MODEL_INPUTS:
        raise UnsupportedError(f"token budgets are for causal language models; {spec.name} has other inputs")
    if spec.model_type in IMAGE_PROCESSORS and (job.get("images", 1) or job.get("videos")):
        raise UnsupportedError(
            f"token budgets do not count images yet; give {setting('images', 0)} for samples of text, or a global batch"
        )


def _budget(search: TokenSearch, longest_asked: int | None, global_tokens: int | None) -> TokenBudget:
    counting = cast("Counting", search.job.batches)
    longest = search.longest_sample()
    tokens = search.tokens(longest_asked or longest) if longest >= (longest_asked or 1) else 0
    if tokens < (longest_asked or 1):
        longest = min(longest, tokens) if tokens else longest
        shape = BatchShape(1, longest_asked or LENGTH_STEP)
        return TokenBudget(counting, 0, longest, None, None, shape, search.estimate(shape))
    fullest = search.fullest(tokens, longest_asked or longest)
    steps, each = None, None
    if global_tokens is not None:
        per_gpu = ceil_div(global_tokens, search.job.data_parallel)
        steps = ceil_div(per_gpu, tokens)
        each = ceil_div(per_gpu, steps)
    return TokenBudget(counting, tokens, min(longest, tokens), steps, each, fullest, search.estimate(fullest))


def job_of(budget: TokenBudget) -> Job:
    """The job whose micro-batches are one packed row each, as long as the budget, for a configuration to paste.

    Raises:
        ConfigError: for a budget of padded tokens, which no number of samples stands for.
    """
    if budget.counting != "packed":
        raise ConfigError(f"{setting('batches', 'padded')}: frameworks count samples there, not tokens")
    steps = budget.gradient_accumulation_steps or 1
    return with_batch(budget.estimate.job.model_copy(update={"sequence_length": budget.max_tokens}), 1, steps)
