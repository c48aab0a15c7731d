"""The fewest changes to a user's own text that make it fit at the same global batch.

Every candidate is the text itself, changed, read again and judged: what is found is what will be read.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from vramplan.errors import CannotRunError, UnsupportedError, VramplanError
from vramplan.frameworks.detect import DetectedConfig, from_line, from_text
from vramplan.frameworks.edit import command, config_file
from vramplan.frameworks.parsed_config import CAST, ParsedConfig
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.config_files import read_text
from vramplan.frameworks.syntax.shell import typed
from vramplan.memory.calibration import CONFIDENCE, with_margin
from vramplan.planner import check
from vramplan.planner.check import Verdict
from vramplan.planner.estimate import load_gpu, load_model
from vramplan.planner.lever_effects import FREE
from vramplan.planner.levers import memory_levers
from vramplan.planner.monotone_search import LENGTH_STEP
from vramplan.progress import Progress, silent
from vramplan.units import divisors

MOST_HARSH = 3
"""Changes of the training result that are made together."""
MOST_NEEDED = 4
"""Settings without which it would not run; more would go round in circles."""
SAME, OTHERWISE = "same result", "another result"
BY_DEFAULT = {"gradient_accumulation_steps": 1, "dtype": "bf16"}
"""Fields that a framework may fill in as they are wanted: ms-swift's accumulation makes 16 samples of a step."""
NEVER: tuple[Mapping[str, Any], ...] = ({"optimizer": "sgd"},)
"""Levers that want another recipe: SGD's learning rates are orders of magnitude away from Adam's."""


class Option(NamedTuple):
    """Something that may be changed."""

    updates: tuple[Mapping[str, Any], ...]
    """Of the job, from the mildest that it may be to what saves most; the field that it is about comes first."""
    cost: str
    keeps: bool
    """Whether what is trained comes out the same, but for rounding."""


class Change(NamedTuple):
    """One setting that is changed."""

    key: str
    before: str | None
    """None where it was not set."""
    after: str
    cost: str


@dataclass(frozen=True, slots=True)
class Fix:
    """A text that fits, or the same text where nothing makes it fit."""

    text: str
    changes: tuple[Change, ...]
    before: Verdict
    after: Verdict
    """Of the text as it is now."""
    lower_bound_bytes: int
    """The least need of all that was tried."""


def fix(
    target: str | Path | Sequence[str],
    gpu: str | Any = "auto",
    *,
    framework: str | None = None,
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    **given: Any,
) -> Fix:
    """A configuration, script or command with the fewest changes that make it fit; arguments as :func:`check` has them.

    Changes that leave the training result as it is go first: micro-batch and accumulation, an evaluation's batch, a
    fused loss, checkpointing, offload.

    Raises:
        VramplanError: for what cannot be read, or is not modelled.
    """
    text: str
    find: Callable[[str], DetectedConfig]
    card = with_margin(load_gpu(gpu), confidence)
    if isinstance(target, (str, Path)):
        path = Path(target)
        text, find = read_text(path), lambda one: from_text(one, path, framework, gpu=card)
        mark = "\ufeff" if path.read_bytes().startswith(BOM_UTF8) else ""
    else:
        text, find, mark = typed(target), lambda one: from_line(one, framework, gpu=card), ""
    found = _Tries(text, find, card, {**given, "confidence": confidence}, progress).fixed()
    return replace(found, text=mark + found.text)


