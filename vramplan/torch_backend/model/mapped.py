"""A model as from_pretrained with a device_map loads it: directly onto the GPU, quantized by bitsandbytes if asked.

transformers' own loader does it, from a state dict with random weights in place of files. So it first allocates the
whole model in one piece, and quantizes each weight on the GPU, as a real run does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from vramplan.errors import MissingDependencyError, setting
from vramplan.inputs.images import TOWER_MODULES
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.torch_backend.dtypes import DTYPES

DEVIATION = 0.02
"""Standard deviation of random weights: transformers' usual initializer_range."""


def check_installed(job: Job) -> None:
    """Refuse quantized layers without bitsandbytes.

    Raises:
        MissingDependencyError: naming the install command.
    """
    if job.quantize == "none":
        return
    try:
        import bitsandbytes  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            f"{setting('quantize', job.quantize)} needs bitsandbytes: pip install bitsandbytes"
        ) from error


def load(build: Callable[[], Any], spec: ModelSpec, job: Job, device: str) -> Any:
    """The model on the device; `build` constructs it, which is done on the meta device.

    Raises:
        MissingDependencyError: if bitsandbytes is needed and not installed.
        Exception: transformers' own.
    """
    check_installed(job)
    with torch.device("meta"):
        skeleton = build()
    options: dict[str, Any] = {"device_map": {"": torch.device(device)}, "dtype": DTYPES[job.dtype]}
    if job.quantize != "none":
        options["quantization_config"] = _quantization(skeleton, spec, job)
    model = type(skeleton).from_pretrained(
        None,
        config=skeleton.config,
        attn_implementation=skeleton.config._attn_implementation,
        state_dict=_random_weights(skeleton),
        **options,
    )
    if job.prepare_for_kbit_training:
        from peft import prepare_model_for_kbit_training

        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return model


def _quantization(skeleton: nn.Module, spec: ModelSpec, job: Job) -> Any:
    """The BitsAndBytesConfig of a job; layers that it skips are transformers' own choice and the vision tower."""
    from transformers import BitsAndBytesConfig

    skipped = None
    processor = TOWER_MODULES.get(spec.model_type)
    if processor is not None and not job.quantize_vision:
        from transformers.quantizers.base import get_keys_to_not_convert

        skipped = [*get_keys_to_not_convert(skeleton), processor.tower, *processor.projector]
    if job.quantize == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skipped)
    storage = torch.uint8 if job.quant_storage in (None, "uint8") else DTYPES[str(job.quant_storage)]
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=job.double_quant,
        bnb_4bit_compute_dtype=DTYPES[job.dtype],
        bnb_4bit_quant_storage=storage,
        llm_int8_skip_modules=skipped,
    )


def _random_weights(skeleton: nn.Module) -> dict[str, torch.Tensor]:
    """A state dict on the host: weights of one dtype share one storage, as large as the largest of them."""
    tied = set(getattr(skeleton, "all_tied_weights_keys", None) or ())
    shapes = {name: tensor for name, tensor in skeleton.state_dict().items() if name not in tied}
    largest: dict[torch.dtype, int] = {}
    for tensor in shapes.values():
        largest[tensor.dtype] = max(largest.get(tensor.dtype, 0), tensor.numel())
    shared = {dtype: torch.empty(size, dtype=dtype) for dtype, size in largest.items()}
    for values in shared.values():
        if values.is_floating_point():
            values.normal_(0.0, DEVIATION)
        else:
            values.zero_()
    return {name: shared[tensor.dtype][: tensor.numel()].view(tensor.shape) for name, tensor in shapes.items()}
