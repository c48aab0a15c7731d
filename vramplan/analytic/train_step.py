"""One training step recorded on the tape: forward, loss, backward, in the order of a training loop."""

from __future__ import annotations

from dataclasses import replace

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import LayerSection, Tensor
from vramplan.analytic.autograd.saved_tensors import OffloadedTensors
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.batch import Batch, as_handed, forward_pass, make_batch
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.second_micro_step import WaitingBatches
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import StepRecord, record_of
from vramplan.analytic.tasks import compute_loss_of, finish_of, forward_of, score_of
from vramplan.inputs.job import Job
from vramplan.inputs.task_rules import drops_nothing


def new_modules(setting: StepSpec) -> Modules:
    """The modules of a step on an empty tape."""
    net = Modules(Tape(), setting.training(), setting.liger, setting.reference_liger)
    job = setting.job
    net.tape.reentrant = job.reentrant
    net.norms_in_fp32 = net.of_torchtune = job.layers_of == "torchtune"
    if job.offloads_activations:
        net.tape.saves = OffloadedTensors(net.tape)
    net.tape.drops = not drops_nothing(job)
    net.tape.holds_leaves = job.strategy == "fsdp" and job.fsdp.checkpoint_wraps_fsdp and job.method != "full"
    return net


def declare(setting: StepSpec) -> Modules:
    """The parameters of a model, from a forward of one token; a vision-language model also gets an image."""
    one = {"images": 1, "sequence_length": 1, "prompt_length": None}
    setting = replace(setting, job=setting.job.model_copy(update=one))
    net = new_modules(setting)
    with net.tape.no_grad():
        run_forward(net, setting, "declare", make_batch(net.tape, setting, "declare", 1))
    return net


def may_repeat(job: Job) -> bool:
    """Whether a further micro-step may repeat the operations of the first.

    A plain loop makes a batch for each, DeepSpeed's last one drops its graph behind the step, Liger's losses of DPO and
    GRPO multiply their gradients only if there are several, and TRL's PPO holds what the one before it left.
    """
    scales = job.task is not None and job.loss in ("liger", "liger_logits_to_keep")
    caches = job.task == "embedding" and job.embedding_loss == "cached_multiple_negatives"
    carries = caches or job.value_model is not None
    return job.loop == "trainer" and not carries and not scales and not job.strategy.startswith("zero")


def hooks_take_gradients(job: Job, is_last: bool) -> bool:
    """Whether hooks take each gradient as backward produces it, in a step's last micro-batch or before.

    They are DeepSpeed's, or those of an optimizer in backward. At stage 1 they do if reduction overlaps, and only in
    the last (0.19, runtime/zero/stage_1_and_2.py: process_gradients, reduce_ready_partitions_and_remove_grads).
    """
    if job.strategy in ("zero2", "zero3") or (job.optimizer_in_backward and job.strategy == "ddp"):
        return True
    return job.strategy == "zero1" and job.zero.overlap_comm and is_last


def simulate_step(setting: StepSpec, micro_steps: int) -> StepRecord:
    """The record of forward and backward of `micro_steps` micro-batches.

    Phases are named ``forward.N`` and ``backward.N``; gradients stay on the parameters from one to the next. Tensors
    that the loop itself drops last (the batch; in a plain loop the loss and the graph behind it) are freed in the
    section ``end``; so is the graph if DeepSpeed steps, inside of backward (accelerate 1.15, utils/deepspeed.py).
    """
    net = new_modules(setting)
    tape, job = net.tape, setting.job
    tape.keeps_inputs = job.strategy == "zero3"
    loss: Tensor | None = None
    batch: Batch | None = None
    waiting = range(0)
    for number in range(micro_steps):
        phase = f"forward.{number}"
        tape.enter(phase, None)
        tape.gives_gradients = hooks_take_gradients(job, number == micro_steps - 1)
        if job.runs_openrlhf:  # the locals of its training_step, which has returned
            loss = None
            net.loop_locals.clear()
        if batch is None or job.loop == "plain":
            batch = make_batch(tape, setting, phase, job.micro_batch_size, job.gradient_accumulation_steps)
            if batch.waiting:
                waiting = range(len(tape.storages) - len(batch.waiting), len(tape.storages))
        tape.module = "inputs"  # a further micro-step's forward begins where the backward before it ended
        loss = run_forward(net, setting, phase, batch)
        tape.backward(f"backward.{number}", loss)
        net.outputs.clear()
        steps_inside = job.strategy.startswith("zero") and number == micro_steps - 1
        if job.loop == "trainer" and not steps_inside:  # training_step returns loss.detach(): the graph goes at once
            loss = None
        # verl's forward_backward_batch has returned before the optimizer's step (0.9.1, workers/engine/fsdp)
        if job.runs_verl and job.verl.logits != "in_place" and number == micro_steps - 1:
            loss = None
    tape.enter("end", None)
    finish = finish_of(job)
    if finish is not None:
        finish(net)
    net.loop_locals.clear()
    del loss, batch
    tape.sections.append(LayerSection("over", None, len(tape.events), len(tape.storages), len(tape.kernels)))
    if setting.vision is not None and not setting.has_images:  # the tower is loaded all the same
        for key, parameter in declare(setting).tape.parameters.items():
            tape.parameters.setdefault(key, parameter)
    repeats = micro_steps == 1 and may_repeat(job) and not tape.repeated.is_used
    weights = list(tape.parameters.values())
    embedded = next((number for number, weight in enumerate(weights) if weight is net.embedded), None)
    return record_of(tape)._replace(
        embedded=embedded,
        widths=net.widths,
        layers_without_input_grad=frozenset(net.layers_without_input_grad),
        idle=frozenset(net.idle),
        routers=frozenset(net.routers),
        waiting=waiting,
        taken=tuple(tape.taken) if repeats else None,
    )


