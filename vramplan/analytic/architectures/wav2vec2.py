"""wav2vec 2 and HuBERT: convolutions over a waveform, then an encoder (transformers 5.23, modeling_wav2vec2.py).

modeling_hubert.py is the same, and holds other tensors while it runs. Trained for CTC, or to classify.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from vramplan.analytic.architectures.architecture import Architecture, Shape, alike
from vramplan.analytic.architectures.forward_pass import ForwardPass, ModelOutput
from vramplan.analytic.architectures.heads import Heads, token_classes
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor, leaf
from vramplan.analytic.layers.attention import Softcap, attend
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.ctc import ctc_loss
from vramplan.analytic.layers.mlp import activation
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.sound import convolution, group_norm, replaced, weight_norm
from vramplan.inputs.model_spec import Config
from vramplan.inputs.sound import convolutions, frame_counts, masked_frames


def shape(c: Config) -> Shape:
    """The letters that CTC tells apart are its vocabulary."""
    return Shape(c.count("num_hidden_layers", 12), width_of(c), c.count("vocab_size", 32), None)


def width_of(c: Config) -> int:
    """Width of the encoder."""
    return c.count("hidden_size", 768)


def transcribe(forward: ForwardPass, c: Config) -> ModelOutput:
    """Wav2Vec2ForCTC, HubertForCTC: one layer to letters, CTC over all frames."""
    net, waveform, encode = forward.net, forward.inputs["input_values"], forward.architecture.encode
    assert encode is not None
    hidden = encode(forward, c)
    dropped = ops.dropout(hidden, c.number("final_dropout", 0.1))
    logits = net.linear("lm_head", dropped, c.count("vocab_size", 32), True, head=True)
    net.tape.module = "loss"
    ones = None if forward.has_mask else net.tape.empty(waveform.shape, "int64", "mask of the waveform")
    is_mean = c.text("ctc_loss_reduction", "sum") == "mean"
    loss = ctc_loss(logits, forward.inputs["labels"], c.flag("ctc_zero_infinity", False), is_mean)
    del ones
    net.multimodal_locals.clear()
    return ModelOutput(loss, [logits])


def encode(forward: ForwardPass, c: Config) -> Tensor:
    """Wav2Vec2Model: the normed frames are among its outputs, which live until the head is done."""
    features = listen(forward, c, forward.inputs["input_values"])
    mask = frame_mask(forward, features)
    features = forward.net.layer_norm("feature_projection.layer_norm", features)
    forward.net.multimodal_locals.append(features)
    hidden = projected(forward, c, features)
    return contextualize(forward, c, hidden, mask)


def encode_hubert(forward: ForwardPass, c: Config) -> Tensor:
    """HubertModel: the frames as they come from the convolutions live until it is done."""
    features = listen(forward, c, forward.inputs["input_values"])
    mask = frame_mask(forward, features)
    normed = features
    if c.flag("feat_proj_layer_norm", True):
        normed = forward.net.layer_norm("feature_projection.layer_norm", features)
    hidden = projected(forward, c, normed)
    del normed
    return contextualize(forward, c, hidden, mask)


def frame_mask(forward: ForwardPass, features: Tensor) -> Tensor | None:
    """Which frames are no padding, if the batch says it of its waveforms."""
    if not forward.has_mask:
        return None
    forward.tape.module = "inputs"
    return forward.tape.empty(features.shape[:2], "bool", "which frames count")


def projected(forward: ForwardPass, c: Config, features: Tensor) -> Tensor:
    """The encoder's width, some frames replaced."""
    hidden = forward.net.linear("feature_projection.projection", features, width_of(c), True)
    return augmented(forward, c, ops.dropout(hidden, c.number("feat_proj_dropout", 0.0)))


def listen(forward: ForwardPass, c: Config, waveform: Tensor) -> Tensor:
    """The feature encoder: seven convolutions, of which each, or the first alone, has a norm; (B, T, channels)."""
    net, tape, samples = forward.net, forward.tape, waveform.shape[0]
    frozen = forward.job.freeze_feature_encoder
    if frozen:
        net = replace(net, training=replace(net.training, full=False))
    x = waveform.view(samples, 1, waveform.shape[1])
    if not frozen and tape.training and tape.grad_enabled:
        x = leaf(x)  # so that checkpointing works (hidden_states.requires_grad = True)
    counts, channels = frame_counts(c, waveform.shape[1]), 1
    for number, (wide, _, kernel) in enumerate(convolutions(c)):
        sizes = (samples, wide, counts[number])
        is_last = number == len(counts) - 1
        call = partial(block, net, c, number=number, weight=(wide, channels, kernel), out=sizes, is_last=is_last)
        x = tape.checkpoint(call, x) if forward.job.checkpointing == "full" else call(x)
        channels = wide
    return x.view(samples, counts[-1], channels)


