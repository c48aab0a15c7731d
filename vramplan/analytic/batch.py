"""What a step is fed: what lies on the device before a forward."""

from __future__ import annotations

from typing import NamedTuple

from vramplan.analytic.architectures.towers import VisionInput
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.step_inputs import StepSpec
from vramplan.inputs.job import Job


class Batch(NamedTuple):
    """What is on the device before a forward."""

    ids: Tensor
    labels: Tensor
    pixels: Tensor | None
    others: list[Tensor]
    named: dict[str, Tensor] | None = None
    """All of it, where the model is no causal language model."""


def make_batch(tape: Tape, setting: StepSpec, phase: str, batch: int, length: int, steps: int = 1) -> Batch:
    """A micro-batch, and those that wait.

    The Trainer fetches the micro-batches of all `steps` of an optimizer step at once; here those that wait are one
    tensor of each kind.
    """
    tape.enter(phase, None)
    tape.module = "inputs"
    job, seen = setting.job, setting.seen
    if setting.inputs:
        return named_batch(tape, setting, batch, steps)
    names = ["input ids", "labels"]
    if job.batches == "packed":
        names.append("position ids of the samples")
    elif job.batches == "padded" or job.loop == "trainer" or setting.looks:
        names.append("attention mask")
    if seen is not None and job.pictures and seen.sight.token_types:
        names.append("kinds of tokens")
    held = [tape.empty((batch, length), "int64", name, "activation") for name in names]
    images = image_inputs(tape, seen, batch, job.pictures, length) if seen is not None and job.pictures else []
    if job.loop == "trainer" and steps > 1:
        waiting = ((steps - 1) * batch, length)
        held += [tape.empty(waiting, "int64", f"{name} of the batches to come", "activation") for name in names]
        held += image_inputs(tape, seen, waiting[0], job.pictures, length) if images and seen is not None else []
    tape.keep(*held, *images)
    return Batch(held[0], held[1], images[0] if images else None, held[2:] + images[1:])


def named_batch(tape: Tape, setting: StepSpec, batch: int, steps: int) -> Batch:
    """The same for a model with inputs of its own."""
    named = {
        one.name: tape.empty((batch, *one.shape), one.dtype, one.name.replace("_", " "), "activation")
        for one in setting.inputs
    }
    waiting = []
    if setting.job.loop == "trainer" and steps > 1:
        for one in setting.inputs:
            what = f"{one.name.replace('_', ' ')} of the batches to come"
            waiting.append(tape.empty(((steps - 1) * batch, *one.shape), one.dtype, what, "activation"))
    tape.keep(*named.values())
    first = next(iter(named.values()))
    return Batch(first, named.get("labels", first), None, waiting, named)


def image_inputs(tape: Tape, seen: VisionInput, samples: int, images: int, length: int) -> list[Tensor]:
    """What the images of so many samples take on the device; pixels first."""
    return [
        tape.empty(one.batched(samples, images, length), one.dtype, one.name.replace("_", " "), "activation")
        for one in seen.picture.tensors
    ]


def as_handed(tape: Tape, job: Job, batch: Batch) -> Batch:
    """A copy of pixels and sounds in the model's dtype: under DeepSpeed the Trainer's (_prepare_input), or FSDP's."""
    dtype = job.dtype if job.loop == "trainer" and job.strategy.startswith("zero") else job.computed_dtype
    if dtype is None:
        return batch
    tape.module = "inputs"

    def cast(one: Tensor) -> Tensor:
        return ops.to(one, dtype, "inputs in the model's dtype") if one.dtype == "fp32" else one

    pixels = None if batch.pixels is None else cast(batch.pixels)
    named = None if batch.named is None else {name: cast(one) for name, one in batch.named.items()}
    return batch._replace(pixels=pixels, named=named)
