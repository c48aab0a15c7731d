"""One training step played on the tape: forward, loss, backward, as a training loop runs them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import NamedTuple

from vramplan.analytic import losses, ops
from vramplan.analytic.attention import causal_mask
from vramplan.analytic.blocks import Context, Crossing, Kind
from vramplan.analytic.device_map import Spread
from vramplan.analytic.families import Family
from vramplan.analytic.net import Net, Training
from vramplan.analytic.scene import Scene
from vramplan.analytic.tape import Tape
from vramplan.analytic.tensors import Section, Tensor
from vramplan.analytic.vision import Seen, see
from vramplan.feeds import Input
from vramplan.job import Job
from vramplan.spec import Config


@dataclass(frozen=True, slots=True)
class Setting:
    """What to play: a family with its configuration, and a job."""

    family: Family
    config: Config
    job: Job
    kinds: tuple[Kind, ...]
    """The layers to play, which may be fewer than the model has."""
    flash_fits: bool
    """Whether the card runs SDPA's flash kernel (compute capability 8.0)."""
    seen: Seen | None = None
    """How it sees, where it does."""
    stacked: str = ""
    """How PEFT adapts its experts (:mod:`vramplan.analytic.stacks`)."""
    stacks: tuple[tuple[Hashable, ...], ...] = ()
    """The layers to play of each stack, where it is no causal language model."""
    inputs: tuple[Input, ...] = ()
    """And what it takes."""
    spread_over: Spread | None = None
    """The cards that it is spread over, where these are several."""

    @property
    def spread(self) -> Spread:
        """Where everything lies: on one card, but for a model that is spread over several."""
        return self.spread_over or Spread(tuple((number, 0) for number in range(len(self.kinds))))

    @property
    def looks(self) -> bool:
        """Whether there is an image or a video in the batch."""
        return self.seen is not None and self.job.pictures > 0

    def training(self) -> Training:
        """Which weights there are and which train."""
        job = self.job
        lora = job.method != "full"
        used = job.dtype if job.engine_casts else job.computed_dtype
        # what all weights are used in, however they are stored
        return Training(
            dtype=used or ("fp32" if job.kbit else job.dtype),
            fp32_norms=job.fp32_norms and used is None and job.strategy != "zero3",  # there it reaches no part of them
            full=not lora,
            lora_rank=job.lora_rank if lora else 0,
            lora_targets=job.lora_targets,
            lora_dropout=job.lora_dropout,
            adapter_dtype=used or job.lora_dtype,
            adapter_input=job.lora_dtype if job.computed_dtype and job.fsdp.version == 1 else None,
            dora=job.method == "dora",
            modules_to_save=job.modules_to_save or (),
            saved_dtype=used or job.saved_dtype,
            quantize="nf4-double" if job.quantize == "nf4" and job.double_quant else job.quantize,
            stacks=self.stacked,
            compute_dtype=job.dtype,
            input_needs_grad=job.checkpointing == "full",  # modeling_utils.py: activation_checkpointing_enable
        )


def new_net(setting: Setting) -> Net:
    """An empty tape with the setting's layers on it."""
    net = Net(Tape(), setting.training())
    job = setting.job
    net.tape.reentrant = job.reentrant
    net.tape.holds_leaves = job.strategy == "fsdp" and job.fsdp.checkpoint_outside and job.method != "full"
    return net


def declare(setting: Setting) -> Net:
    """Play one forward for the sake of its parameters alone; a model that sees is shown an image."""
    setting = replace(setting, job=setting.job.model_copy(update={"images": 1}))
    net = new_net(setting)
    with net.tape.no_grad():
        run_forward(net, setting, "declare", make_batch(net.tape, setting, "declare", 1, 1))
    return net


