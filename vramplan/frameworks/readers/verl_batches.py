"""verl's micro-batches of supervised fine-tuning: by a token budget, or by a number of samples (0.9.0).

(verl/trainer/sft_trainer.py, verl/workers/engine/utils.py: prepare_micro_batches, verl/utils/seqlen_balancing.py.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, setting
from vramplan.frameworks.parsed_config import KeyNames, allocator_settings
from vramplan.frameworks.readers import verl_rl
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.job_values import EXPANDABLE_SEGMENTS
from vramplan.units import ceil_div, divisors, round_up

BUDGET, LONGEST, SAMPLES = "data.max_token_len_per_gpu", "data.max_length", "data.micro_batch_size_per_gpu"
GLOBAL = "data.train_batch_size"
LINEAR_WORK = 24576
"""Work of a sample of n tokens: this times n, plus n squared (seqlen_balancing.py: calculate_workload)."""


@dataclass(frozen=True, slots=True)
class Batches:
    """Fields of the job about its batch, and the keys that they have."""

    job: Mapping[str, Any]
    names: Mapping[str, KeyNames]
    rows: Literal["samples", "packed"]


def read_batches(config: ConfigReader, groups: int, shared: int) -> Batches:
    """The micro-batches of each group of `shared` GPUs.

    Raises:
        ConfigError: for a batch that verl cannot divide.
    """
    samples = config.integer(GLOBAL, default=256) // groups
    if samples < 1:
        raise ConfigError(f"{config.place(GLOBAL)}: fewer samples than {groups} GPUs: a GPU would have none")
    for name, default in ((GLOBAL, 256), (LONGEST, 1024)):
        if not config.has(name):
            config.note("default", name, f"not set: {default:,}")
    longest = config.integer(LONGEST, default=1024)
    if config.boolean("data.use_dynamic_bsz", default=True):
        config.read_keys.add(SAMPLES)
        return _by_tokens(config, samples, longest, shared)
    config.read_keys.add(BUDGET)
    return _by_samples(config, samples, longest, groups, shared)


def most_tokens(budget: int, longest: int) -> int:
    """The most tokens of a micro-batch when samples of up to `longest` tokens are divided by a budget.

    The number of micro-batches is the total over the budget, rounded up. They are divided by work (n x LINEAR_WORK +
    n^2) with the largest differencing method, whose sums differ by at most the largest item: merging two divisions,
    largest sum to smallest, never widens the wider of both. So the fullest has at most the average work, which is that
    of `budget` tokens in samples of `longest`, and one such sample more; and a token is at least LINEAR_WORK.

    >>> most_tokens(8192, 1024), most_tokens(8192, 8192)
    (9600, 21845)
    """
    return (budget + longest) * (LINEAR_WORK + longest) // LINEAR_WORK


def group_of(shared: int) -> str:
    """Whose samples and tokens are meant, in words: a GPU's, or those of GPUs that share them."""
    return "a GPU" if shared == 1 else f"{shared} GPUs"


def of_gpus(budget: int, shared: int) -> str:
    """A budget of tokens in words."""
    return f"{budget:,}" if shared == 1 else f"{budget:,} of {shared} GPUs"


def check_holds(config: ConfigReader, key: str, budget: int, longest: int, shared: int) -> None:
    """Check that the budget of `shared` GPUs holds a prompt with its response.

    Raises:
        ConfigError: if not: verl stops (0.9.1, utils/seqlen_balancing.py: rearrange_micro_batches).
    """
    if budget < longest:
        raise ConfigError(
            f"{config.place(key)}: {of_gpus(budget, shared)} is less than a prompt with its response, {longest:,}"
            f" tokens: verl stops at one; {ceil_div(longest, shared):,} or more"
        )


