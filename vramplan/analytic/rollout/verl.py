"""verl's generation by vLLM or SGLang on the GPUs that train, and the weights on their way there."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from vramplan.analytic.rollout.colocated_sglang import sent_bucket
from vramplan.analytic.rollout.colocated_vllm import vllm_awake, weight_bytes
from vramplan.analytic.rollout.phase import RolloutPhase
from vramplan.analytic.rollout.verl_sync import bucket_of, sent_by_fsdp2, whole_weights
from vramplan.analytic.strategies import gathered_bytes
from vramplan.analytic.unfolded_step import Step
from vramplan.memory import vllm
from vramplan.memory.timeline import EMPTY_CACHE, Storage
from vramplan.units import DTYPE_BYTES, ceil_div


def verl_generation(step: Step) -> Iterator[RolloutPhase]:
    """A generation by verl's vLLM or SGLang: what it took goes back to the driver when it sleeps."""
    if vllm.sleeps(step.job):
        yield RolloutPhase("generation", [EMPTY_CACHE], array("i", [0]), array("i", [0, ~0]))
    yield _sent_by_verl(step)
    if vllm.sleeps(step.job):
        kinds = [*vllm_awake(step), EMPTY_CACHE]
        last = len(kinds) - 1
        taken = [*range(last), *(~number for number in range(last)), last, ~last]
        yield RolloutPhase("generation", kinds, array("i", range(len(kinds))), array("i", taken), needs=())


def _sent_by_verl(step: Step) -> RolloutPhase:
    """The weights on their way to vLLM, gathered in their stored dtype (verl 0.9.1).

    Of all weights a sharded state dict, which copies the own parts (torch 2.13, distributed/fsdp/_shard_utils.py:
    _create_chunk_dtensor), then one whole weight at a time beside the bucket; of adapters what is gathered to take them
    out (workers/engine/fsdp/transformer_impl.py: get_per_tensor_param; utils/fsdp_utils.py: collect_lora_params).
    """
    job, needs = step.job, RolloutPhase._field_defaults["needs"]
    factor = DTYPE_BYTES[job.dtype] // DTYPE_BYTES[job.computed_dtype or job.dtype]
    whole, layer = factor * weight_bytes(step), factor * gathered_bytes(step)
    alone = job.num_gpus == 1  # a full state dict, which clones; nothing is gathered (_state_dict_utils.py)
    layer = 0 if alone else layer
    bucket = sent_bucket(step) if job.verl.engine == "sglang" else bucket_of(step)
    awake = vllm_awake(step)[:1] if vllm.sleeps(job) else []
    if job.fsdp.version == 2:
        kinds, events, needs = sent_by_fsdp2(step, bucket)
    elif job.method == "full":
        gathered = Storage(layer, "communication", "weights gathered for a state dict")
        own = Storage(ceil_div(whole, job.num_gpus // job.fsdp.replicas), "communication", "state dict: own parts")
        kinds = [gathered, own, bucket, *whole_weights(step)]
        sent = range(2, len(kinds))
        events = [0, 1, ~0, *sent, *(~number for number in sent), ~1]
    else:
        by_layer = job.verl.layered_summon or alone
        taken = [Storage(layer if by_layer else whole, "communication", "weights gathered to take adapters out")]
        taken += [] if by_layer else _copied_of_layers(step)
        kinds, numbers = [*taken, bucket], range(len(taken))
        events = [*numbers, *(~number for number in numbers), len(taken), ~len(taken)]
    number = len(kinds)
    events = [number, *events, ~number] if awake else events
    kinds = [*kinds, *awake, EMPTY_CACHE]
    last = len(kinds) - 1
    return RolloutPhase("generation", kinds, array("i", range(len(kinds))), array("i", [*events, last, ~last]), needs)


def _copied_of_layers(step: Step) -> list[Storage]:
    """What a state dict of all layers copies while adapters are taken out: own parts, and one weight whole at a time.

    The state dict is that of PEFT's model, inside of the root, whose weights are not copied (utils/fsdp_utils.py:
    collect_lora_params; peft, get_peft_model_state_dict).
    """
    job = step.job
    sizes = [one.parameter.num_elements * DTYPE_BYTES[job.dtype] for one in step.placed if one.layer is not None]
    own = ceil_div(sum(sizes), job.num_gpus // job.fsdp.replicas)
    return [
        Storage(own, "communication", "state dict: own parts of layers"),
        Storage(max(sizes, default=0), "communication", "state dict: a whole weight"),
    ]