def play(setting: Setting, micro_steps: int) -> Net:
    """Forward and backward of `micro_steps` micro-batches.

    Phases are named ``forward.N`` and ``backward.N``; gradients stay on the parameters from one to the next. What the
    loop itself drops last (the batch; in a plain loop the loss and the graph behind it) goes in the section ``end``.
    So does the graph where DeepSpeed steps: inside of backward (accelerate 1.15, utils/deepspeed.py).
    """
    net = new_net(setting)
    tape, job = net.tape, setting.job
    tape.gives_gradients = job.strategy in ("zero2", "zero3")
    tape.keeps_inputs = job.strategy == "zero3"
    loss: Tensor | None = None
    batch: Batch | None = None
    for number in range(micro_steps):
        phase = f"forward.{number}"
        tape.enter(phase, None)
        if batch is None or job.loop == "plain":
            batch = make_batch(
                tape, setting, phase, job.micro_batch_size, job.sequence_length, job.gradient_accumulation_steps
            )
        loss = run_forward(net, setting, phase, batch)
        tape.backward(f"backward.{number}", loss)
        steps_inside = job.strategy.startswith("zero") and number == micro_steps - 1
        if job.loop == "trainer" and not steps_inside:  # training_step returns loss.detach(): the graph goes at once
            loss = None
    tape.enter("end", None)
    del loss, batch
    tape.sections.append(Section("over", None, len(tape.events), len(tape.storages), len(tape.kernels)))
    return net


def play_evaluation(setting: Setting) -> Tape:
    """A forward without gradients at the same batch."""
    net = new_net(setting)
    tape, job = net.tape, setting.job
    tape.training = False
    with tape.no_grad():
        batch = make_batch(tape, setting, "eval", job.micro_batch_size, job.sequence_length)
        loss = run_forward(net, setting, "eval", batch)
    tape.enter("end", None)
    del loss, batch
    return tape


class Batch(NamedTuple):
    """What is on the device before a forward."""

    ids: Tensor
    labels: Tensor
    pixels: Tensor | None
    others: list[Tensor]
    named: dict[str, Tensor] | None = None
    """All of it, where the model is no causal language model."""


def make_batch(tape: Tape, setting: Setting, phase: str, batch: int, length: int, steps: int = 1) -> Batch:
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


def named_batch(tape: Tape, setting: Setting, batch: int, steps: int) -> Batch:
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


def image_inputs(tape: Tape, seen: Seen, samples: int, images: int, length: int) -> list[Tensor]:
    """What the images of so many samples take on the device; pixels first."""
    return [
        tape.empty(one.batched(samples, images, length), one.dtype, one.name.replace("_", " "), "activation")
        for one in seen.picture.tensors
    ]


def run_forward(net: Net, setting: Setting, phase: str, batch: Batch) -> Tensor:
    """``model(input_ids, labels=labels).loss`` under the job's autocast; accelerate converts the outputs to fp32.

    They come back to the card that the inputs lie on (accelerate's AlignDevicesHook: io_same_device).
    """
    job = setting.job
    batch = as_handed(net.tape, job, batch)
    with net.tape.autocasting(job.autocast if job.casts else None):
        loss, given = forward(net, setting, phase, batch)
        loss, given = ops.move(loss, 0), [ops.move(one, 0, "logits on the first card") for one in given]
    if job.loop == "trainer" and job.casts:
        outputs = given + net.features
        converted = [ops.to(one, "fp32", "outputs converted to fp32 (accelerate)") for one in outputs]
        del given, outputs, converted
    net.features.clear()
    net.cache.clear()
    return loss


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