def block(
    net: Modules,
    c: Config,
    x: Tensor,
    number: int,
    weight: tuple[int, int, int],
    out: tuple[int, int, int],
    is_last: bool,
) -> Tensor:
    """A convolution, its norm, an activation."""
    name, norms_all = f"feature_extractor.conv_layers.{number}", c.text("feat_extract_norm", "group") == "layer"
    net.tape.module = f"{name}.conv"
    kernel = net.parameter(f"{name}.conv.weight", *weight)
    bias = net.parameter(f"{name}.conv.bias", weight[0]) if c.flag("conv_bias", False) else None
    x = convolution(x, kernel, bias, out, permuted=norms_all and number > 0, permuted_grad=norms_all or is_last)
    if norms_all:
        x = net.layer_norm(f"{name}.layer_norm", x.view(out[0], out[2], out[1])).view(*out)
    elif number == 0:
        x = group_norm(net, f"{name}.layer_norm", x)
    return activation(c.text("feat_extract_activation", "gelu"))(x)


def augmented(forward: ForwardPass, c: Config, x: Tensor) -> Tensor:
    """SpecAugment: some frames replaced by a learned one, and some channels by 0, in training."""
    net, (samples, frames, width) = forward.net, x.shape
    of_channels = c.number("mask_feature_prob", 0.0) > 0
    if c.number("mask_time_prob", 0.05) <= 0 and not of_channels:
        return x
    net.tape.module = ""
    embed = net.parameter("masked_spec_embed", width)
    if not net.tape.training or not c.flag("apply_spec_augment", True):
        return x
    count = samples * masked_frames(c, frames)
    if count:
        mask = net.tape.empty((samples, frames), "bool", "frames to replace")
        x = replaced(x, mask, ops.to(embed, x.dtype), count)
    if of_channels:
        x = replaced(x, net.tape.empty((samples, width), "bool", "channels to replace"), None, samples * frames)
    return x


def contextualize(forward: ForwardPass, c: Config, x: Tensor, mask: Tensor | None) -> Tensor:
    """Wav2Vec2Encoder, or with its norm at the end: padding set to 0, positions by a convolution, layers."""
    net, is_stable = forward.net, c.flag("do_stable_layer_norm", False)
    expanded = None
    if mask is not None:
        net.tape.module = "encoder"
        expanded = net.tape.empty(x.shape, "bool", "which states count")
        x = replaced(x, net.tape.empty(x.shape, "bool", "which states do not count"), None, x.num_elements)
    ctx = forward.context(None if mask is None else forward.padding(x), c.number("attention_dropout", 0.1))
    ctx.padded &= mask is not None
    positions = convolved_positions(net, c, x)
    x = ops.add(x, positions)
    if not is_stable:
        x = net.layer_norm("encoder.layer_norm", x)
    held = [ops.dropout(x, c.number("hidden_dropout", 0.1))]
    del x
    layer = stable_layer if is_stable else plain_layer
    states = net.multimodal_locals if forward.job.task else None
    if states is not None:  # a classifier keeps what every layer returns (filter_output_hidden_states)
        states.append(held[0])
    x = forward.layers(0, held.pop(), lambda x: layer(net, c, x, ctx), states)
    del expanded, positions
    return net.layer_norm("encoder.layer_norm", x) if is_stable else x


