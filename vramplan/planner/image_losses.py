"""Preference training and GRPO on images by a trainer that no run was compared with: the nearest estimate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import UnsupportedError, setting
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.inputs.image_task_rules import WITH_IMAGES, is_compared
from vramplan.inputs.images import IMAGE_PROCESSORS
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.job_defaults import is_text_only


def check_image_loss(spec: ModelSpec, config: ParsedConfig, job: Mapping[str, Any]) -> None:
    """Refuse images with a loss that is not modelled of them, by the estimate of TRL's own trainer.

    Args:
        spec: the model.
        config: the configuration that was read.
        job: the fields of the job; samples have an image if it does not say, and the model takes any.

    Raises:
        UnsupportedError: with the command.
    """
    losses = WITH_IMAGES.get(str(job.get("task")))
    images = job.get("images", int(spec.model_type in IMAGE_PROCESSORS and not is_text_only(spec)))
    if not losses or not images or job.get("videos"):
        return
    loss = job.get("loss", losses[0])
    read = Job(**{name: job[name] for name in ("task", "strategy") if name in job}, loss=loss, images=images)
    if loss in losses and config.compared_with_images and is_compared(read, spec.model_type):
        return
    fields = {**job, "loop": "trainer"}
    sharded = job.get("strategy") in ("zero3", "fsdp")
    if sharded:
        fields["strategy"] = "zero2"
    of_swift = config.framework == "ms-swift"
    whose = f"{config.framework} {config.version.partition(' ')[0]}" if of_swift else "this trainer"
    newer = setting("framework_version", "4.6")
    way = f"if you run a newer version, {newer}; " if of_swift and not config.compared_with_images else ""
    whole = "weights are whole on each GPU in what is " if sharded else ""
    raise UnsupportedError(
        f"{job['task']} with images was not compared with a run of {whose}; {way}{whole}nearest, TRL's own:"
        f" {estimate_command(spec.name, fields)} --loss {losses[0]}"
    )
