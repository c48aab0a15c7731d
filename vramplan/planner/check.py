"""Whether a configuration fits, and what to change if it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import ceil
from pathlib import Path
from typing import Any

from vramplan.analytic.layers.losses import FUSED
from vramplan.dataclass import dataclass
from vramplan.errors import (
    CannotRunError,
    ConfigError,
    UnknownNameError,
    UnsupportedError,
    setting,
    spell,
)
from vramplan.frameworks.detect import from_path, from_words
from vramplan.frameworks.detected_config import DetectedConfig
from vramplan.frameworks.nearest import on_gpu
from vramplan.frameworks.parsed_config import (
    ParsedConfig,
)
from vramplan.frameworks.readers.trl_trainers import TRAINER_KEY
from vramplan.frameworks.settings import Note, is_unknown
from vramplan.inputs.dataset import Lengths
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.images import IMAGE_PROCESSORS, processed_image
from vramplan.inputs.job_values import EXPANDABLE_SEGMENTS, GENERATING
from vramplan.inputs.load import load_gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.task_rules import TRL_TASKS
from vramplan.inputs.usual_names import accepts_usual_names
from vramplan.memory.calibration import CONFIDENCE, with_margin
from vramplan.memory.estimate import Estimate
from vramplan.planner import dataset_limits, undecided
from vramplan.planner.batch_warnings import fewer_negatives
from vramplan.planner.config_levers import MOST_TRIES, config_levers, free_changes, reserve_headroom
from vramplan.planner.estimate import estimate, estimator_for
from vramplan.planner.estimate_cache import EstimateCache
from vramplan.planner.gpu_groups import GroupVerdict, worst_of
from vramplan.planner.image_losses import check_image_loss
from vramplan.planner.mini_batches import smaller_mini_batch
from vramplan.planner.monotone_search import largest
from vramplan.planner.own_words import as_key
from vramplan.planner.read_config import (
    complete_with_model,
    longest_sample,
    model_of,
    read,
    takes_text,
    with_own_config,
    with_prompt,
)
from vramplan.planner.search_result import LeverEffect, Plan, Search
from vramplan.planner.shorter_samples import is_length_a_limit, shorter_length
from vramplan.planner.suggest import suggest
from vramplan.planner.undecided import Case
from vramplan.progress import Progress, silent
from vramplan.result import Result

BATCH = ("micro_batch_size", "gradient_accumulation_steps")
OWN_LENGTHS = {
    "verl": ("data.max_prompt_length", "data.max_response_length"),
    "openrlhf": ("prompt_max_len", "generate_max_len"),
}
"""Keys of the frameworks whose reinforcement training makes batches of these lengths."""
CACHED = (
    "the longest sample alone would fit; with what samples of other lengths leave in torch's cache before it does not:"
    f" set {EXPANDABLE_SEGMENTS}"
)
"""Why a data set does not fit although its longest sample would."""
FUSED_EVALUATION = (
    "is estimated with the same fused loss, without whole logits; a framework that returns predictions, or a kernel"
    " that fuses in training alone, holds them: then it needs more"
)
"""The doubt about an evaluation with a fused loss: Liger skips logits in training, or if the Trainer asks for it."""


@dataclass(frozen=True, slots=True)
class Verdict(Result):
    """Whether a configuration fits a GPU, and what would make it fit."""

    reading: ParsedConfig
    card: Gpu
    estimate: Estimate
    """Of training."""
    evaluation_bytes: int | None
    """Bytes on the GPU while the configuration's evaluation batch runs; None if there is none."""
    search: Search | None
    """Plans for the same global batch if this one does not fit."""
    min_headroom: float
    """Share of the GPU that has to stay free, if that is more than the margin."""
    data: dataset_limits.DatasetLimits | None = None
    """The data set that it trains on, if one was given."""
    plan: Plan | None = None
    """Another micro-batch at the same global batch that fits if this one does not."""
    advice: tuple[LeverEffect, ...] = ()
    """If no micro-batch fits: changes of something else; if another one fits: free changes that keep this one."""
    eval_batch_size: int | None = None
    """A smaller evaluation batch that fits if this one does not; 0 if none does."""
    cases: tuple[Case, ...] = ()
    """The need for each value of what the configuration does not say; this verdict is of one of them."""
    shorter_length: int | None = None
    """Tokens of samples that fit, where samples at the configuration's limit, of which this verdict is, do not."""
    open_length: bool = False
    """Whether nothing says how long the longest sample is: this verdict is of one length."""
    groups: tuple[GroupVerdict, ...] = ()
    """All groups of GPUs of the run, if it has several; this verdict is of the first that does not fit, else of the
    first."""

    @property
    def need_bytes(self) -> int:
        """Bytes that the GPU needs at the fullest moment."""
        return max(self.estimate.device_total_bytes, self.evaluation_bytes or 0)

    @property
    def free_bytes(self) -> int:
        """Bytes of the GPU left at the fullest moment; negative if it does not fit."""
        return self.estimate.capacity_bytes - self.need_bytes

    @property
    def spare_bytes(self) -> int:
        """Bytes that have to stay free: the margin, or more if that was requested."""
        return max(self.estimate.margin_bytes, ceil(self.min_headroom * self.estimate.capacity_bytes))

    @property
    def trains(self) -> bool:
        """Whether training fits, regardless of the evaluation."""
        return self.estimate.fits and self.estimate.headroom_bytes >= self.spare_bytes

    @property
    def fits(self) -> bool:
        """Whether the fullest moment fits and leaves enough free, whatever the configuration does not say.

        On all groups of GPUs of the run.
        """
        groups = all(group.fits for group in self.groups)
        return self.case_fits and groups and all(case.fits for case in self.cases)

    @property
    def case_fits(self) -> bool:
        """The same for the case that this verdict is of."""
        return self.trains and self.free_bytes >= self.spare_bytes

    @property
    def plan_warnings(self) -> list[str]:
        """What the smaller micro-batch of `plan` changes beside memory."""
        job = self.estimate.job
        return [] if self.plan is None else fewer_negatives(job, self.plan.micro_batch_size, job.micro_batch_size)

    @property
    def depends(self) -> bool:
        """Whether it fits for some values of what the configuration does not say, and not for others.

        Or whether it is not known of a group of GPUs.
        """
        return self.case_fits and not self.fits and all(group.fits is not False for group in self.groups)