def padded_rows(config: ConfigReader, longest: int, samples: int, scored: Sequence[str]) -> str:
    """Why a budget of tokens does not say how many padded rows a micro-batch has, and what asks about some.

    (0.9.1, utils/seqlen_balancing.py: rearrange_micro_batches: ``max sum of attention_mask per micro-batch``.)

    Args:
        config: the configuration.
        longest: tokens of a prompt with its response.
        samples: of a GPU for one update, which a number of rows has to divide.
        scored: keys of the sections that score.
    """
    held = config.integer(verl_rl.BUDGET, default=16384) // longest
    rows = next((count for count in sorted(divisors(samples)) if count >= held), samples)
    scorings = [(f"{section}log_prob_micro_batch_size_per_gpu", str(rows)) for section in scored]
    asked = [(f"{verl_rl.ACTOR}use_dynamic_bsz", "False"), (verl_rl.MICRO_BATCH, str(rows)), *scorings]
    words = " ".join(setting("set", f"{name}={value}") for name, value in asked)
    return (
        "and a budget counts tokens without padding: how many rows a micro-batch has depends on lengths that are not"
        f" known; {words} asks about {rows} (it holds {held} of {longest:,} tokens, and more of shorter samples)"
    )


def note_fullest(config: ConfigReader, budget: str, tokens: int) -> None:
    """Say what a micro-batch may hold beyond its budget; a budget by ``--set`` is how one asks about that."""
    if config.place(budget).startswith("--set "):
        config.note("default", budget, "given by --set: taken as the fullest micro-batch, which is not exceeded")
        return
    config.note(
        "doubt",
        budget,
        "decides how many micro-batches there are; verl divides samples among them by work, so that one may hold up to"
        f" {tokens:,} tokens; --set {budget}={tokens} says whether they fit",
    )


def _by_tokens(config: ConfigReader, samples: int, longest: int, shared: int) -> Batches:
    """One packed row of the budget, or of all tokens if the budget holds more than a GPU's samples can have.

    A group of `shared` GPUs takes as many budgets, and each GPU its part.
    """
    budget = config.integer(BUDGET, default=8192)
    if not config.has(BUDGET):
        config.note("default", BUDGET, f"not set: {budget:,}")
    budget *= shared
    if budget < longest:
        config.note(
            "warning",
            BUDGET,
            f"{of_gpus(budget, shared)} is less than {LONGEST} {longest:,}: verl stops at the first sample that is"
            " longer than it",
        )
        longest = budget
    total = samples * longest
    steps, fullest = ceil_div(total, budget), min(total, most_tokens(budget, longest))
    tokens = min(budget, total)
    if config.boolean("engine.pad_to_length", default=False):
        bucket = config.integer("engine.pad_to_length_bucket", default=1024)
        tokens, fullest = round_up(tokens, bucket), round_up(fullest, bucket)
    tokens, fullest = ceil_div(tokens, shared), ceil_div(fullest, shared)
    if steps == 1:
        text = f"is never reached: {samples} samples of {longest:,} tokens"
        config.note("default", BUDGET, f"{of_gpus(budget, shared)} {text} {'a GPU' if shared == 1 else 'for them'}")
    else:
        note_fullest(config, BUDGET, fullest)
    if not allocator_settings(config, expandable=False):
        config.note(
            "doubt",
            "micro-batches",
            f"differ in length, and what they leave in torch's cache is not counted; set {EXPANDABLE_SEGMENTS}",
        )
    job = {
        "batches": "packed",
        "sequence_length": tokens,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": steps,
    }
    return Batches(job, {"sequence_length": BUDGET}, "packed")


def _by_samples(config: ConfigReader, samples: int, longest: int, groups: int, shared: int) -> Batches:
    """Samples without padding, in the worst case all of the longest."""
    micro = config.integer(SAMPLES, default=4)
    if samples % micro:
        raise ConfigError(
            f"{config.place(SAMPLES)}: {micro} does not divide the {samples} samples of {group_of(shared)}"
            f" ({GLOBAL} over {groups * shared} GPUs), verl stops at that"
        )
    if not config.has(SAMPLES):
        config.note("default", SAMPLES, f"not set: {micro}")
    job = {
        "batches": "unpadded",
        "sequence_length": longest,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": samples // micro,
    }
    steps = dict.fromkeys(divisors(samples), f"{GLOBAL} {samples * groups}")
    names: dict[str, KeyNames] = {
        "micro_batch_size": SAMPLES,
        "sequence_length": LONGEST,
        "gradient_accumulation_steps": steps,
    }
    return Batches(job, names, "samples")
