"""The forward of a causal language model, which all architectures with a decoder share; images go into the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from vramplan.analytic.architectures import verl_images
from vramplan.analytic.architectures.decoder import Decoder
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.image_features import image_features
from vramplan.analytic.architectures.vision_tower import training_of
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.context import Context, CrossAttentionInput, LayerKind
from vramplan.analytic.layers.labels import shifted_labels
from vramplan.analytic.layers.liger_losses import in_place_cross_entropy
from vramplan.analytic.layers.log_probs import log_probs_loss
from vramplan.analytic.layers.masks import MaskParts, attention_mask
from vramplan.analytic.layers.rope import complex_table, rotary_tables
from vramplan.inputs.image_task_rules import runs_swift
from vramplan.inputs.model_spec import Config
from vramplan.inputs.task_rules import TRL_TASKS


def causal_lm(forward: ForwardPass, c: Config) -> ModelOutput:
    """LlamaForCausalLM.forward: the model, the head, the loss; the logits are among the outputs."""
    net, tape, job, labels = forward.net, forward.tape, forward.job, forward.inputs["labels"]
    architecture, decoder, placement = forward.architecture, decoder_of(forward), forward.placement
    with tape.on(placement.norm), tape.saves.in_model():
        last = language_model(forward, c)  # the model's output, held to the end
    with tape.on(placement.norm):
        hidden = decoder.before_head(net, c, last)
    vocabulary, tied = architecture.shape(c).vocabulary, architecture.is_tied(c)
    fused = losses.FUSED.get(job.loss)
    if fused is not None:
        with tape.on(placement.head):
            return ModelOutput(fused(hidden, net.head_weight(vocabulary, hidden.shape[-1], tied), labels), [])
    if job.loss == "sections":

        def head(part: Tensor) -> Tensor:
            return decoder.after_head(net, c, net.head(part, vocabulary, tied, decoder.head_bias))

        states = [hidden]
        if job.layers_of == "torchtune":  # whose model has returned when the loss begins
            del hidden, last
        return ModelOutput(losses.sectioned_cross_entropy(states.pop(), labels, head, net.beside_head), [])
    with tape.on(placement.head):
        logits = decoder.after_head(
            net, c, net.head(ops.move(hidden, placement.head), vocabulary, tied, decoder.head_bias)
        )
        tape.module = "loss"
        if job.loss == "log_probs":
            return ModelOutput(log_probs_loss(logits, job.verl.logits), [logits])
        if job.loss == "sliced_fp32":  # the model's logits from here on
            logits = ops.to(logits, "fp32", "logits in fp32")
        if forward.vision is not None and forward.vision.tower.loss is not None:
            return ModelOutput(forward.vision.tower.loss(logits, forward.has_mask), [logits])
        sliced = job.loss in ("sliced", "sliced_fp32")
        loss = sliced_loss(logits) if sliced else causal_loss(logits, LOGIT_LOSSES[job.loss])
        return ModelOutput(loss, [logits])


LOGIT_LOSSES = {
    "standard": losses.cross_entropy,
    "value_head": losses.cross_entropy,
    "liger_cross_entropy": in_place_cross_entropy,
}
"""Cross-entropies of all logits in fp32."""


def decoder_of(forward: ForwardPass) -> Decoder:
    """The parts of the architecture's causal language model."""
    assert forward.architecture.decoder is not None
    return forward.architecture.decoder


def causal_loss(logits: Tensor, cross_entropy: Callable[[Tensor, Tensor], Tensor] = losses.cross_entropy) -> Tensor:
    """ForCausalLMLoss: logits in fp32, labels shifted, all rows through cross-entropy (loss/loss_utils.py)."""
    tape, (batch, length, vocabulary) = logits.tape, logits.shape
    logits = ops.to(logits, "fp32", "logits in fp32").view(batch * length, vocabulary)
    labels = shifted_labels(tape, batch, length)
    return cross_entropy(logits, labels[-1])


def sliced_loss(logits: Tensor) -> Tensor:
    """The same of transformers 4.46 to 4.48."""
    return losses.sliced_cross_entropy(ops.to(logits, "fp32", "logits in fp32"))