@accepts_usual_names
def check(
    target: str | Path | Sequence[str],
    gpu: str | Gpu = "auto",
    *,
    num_gpus: int | None = None,
    model: str | ModelSpec | None = None,
    framework: str | None = None,
    framework_version: str | None = None,
    settings: Mapping[str, str] | None = None,
    number: int | None = None,
    execute: bool = False,
    task: str | None = None,
    min_headroom: float = 0.0,
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    **given: Any,
) -> Verdict:
    """Read a configuration file, a script or the words of a command, and say whether it fits.

    `num_gpus` is the number of GPUs in the machine, None if it is not known: if the configuration leaves it to the
    machine, several are estimated. `settings` are keys of the configuration with other values than it holds, or that
    it does not hold; an empty value removes a key. `number` chooses one of a script's training commands, from 1 on;
    `execute` runs the script, which its user has to trust, with stand-ins for what trains. `task` names TRL's trainer
    if nothing else says it: sft, dpo, grpo and others.
    `given` are settings that the configuration does not hold:
    `sequence_length` of the longest sample, `images`, `videos`, `frames`, `image_size`, or `dataset`, a file of
    samples, with a `tokenizer`; for DeepSpeed's JSON on its own also `method` and `checkpointing`.

    Raises:
        VramplanError: for what cannot be read, or is not modelled.
    """
    loaded_gpu = load_gpu(gpu)
    with on_gpu(loaded_gpu):
        if isinstance(target, (str, Path)):
            found = from_path(Path(target), framework, gpu=loaded_gpu, number=number, execute=execute)
        else:
            found = from_words(target, framework, gpu=loaded_gpu)
        return examine(
            found,
            loaded_gpu,
            num_gpus=num_gpus,
            model=model,
            framework_version=framework_version,
            settings=settings,
            task=task,
            min_headroom=min_headroom,
            confidence=confidence,
            progress=progress,
            **given,
        )


