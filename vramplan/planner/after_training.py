"""What comes beside training: the model loaded to generate on one GPU, and the host's memory."""

from __future__ import annotations

from vramplan.analytic import generation as analytic
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_other_model
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.calibration import CONFIDENCE
from vramplan.memory.estimate import Estimate
from vramplan.memory.generation import Generation
from vramplan.memory.host import HostMemory, OtherModel, host_memory
from vramplan.planner.load import load_both


def generation(
    model: str | ModelSpec,
    gpu: str | Gpu,
    job: Job,
    new_tokens: int,
    prompt_tokens: int | None = None,
    batch: int = 1,
    confidence: float = CONFIDENCE,
) -> Generation:
    """The memory to load a job's model on one GPU and to generate with transformers' ``generate``.

    Args:
        model: A shipped name, a Hub id, a folder, a config.json, or a loaded model.
        gpu: A name from the catalogue, "auto" for the GPU in this machine, or a loaded one.
        job: The training job, whose weights, adapters, quantization and attention count.
        new_tokens: Tokens to generate for each prompt.
        prompt_tokens: Tokens of each prompt, those of images included; None for the job's sequence length.
        batch: Prompts at a time.
        confidence: How sure the verdict "fits" is to be, which sets the safety margin; 0 for none.

    Raises:
        VramplanError: for a model that does not generate, or whose generation is not modelled.
    """
    spec, loaded = load_both(model, gpu, confidence)
    return analytic.generation(spec, job, loaded, new_tokens, prompt_tokens, batch)


def host(model: ModelSpec, estimate: Estimate) -> HostMemory:
    """The host memory that an estimated job needs on each node."""
    parameters, trainable = estimate.num_parameters, estimate.num_trainable_parameters
    return host_memory(estimate.job, parameters, trainable, model.published_dtype, _beside(estimate.job))


def _beside(job: Job) -> list[OtherModel]:
    """The models that are loaded beside the one that trains, as their folders have them."""
    dtypes = {"teacher": job.dtype_of_teacher, "reward_model": job.dtype_of_rewards, "value_model": job.dtype_of_values}
    found = []
    for field, dtype in dtypes.items():
        name = getattr(job, field)
        if name is not None:
            spec = load_other_model(field, name)
            number = spec.stored_parameters or spec.num_parameters
            found.append(OtherModel(field.replace("_", " "), number, spec.published_dtype, dtype))
    return found
