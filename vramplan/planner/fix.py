"""The changes to a user's own text that make it fit at the same global batch: those that `check` names.

Every candidate is the text itself, changed, read again and judged: what is found is what will be read.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.bounded_read import read_bytes
from vramplan.dataclass import dataclass
from vramplan.errors import CannotRunError, ConfigError, UnsupportedError, VramplanError, setting
from vramplan.frameworks.detect import from_line, from_text
from vramplan.frameworks.detected_config import DetectedConfig
from vramplan.frameworks.edit import command, config_file
from vramplan.frameworks.nearest import on_gpu
from vramplan.frameworks.parsed_config import CAST, ParsedConfig
from vramplan.frameworks.settings import ConfigValue, Note, says
from vramplan.frameworks.syntax.config_files import read_text
from vramplan.frameworks.syntax.shell import typed
from vramplan.inputs.batch_rules import samples_of_step
from vramplan.inputs.job_values import DEFAULT_SEQUENCE_LENGTH
from vramplan.inputs.load import load_gpu, load_named_model
from vramplan.inputs.usual_names import accepts_usual_names
from vramplan.memory.calibration import CONFIDENCE, with_margin
from vramplan.planner import check, undecided
from vramplan.planner.batch_warnings import fewer_negatives
from vramplan.planner.levers import ADAPTERS, NEVER, Lever, memory_levers
from vramplan.planner.monotone_search import LENGTH_STEP, bisect_largest
from vramplan.planner.named_changes import SAME, named_changes
from vramplan.planner.search_result import FREE
from vramplan.planner.verdict import Verdict
from vramplan.progress import Progress, silent
from vramplan.result import Result
from vramplan.units import divisors

MAX_RESULT_CHANGES = 3
"""Changes of the training result that are made together."""
MAX_REQUIRED = 4
"""Changes without which it would not run; more would go round in circles."""
OTHERWISE = "another result"
"""The cost of a change that costs nothing else."""
BY_DEFAULT = {"gradient_accumulation_steps": 1, "dtype": "bf16"}
"""Fields that a framework may fill in as they are wanted: ms-swift's accumulation makes 16 samples of a step."""
SLOW = ("offload", "strategy")
"""Fields whose change costs the most time, the slowest first: taken only if others are not enough."""
LEARNING_RATE = "their learning rate is usually about ten times as high: set it yourself"
"""Thinking Machines, LoRA Without Regret (2025): the best rate of an adapter is some ten times that of all weights."""


class Change(NamedTuple):
    """One setting that is changed."""

    key: str
    before: str | None
    """None where it was not set."""
    after: str
    cost: str


@dataclass(frozen=True, slots=True)
class Fix(Result):
    """A text that fits, or the same text where nothing makes it fit."""

    text: str
    changes: tuple[Change, ...]
    before: Verdict
    after: Verdict
    """Of the text as it is now."""
    least_need_bytes: int
    """The least need of all that was tried."""
    taken_length: int | None = None
    """Tokens of the longest sample that it fits with, where no setting limits them and none were given."""


@accepts_usual_names
def fix(
    target: str | Path | Sequence[str],
    gpu: str | Any = "auto",
    *,
    framework: str | None = None,
    settings: Mapping[str, str] | None = None,
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    **given: Any,
) -> Fix:
    """A configuration, script or command with the changes that make it fit; arguments as :func:`check` has them.

    They are those that :func:`check` names. Where these are no settings of the text, or are not enough in it, others
    are looked for, and those that leave the training result as it is go first: micro-batch and accumulation, an
    evaluation's batch, a fused loss, checkpointing, offload.

    Raises:
        VramplanError: for what cannot be read, or is not modelled.
    """
    text: str
    find: Callable[[str], DetectedConfig]
    card = with_margin(load_gpu(gpu), confidence)
    if isinstance(target, (str, Path)):
        path = Path(target)
        text, find = (
            read_text(path),
            lambda text: from_text(text, path, framework, gpu=card),
        )
        mark = "\ufeff" if read_bytes(path).startswith(BOM_UTF8) else ""
    else:
        text, find, mark = (
            typed(target),
            lambda line: from_line(line, framework, gpu=card),
            "",
        )
    with on_gpu(card):
        tried = _Candidates(text, find, card, {**given, "confidence": confidence}, progress, settings or {})
        found = tried.fixed()
    return replace(found, text=mark + found.text, taken_length=tried.taken_length)