def examine(
    found: DetectedConfig,
    gpu: str | Gpu,
    *,
    num_gpus: int | None = None,
    model: str | ModelSpec | None = None,
    framework_version: str | None = None,
    settings: Mapping[str, str] | None = None,
    task: str | None = None,
    **given: Any,
) -> Verdict:
    """The same for a configuration that was found in a file or a command; `given` as :func:`judge` takes it.

    Raises:
        VramplanError: for what cannot be read, or is not modelled.
    """
    gpu = load_gpu(gpu)
    found = found.with_settings(_launched(found, num_gpus) | _trainer(found, task) | dict(settings or {}))

    def read_on(count: int) -> ParsedConfig:
        return read(found, count, framework_version)

    config = read_on(num_gpus or 1)
    for note in config.notes:
        if note.kind == "unknown" and (settings or {}).get(note.key):
            raise ConfigError(f"{setting('set', note.key)}: {note.text}")
    spec = model if isinstance(model, ModelSpec) else model_of(model, config, found)
    model_notes = [note for note in config.notes if note.key == "model"]
    if spec.published_dtype not in (None, "bf16") or not takes_text(spec):  # what it is loaded in, what its samples are
        found = found._replace(source=replace(found.source, model=spec))
        config = read_on(num_gpus or 1)
        config.notes += model_notes
    spec = with_own_config(spec, config)
    counts = undecided.gpu_counts(lambda count: read_on(count).job) if num_gpus is None else ()
    _check_own_lengths(config, given.get("sequence_length"), given.get("dataset"))
    known = {*config.job, *_known(given)}
    is_length_open = takes_text(spec) and not {"sequence_length", "dataset"} & known
    try:
        if not counts and not is_length_open:
            return worst_of(judge(config, spec, gpu, **given), spec, partial(judge, gpu=gpu, **given))

        def judge_case(length: int | None, num_gpus: int | None = None, look_further: bool = False) -> Verdict:
            case = read_on(num_gpus) if num_gpus else replace(config, notes=[*config.notes])
            case.notes += model_notes if num_gpus else []
            length = given.get("sequence_length") if length is None else length
            return judge(case, spec, gpu, **{**given, "sequence_length": length, "look_further": look_further})

        verdict = undecided.judge_cases(judge_case, longest_sample(spec) if is_length_open else None, counts)
        verdict = replace(verdict, open_length=is_length_open)
        if not given.get("look_further", True) or (verdict.case_fits and given.get("dataset") is None):
            return verdict
        job = verdict.estimate.job
        length = None if given.get("dataset") is not None else job.sequence_length  # which the data shortens itself
        further = judge_case(length, job.num_gpus if counts else None, look_further=True)
        return replace(further, cases=verdict.cases, open_length=is_length_open)
    except (ConfigError, UnknownNameError, UnsupportedError) as error:
        message = spell(error.text, partial(as_key, config))
        if isinstance(error, CannotRunError):
            words = config.say(error.update)
            message = f"{error.why}; " + (
                f"write {', '.join(words)}" if words else "no setting of its own changes that"
            )
        error.args = (message if found.source.where in message else f"{found.source.where}: {message}",)
        raise


def _launched(found: DetectedConfig, num_gpus: int | None) -> dict[str, str]:
    """The number of processes where a launcher gets one that only a run would tell, if the user says the GPUs."""
    launched = found.source.settings.get("nproc_per_node")
    return {"nproc_per_node": str(num_gpus)} if num_gpus and launched and is_unknown(launched.value) else {}


def _trainer(found: DetectedConfig, task: str | None) -> dict[str, str]:
    """The setting that names TRL's trainer.

    Raises:
        ConfigError: for a framework whose configurations say it themselves.
    """
    if task is None:
        return {}
    if not found.framework.tells_tasks:
        raise ConfigError(f"{setting('task', task)}: is about TRL's trainers; this is read as {found.framework.name}'s")
    return {TRAINER_KEY: task}


def _known(given: Mapping[str, Any]) -> set[str]:
    """Names of the settings that the caller has set."""
    return {name for name, value in given.items() if value is not None}


