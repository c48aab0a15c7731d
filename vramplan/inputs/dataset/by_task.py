"""Which texts a row of a data set has for a task, and how many tokens its longest row of a batch has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from vramplan.inputs.dataset.answers import pair_of, pair_or_sample, prompt_of
from vramplan.inputs.dataset.compared import labelled_text, query_with_longest, texts_of
from vramplan.inputs.dataset.schemas import Sample, sample
from vramplan.inputs.job_values import ROLLOUTS
from vramplan.inputs.task_rules import PAIRS
from vramplan.inputs.tasks import LABELLED, RERANKERS


class RowReader(NamedTuple):
    """How a row is read."""

    texts: Callable[[Any, str], list[Sample]]
    """(row, where it stands) -> its texts."""
    longest: Callable[[Sequence[int]], int] = max
    """Tokens of each text -> tokens of the longest row that a batch has of them."""
    are_prompts: bool = False
    """Whether they are prompts, whose completions are generated."""


def _whole(row: Any, where: str) -> list[Sample]:
    return [sample(row, where)]


def _labelled(row: Any, where: str) -> list[Sample]:
    return [labelled_text(row, where)]


WHOLE = RowReader(_whole)
READER_BY_TASK: dict[str | None, RowReader] = {
    **dict.fromkeys(LABELLED, RowReader(_labelled)),
    **dict.fromkeys(PAIRS, RowReader(pair_of)),
    "kto": RowReader(pair_or_sample),
    "embedding": RowReader(texts_of),
    **dict.fromkeys(RERANKERS, RowReader(texts_of, query_with_longest)),
    **dict.fromkeys((*ROLLOUTS, "ppo"), RowReader(prompt_of, are_prompts=True)),
}
"""Tasks whose rows are not samples as a whole."""