def language_model(forward: ForwardPass, c: Config) -> Tensor:
    """LlamaModel.forward: embedding, layers, final norm. The embeddings live to the end of the function."""
    net, tape, decoder, placement = forward.net, forward.tape, decoder_of(forward), forward.placement
    kinds: Sequence[LayerKind] = forward.stacks[0]  # type: ignore[assignment]
    crossing = across_images(forward)
    net.is_within, net.mixes_in = forward.vision is not None, mixing_in(forward)
    with tape.on(placement.embed):
        x = decoder.embed(net, c, ops.move(forward.inputs["input_ids"], placement.embed))
    if forward.has_images and crossing is None:
        x = with_images(forward, x)
    if forward.job.layers_of != "torchtune":  # whose forward has one name for all hidden states
        net.embedding_locals = net.embedding_locals or [x]
    with tape.on(placement.embed):
        ctx = context(forward, c, x, kinds)
        x = decoder.enter(net, c, x)
        add_rotary_tables(forward, c, x, ctx, kinds)
    ctx.crossing = crossing
    checkpointed = forward.job.checkpointing == "full"
    for (number, gpu), kind in zip(placement.layers, kinds, strict=True):
        if kind.crosses and crossing is None:
            continue
        if net.states is not None:
            net.states.append(x)
        net.enter_layer(forward.phase, number, x)
        own, given = ctx.of(kind).on(gpu), [ops.move(x, gpu, "hidden state on the next card"), *decoder.beside(net, c)]

        def layer(
            x: Tensor, *beside: Tensor, own: Context = own, kind: LayerKind = kind
        ) -> Tensor | tuple[Tensor, ...]:
            return decoder.layer(net, c, x, own, kind, *beside)

        with tape.on(gpu):
            outputs = tape.checkpoint(layer, *given) if checkpointed else layer(*given)
        del layer, own, given
        x = outputs[0] if isinstance(outputs, tuple) else outputs  # a tuple lives until the next layer's is there
        if number < len(net.deep):
            x = ops.add_rows(x, net.deep[number])
    tape.enter(forward.phase, None)
    with tape.on(placement.norm):
        x = decoder.leave(net, c, x)
    if forward.job.layers_of == "torchtune" and forward.job.loss == "sections":
        net.beside_head.append(x)
    if decoder.norm is not None and not skips_final_norm(c):
        with tape.on(placement.norm):
            x = decoder.norm(net, decoder.norm_name, ops.move(x, placement.norm))
    if net.states is not None:
        net.states.append(x)
    net.embedding_locals.clear()
    net.multimodal_locals.clear()
    net.deep.clear()
    net.per_layer = None
    return x


def pixels_of(forward: ForwardPass) -> Tensor:
    """The pixels of the batch's images or videos."""
    assert forward.vision is not None
    return forward.inputs[forward.vision.image.tensors[0].name]


def mixing_in(forward: ForwardPass) -> Callable[[Tensor, Tensor], Tensor] | None:
    """What the outer model makes of the embeddings of text, by frozen weights."""
    vision, net = forward.vision, forward.net
    if vision is None or vision.tower.mixed_in is None:
        return None
    change, frozen = vision.tower.mixed_in, training_of("frozen", net.training, forward.job)
    return lambda ids, x: change(replace(net, training=frozen), vision.config, ids, x)


def across_images(forward: ForwardPass) -> CrossAttentionInput | None:
    """Images for layers that attend to them; None if there are none, or if they go into the text."""
    if not forward.has_images or forward.vision is None or forward.vision.tower.across is None:
        return None
    features, states = image_features(forward, pixels_of(forward))
    images = forward.vision.tower.across(forward.net, forward.job, forward.inputs["input_ids"].shape, features)
    forward.net.multimodal_locals += [*states, features, images.mask, images.rows]
    return images


def with_images(forward: ForwardPass, x: Tensor) -> Tensor:
    """The embeddings of image tokens replaced by the features of the images (LlavaModel.forward)."""
    assert forward.vision is not None
    if forward.job.runs_verl:
        return verl_images.with_images(forward, x, pixels_of(forward))
    if not (runs_swift(forward.job) and forward.vision.tower.of_swift == "hook"):
        return _merged(forward, x)
    with forward.tape.autocasting(None):  # accelerate wraps forward(), in front of which the hook runs
        x = _merged(forward, x)
    forward.net.multimodal_locals.clear()
    forward.net.features.clear()  # the model's own outputs have none
    forward.net.hook_outputs.append(x)
    return x


def _merged(forward: ForwardPass, x: Tensor) -> Tensor:
    assert forward.vision is not None
    net = forward.net
    own, states = image_features(forward, pixels_of(forward))
    net.tape.module = "inputs"
    features = ops.to(own, x.dtype)
    mask = net.tape.empty((*forward.inputs["input_ids"].shape, 1), "bool", "where image tokens are")
    if forward.vision.tower.returns_features:
        net.features.append(features)
    net.multimodal_locals += [*states, own, mask, features, *net.deep]
    x = ops.scatter_rows(x, mask, features)
    net.deep[:] = [ops.copy(ops.pieces(one), "DeepStack features of all images") for one in net.deep]
    return x


def skips_final_norm(c: Config) -> bool:
    """opt-350m norms after each branch and has no final norm (modeling_opt.py)."""
    return c.get("do_layer_norm_before") is False