def convolved_positions(net: Modules, c: Config, x: Tensor) -> Tensor:
    """A convolution of groups with a normed weight, a frame longer than its input if the kernel is even; GELU."""
    name, (samples, frames, width) = "encoder.pos_conv_embed.conv", x.shape
    kernel, groups = c.count("num_conv_pos_embeddings", 128), c.count("num_conv_pos_embedding_groups", 16)
    net.tape.module = name
    length = net.parameter(f"{name}.parametrizations.weight.original0", 1, 1, kernel)
    direction = net.parameter(f"{name}.parametrizations.weight.original1", width, width // groups, kernel)
    bias = net.parameter(f"{name}.bias", width)
    longer = frames + 1 - kernel % 2
    out = convolution(
        x.view(samples, width, frames), weight_norm(direction, length), bias, (samples, width, longer), True, False
    )
    net.tape.module = "encoder.pos_conv_embed"
    if longer != frames:
        out = ops.sliced(out, (samples, width, frames))
    return activation(c.text("feat_extract_activation", "gelu"))(out).view(*x.shape)


def plain_layer(net: Modules, c: Config, x: Tensor, ctx: Context) -> Tensor:
    """Attention, add, norm; feed-forward, add, norm."""
    residual = x
    x, *weights = attention(net, c, x, ctx)
    x = ops.dropout(x, c.number("hidden_dropout", 0.1))
    x = ops.add(residual, x, "residual stream")
    x = net.layer_norm("layer_norm", x)
    x = ops.add(x, feed_forward(net, c, x), "residual stream")
    return net.layer_norm("final_layer_norm", x)


def stable_layer(net: Modules, c: Config, x: Tensor, ctx: Context) -> Tensor:
    """Norm, attention, add; norm, feed-forward, add."""
    residual = x
    x = net.layer_norm("layer_norm", x)
    x, *weights = attention(net, c, x, ctx)
    x = ops.dropout(x, c.number("hidden_dropout", 0.1))
    x = ops.add(residual, x, "residual stream")
    normed = net.layer_norm("final_layer_norm", x)
    out = feed_forward(net, c, normed)
    del normed
    return ops.add(x, out, "residual stream")


def attention(net: Modules, c: Config, x: Tensor, ctx: Context) -> tuple[Tensor, ...]:
    """Wav2Vec2Attention: every frame to every frame; eager scores stay in the model's dtype."""
    batch, length, width = x.shape
    heads = c.count("num_attention_heads", 12)
    q, k, v = (
        net.linear(f"attention.{name}_proj", x, width, True).view(batch, length, heads, width // heads)
        for name in "qkv"
    )
    out, *weights = attend(q, k, v, ctx, scores=Softcap(in_fp32=False, casts=False))
    return net.linear("attention.out_proj", out, width, True), *weights


def feed_forward(net: Modules, c: Config, x: Tensor) -> Tensor:
    """Wav2Vec2FeedForward: each result takes the name of its input."""
    width = x.shape[-1]
    x = net.linear("feed_forward.intermediate_dense", x, c.count("intermediate_size", 3072), True)
    x = activation(c.text("hidden_act", "gelu"))(x)
    x = ops.dropout(x, c.number("activation_dropout", 0.1))
    x = net.linear("feed_forward.output_dense", x, width, True)
    return ops.dropout(x, c.number("hidden_dropout", 0.1))


def classes(forward: ForwardPass, c: Config, x: Tensor, labels: int) -> Tensor:
    """Wav2Vec2ForSequenceClassification: a narrower layer, the mean of all frames that count, a classifier."""
    net, tape = forward.net, forward.tape
    x = net.linear("projector", x, c.count("classifier_proj_size", 256), True)
    tape.module = ""
    if forward.has_mask:
        expanded = tape.empty(x.shape, "bool", "which states count")
        x = replaced(x, tape.empty(x.shape, "bool", "which states do not count"), None, x.num_elements)
        pooled = ops.scale(ops.sum_middle(x), "mean of the frames that count")
        del expanded
    else:
        pooled = ops.mean(x, 1)
    net.multimodal_locals.clear()
    return net.linear("classifier", pooled, labels, True, head=True)


REFUSED: tuple[tuple[str, object], ...] = (
    ("add_adapter", True),
    ("adapter_attn_dim", ...),
    ("use_weighted_layer_sum", True),
    ("conv_pos_batch_norm", True),
)
WAV2VEC2 = Architecture(
    transcribe,
    encode=encode,
    heads=Heads(classes, token_classes),
    stacks=lambda c: alike(c.count("num_hidden_layers", 12)),
    shape=shape,
    refuses=REFUSED,
    zero3_stops="the weight norm of its positions under ZeRO-3 is not modelled",
)
ARCHITECTURES = {"wav2vec2": WAV2VEC2, "hubert": replace(WAV2VEC2, encode=encode_hubert)}