class _Candidates:
    """Versions of the text by what they change, each checked once."""

    def __init__(
        self,
        text: str,
        find: Callable[[str], DetectedConfig],
        gpu: Any,
        given: dict[str, Any],
        progress: Progress,
        settings: Mapping[str, str],
    ) -> None:
        self.text, self.find, self.gpu, self.given, self.progress = text, find, gpu, given, progress
        self.found = find(text)
        where = self.found.source.where
        if self.found.source.spelling == "python" or where.endswith(".toml"):
            raise UnsupportedError(
                f"{setting('fix')}: {where}: Python and TOML are not edited; `vramplan check` says what to change, and"
                " in Python at which line"
            )
        self.verdicts: dict[tuple[tuple[str, str], ...], Verdict | None] = {}
        self.required: list[Change] = []
        """Changes without which it would not run at all, or that were given."""
        self.taken_length: int | None = None
        self._write_given(settings)
        if given.get("num_gpus") is None:
            self.given["num_gpus"] = self._only_count()
        self.first = self._running()
        if self.first.data is not None:
            self.given["dataset"] = self.first.data.lengths
        self.given["model"] = given.get("model") or load_named_model(self.first.estimate.model)

    def _write_given(self, settings: Mapping[str, str]) -> None:
        """Write the settings that were given over those of the text, so that what is printed is what was checked.

        Raises:
            ConfigError: for one that is to be removed.
        """
        removed = [key for key, value in settings.items() if value == ""]
        if removed:
            raise ConfigError(f"{setting('set', f'{removed[0]}=')} with {setting('fix')}: remove the line yourself")
        if settings:
            before = self.found.source.settings
            self.required += [Change(key, _before(before, key), value, "as given") for key, value in settings.items()]
            self.text = self._edited(settings)
            self.found = self.find(self.text)

    def _running(self) -> Verdict:
        """The verdict, once the text says nothing any more that the GPU cannot run."""
        while True:
            try:
                verdict = check.examine(self.found, self.gpu, progress=self.progress, look_further=False, **self.given)
            except CannotRunError as error:
                if len(self.required) > MAX_REQUIRED or not self._require(error.update, error.why):
                    raise
                continue
            if verdict.fits or not verdict.cases:
                return verdict
            length = verdict.estimate.job.sequence_length
            why = "the longest that fits" if verdict.depends else "not even 1,024 fit as it is"
            if length < undecided.LENGTHS[0]:
                length, why = DEFAULT_SEQUENCE_LENGTH, "not even 1,024 fit as it is"
            if not self._require({"sequence_length": length}, why):  # completions that nothing cuts, as in GRPO
                self.taken_length = self.given["sequence_length"] = verdict.estimate.job.sequence_length

    def _require(self, update: Mapping[str, Any], why: str) -> bool:
        """Change the text so that it says this; False if it has no setting for it."""
        words = self._words([update], self._read(self.found))
        settings = self.found.source.settings
        self.required += [Change(key, _before(settings, key), value, why) for key, value in words.items()]
        if words:
            self.text = self._edited(words)
            self.found = self.find(self.text)
        return bool(words)

    def _only_count(self) -> int:
        """One GPU, if the number decides little: each GPU holds the whole model.

        Raises:
            ConfigError: if the model is divided over an unknown number of them.
        """
        counts = undecided.gpu_counts(lambda count: self._read(self.found, count).job)
        if len(counts) > len(undecided.SEVERAL):
            raise ConfigError(
                f"{self.found.source.where}: divides the model over all GPUs there are: give {setting('num_gpus')}"
            )
        return 1

    def _read(self, found: DetectedConfig, num_gpus: int | None = None) -> ParsedConfig:
        return check.read(found, num_gpus or self.given.get("num_gpus") or 1, self.given.get("framework_version"))

    def fixed(self) -> Fix:
        """The text with the changes that make it fit."""
        if self.first.fits:
            return Fix(self.text, tuple(self.required), self.first, self.first, self.first.need_bytes)
        if self.first.case_fits and self.first.groups:  # of another group it is not known, or does not depend on it
            group = next(group for group in self.first.groups if not group.fits)
            raise UnsupportedError(
                f"{self.found.source.where}: {setting('fix')}: what is planned fits, and nothing is known that would"
                f" help {group.name} ({group.key}): {group.text}"
            )
        levers = self._named() or self._search()
        needs = [verdict.need_bytes for verdict in self.verdicts.values() if verdict is not None]
        least_need = min([self.first.need_bytes, *needs])
        if levers is None:
            return Fix(self.text, (), self.first, self.first, least_need)
        updates = self._relaxed(levers)
        after = self.verdict_with(updates)
        assert after is not None
        lost = fewer_negatives(
            after.estimate.job, after.estimate.job.micro_batch_size, self.first.estimate.job.micro_batch_size
        )
        after.reading.notes += [Note("warning", "", text) for text in lost]
        words = self._without_defaults(self._words(updates), after.reading.job)
        return Fix(self._edited(words), self._changes(words, levers, updates), self.first, after, least_need)

    def _named(self) -> tuple[Lever, ...]:
        """The changes that `check` names, if the text with them fits: both give one answer."""
        verdict = check.examine(self.found, self.gpu, progress=self.progress, **self.given)
        levers = tuple(self._with_rate(lever) for lever in named_changes(verdict))
        return levers if levers and self._fits(levers) else ()

    @staticmethod
    def _with_rate(lever: Lever) -> Lever:
        """The change with what adapters ask of the learning rate, which nothing here sets."""
        return replace(lever, cost=f"{ADAPTERS}; {LEARNING_RATE}") if lever.cost == ADAPTERS else lever

    # -- the search ----------------------------------------------------------------------------------------------------

    def _search(self) -> tuple[Lever, ...] | None:
        """The first set that fits: as few changes of the result as possible, then as few others."""
        same_result, other_result = self._levers(self.first)
        if self.verdict_with(_updates(same_result)) is None:  # one of them cannot run here
            same_result = [lever for lever in same_result if self.verdict_with([lever.update]) is not None]
        everything = self._everything(same_result, other_result)
        if everything is None:  # sharding weights may take more than it saves
            same_result = [lever for lever in same_result if "strategy" not in lever.update]
            everything = self._everything(same_result, other_result)
        if everything is None:
            return None
        queue: deque[tuple[Lever, ...]] = deque([()])
        queued: set[frozenset[str]] = set()
        while queue:
            changed = queue.popleft()
            verdict = self.verdict_with(_updates((*same_result, *changed)))
            if verdict is None:
                continue
            if verdict.fits:
                subsets = [subset for size in range(len(same_result) + 1) for subset in combinations(same_result, size)]
                subsets.sort(key=lambda subset: [any(name in lever.update for lever in subset) for name in SLOW])
                return next((*subset, *changed) for subset in subsets if self._fits((*subset, *changed)))
            for lever in self._levers(verdict)[1] if len(changed) < MAX_RESULT_CHANGES else ():
                name = frozenset(str(other.update) for other in (*changed, lever))
                if name not in queued:
                    queued.add(name)
                    queue.append((*changed, lever))
        return self._without_needless(everything)

    def _everything(self, same_result: list[Lever], other_result: list[Lever]) -> tuple[Lever, ...] | None:
        """All changes together; None if not even they are enough, which spares a long search."""
        changed = [*same_result, *other_result]
        for _ in range(MAX_RESULT_CHANGES):
            verdict = self.verdict_with(_updates(changed))
            if verdict is None or verdict.fits:
                break
            changed += self._levers(verdict)[1]
        return tuple(changed) if verdict is None or verdict.fits else None

    def _without_needless(self, levers: tuple[Lever, ...]) -> tuple[Lever, ...] | None:
        """Without those that it fits without, the last left out first."""
        if not self._fits(levers):
            return None
        for lever in reversed(levers):
            fewer = tuple(other for other in levers if other is not lever)
            levers = fewer if self._fits(fewer) else levers
        return levers

    def _levers(self, base: Verdict) -> tuple[list[Lever], list[Lever]]:
        """(changes that keep the result, changes that do not) for which the framework has settings."""
        job, levers = base.estimate.job, _smaller_batches(base)
        for lever in memory_levers(self.given["model"], job, self.gpu, base.estimate.device_total_bytes):
            if lever.card is not None or lever.update in NEVER:
                continue
            shortest = lever.update.get("sequence_length")
            if shortest:
                longest = (job.sequence_length - 1) // LENGTH_STEP * LENGTH_STEP
                updates = [{"sequence_length": length} for length in range(longest, shortest - 1, -LENGTH_STEP)]
                levers += _ladder(updates, lever.cost)
            else:
                cost = OTHERWISE if lever.cost == FREE and not lever.keeps_result else lever.cost
                levers.append(replace(lever, cost=cost))
            levers[-1] = self._with_rate(levers[-1])
        known = [lever for lever in levers if base.reading.words(dict([*lever.update.items()][:1]))]
        strategies = [lever for lever in known if "strategy" in lever.update]
        known = [lever for lever in known if lever not in strategies[1:]]  # a job has one
        return [lever for lever in known if lever.keeps_result], [lever for lever in known if not lever.keeps_result]

    def _fits(self, levers: Sequence[Lever]) -> bool:
        verdict = self.verdict_with(_updates(levers))
        return verdict is not None and verdict.fits

    def _relaxed(self, levers: Sequence[Lever]) -> list[Mapping[str, Any]]:
        """Each change no larger than it has to be; memory never falls as a batch or a length grows."""
        updates = _updates(levers)
        for number, lever in enumerate(levers):
            steps = (*lever.milder, lever.update)

            def too_mild(step: int, number: int = number, steps: Sequence[Mapping[str, Any]] = steps) -> bool:
                verdict = self.verdict_with([*updates[:number], steps[step], *updates[number + 1 :]])
                return verdict is None or not verdict.fits

            updates[number] = steps[bisect_largest(-1, len(steps) - 1, too_mild) + 1]
        return updates

    # -- a candidate ---------------------------------------------------------------------------------------------------

    def verdict_with(self, updates: Sequence[Mapping[str, Any]]) -> Verdict | None:
        """The verdict of the changed text; None if it cannot run, or has another global batch."""
        words = self._words(updates)
        key = tuple(words.items())
        if not key:
            return self.first
        if key not in self.verdicts:
            self.progress(f"{len(self.verdicts) + 1} changes tried", 1 - 0.9 ** (0.5 * len(self.verdicts)))
            try:
                found = self.find(self._edited(words))
                verdict = check.examine(found, self.gpu, look_further=False, **self.given)
                same = samples_of_step(verdict.estimate.job) == samples_of_step(self.first.estimate.job)
            except VramplanError:  # a change that this framework, model or GPU does not have
                same = False
            self.verdicts[key] = verdict if same else None
        return self.verdicts[key]

    def _words(self, updates: Sequence[Mapping[str, Any]], reading: ParsedConfig | None = None) -> dict[str, str]:
        """Changes in the words that the text itself uses; what is so already is left out."""
        settings, reading = self.found.source.settings, reading or self.first.reading
        words: dict[str, str] = {}
        for update in updates:
            kept = [name for name in CAST if name in update and update[name] == reading.job.get(name)]
            for key, value in reading.words({k: v for k, v in update.items() if k not in kept}).items():
                names = (key, *reading.synonyms.get(key, ()))
                name = next((one for one in names if one in settings), key)
                if not says(settings[name].value if name in settings else False, value):
                    words[name] = value
        return words

    def _without_defaults(self, words: dict[str, str], job: dict[str, Any]) -> dict[str, str]:
        """Without settings that the framework would have by default."""
        by_default = self.first.reading.words(BY_DEFAULT)
        for key in [key for key in words if key in by_default and key not in self.found.source.settings]:
            fewer = {other: value for other, value in words.items() if other != key}
            try:
                same = bool(fewer) and self._read(self.find(self._edited(fewer))).job == job
            except VramplanError:
                same = False
            words = fewer if same else words
        return words

    def _edited(self, words: Mapping[str, str]) -> str:
        if self.found.origin is None:
            return config_file.edit(self.text, self.found.source.where, words)
        return command.edit(self.text, self.found.framework, self.found.origin, words)

    def _changes(
        self, words: Mapping[str, str], levers: Sequence[Lever], updates: Sequence[Mapping[str, Any]]
    ) -> tuple[Change, ...]:
        settings = self.found.source.settings
        costs = {
            key: lever.cost for lever, update in zip(levers, updates, strict=True) for key in self._words([update])
        }
        changes = (Change(key, _before(settings, key), value, costs[key]) for key, value in words.items())
        return (*self.required, *changes)


