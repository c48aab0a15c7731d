"""Checks of the samples of a job against its architecture, for models that are not causal language models."""

from __future__ import annotations

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.inputs.embedding import check_embedding
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import MAX_COUNT
from vramplan.inputs.model_inputs import MODEL_INPUTS, inputs_of
from vramplan.inputs.model_spec import Config, ModelSpec
from vramplan.inputs.sequence_length import check_sequence_length
from vramplan.inputs.tasks import check_task, joins_texts_of_swift


def name_differs(name: str, model_class: str) -> bool:
    """Whether a checkpoint's class has another head than the one that is trained, and none for pre-training."""
    return "For" in name and name != model_class and not name.endswith("ForPreTraining")


def check_inputs(spec: ModelSpec, job: Job) -> None:
    """Check that a job's samples suit the architecture.

    Raises:
        ConfigError: for a setting that the architecture does not allow.
        UnsupportedError: for another class than the one that is trained here.
    """
    samples = inputs_of(spec.model_type, job.task, spec.name)
    check_task(job)
    c = Config(spec.config, spec.name)
    check_embedding(job, c.get("hidden_size", MAX_COUNT) if job.task == "embedding" else 0)
    if samples is None:
        return
    for name in spec.config.get("architectures") or ():
        if name_differs(name, samples.model_class) and job.task is None:
            raise UnsupportedError(
                f"{spec.name}: {name} is not supported; {spec.model_type} models are trained as {samples.model_class}"
            )
    if job.joins_samples and (spec.model_type in MODEL_INPUTS or not joins_texts_of_swift(job)):
        raise ConfigError(
            f"{setting('batches', job.batches)}: only causal language models take several samples in one row, not"
            f" {spec.name}"
        )
    if job.loss != "standard":
        raise ConfigError(
            f"{setting('loss', job.loss)}: {samples.model_class} has a loss of its own;"
            f" use {setting('loss', 'standard')}"
        )
    if job.fused_kernels and spec.model_type in MODEL_INPUTS:
        raise ConfigError(
            f"{setting('fused_kernels', ','.join(job.fused_kernels))}: Liger has no kernels for {spec.model_type};"
            f" use {setting('fused_kernels', 'none')}"
        )
    most = samples.most_tokens(c) if samples.has_text else None
    check_sequence_length(job.sequence_length, most, spec.name)
    if samples.image_config is not None:
        width, height = samples.image(c, job)
        patch = samples.vision(c).count("patch_size")
        if min(width, height) < patch:
            raise ConfigError(
                f"{setting('image_size', (width, height))}: {spec.name} cuts images in patches of {patch} x {patch}"
            )
