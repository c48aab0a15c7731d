"""The tensors of a batch: token ids, labels, masks, images."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import Input
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model.subject import ImageInputs, Subject

WHOLE = {"int64": torch.int64, "int32": torch.int32}
Inputs = Mapping[str, torch.Tensor] | tuple[torch.Tensor, ...]


def make_inputs(subject: Subject, job: Job, device: str, times: int = 1) -> Inputs:
    """Inputs of `times` micro-batches on the device: token ids, labels, masks, images."""
    if subject.example is not None:
        if isinstance(subject.example, Mapping):
            return {name: _like(tensor, times, device) for name, tensor in subject.example.items()}
        return tuple(_like(tensor, times, device) for tensor in subject.example)
    if subject.model_inputs is not None:
        return {spec.name: _filled(spec, times * job.micro_batch_size, device) for spec in subject.model_inputs.inputs}
    shape = (times * job.micro_batch_size, job.sequence_length)
    if job.batches == "flattened":
        shape = (times, job.micro_batch_size * job.sequence_length)
    names = ["input_ids", "labels"]
    if job.joins_samples:
        names.append("position_ids")
    elif job.batches == "padded" or job.loop == "trainer":
        names.append("attention_mask")
    texts = {name: torch.full(shape, int(name == "attention_mask"), dtype=torch.int64, device=device) for name in names}
    if subject.images is not None:
        texts |= image_batch(subject.images, shape, device)
    return texts


def image_batch(images: ImageInputs, shape: tuple[int, int], device: str) -> dict[str, torch.Tensor]:
    """The images or videos of a batch, and texts with their tokens; models read the values of both."""
    samples, length = shape
    processed = images.processed
    kinds = processed.token_kinds * images.per_sample
    row = torch.tensor(kinds + [0] * (length - len(kinds)), dtype=torch.int64)
    texts = {
        "input_ids": ((row > 0) * images.token_id).repeat(samples, 1),
        "attention_mask": torch.ones(shape, dtype=torch.int64),
    }
    if images.token_types:
        texts[images.token_types] = row.repeat(samples, 1)
    batch = {name: text.to(device) for name, text in texts.items()}
    for tensor in processed.tensors:
        batch_shape = tensor.batched(samples, images.per_sample, length)
        dtype = {"fp32": torch.float32, "int64": torch.int64}[tensor.dtype]
        if tensor.values is None:
            batch[tensor.name] = torch.zeros(*batch_shape, dtype=dtype, device=device)
        else:
            values = torch.tensor(tensor.values, dtype=dtype).view(tensor.shape)
            times = batch_shape[: len(batch_shape) - len(tensor.shape)] or (batch_shape[0] // tensor.shape[0],)
            batch[tensor.name] = values.repeat(*times, *[1] * (len(batch_shape) - len(times))).to(device)
    return batch


def _filled(spec: Input, samples: int, device: str) -> torch.Tensor:
    """An input of all samples, with its values if the model reads them."""
    dtype = WHOLE.get(spec.dtype) or DTYPES[spec.dtype]
    if spec.values:
        return (
            torch.tensor(spec.values, dtype=dtype).view(spec.shape).repeat(samples, *[1] * len(spec.shape)).to(device)
        )
    # filled in place, so that a trace does not know the values: masks are all ones, and yet stand for padded batches
    return torch.empty((samples, *spec.shape), dtype=dtype, device=device).fill_(int(spec.name == "attention_mask"))


def _like(example: torch.Tensor, times: int, device: str) -> torch.Tensor:
    shape = (times * example.shape[0], *example.shape[1:]) if example.dim() else ()
    return torch.zeros(shape, dtype=example.dtype, device=device)


def first_of(inputs: Inputs, times: int) -> Inputs:
    """The first of `times` micro-batches that are one batch."""
    if times <= 1:
        return inputs
    if isinstance(inputs, Mapping):
        return {name: _first(tensor, times) for name, tensor in inputs.items()}
    return tuple(_first(tensor, times) for tensor in inputs)


def _first(tensor: torch.Tensor, times: int) -> torch.Tensor:
    """The first part of a batch; of one whose images lie along the last dimension, a part that is contiguous too."""
    if tensor.shape[0] >= times:
        return tensor[: tensor.shape[0] // times]
    return tensor.view(times, *tensor.shape[:-1], tensor.shape[-1] // times)[0]