class _Tries:
    """Candidates by what they change, each judged once."""

    def __init__(
        self, text: str, find: Callable[[str], DetectedConfig], card: Any, given: dict[str, Any], progress: Progress
    ) -> None:
        self.text, self.find, self.card, self.given, self.progress = text, find, card, given, progress
        self.found = find(text)
        where = self.found.source.where
        if self.found.source.spelling == "python" or where.endswith(".toml"):
            raise UnsupportedError(
                f"--fix: {where}: Python and TOML are not edited; `vramplan check` says what to change"
            )
        self.known: dict[tuple[tuple[str, str], ...], Verdict | None] = {}
        self.needed: list[Change] = []
        """What would not run at all otherwise."""
        self.first = self._running()
        if self.first.data is not None:
            self.given["dataset"] = self.first.data.lengths
        self.given["model"] = load_model(self.first.estimate.model) if not given.get("model") else given["model"]

    def _running(self) -> Verdict:
        """The verdict, once the text says nothing any more that the card cannot run."""
        while True:
            try:
                return check.examine(self.found, self.card, progress=self.progress, look_further=False, **self.given)
            except CannotRunError as error:
                words = self._words([error.update], self._read(self.found))
                if not words or len(self.needed) > MOST_NEEDED:
                    raise
                settings = self.found.source.settings
                self.needed += [Change(key, _before(settings, key), value, error.why) for key, value in words.items()]
                self.text = self._edited(words)
                self.found = self.find(self.text)

    def _read(self, found: DetectedConfig) -> ParsedConfig:
        return check.read(found, self.given.get("num_gpus") or 1, self.given.get("framework_version"))

    def fixed(self) -> Fix:
        """The text with what it takes."""
        if self.first.fits:
            return Fix(self.text, tuple(self.needed), self.first, self.first, self.first.need_bytes)
        options = self._search()
        needs = [one.need_bytes for one in self.known.values() if one is not None]
        least = min([self.first.need_bytes, *needs])
        if options is None:
            return Fix(self.text, (), self.first, self.first, least)
        chosen = self._relaxed(options)
        after = self.judged(chosen)
        assert after is not None
        words = self._needed(self._words(chosen), after.reading.job)
        return Fix(self._edited(words), self._changes(words, options, chosen), self.first, after, least)

    # -- the search ----------------------------------------------------------------------------------------------------

    def _search(self) -> tuple[Option, ...] | None:
        """The first that fits: as few changes of the result as possible, then as few others."""
        gentle, harsh = self._options(self.first)
        if self.judged(_harshest(gentle)) is None:  # one of them cannot run here
            gentle = [one for one in gentle if self.judged(_harshest([one])) is not None]
        everything = self._everything(gentle, harsh)
        if everything is None:  # what divides weights may take more than it saves
            everything = self._everything(gentle, [one for one in harsh if "strategy" not in one.updates[-1]])
        if everything is None:
            return None
        waiting: deque[tuple[Option, ...]] = deque([()])
        seen: set[frozenset[str]] = set()
        while waiting:
            changed = waiting.popleft()
            least = self.judged(_harshest((*gentle, *changed)))
            if least is None:
                continue
            if least.fits:
                sets = [few for count in range(len(gentle) + 1) for few in combinations(gentle, count)]
                sets.sort(key=lambda few: any("offload" in one.updates[-1] for one in few))  # which costs most time
                return next((*few, *changed) for few in sets if self._fits((*few, *changed)))
            for one in self._options(least)[1] if len(changed) < MOST_HARSH else ():
                name = frozenset(str(option.updates[-1]) for option in (*changed, one))
                if name not in seen:
                    seen.add(name)
                    waiting.append((*changed, one))
        return self._without_needless(everything)

    def _everything(self, gentle: list[Option], harsh: list[Option]) -> tuple[Option, ...] | None:
        """All changes together, which spares a long search where not even they are enough."""
        changed = [*gentle, *harsh]
        for _ in range(MOST_HARSH):
            judged = self.judged(_harshest(changed))
            if judged is None or judged.fits:
                break
            changed += self._options(judged)[1]
        return tuple(changed) if judged is None or judged.fits else None

    def _without_needless(self, options: tuple[Option, ...]) -> tuple[Option, ...] | None:
        """Without those that it fits without, the harshest left out first."""
        if not self._fits(options):
            return None
        for one in reversed(options):
            fewer = tuple(other for other in options if other is not one)
            options = fewer if self._fits(fewer) else options
        return options

    def _options(self, base: Verdict) -> tuple[list[Option], list[Option]]:
        """(what leaves the result as it is, what does not) for a job, as far as the framework has words for it."""
        job, found = base.estimate.job, [*_ladders(base)]
        for lever in memory_levers(self.given["model"], job, self.card, base.estimate.capacity_bytes):
            if lever.card is not None or lever.update in NEVER:
                continue
            length = lever.update.get("sequence_length")
            if length:
                lengths = range((job.sequence_length - 1) // LENGTH_STEP * LENGTH_STEP, length - 1, -LENGTH_STEP)
                found.append(Option(tuple({"sequence_length": one} for one in lengths), lever.cost, False))
            else:
                keeps = _keeps(lever.update)
                cost = lever.cost if keeps or lever.cost != FREE else OTHERWISE
                found.append(Option((lever.update,), cost, keeps))
        said = [one for one in found if one.updates and base.reading.words(dict([*one.updates[-1].items()][:1]))]
        return [one for one in said if one.keeps], [one for one in said if not one.keeps]

    def _fits(self, options: Sequence[Option]) -> bool:
        judged = self.judged(_harshest(options))
        return judged is not None and judged.fits

    def _relaxed(self, options: Sequence[Option]) -> list[Mapping[str, Any]]:
        """Each change no harsher than it has to be; memory never falls as a batch or a length grows."""
        chosen = _harshest(options)
        for number, option in enumerate(options):
            low, high = -1, len(option.updates) - 1
            while high - low > 1:
                middle = (low + high) // 2
                judged = self.judged([*chosen[:number], option.updates[middle], *chosen[number + 1 :]])
                low, high = (low, middle) if judged is not None and judged.fits else (middle, high)
            chosen[number] = option.updates[high]
        return chosen

    # -- a candidate ---------------------------------------------------------------------------------------------------

    def judged(self, updates: Sequence[Mapping[str, Any]]) -> Verdict | None:
        """The changed text's verdict; None where it cannot run, or is another global batch."""
        words = self._words(updates)
        key = tuple(words.items())
        if not key:
            return self.first
        if key not in self.known:
            self.progress(f"{len(self.known) + 1} changes tried", 1 - 0.9 ** (0.5 * len(self.known)))
            try:
                found = self.find(self._edited(words))
                made = check.examine(found, self.card, look_further=False, **self.given)
                same = made.estimate.job.global_batch_size == self.first.estimate.job.global_batch_size
            except VramplanError:  # a change that this framework, model or card does not have
                same = False
            self.known[key] = made if same else None
        return self.known[key]

    def _words(self, updates: Sequence[Mapping[str, Any]], reading: ParsedConfig | None = None) -> dict[str, str]:
        """Changes in the words that the text itself uses; what is so already is left out."""
        settings, reading = self.found.source.settings, reading or self.first.reading
        words: dict[str, str] = {}
        for update in updates:
            kept = [name for name in CAST if name in update and update[name] == reading.job.get(name)]
            for key, value in reading.words({k: v for k, v in update.items() if k not in kept}).items():
                names = (key, *reading.synonyms.get(key, ()))
                name = next((one for one in names if one in settings), key)
                if not _is_so(settings[name].value if name in settings else False, value):
                    words[name] = value
        return words

    def _needed(self, words: dict[str, str], job: dict[str, Any]) -> dict[str, str]:
        """Without additions of what the framework would take anyway."""
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
        self, words: Mapping[str, str], options: Sequence[Option], chosen: Sequence[Mapping[str, Any]]
    ) -> tuple[Change, ...]:
        settings = self.found.source.settings
        costs = {key: one.cost for one, update in zip(options, chosen, strict=True) for key in self._words([update])}
        made = (Change(key, _before(settings, key), value, costs[key]) for key, value in words.items())
        return (*self.needed, *made)


