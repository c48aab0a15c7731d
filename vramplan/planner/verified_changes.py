"""Changes read again: whether a configuration that holds them fits, as its own framework takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from vramplan.errors import VramplanError
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.python_words import read_keys
from vramplan.planner.named_changes import is_of_environment, named_changes
from vramplan.planner.search_result import LeverEffect
from vramplan.planner.verdict import Verdict

MOST_READ = 4
"""Changes that are read again, until one fits."""


def with_verified_change(verdict: Verdict, judge_with: Callable[[Mapping[str, str]], Verdict]) -> Verdict:
    """The verdict, with changes that a configuration does not fit with marked so: its framework takes them otherwise.

    A switch for Liger does nothing for some models, and a file of DeepSpeed's brings settings of its own. Changes of
    the environment are not read again.

    Args:
        verdict: with the changes that would help.
        judge_with: gives the verdict with other settings.
    """
    config = verdict.reading
    for _ in range(MOST_READ):
        change = verdict.nearest_change
        if change is None or verdict.plan is not None or is_of_environment(change):
            return verdict
        need_bytes, fits, doubts = None, False, change.doubts
        words = _words(config, verdict)
        try:
            changed = judge_with(words)
            need_bytes, doubts = changed.need_bytes, changed.doubts
            job, before = changed.estimate.job, verdict.estimate.job
            fits = changed.fits and job.global_batch_size == before.global_batch_size
        except VramplanError:  # the framework does not take them together, or it is not modelled
            pass
        if fits and need_bytes is not None:
            again: LeverEffect | None = replace(change, device_total_bytes=need_bytes, doubts=doubts)
        else:
            again = None if need_bytes is None else replace(change, device_total_bytes=need_bytes, fits=False)
        advice = [again if effect is change else effect for effect in verdict.advice]
        verdict = replace(verdict, advice=tuple(effect for effect in advice if effect is not None))
        if fits:
            return verdict
    return verdict


def _words(config: ParsedConfig, verdict: Verdict) -> dict[str, str]:
    """The changes by the keys that the configuration itself uses."""
    words: dict[str, str] = {}
    for lever in named_changes(verdict):
        for key, value in config.words(lever.update).items():
            names = (key, *config.synonyms.get(key, ()))
            words[next((name for name in names if name in config.settings), key)] = value
    return read_keys(words) if config.spelling == "python" else words


__all__ = ["with_verified_change"]
