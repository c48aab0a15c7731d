"""verl's critic on a micro-batch: a value for each token, and the clipped squared error of PPO.

Mirrors verl 0.7.1 (workers/critic/dp_critic.py: _forward_micro_batch; trainer/ppo/core_algos.py: compute_value_loss)
and 0.9.1 (workers/engine/fsdp/transformer_impl.py: FSDPEngineWithValueHead). The model is transformers'
<Model>ForTokenClassification with one label and without dropout (utils/model.py: load_valuehead_model).
"""

from __future__ import annotations

from vramplan.analytic.autograd import ops
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.batch import Batch, forward_pass
from vramplan.analytic.layers.modules import Modules
from vramplan.analytic.layers.sequence_parallel import of_all_tokens
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.tasks.encoded import encoded


def compute_loss(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """``compute_value_loss`` of a micro-batch."""
    tape = net.tape
    values, output = _values(net, setting, phase, batch)
    tape.module = "loss"
    shape = values.shape
    before, returns = (tape.empty(shape, "fp32", name) for name in ("values before", "returns"))
    clipped = ops.clamp(values)
    squares = [ops.square(ops.subtract(one, returns)) for one in (values, clipped)]
    loss = ops.scale(ops.total(ops.least(*squares)))
    del clipped, squares, before, returns, values, output  # the output is named until the forward returns
    return loss


def score(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> Tensor:
    """Values without gradients."""
    return _values(net, setting, phase, batch)[0]


def _values(net: Modules, setting: StepSpec, phase: str, batch: Batch) -> tuple[Tensor, Tensor]:
    """The values, padded, and the model's output."""
    job = setting.job
    with net.tape.autocasting(job.forward_autocast):
        forward = forward_pass(net, setting, phase, batch)
        hidden = encoded(forward, setting.config)
        output = net.linear("score", hidden, 1, True, head=True)
        del hidden
    net.tape.module = "loss"
    whole = batch.inputs["input_ids"].num_elements
    flat = of_all_tokens(output.view(output.num_elements), job.verl.sequence_parallel, whole)
    return flat if job.batches == "padded" else ops.copy(flat, "values, padded"), output