def _updates(levers: Sequence[Lever]) -> list[Mapping[str, Any]]:
    return [lever.update for lever in levers]


def _ladder(updates: Sequence[Mapping[str, Any]], cost: str) -> list[Lever]:
    """One change with its milder versions before it; none if there are no updates."""
    return [Lever("", "", cost, updates[-1], milder=tuple(updates[:-1]))] if updates else []


def _smaller_batches(base: Verdict) -> list[Lever]:
    """Smaller batches: of training, and of an evaluation that does not fit."""
    job, eval_size = base.estimate.job, base.reading.eval_batch_size
    per_gpu = job.global_batch_size // job.data_parallel
    smaller = [micro for micro in reversed(divisors(per_gpu)) if micro < job.micro_batch_size]
    keeps = job.strategy == "fsdp" and not job.fsdp.sync_each_batch  # whole gradients while it accumulates
    if keeps and job.gradient_accumulation_steps > 1:
        smaller = [per_gpu]
    batches = [{"micro_batch_size": micro, "gradient_accumulation_steps": per_gpu // micro} for micro in smaller]
    levers = _ladder(batches, SAME)
    room = base.estimate.capacity_bytes - base.estimate.margin_bytes
    if eval_size is not None and (base.evaluation_bytes or 0) > room:
        levers += _ladder([{"eval_batch_size": size} for size in range(eval_size - 1, 0, -1)], SAME)
    return levers


def _before(settings: Mapping[str, ConfigValue], key: str) -> str | None:
    return _said(settings[key].value) if key in settings else None


def _said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


__all__ = ["Change", "Fix", "fix"]