def _harshest(options: Sequence[Option]) -> list[Mapping[str, Any]]:
    return [option.updates[-1] for option in options]


def _ladders(base: Verdict) -> list[Option]:
    """Smaller batches: of training, and of an evaluation that does not fit."""
    job, size = base.estimate.job, base.reading.eval_batch_size
    a_card = job.global_batch_size // job.data_parallel
    smaller = [micro for micro in reversed(divisors(a_card)) if micro < job.micro_batch_size]
    if job.strategy == "fsdp" and job.gradient_accumulation_steps > 1:  # whole gradients wait while it accumulates
        smaller = [a_card]
    batches = ({"micro_batch_size": micro, "gradient_accumulation_steps": a_card // micro} for micro in smaller)
    found = [Option(tuple(batches), SAME, True)]
    spare = base.estimate.capacity_bytes - base.estimate.margin_bytes
    if size is not None and (base.evaluation_bytes or 0) > spare:
        found.append(Option(tuple({"eval_batch_size": one} for one in range(size - 1, 0, -1)), SAME, True))
    return found


def _before(settings: Mapping[str, ConfigValue], key: str) -> str | None:
    return _said(settings[key].value) if key in settings else None


def _said(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_so(before: Any, value: str) -> bool:
    """Whether a setting already says this; a value in brackets is an item of a list."""
    return value[1:-1] in before if isinstance(before, list) else _said(before).lower() == value


def _keeps(update: Mapping[str, Any]) -> bool:
    """Whether a lever leaves the result as it is; the fused AdamW is offered in place of AdamW's other forms alone."""
    return update.keys() <= {"checkpointing", "loss", "attention", "offload"} or update == {
        "optimizer": "adamw_torch_fused"
    }


__all__ = ["Change", "Fix", "fix"]