def forward(net: Net, setting: Setting, phase: str, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """The loss, and the outputs beside it."""
    model = setting.family.model
    if model is not None:
        scene = Scene(net, setting.job, setting.flash_fits, phase, setting.stacks, batch.named or {})
        return model.forward(scene, setting.config)
    loss, logits = causal_lm(net, setting, phase, batch)
    return loss, [] if logits is None else [logits]


def causal_lm(net: Net, setting: Setting, phase: str, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """LlamaForCausalLM.forward: the model, the head, the loss; the logits are among the outputs."""
    tape, job, c = net.tape, setting.job, setting.config
    family, spread = setting.family, setting.spread
    with tape.on(spread.norm):
        hidden = family.before_head(net, c, model(net, setting, phase, batch))
    vocabulary, tied = family.shape(c).vocabulary, family.is_tied(c)
    fused = losses.FUSED.get(job.loss)
    if fused is not None:
        with tape.on(spread.head):
            return fused(hidden, net.head_weight(vocabulary, hidden.shape[-1], tied), batch.labels), None
    if job.loss == "sections":

        def head(part: Tensor) -> Tensor:
            return family.after_head(net, c, net.head(part, vocabulary, tied, family.head_bias))

        return losses.sectioned_cross_entropy(hidden, batch.labels, head), None
    with tape.on(spread.head):
        logits = family.after_head(net, c, net.head(ops.move(hidden, spread.head), vocabulary, tied, family.head_bias))
        tape.module = "loss"
        return causal_loss(logits) if job.loss == "standard" else sliced_loss(logits), logits


def causal_loss(logits: Tensor) -> Tensor:
    """ForCausalLMLoss: logits in fp32, labels shifted, all rows through cross-entropy (loss/loss_utils.py)."""
    tape, (batch, length, vocabulary) = logits.tape, logits.shape
    logits = ops.to(logits, "fp32", "logits in fp32").view(batch * length, vocabulary)
    labels = losses.shifted_labels(tape, batch, length)
    return losses.cross_entropy(logits, labels[-1])


def sliced_loss(logits: Tensor) -> Tensor:
    """The same before transformers 4.49."""
    return losses.sliced_cross_entropy(ops.to(logits, "fp32", "logits in fp32"))


def model(net: Net, setting: Setting, phase: str, batch: Batch) -> Tensor:
    """LlamaModel.forward: embedding, layers, final norm. The embeddings live to the end of the function."""
    tape, family, c = net.tape, setting.family, setting.config
    spread = setting.spread
    crossing = across_images(net, setting, phase, batch)
    with tape.on(spread.embed):
        x = family.embed(net, c, ops.move(batch.ids, spread.embed))
    if setting.looks and crossing is None:
        x = with_images(net, setting, phase, batch, x)
    held, net.held = net.held or [x], []
    with tape.on(spread.embed):
        ctx = context(net, setting, x, batch)
    ctx.crossing = crossing
    checkpointed = setting.job.checkpointing == "full"
    for (number, card), kind in zip(spread.layers, setting.kinds, strict=True):
        if kind.crosses and crossing is None:
            continue
        net.enter_layer(phase, number, x)
        own, given = ctx.of(kind).on(card), ops.move(x, card, "hidden state on the next card")

        def layer(x: Tensor, own: Context = own, kind: Kind = kind) -> Tensor | tuple[Tensor, ...]:
            return family.layer(net, c, x, own, kind)

        with tape.on(card):
            outputs = tape.checkpoint(layer, given) if checkpointed else layer(given)
        del layer, own, given
        x = outputs[0] if isinstance(outputs, tuple) else outputs  # a tuple lives until the next layer's is there
        if number < len(net.deep):
            x = ops.add_rows(x, net.deep[number])
    tape.enter(phase, None)
    if family.norm is not None and not skips_final_norm(c):
        with tape.on(spread.norm):
            x = family.norm(net, family.norm_name, ops.move(x, spread.norm))
    del held
    net.outer.clear()
    net.deep.clear()
    return x


def across_images(net: Net, setting: Setting, phase: str, batch: Batch) -> Crossing | None:
    """Images for layers that attend to them; None where there are none, or they go into the text."""
    if not setting.looks or setting.seen is None or setting.seen.sight.across is None:
        return None
    assert batch.pixels is not None
    features, seen = see(net, setting.seen, setting.job, setting.flash_fits, phase, batch.pixels)
    found = setting.seen.sight.across(net, setting.job, batch.ids.shape, features)
    net.outer += [seen, features, found.mask, found.rows]
    return found


def with_images(net: Net, setting: Setting, phase: str, batch: Batch, x: Tensor) -> Tensor:
    """The embeddings of image tokens replaced by the features of the images (LlavaModel.forward)."""
    assert setting.seen is not None
    assert batch.pixels is not None
    features, seen = see(net, setting.seen, setting.job, setting.flash_fits, phase, batch.pixels)
    net.tape.module = "inputs"
    features = ops.to(features, x.dtype)
    mask = net.tape.empty((*batch.ids.shape, 1), "bool", "where image tokens are")
    if setting.seen.sight.returns_features:
        net.features.append(features)
    net.outer += [seen, mask, features, *net.deep]
    x = ops.scatter_rows(x, mask, features)
    net.deep[:] = [ops.copy(ops.pieces(one), "DeepStack features of all images") for one in net.deep]
    return x


def skips_final_norm(c: Config) -> bool:
    """opt-350m norms after each branch and has no final norm (modeling_opt.py)."""
    return c.get("do_layer_norm_before") is False


def context(net: Net, setting: Setting, x: Tensor, given: Batch) -> Context:
    """Rotary tables and masks, which all layers share; masks are in the dtype of the token embeddings."""
    tape, job, family, c = net.tape, setting.job, setting.family, setting.config
    batch, length, _ = x.shape
    tape.module = "inputs"
    dtype = net.embedded_dtype
    ctx = Context(job.attention, setting.flash_fits, padded=job.batches == "padded")
    ctx.attention_dropout = c.number(*family.attention_dropout)
    if (
        setting.seen is not None
        and setting.seen.sight.fills_cache
        and not (tape.training and job.checkpointing == "full")
    ):
        ctx.cache = net.cache  # the Trainer switches use_cache off in the outer configuration alone
    packed = job.batches == "packed"
    ctx.positions = given.others[0] if packed else tape.empty((1, length), "int64", "position ids")
    slides = sorted({kind.sliding for kind in setting.kinds})
    rotary = family.rotary(c)
    if rotary is not None:
        card = setting.spread.rotary
        taken = ops.move(x, card), None if ctx.positions is None else ops.move(ctx.positions, card)
        rows = batch if job.batches == "packed" or rotary.per_row else 1
        for sliding in slides:
            if ctx.cos and not rotary.per_kind:
                ctx.cos[sliding], ctx.sin[sliding] = next(iter(ctx.cos.values())), next(iter(ctx.sin.values()))
                continue
            with tape.on(card):
                tables = [
                    tape.empty((rows, length, 1, rotary.dim), "fp32" if rotary.fp32 else x.dtype, f"rotary {name}")
                    for name in ("cos", "sin")
                ]
            ctx.cos[sliding], ctx.sin[sliding] = tables
        del taken
    for sliding in slides:
        ctx.masks[sliding] = mask(tape, setting, x, sliding, dtype)
    return ctx


def mask(tape: Tape, setting: Setting, x: Tensor, sliding: bool, dtype: str) -> Tensor | None:
    """The mask that transformers builds for a kind of layer, or None (masking_utils.py)."""
    job, (batch, length, _) = setting.job, x.shape
    if job.attention == "flash":
        return None
    if job.attention == "eager":
        return causal_mask(tape, batch, length, dtype)
    window = setting.family.window(setting.config) if sliding else None
    if job.batches != "unpadded" or (setting.looks and setting.seen and setting.seen.sight.masks_text):
        return causal_mask(tape, batch, length, "bool")
    if window is not None and length >= window and job.loop == "trainer":
        return causal_mask(tape, batch, length, "bool")  # the collator's mask of ones is in it
    if setting.family.always_masked or (window is not None and length >= window):
        shared = tape.empty((1, 1, length, length), "bool", "causal mask")
        return Tensor(tape, shared.storage, (batch, 1, length, length), "bool")
    return None
