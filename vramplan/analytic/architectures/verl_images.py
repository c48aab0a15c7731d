"""Qwen's models that see, as verl changes their forward: images go into the text in a function that returns before it.

Mirrors verl 0.9.1 (models/transformers/qwen2_vl.py and qwen3_vl.py: _get_input_embeds; monkey_patch.py) with the
transformers 5.9 that it asks for.
"""

from __future__ import annotations

from vramplan.analytic.architectures.forward_pass import ForwardPass
from vramplan.analytic.architectures.image_features import image_features
from vramplan.analytic.architectures.vision_tower import VisionInput
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.layers.context import Context
from vramplan.inputs.job import Job

QWEN2 = "qwen2_vl_text"
"""The language model whose attention verl replaces (qwen2_vl_attn_forward)."""


def sent_to_gpu(tape: Tape, job: Job, vision: VisionInput, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The images of a micro-batch of ids of `shape`, which FSDP sends to the GPU and casts (_root_pre_forward)."""
    rows, length = shape
    tape.module, dtype, images = "inputs", job.computed_dtype or job.dtype, dict[str, Tensor]()
    for one in vision.image.tensors:
        whole = tape.empty(one.batched(rows, job.pictures, length), one.dtype, one.name.replace("_", " "), "activation")
        images[one.name] = ops.to(whole, dtype, "inputs in the model's dtype") if one.dtype == "fp32" else whole
        del whole
    return images | {"mm_token_type_ids": tape.empty(shape, "int64", "token type ids", "activation")}


def with_images(forward: ForwardPass, x: Tensor, pixels: Tensor) -> Tensor:
    """The embeddings of image tokens replaced by the features of the images, which nothing joins."""
    net, job = forward.net, forward.job
    net.joins_images = False
    net.tape.module = "inputs"
    if job.fsdp.version == 1 and not job.fsdp.use_orig_params:  # whose first parameter is a flat one: visual.dtype
        pixels = ops.to(pixels, job.dtype, "pixels in the dtype of stored weights")
    features = ops.to(image_features(forward, pixels)[0], x.dtype)
    net.tape.module = "inputs"
    mask = net.tape.empty((*forward.inputs["input_ids"].shape, 1), "bool", "where image tokens are")
    x = ops.scatter_rows(x, mask, features)
    net.multimodal_locals += [mask, *net.deep] if net.deep else []
    return x


def set_attention(forward: ForwardPass, ctx: Context) -> None:
    """Set how layers of Qwen2-VL and Qwen2.5-VL attend: a table for each of three positions, joined in each layer.

    Without padding verl copies keys and values for every query head, and once more if there are several samples.
    """
    if forward.vision is None or forward.vision.tower.text_type != QWEN2:
        return
    job = forward.job
    ctx.positions_of_images = 3
    ctx.copies_heads = job.batches != "padded"
    ctx.joins_rows = job.batches == "packed" or job.micro_batch_size > 1
