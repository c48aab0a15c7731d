"""Whether a configuration fits, and what to change if it does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

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
from vramplan.frameworks.settings import is_unknown
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.load import load_gpu
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.usual_names import accepts_usual_names
from vramplan.memory.calibration import CONFIDENCE
from vramplan.planner import undecided
from vramplan.planner.gpu_groups import worst_of
from vramplan.planner.judge import judge
from vramplan.planner.own_words import as_key
from vramplan.planner.read_config import (
    longest_sample,
    model_of,
    read,
    takes_text,
    with_own_config,
)
from vramplan.planner.verdict import Verdict
from vramplan.planner.verified_changes import with_verified_change
from vramplan.progress import Progress, silent

OWN_LENGTHS = {
    "verl": ("data.max_prompt_length", "data.max_response_length"),
    "openrlhf": ("prompt_max_len", "generate_max_len"),
}
"""Keys of the frameworks whose reinforcement training makes batches of these lengths."""


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

    def read_on(count: int, changes: Mapping[str, str] | None = None) -> ParsedConfig:
        return read(found.with_settings(changes) if changes else found, count, framework_version)

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

    def verified(verdict: Verdict) -> Verdict:
        if verdict.search is None:
            return verdict
        job = verdict.estimate.job
        length = job.sequence_length if is_length_open else given.get("sequence_length")
        fixed = {**given, "sequence_length": length, "look_further": False}

        def judge_with(changes: Mapping[str, str]) -> Verdict:
            return judge(read_on(job.num_gpus if counts else num_gpus or 1, changes), spec, gpu, **fixed)

        return with_verified_change(verdict, judge_with)

    try:
        if not counts and not is_length_open:
            first = verified(judge(config, spec, gpu, **given))
            return worst_of(first, spec, partial(judge, gpu=gpu, **given))

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
        return replace(verified(further), cases=verdict.cases, open_length=is_length_open)
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


__all__ = ["Verdict", "check", "judge", "read"]
