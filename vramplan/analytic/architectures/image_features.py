"""A vision tower's forward: from pixels to the features that the language model takes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from math import prod

from vramplan.analytic.architectures.forward_pass import ForwardPass
from vramplan.analytic.architectures.vision_tower import (
    MERGES,
    TOWER,
    TowerContext,
    given_a_gradient,
    in_one_row,
    layer_context,
    training_of,
)
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers.context import Context
from vramplan.inputs.image_task_rules import runs_swift, runs_without_graph

TOWER_STACK = 1
"""The tower's number among the stacks of a vision-language model."""


def image_features(forward: ForwardPass, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
    """``get_image_features(pixel_values)``: one row for each image token of the batch, and the tower's own outputs.

    These are its last state and the chosen ones (transformers 5.23, utils/output_capturing.py: select_hidden_states).
    """
    net, job, vision, kinds = forward.net, forward.job, forward.vision, forward.stacks[TOWER_STACK]
    assert vision is not None
    tape, tower, whole = net.tape, vision.tower, vision.config
    c, given = tower.config_of(whole), net.training
    net, last = (
        replace(net, training=training_of(part, given, job), per_layer=None) for part in (job.vision, job.projector)
    )
    images = prod(pixels.shape) // prod(vision.image.tensors[0].shape)
    if len(pixels.shape) == 6:
        pixels = pixels.view(prod(pixels.shape[:3]), *pixels.shape[3:])
    elif len(pixels.shape) == 5 and vision.image.tensors[0].name == "pixel_values_videos":
        pixels = pixels.view(pixels.shape[0] * pixels.shape[1], *pixels.shape[2:])
    elif len(pixels.shape) == 5:
        pixels = in_one_row(pixels, given.dtype if tower.drops_empty else None)
    if tower.drops_empty:  # and the mask of pixels as well
        pixel_mask = tape.empty((pixels.shape[0], *pixels.shape[2:]), "int64", "masks of all tiles")
    if tower.holds_cast and not job.runs_verl:
        tape.module = "inputs"
        pixels = ops.to(pixels, given.dtype, "pixels in the model's dtype")
    # verl calls the tower itself, and the cast is that of the embedding
    x = tower.embed(net, c, vision.image, ops.to(pixels, given.dtype) if job.runs_verl else pixels)
    # enable_input_require_grads finds the embeddings of every model within (transformers 5.23)
    of_swift = tower.of_swift != "" and runs_swift(job)
    needs_grad = given.input_needs_grad and not (of_swift and runs_without_graph(job))
    if job.runs_verl and job.method == "full":  # a frozen tower is of verl 0.7, whose transformers 4 has no hook then
        needs_grad = False
    hooked = tower.hooked
    if of_swift:  # by name (model/models/qwen.py: patch_get_input_embeddings)
        hooked = "patches"
    x = given_a_gradient(x, needs_grad and hooked == "patches")
    context = TowerContext(Context(job.attention, forward.fused), vision.image, images)
    if tower.place is not None:
        x = tower.place(net, c, context, x)
    if job.runs_verl and context.cos is not None:  # named by the tower's forward until it is over (transformers 5.9)
        *rows, dim = context.cos.shape
        net.tower_locals += [tape.empty((*rows, width), "fp32", "rotary angles") for width in (dim // 2, dim)]
    x = given_a_gradient(x, needs_grad and hooked == "placed")
    indices, states = tower.chosen(whole), {}
    if tower.holds_first:
        net.tower_locals.append(x)
    for number, kind in enumerate(kinds):
        net.enter_layer(forward.phase, TOWER + number, x)
        if number - len(kinds) - 1 in indices:
            states[number - len(kinds) - 1] = x

        # transformers 5.9 recomputes what FSDP does in front of a layer; verl does not take a newer one
        shared = None if job.runs_verl else layer_context(context, kind, job)

        def layer(x: Tensor, shared: TowerContext | None = shared, kind: Hashable = kind) -> Tensor:
            return tower.layer(net, c, x, shared or layer_context(context, kind, job))

        x = tape.checkpoint(layer, x) if job.checkpointing == "full" and tower.checkpoints else layer(x)
        if tower.between is not None and kind:
            tower.between(last, c, x)
        if tower.merge is not None and kind == MERGES:
            tape.enter(forward.phase, None)
            x = tower.merge(net, c, context, x)
    if kinds:  # a tower may be one module
        del layer
    tape.enter(forward.phase, None)
    if -1 in indices:
        states[-1] = x
    x = tower.finish(net, c, context, x)
    net.tower_locals.clear()
    if not indices:
        return tower.project(last, whole, vision.image, x), [x]
    chosen = [states[index] for index in indices]
    return tower.project(last, whole, vision.image, side_by_side(chosen)), [x, *chosen]


def side_by_side(states: list[Tensor]) -> Tensor:
    """``torch.cat(states, dim=-1)``; a single state as it is."""
    if len(states) == 1:
        return states[0]
    states[0].tape.module = "multi_modal_projector"
    return ops.join_rows(states, (*states[0].shape[:-1], sum(state.shape[-1] for state in states)))
