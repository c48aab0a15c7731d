"""One training step played on the tape: forward, loss, backward, as a training loop runs them."""

from __future__ import annotations

from dataclasses import replace

from vramplan.analytic.architectures.encoder import ForwardPass
from vramplan.analytic.architectures.towers import see
from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import LayerSection, Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.batch import Batch, as_handed, make_batch
from vramplan.analytic.layers import losses
from vramplan.analytic.layers.attention_kernels import causal_mask
from vramplan.analytic.layers.context import Context, CrossAttentionInput, LayerKind
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.step_inputs import StepSpec
from vramplan.inputs.model_spec import Config


def new_net(setting: StepSpec) -> Modules:
    """An empty tape with the setting's layers on it."""
    net = Modules(Tape(), setting.training())
    job = setting.job
    net.tape.reentrant = job.reentrant
    net.tape.holds_leaves = job.strategy == "fsdp" and job.fsdp.checkpoint_wraps_fsdp and job.method != "full"
    return net


def declare(setting: StepSpec) -> Modules:
    """Play one forward for the sake of its parameters alone; a model that sees is shown an image."""
    setting = replace(setting, job=setting.job.model_copy(update={"images": 1}))
    net = new_net(setting)
    with net.tape.no_grad():
        run_forward(net, setting, "declare", make_batch(net.tape, setting, "declare", 1, 1))
    return net


def play(setting: StepSpec, micro_steps: int) -> Modules:
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
    tape.sections.append(LayerSection("over", None, len(tape.events), len(tape.storages), len(tape.kernels)))
    return net


def play_evaluation(setting: StepSpec) -> Tape:
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


def run_forward(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
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


def forward(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """The loss, and the outputs beside it."""
    model = setting.family.model
    if model is not None:
        scene = ForwardPass(net, setting.job, setting.flash_fits, phase, setting.stacks, batch.named or {})
        return model.forward(scene, setting.config)
    loss, logits = causal_lm(net, setting, phase, batch)
    return loss, [] if logits is None else [logits]


def causal_lm(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> tuple[Tensor, Tensor | None]:
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


def model(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """LlamaModel.forward: embedding, layers, final norm. The embeddings live to the end of the function."""
    tape, family, c = net.tape, setting.family, setting.config
    spread = setting.spread
    crossing = across_images(net, setting, phase, batch)
    with tape.on(spread.embed):
        x = family.embed(net, c, ops.move(batch.ids, spread.embed))
    if setting.looks and crossing is None:
        x = with_images(net, setting, phase, batch, x)
    held, net.embedding_locals = net.embedding_locals or [x], []
    with tape.on(spread.embed):
        ctx = context(net, setting, x, batch)
    ctx.crossing = crossing
    checkpointed = setting.job.checkpointing == "full"
    for (number, card), kind in zip(spread.layers, setting.kinds, strict=True):
        if kind.crosses and crossing is None:
            continue
        net.enter_layer(phase, number, x)
        own, given = ctx.of(kind).on(card), ops.move(x, card, "hidden state on the next card")

        def layer(x: Tensor, own: Context = own, kind: LayerKind = kind) -> Tensor | tuple[Tensor, ...]:
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
    net.multimodal_locals.clear()
    net.deep.clear()
    return x


def across_images(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> CrossAttentionInput | None:
    """Images for layers that attend to them; None where there are none, or they go into the text."""
    if not setting.looks or setting.seen is None or setting.seen.sight.across is None:
        return None
    assert batch.pixels is not None
    features, seen = see(net, setting.seen, setting.job, setting.flash_fits, phase, batch.pixels)
    found = setting.seen.sight.across(net, setting.job, batch.ids.shape, features)
    net.multimodal_locals += [seen, features, found.mask, found.rows]
    return found


def with_images(net: Modules, setting: StepSpec, phase: str, batch: Batch, x: Tensor) -> Tensor:
    """The embeddings of image tokens replaced by the features of the images (LlavaModel.forward)."""
    assert setting.seen is not None
    assert batch.pixels is not None
    features, seen = see(net, setting.seen, setting.job, setting.flash_fits, phase, batch.pixels)
    net.tape.module = "inputs"
    features = ops.to(features, x.dtype)
    mask = net.tape.empty((*batch.ids.shape, 1), "bool", "where image tokens are")
    if setting.seen.sight.returns_features:
        net.features.append(features)
    net.multimodal_locals += [seen, mask, features, *net.deep]
    x = ops.scatter_rows(x, mask, features)
    net.deep[:] = [ops.copy(ops.pieces(one), "DeepStack features of all images") for one in net.deep]
    return x


def skips_final_norm(c: Config) -> bool:
    """opt-350m norms after each branch and has no final norm (modeling_opt.py)."""
    return c.get("do_layer_norm_before") is False


def context(net: Modules, setting: StepSpec, x: Tensor, given: Batch) -> Context:
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


def mask(tape: Tape, setting: StepSpec, x: Tensor, sliding: bool, dtype: str) -> Tensor | None:
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
