"""CSM: a Llama over text and frames of sound, a small one over the codebooks of each frame, and a codec.

Mirrors transformers 5.23, modeling_csm.py.
"""

from __future__ import annotations

from dataclasses import replace

from vramplan.analytic.architectures.architecture import Architecture, Shape, alike
from vramplan.analytic.architectures.causal_lm import causal_loss
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.llama import llama
from vramplan.analytic.architectures.vision_tower import given_a_gradient
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Parameter, Tensor
from vramplan.analytic.layers import losses, mimi
from vramplan.analytic.layers.context import Context, LayerKind, heads_of
from vramplan.analytic.layers.rope import rotary_tables
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config
from vramplan.inputs.spoken import codec, frames

BACKBONE, DEPTH = 0, 1
"""Stacks of layers, in the order that they run."""
DEFAULTS = {
    "num_codebooks": 32,
    "vocab_size": 2051,
    "text_vocab_size": 128_256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
DEPTH_DEFAULTS = {
    "num_codebooks": 32,
    "vocab_size": 2051,
    "hidden_size": 1024,
    "intermediate_size": 8192,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
"""transformers' own values (configuration_csm.py)."""


def depth_of(c: Config) -> Config:
    """The configuration of the decoder of codebooks."""
    return Config({**DEPTH_DEFAULTS, **(c.get("depth_decoder_config") or {})}, "depth_decoder_config")


def shape(c: Config) -> Shape:
    """The tokens of one codebook are the vocabulary that both heads tell apart."""
    layers = c.count("num_hidden_layers") + depth_of(c).count("num_hidden_layers")
    return Shape(layers, c.count("hidden_size"), c.count("vocab_size"), c.get("max_position_embeddings", 2048))


def speak(forward: ForwardPass, c: Config) -> ModelOutput:
    """CsmForConditionalGeneration: each frame's first codebook by the backbone, the others by the depth decoder."""
    net = forward.net
    codebook_table = net.parameter(
        "backbone_model.embed_tokens.embed_audio_tokens.weight",
        c.count("num_codebooks") * c.count("vocab_size"),
        c.count("hidden_size"),
    )
    embedded, labels = merged(forward, c, codebook_table)
    hidden = layers(forward, c, BACKBONE, embedded)
    hidden = net.rms_norm("backbone_model.norm", hidden)
    logits = net.head(hidden, c.count("vocab_size"), tied=False)
    net.tape.module = "loss"
    first = causal_loss(logits)
    second, *outputs = by_depth(forward, c, hidden, codebook_table)
    net.tape.module = "loss"
    loss = ops.add(first, second)
    del labels
    return ModelOutput(loss, [logits, hidden, first, *outputs])


def merged(forward: ForwardPass, c: Config, table: Parameter) -> tuple[Tensor, Tensor]:
    """Embedded text, in which the places of frames are overwritten, and labels for every codebook."""
    net, tape, ids = forward.net, forward.tape, forward.inputs["input_ids"]
    (samples, length), width, books = ids.shape, c.count("hidden_size"), c.count("num_codebooks")
    tape.module = "embed_text_tokens"
    x = ops.embedding(ids, net.parameter("embed_text_tokens.weight", c.count("text_vocab_size"), width))
    tape.module = "inputs"
    waveform = forward.inputs["input_values"]
    mask = tape.empty((samples, waveform.shape[2]), "bool", "which values are sound")
    with tape.no_grad():
        each = [mimi.encoded(net, codec(c), ops.sliced(waveform, (1, *waveform.shape[1:]))) for _ in range(samples)]
        count = each[0].shape[2]
        padded = [tape.empty((count, books), "int64", "tokens of a sound") for _ in each]
        tokens = tape.empty((samples, count, books), "int64", "tokens of all sounds")
        del padded
    mimi.decoder(net, codec(c))
    sounds = frames_embedded(forward, tokens, table)
    tape.module = "inputs"
    is_sound = tape.empty((samples, length), "bool", "where frames are")
    x = ops.put_rows(x, chosen_rows(sounds, samples * count))
    end = frames_embedded(forward, tape.empty((1, 1, books), "int64", "end of a sound"), table)
    tape.module = "inputs"
    ends = ops.repeat(end.view(1, width), (samples, width))
    is_end = tape.empty((samples, length), "bool", "where sounds end")
    x = ops.put_rows(x, ends)
    labels = tape.empty((samples, length, books), "int64", "labels of all codebooks")
    del is_sound, is_end, mask, each
    return x, labels


def frames_embedded(forward: ForwardPass, tokens: Tensor, table: Parameter) -> Tensor:
    """CsmBackboneModelEmbeddings: the sum of the embeddings of a frame's codebooks."""
    forward.tape.module = "backbone_model.embed_tokens"
    moved = forward.tape.empty(tokens.shape, "int64", "tokens with their codebook")
    samples, count, books = tokens.shape
    each = ops.embedding(moved, table, permuted=True).view(samples * count, books, table.shape[1])
    summed = ops.sum_middle(each).view(samples, count, table.shape[1])
    return given_a_gradient(summed, forward.net.training.input_needs_grad)


def chosen_rows(x: Tensor, count: int) -> Tensor:
    """``x[mask]`` of (B, S, width)."""
    return ops.gathered(x, (count, x.shape[-1]), "chosen frames")


def layers(forward: ForwardPass, c: Config, stack: int, x: Tensor) -> Tensor:
    """The layers of one of both Llamas; each fills a cache, which the Trainer switches off in the outer one alone."""
    net, tape = forward.net, forward.tape
    if stack == BACKBONE:
        ctx = forward.context(forward.causal(x), 0.0)
    else:
        ctx = replace(forward.context(forward.causal(x, padded=False), 0.0), padded=False)
    ctx.causal = True
    if not (tape.training and forward.job.checkpointing == "full"):
        ctx.cache = net.cache
    tape.module = "inputs"
    ctx.positions = tape.empty((1, x.shape[1]), "int64", "position ids")
    tables = rotary_tables(tape, 1, x.shape[1], heads_of(c).dim, x.dtype)
    ctx.cos[False], ctx.sin[False] = tables
    del tables

    def layer(x: Tensor, own: Context = ctx) -> Tensor:
        return llama(net, c, x, own, LayerKind())

    return forward.layers(stack, x, layer)


def by_depth(forward: ForwardPass, c: Config, hidden: Tensor, table: Parameter) -> list[Tensor]:
    """The depth decoder's loss, and what its outputs hold: each frame is a sequence of its codebooks."""
    net, tape, own = forward.net, forward.tape, depth_of(c)
    books, width, narrow = own.count("num_codebooks"), c.count("hidden_size"), own.count("hidden_size")
    count = hidden.shape[0] * (frames(c, forward.job) + 1)
    tape.module = "inputs"
    ids = tape.empty((count, books), "int64", "tokens of the frames that train")
    states = ops.gathered(hidden, (count, width), "state in front of each frame")
    labels = tape.empty((count, books), "int64", "labels of these frames")
    tape.module = "depth_decoder.model.embed_tokens"
    moved = tape.empty((count, books), "int64", "tokens with their codebook")
    x = given_a_gradient(ops.embedding(moved, table), net.training.input_needs_grad)
    x = ops.put_rows(x, states)
    x = net.linear("depth_decoder.model.inputs_embeds_projector", x, narrow)
    x = layers(forward, own, DEPTH, x)
    x = net.rms_norm("depth_decoder.model.norm", x)
    logits = by_position(forward, own, x)
    tape.module = "loss"
    rows = ops.to(logits, "fp32", "logits in fp32").view(count * (books - 1), logits.shape[-1])
    shifted = tape.empty((count, books - 1), "int64", "labels moved by one")
    loss = losses.cross_entropy(rows, shifted)
    del ids, labels
    return [loss, logits, states]


def by_position(forward: ForwardPass, c: Config, x: Tensor) -> Tensor:
    """CsmCodebooksHead: a layer of its own for each codebook but the first."""
    net, tape = forward.net, forward.tape
    count, books, width = x.shape
    tape.module = name = "depth_decoder.codebooks_head"
    words = c.count("vocab_size")
    weight = net.parameter(f"{name}.weight", books - 1, width, words)
    chosen = ops.gathered(weight, (books - 1, width, words), "weights of all codebooks")
    x = ops.sliced(x, (count, books - 1, width))
    each = []
    for _ in range(books - 1):
        part = ops.sliced(ops.sliced(x, (count, 1, width)), (count, width))
        own = ops.sliced(chosen, (words, width))
        each.append(ops.linear(part, own, None, "logits", "logits"))
    return ops.stack(each)


def tables(c: Config) -> list[Input]:
    """Where each codebook's tokens begin, and the codec's codebooks."""
    return [Input("audio_tokens_offsets", (c.count("num_codebooks"),)), *mimi.codebooks(codec(c))]


LOADS = (
    "lm_head",
    "embed_text_tokens",
    "backbone_model.embed_tokens",
    BACKBONE,
    "backbone_model",
    DEPTH,
    "depth_decoder",
    "codec_model.encoder",
    "codec_model.decoder",
    "codec_model",
)
ARCHITECTURES = {
    "csm": Architecture(
        speak,
        stacks=lambda c: alike(c.count("num_hidden_layers"), depth_of(c).count("num_hidden_layers")),
        shape=shape,
        buffers=tables,
        loads=LOADS,
        defaults=DEFAULTS,
        refuses=(("tie_codebooks_embeddings", False),),
        only={"method": ("lora", "full"), "quantize": ("none",), "strategy": ("ddp",)},
        hook_stops="PyTorch stops where transformers 5.23 writes the backbone's states over the depth decoder's"
        " embeddings, which a hook for adapters has made leaves (modeling_csm.py: CsmDepthDecoderModel)",
    )
}