def context(forward: ForwardPass, c: Config, x: Tensor, kinds: Sequence[LayerKind]) -> Context:
    """Masks and positions, which all layers share; masks are in the dtype of the token embeddings."""
    net, tape, job, decoder = forward.net, forward.tape, forward.job, decoder_of(forward)
    batch, length, _ = x.shape
    tape.module = "inputs"
    dtype = net.embedded_dtype
    ctx = Context(job.attention, forward.fused, padded=job.batches == "padded", causal=not decoder.both_ways(c))
    ctx.sequence_parallel, ctx.shares_rows = job.sequence_parallel, job.swift.sequence_parallel > 1
    ctx.repeats_heads = job.layers_of == "torchtune"
    ctx.liger_rope = net.liger.rope
    if job.runs_verl:
        verl_images.set_attention(forward, ctx)
    ctx.mixer_packages = job.mixer_kernels == "packages"
    drops = tape.training and (tape.drops or not decoder.attention_dropout_is_layer)
    ctx.attention_dropout = c.number(*decoder.attention_dropout) if drops else 0.0
    if forward.past is not None:
        ctx.cache = net.cache if forward.caches else None
        ctx.past = {False: forward.past, True: forward.past}
        window = decoder.window(c)
        if window is not None:  # DynamicSlidingWindowLayer keeps the last ones but one of a window
            ctx.past[True] = min(forward.past, window - 1)
    elif fills_cache(forward) and not (tape.training and job.checkpointing == "full"):
        ctx.cache = net.cache
    has_positions = "position_ids" in forward.inputs
    places = (1 if forward.past is None else batch, length)
    ctx.positions = forward.inputs["position_ids"] if has_positions else tape.empty(places, "int64", "position ids")
    if job.batches == "padded" and any(kind.recurrent for kind in kinds):  # create_recurrent_attention_mask
        ctx.row_mask = forward.inputs["attention_mask"].view(batch, length, 1)
    for sliding in slides_of(kinds):
        ctx.masks[sliding] = mask(forward, c, x, sliding, dtype)
    return ctx


def slides_of(kinds: Sequence[LayerKind]) -> list[bool]:
    """Whether there are layers of attention that slide, and that do not."""
    return sorted({kind.sliding for kind in kinds if kind.attends})


def add_rotary_tables(forward: ForwardPass, c: Config, x: Tensor, ctx: Context, kinds: Sequence[LayerKind]) -> None:
    """Rotary tables, in the dtype of the first layer's input."""
    tape, job, decoder = forward.tape, forward.job, decoder_of(forward)
    batch, length = forward.inputs["input_ids"].shape
    tape.module = "inputs"
    rotary = decoder.rotary(c)
    if rotary is not None:
        gpu = forward.placement.rotary
        taken = ops.move(x, gpu), None if ctx.positions is None else ops.move(ctx.positions, gpu)
        # generate makes positions of each row's mask
        rows = batch if "position_ids" in forward.inputs or rotary.per_row or forward.past is not None else 1
        rows *= ctx.positions_of_images
        for sliding in slides_of(kinds):
            if ctx.cos and not rotary.per_kind:
                ctx.cos[sliding], ctx.sin[sliding] = next(iter(ctx.cos.values())), next(iter(ctx.sin.values()))
                continue
            with tape.on(gpu):
                width = rotary.full_dim if rotary.full_dim and not sliding else rotary.dim
                if rotary.is_complex:
                    tables = complex_table(tape, rows, length, width)
                else:
                    tables = rotary_tables(tape, rows, length, width, "fp32" if rotary.fp32 else x.dtype, rotary.pairs)
            ctx.cos[sliding], ctx.sin[sliding] = tables
            del tables
        del taken


def fills_cache(forward: ForwardPass) -> bool:
    """Whether `use_cache` is on: the Trainer switches it off, but in the outer configuration alone."""
    if forward.job.keeps_outputs and not forward.job.joins_samples:
        return True
    if forward.job.task in TRL_TASKS:  # their trainers say use_cache=False
        return False
    return forward.vision is not None and forward.vision.tower.fills_cache


def mask(forward: ForwardPass, c: Config, x: Tensor, sliding: bool, dtype: str) -> Tensor | None:
    """The mask that transformers builds for a kind of layer, or None (masking_utils.py)."""
    tape, job, decoder, (batch, length, _) = forward.tape, forward.job, decoder_of(forward), x.shape
    if job.attention == "flash":
        return None
    window = decoder.window(c) if sliding else None
    sees = sees_images_both_ways(forward, sliding) or decoder.both_ways(c)
    # torchtune's packs have a block mask of flex_attention
    packed = job.joins_samples and decoder.positions_in_mask and job.layers_of != "torchtune"
    parts = MaskParts(
        True, window is not None, sees, packed, forward.has_mask and forward.past is None, decoder.chunked
    )
    if job.attention == "eager":
        return attention_mask(tape, batch, length, dtype, parts)
    long = window is not None and length >= window
    if job.batches == "padded" or packed or sees or long or decoder.always_masked:
        return attention_mask(tape, batch, length, "bool", parts)
    return None


def sees_images_both_ways(forward: ForwardPass, sliding: bool) -> bool:
    """Whether the tokens of an image in the text attend to each other, so that there is always a mask."""
    vision = forward.vision
    if vision is None or not (forward.has_images or vision.tower.masks_text_alone):
        return False
    return vision.tower.masks_text(vision.config, sliding)
