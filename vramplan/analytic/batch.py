"""The batch of a step: the tensors that lie on the device before a forward, and the forward on it."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from vramplan.analytic.architectures import verl_images
from vramplan.analytic.architectures.forward_pass import ForwardPass
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.sequence_parallel import own_tokens
from vramplan.analytic.layers.swift_sequence import part_of_rows
from vramplan.analytic.step_inputs import StepSpec
from vramplan.inputs.job import Job

SHARED = ("input_ids", "position_ids", "labels")
"""Arguments of a model, of which GPUs that share a micro-batch each have a part."""


class Batch(NamedTuple):
    """The tensors that lie on the device before a forward."""

    inputs: dict[str, Tensor]
    """The micro-batch, by the name of the model's argument."""
    waiting: list[Tensor]
    """Micro-batches of the same optimizer step that come later."""


def make_batch(tape: Tape, spec: StepSpec, phase: str, samples: int, steps: int = 1) -> Batch:
    """A micro-batch of `samples`, and those that wait.

    The Trainer fetches the micro-batches of all `steps` of an optimizer step at once; here those that wait are one
    tensor of each kind.
    """
    tape.enter(phase, None)
    tape.module = "inputs"

    images = set() if spec.vision is None else {one.name for one in spec.vision.image.tensors}

    def made(samples: int, suffix: str = "") -> dict[str, Tensor]:
        batch = {}
        for one in spec.inputs:
            label = one.name.replace("_", " ") + ("" if one.name in images else suffix)
            shape = one.batched(samples)
            if spec.job.batches == "flattened" and spec.job.task is None:
                shape = (1, prod(shape))
            batch[one.name] = tape.empty(shape, one.dtype, label, "activation")
        return batch

    inputs, waiting = made(samples), {}
    if spec.job.loop == "trainer" and steps > 1:
        waiting = made((steps - 1) * samples, " of the batches to come")
    tape.keep(*inputs.values(), *(waiting.values() if spec.model_inputs is None else ()))
    return Batch(inputs, list(waiting.values()))


def of_other_prompts(batch: Batch) -> Batch:
    """KTO's answers of other prompts, for the KL term; they see the images of the batch."""
    own = {name.removeprefix("KL_"): one for name, one in batch.inputs.items() if name.startswith("KL_")}
    return batch._replace(inputs={**batch.inputs, **own})


def in_one_row(batch: Batch, setting: StepSpec) -> Batch:
    """The texts of a batch as one row, as ms-swift's template joins them (4.6, template/base.py: packing_row).

    Images and labels of whole samples stay as they are.
    """
    images = set() if setting.vision is None else {one.name for one in setting.vision.image.tensors}

    def joined(name: str, texts: Tensor) -> Tensor:
        return texts.view(1, prod(texts.shape)) if len(texts.shape) > 1 and name not in images else texts

    return batch._replace(inputs={name: joined(name, one) for name, one in batch.inputs.items()})


def as_handed(tape: Tape, job: Job, batch: Batch) -> Batch:
    """The batch, fp32 inputs cast to the model's dtype: by the Trainer under DeepSpeed (_prepare_input), or by FSDP."""
    dtype = job.dtype if job.loop == "trainer" and job.strategy.startswith("zero") else job.computed_dtype
    if dtype is None:
        return batch
    tape.module = "inputs"

    def cast(tensor: Tensor) -> Tensor:
        return ops.to(tensor, dtype, "inputs in the model's dtype") if tensor.dtype == "fp32" else tensor

    return batch._replace(inputs={name: cast(tensor) for name, tensor in batch.inputs.items()})


def forward_pass(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> ForwardPass:
    """The forward of a step on a batch; where GPUs share its tokens, on one GPU's part of them."""
    gpus, shared_by_swift = setting.job.verl.sequence_parallel, setting.job.swift.sequence_parallel
    inputs = batch.inputs
    if setting.job.runs_verl and setting.vision is not None and setting.has_images:
        shape = inputs["input_ids"].shape
        inputs = inputs | verl_images.sent_to_gpu(net.tape, setting.job, setting.vision, shape)
    if shared_by_swift > 1:
        inputs = {name: part_of_rows(inputs[name], shared_by_swift) for name in SHARED[:2] if name in inputs}
    elif gpus > 1:
        inputs = {name: own_tokens(inputs[name], gpus) for name in SHARED if name in inputs}
    return ForwardPass(
        net,
        setting.architecture,
        setting.job,
        setting.fused,
        phase,
        setting.stacks,
        inputs,
        setting.vision,
        setting.placement,
    )
