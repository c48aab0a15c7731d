"""Write a job as a framework's configuration, and list what that configuration cannot say."""

from __future__ import annotations

from operator import attrgetter

from vramplan.errors import UnsupportedError, setting
from vramplan.frameworks.registry import Framework, Writer, writers
from vramplan.frameworks.writers.config_text import ConfigText
from vramplan.inputs.job import Job


def find_writer(name: str) -> tuple[Framework, Writer]:
    """The framework and writer of this name.

    Raises:
        UnsupportedError: if there is no such writer.
    """
    if name not in writers():
        raise UnsupportedError(
            f"{setting('for_framework', name)}: nothing is written for it yet; known: {', '.join(writers())}"
        )
    return writers()[name]


def write(name: str, model: str, job: Job) -> ConfigText:
    """The job as a configuration of the writer `name`.

    Raises:
        UnsupportedError: if there is no such writer, or if its framework cannot run the job.
    """
    _, writer = find_writer(name)
    if job.strategy not in writer.strategies:
        able = ", ".join(other for other, (_, one) in writers().items() if job.strategy in one.strategies)
        raise UnsupportedError(
            f"{setting('for_framework', name)}: {setting('strategy', job.strategy)} is not written for it, only"
            f" {', '.join(writer.strategies)}" + (f"; written for {able}" if able else "")
        )
    return writer.write(model, job)


def check_task(name: str, job: Job) -> None:
    """Check that a framework's configurations can say what the model is trained for.

    Raises:
        UnsupportedError: with the frameworks that can.
    """
    writer = find_writer(name)[1]
    if job.task in writer.tasks or (job.task is None and writer.writes_language_models):
        return
    if job.task is None:
        raise UnsupportedError(
            f"{setting('for_framework', name)}: it trains no language models; give {setting('task', writer.tasks[0])}"
            f" or {' or '.join(writer.tasks[1:])}"
        )
    able = ", ".join(other for other, (_, one) in writers().items() if job.task in one.tasks)
    raise UnsupportedError(
        f"{setting('for_framework', name)}: {setting('task', job.task)} is not written for it"
        + (f"; written for {able}" if able else ", nor for another framework yet")
    )


def changed_fields(writer: Writer, job: Job, read_back: Job) -> list[str]:
    """Fields that differ once what was written for `job` is read back by its framework's reader."""
    skipped = {"lora_rank", "lora_targets", "lora_dropout", "lora_dtype"} if job.method == "full" else set()
    fields = [name for name in writer.fields if name not in skipped]
    changed = [name for name in fields if getattr(job, name) != getattr(read_back, name)]
    engine = "fsdp" if job.strategy == "fsdp" else "zero" if job.strategy.startswith("zero") else ""
    for name in type(getattr(job, engine)).model_fields if engine else ():
        path = f"{engine}.{name}"
        if name != "leaf_mixtures" and attrgetter(path)(job) != attrgetter(path)(read_back):  # the framework decides it
            changed.append(path)
    if job.quantize == "int8" and job.checkpointing == "full" and job.reentrant != read_back.reentrant:
        changed.append("reentrant")
    if writer.writes_whole_job and job.joins_samples != read_back.joins_samples:
        changed.append("batches")
    return changed


__all__ = ["ConfigText", "changed_fields", "check_task", "find_writer", "write"]