def waiting_batches(setting: StepSpec) -> WaitingBatches:
    """The batches that wait, as :func:`simulate_step` makes and drops them."""
    tape, job = Tape(), setting.job
    batch = make_batch(tape, setting, "forward.0", job.micro_batch_size, job.gradient_accumulation_steps)
    ids = [tensor.storage.id for tensor in batch.waiting]  # type: ignore[union-attr]
    storages, num_events = [tape.storages[id] for id in ids], len(tape.events)
    del batch
    return WaitingBatches(storages, tape.events[num_events:], tape.kept.issuperset(ids))


def simulate_evaluation(setting: StepSpec) -> StepRecord:
    """The record of a forward without gradients at the same batch."""
    net = new_modules(setting)
    tape, job = net.tape, setting.job
    tape.training = False
    with tape.no_grad():
        batch = make_batch(tape, setting, "eval", job.micro_batch_size)
        loss = run_forward(net, setting, "eval", batch)
    tape.enter("end", None)
    del loss, batch
    return record_of(tape)


def simulate_scoring(setting: StepSpec, steps: int) -> StepRecord:
    """The record of what GRPO scores without gradients: the log-probabilities of a micro-batch of completions.

    The others of the `steps` micro-batches of a generation wait on the device. Where a second model scores too, it is
    that one's, whose layers Liger leaves.
    """
    net = new_modules(replace(setting, job=setting.job.model_copy(update={"checkpointing": "none"})))
    net.liger = net.reference_liger
    if net.training.reference_adapters:
        net.training = replace(net.training, adapter_dtype=net.training.reference_adapters)
    tape, job = net.tape, setting.job
    with tape.no_grad():
        batch = make_batch(tape, setting, "scoring", job.micro_batch_size, steps)
        scores = score_of(job)(net, setting, "scoring", batch)
    tape.enter("end", None)
    del scores, batch
    return record_of(tape)


def run_forward(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``model(input_ids, labels=labels).loss`` under the job's autocast; accelerate converts the outputs to fp32.

    They come back to the GPU that the inputs lie on (accelerate's AlignDevicesHook: io_same_device).
    """
    job = setting.job
    batch = as_handed(net.tape, job, batch)
    compute_loss = compute_loss_of(job)
    if compute_loss is not None:
        return compute_loss(net, setting, phase, batch)
    with net.tape.autocasting(job.forward_autocast):
        forward = forward_pass(net, setting, phase, batch)
        loss, results = forward_of(setting)(forward, setting.config)
        loss, results = ops.move(loss, 0), [ops.move(one, 0, "logits on the first card") for one in results]
    if job.loop == "trainer" and job.casts:
        outputs = results + net.features
        converted = [ops.to(one, "fp32", "outputs converted to fp32 (accelerate)") for one in outputs]
        for held in (results, outputs, converted):
            held.reverse()  # a list is emptied from its end, the outputs from their first
        del held, results, outputs, converted
    if job.keeps_outputs and net.tape.training:
        net.outputs += [*results, *net.cache]
    net.features.clear()
    net.cache.clear()
    return loss
