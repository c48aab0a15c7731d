"""A plan in a framework's own words, read again as that framework reads them."""

from __future__ import annotations

from operator import attrgetter

from vramplan import api, verdict
from vramplan.errors import UnsupportedError
from vramplan.feeds import FEEDS
from vramplan.frameworks import FRAMEWORKS, Setting, Source, shell, writing
from vramplan.frameworks.find import Found, from_words
from vramplan.images import EYES, picture_of
from vramplan.job import Job

OF_THE_DATA = ("images", "videos", "frames", "image_size", "target_length")
"""What no configuration says."""


def pasted(framework: str, model: str, job: Job) -> tuple[str, list[str]]:
    """A job in a framework's own words, and what that framework, reading them, takes otherwise.

    Raises:
        UnsupportedError: for a framework that nothing is written for.
    """
    spec = api.load_model(model)
    if spec.model_type in FEEDS:
        raise UnsupportedError(
            f"--for {framework}: it is written for causal language models, not for {spec.model_type}"
        )
    written = writing.write(framework, spec.name, job)
    package = writing.PACKAGES.get(framework, framework)
    reading = verdict.read(_as_written(written, package, job), job.num_gpus)
    data = {name: getattr(job, name) for name in OF_THE_DATA if name in job.model_fields_set}
    again = Job(**verdict.settled(spec, reading, reading.job | data))
    sees = spec.model_type in EYES
    otherwise = [
        f"{package} takes {field} as {attrgetter(field)(again)}, not {attrgetter(field)(job)}"
        for field in writing.unsaid(framework, job, again)
        if not (sees and field in ("max_pixels", "max_tiles"))  # which may be said in another way
    ]
    pictures = [picture_of(spec, one) for one in (again, job)] if sees else []
    theirs, ours = (0 if one is None else one.all_tokens for one in pictures or (None, None))
    if theirs != ours:
        otherwise.append(f"{package} makes {theirs:,} tokens of an image, not {ours:,}")
    return str(written), otherwise


def _as_written(written: writing.Written, package: str, job: Job) -> Found:
    """What was written, as its reader finds it."""
    if not written.file:
        (command,) = shell.commands(str(written), "--for", {})
        words = [f"{name}={value}" for name, value in command.environment.items()] + command.words
        return from_words(words, None, {})
    settings = {key: Setting(value, f"--{key}") for key, value in written.pairs.items()}
    if written.launcher:
        settings[written.launcher] = Setting(job.num_gpus, f"--{written.launcher}")
    environment = {key: Setting(value, key) for key, value in written.variables.items()}
    return Found(package, FRAMEWORKS[package], Source(settings, environment))