def _check_own_lengths(config: ParsedConfig, sequence_length: int | None, dataset: object) -> None:
    """Refuse another length for a job whose batches were made of the lengths of its configuration.

    Raises:
        ConfigError: naming the keys to set.
    """
    if (sequence_length is None and dataset is None) or config.framework not in OWN_LENGTHS:
        return
    if config.job.get("task") == "grpo":
        what = setting("sequence_length", sequence_length) if sequence_length else setting("dataset")
        keys = " and ".join(setting("set", f"{key}=N") for key in OWN_LENGTHS[config.framework])
        raise ConfigError(f"{what}: {config.framework}'s batches are made of the lengths in its own keys; give {keys}")


def _drop_answered(config: ParsedConfig, given: Mapping[str, Any]) -> None:
    """Remove the doubts about a length that the caller gives."""
    lengths = [name for name in ("sequence_length", "audio_seconds") if given.get(name) is not None]
    keys = {*lengths, *(str(config.names.get(name, name)) for name in lengths)}
    config.notes[:] = [note for note in config.notes if note.kind != "doubt" or note.key not in keys]


def _shorter_prompt(config: ParsedConfig, length: int) -> dict[str, int]:
    """The prompt of a shorter sample, beside a completion of full length, where a configuration limits both.

    Raises:
        ConfigError: if the sample has no room for a prompt.
    """
    prompt = config.job.get("prompt_length")
    if config.job.get("task") not in GENERATING or not prompt or length >= config.job.get("sequence_length", length):
        return {}
    completion = config.job["sequence_length"] - prompt
    if length <= completion:
        raise ConfigError(
            f"{setting('sequence_length', length)}: a completion alone has up to {completion:,} tokens here; give more,"
            " or limit it in the configuration"
        )
    return {"prompt_length": length - completion}


def judge(
    config: ParsedConfig,
    spec: ModelSpec,
    gpu: str | Gpu,
    *,
    min_headroom: float = 0.0,
    confidence: float = CONFIDENCE,
    progress: Progress = silent,
    look_further: bool = True,
    dataset: str | Path | Lengths | None = None,
    tokenizer: str | None = None,
    sequence_length: int | None = None,
    **given: Any,
) -> Verdict:
    """Whether the job of a configuration fits; if not and `look_further`, plans for the same global batch.

    Raises:
        VramplanError: for what cannot run, or is not modelled.
    """
    gpu = load_gpu(gpu)
    _drop_answered(config, {"sequence_length": sequence_length, **given})
    job = {**config.job, **{name: value for name, value in given.items() if value is not None}}
    if dataset is not None:
        job.setdefault("sequence_length", longest_sample(spec))
    fills_rows = config.rows == "packed" and "sequence_length" in config.job
    if sequence_length is not None and not fills_rows:  # packed rows are full, however long a sample is
        job["sequence_length"] = min(sequence_length, job.get("sequence_length", sequence_length))
        job |= _shorter_prompt(config, job["sequence_length"])
    job, data = with_prompt(config, complete_with_model(spec, config, job)), None
    check_image_loss(spec, config, job)
    if dataset is not None:
        lengths = dataset_limits.lengths_of(dataset, spec, tokenizer, progress, job.get("task"))
        data, job = dataset_limits.apply_dataset(lengths, spec, gpu, config, job, given)

    def run_estimate(update: dict[str, Any]) -> Estimate:
        settings = with_prompt(config, {**job, **update})
        return estimate(spec, gpu, confidence=confidence, progress=progress, **settings)

    def evaluation_bytes(training: Estimate, update: dict[str, Any], size: int | None) -> int | None:
        """Bytes on the GPU in an evaluation's forward: checkpointing does not help there."""
        if size is None:
            return None
        at_size = training
        if size != update.get("micro_batch_size", job["micro_batch_size"]):
            at_size = run_estimate({**update, "micro_batch_size": size})
        return at_size.evaluation_bytes + training.device_total_bytes - training.peak_reserved_bytes

    @cache
    def verdict_at(length: int, other_lengths: tuple[int, ...] | None = None) -> Verdict:
        update = {"sequence_length": length, "lengths": other_lengths}
        training = run_estimate(update)
        evaluation = evaluation_bytes(training, update, config.eval_batch_size)
        return Verdict(config, with_margin(gpu, confidence), training, evaluation, None, min_headroom, data)

    of_one_length = job.get("batches") == "packed" or job.get("task") in TRL_TASKS
    other_lengths = data.sample_lengths if data is not None and not of_one_length else None
    verdict = verdict_at(job["sequence_length"], other_lengths)
    if verdict.evaluation_bytes is not None and verdict.estimate.job.loss in FUSED:
        config.notes.insert(0, Note("doubt", "evaluation", FUSED_EVALUATION))
    if other_lengths is not None and not verdict.fits and verdict_at(job["sequence_length"]).fits:
        config.notes.insert(0, Note("warning", "lengths", CACHED))
    if data is not None and look_further:

        def need(length: int) -> tuple[int, bool]:
            progress(f"samples of {length:,} tokens", 0.5)
            return verdict_at(length).need_bytes, verdict_at(length).fits

        verdict = replace(verdict, data=dataset_limits.add_length_limits(data, job, need))
    if verdict.fits or not look_further:
        return verdict
    if data is None and sequence_length is None and is_length_a_limit(config):
        verdict = replace(verdict, shorter_length=shorter_length(job["sequence_length"], verdict_at))
    training, eval_size = verdict.estimate, config.eval_batch_size or 0
    room = training.capacity_bytes - verdict.spare_bytes
    if (verdict.evaluation_bytes or 0) > room:

        def evaluation_fits(size: int) -> bool:
            return (evaluation_bytes(training, {}, size) or 0) <= room

        smaller = 0
        if eval_size > 1:
            smaller, _ = largest(max(1, eval_size // 2), evaluation_fits, MOST_TRIES, eval_size - 1)
        verdict = replace(verdict, eval_batch_size=smaller)
        if verdict.trains and smaller:
            return verdict
    without_batch = {name: value for name, value in job.items() if name not in BATCH}
    reduced_gpu = reserve_headroom(gpu, training, verdict.spare_bytes)
    search = suggest(
        spec, reduced_gpu, training.job.global_batch_size, confidence=confidence, progress=progress, **without_batch
    )
    plan = search.recommended
    if plan is not None:  # the same batch may fit: PyTorch gives cached memory back on a fuller GPU
        if plan.micro_batch_size == training.micro_batch_size:
            return replace(verdict, search=search)
        estimator, _, is_analytic = estimator_for(spec, progress)
        estimates = EstimateCache(spec, training.job, with_margin(gpu, confidence), estimator, several=False)
        free = free_changes(config, estimates, training, verdict.spare_bytes) if is_analytic else []
        mini = smaller_mini_batch(config, estimates, training, verdict.spare_bytes) if is_analytic else None
        return replace(verdict, search=search, plan=plan, advice=(*([mini] if mini else []), *free))
    image = processed_image(spec, training.job) if spec.model_type in IMAGE_PROCESSORS else None
    image_tokens = training.job.pictures * image.all_tokens if image is not None else 0
    effects = config_levers(config, search, run_estimate, image_tokens, verdict.spare_bytes)

    def with_evaluation(effect: LeverEffect) -> LeverEffect:
        """The change with an evaluation batch that fits beside it, or as one that does not fit."""
        if not (effect.fits and effect.update and eval_size):
            return effect
        steps = max(1, training.job.gradient_accumulation_steps * job["micro_batch_size"] // effect.micro_batch_size)
        batch = {"micro_batch_size": effect.micro_batch_size, "gradient_accumulation_steps": steps}
        update = {**batch, **config.strategy_settings.get(effect.update.get("strategy", ""), {}), **effect.update}
        changed = run_estimate(update)

        def fits(size: int) -> bool:
            return (evaluation_bytes(changed, update, size) or 0) <= room

        if fits(eval_size):
            return effect
        smaller, _ = largest(max(1, eval_size // 2), fits, MOST_TRIES, eval_size - 1) if eval_size > 1 else (0, False)
        words = tuple(config.say({"eval_batch_size": smaller})) if smaller else ()
        return replace(effect, settings=(*effect.settings, *words), fits=bool(words))

    return replace(verdict, search=search, advice=tuple(map(with_evaluation, effects)))


__all__ = ["Verdict", "check", "complete_with_model", "read"]
