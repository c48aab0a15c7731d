"""A generation by vLLM on the GPUs that train: weights on their way there, and what moves to the host meanwhile.

Mirrors trl 1.16 (generation/vllm_generation.py), which moves nothing, and ms-swift 4.6 (rlhf_trainers/rollout_mixin.py:
_fast_infer, offload_model, offload_optimizer). Weights of a vLLM that sleeps wake first, and get the model's; its KV
cache wakes when the model has moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from vramplan.analytic.rollout import swift_sync
from vramplan.analytic.rollout.colocated_sglang import sglang_awake, sglang_held
from vramplan.analytic.strategies import gathered_bytes
from vramplan.analytic.unfolded_step import Placed, Step
from vramplan.inputs.job import Job
from vramplan.memory import vllm
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, GiB, ceil_div

FLAT = ("flat weights that train", "own part of the weights that train")
"""Buffers of DeepSpeed that stay: the parameters are views of them, and only the parameters move."""
OF_TRL = ("chunked", "standard", "divided_in_place", "axolotl_log_probs", "liger")
"""Losses of TRL's own trainers. Those up to 1.10 send a server one weight at a time; the version is not known here."""
PACKING = 4, 5
"""CUDA streams in which weights are packed by turns, in memory that serves no other stream."""
PACKED_BYTES = GiB
"""Size of a buffer (vllm/distributed/weight_transfer/packed_tensor.py: DEFAULT_PACKED_BUFFER_SIZE_BYTES)."""
MASTERS = "fp32 cop"
"""How labels of DeepSpeed's fp32 weights begin, which are no optimizer state to it."""


def weight_bytes(step: Step) -> int:
    """Bytes of the whole model."""
    return sum(storage.num_bytes for one in step.placed for storage in one.storages())


def vllm_held(step: Step) -> list[Storage]:
    """What vLLM on the same GPUs holds all the time."""
    if step.job.verl.engine == "sglang":
        return sglang_held(step, vllm_weight_bytes(step.job, step.placed))
    return [vllm.asleep()] if vllm.sleeps(step.job) else vllm_awake(step)


def vllm_awake(step: Step) -> list[Storage]:
    """What it takes while it is awake; see :func:`vramplan.memory.vllm.awake`."""
    job = step.job
    if job.verl.engine == "sglang":
        return sglang_awake(step, vllm_weight_bytes(job, step.placed))
    return vllm.awake(job, step.card, vllm_weight_bytes(job, step.placed), job.vllm_weights == "shared")


def vllm_weight_bytes(job: Job, placed: Iterable[Placed]) -> int:
    """Bytes of vLLM's weights on each of its GPUs.

    vLLM loads fp32 files in half precision (vllm/config/model.py: _get_and_verify_dtype), and QLoRA's base in four bits
    (trl/generation/vllm_generation.py: _init_vllm).
    """
    own = [one for one in placed if not one.parameter.is_adapter]
    packed = sum(storage.num_bytes for one in own if one.parameter.stored for storage in one.storages())
    half = sum(prod(one.parameter.shape) for one in own if not one.parameter.stored) * DTYPE_BYTES["bf16"]
    return ceil_div(packed + half, job.vllm_tensor_parallel)


class VllmRollout:
    """The events of a generation; copies that it leaves behind are freed by the optimizer step."""

    name = "generation"
    needs = ("weights",)
    """What of the model is on the GPU meanwhile, of what may wait in host memory."""

    def __init__(self, step: Step) -> None:
        self.job = step.job
        self.gathered = Storage(_gathered_bytes(step), "communication", "weights gathered for generation")
        self.own = Storage(swift_sync.own_bytes(step), "communication", "own shares from the host")
        self.back = swift_sync.brought_back(step)
        self.joined = Storage(swift_sync.joined_bytes(step), "communication", "weights joined for vLLM's server")
        self.chunks = _packed(step) if packs_weights(self.job) else []
        self.holds = self.job.shards_weights and not self.gathers_all(self.job)
        """Whether weights that wait to be packed are gathered one by one, and not parts of the model."""
        self.delta = Storage(_delta_bytes(step), "temporary", "an adapter's matrices multiplied")
        *self.weights, self.rest = vllm_awake(step)
        self.others: list[Storage] = []
        """What else lives from its beginning to its end."""
        self.copies: list[int] = []
        """Weights that came back beside DeepSpeed's buffers, of which the next optimizer step makes them views."""

    def record(self, record: Recorder, known: dict[int, int]) -> None:
        """Add the events to a run."""
        record.enter(self.name)
        others = record.allocate_all(self.others)
        woken = []
        if vllm.sleeps(self.job):
            record.empty_cache()
            woken += [record.allocate(one) for one in self.weights]
        others_back = self.back[1]
        there = bool(others_back) and any(
            record.kinds[record.kind_of[number]] in others_back for number in _live(record)
        )
        own = [record.allocate(self.own)] if self.own.num_bytes and not there else []
        gathered = [record.allocate(self.gathered)] if self.gathered.num_bytes else []
        record.free_all(own)
        self._send(record)
        record.free_all(gathered)
        moved, kinds, copied = self._moved(record)
        record.free_all(moved)
        wakes = vllm.sleeps(self.job) and swift_sync.sends_by_swift(self.job)
        if self.job.rollout_offload != "none" or wakes:
            record.empty_cache()
        if vllm.sleeps(self.job):
            woken.append(record.allocate(self.rest))
            record.free_all(woken)
            record.empty_cache()
        record.allocate_all(kinds)
        self.copies = list(record.allocate_all(copied))
        record.free_all(others)

    def takes_as_much_as(self, other: VllmRollout) -> bool:
        """Whether another generation takes as much."""
        return all(
            getattr(self, name) == getattr(other, name)
            for name in ("gathered", "own", "back", "joined", "chunks", "holds", "delta", "weights", "rest", "others")
        )

    @staticmethod
    def gathers_all(job: Job) -> bool:
        """Whether adapters are merged with all weights gathered at once."""
        return job.strategy == "zero3" and job.method != "full"

    def _send(self, record: Recorder) -> None:
        """Merge adapters, hand the weights over, and take the adapters out again.

        A server gets copies in buffers, of which the one before is still on its way. The adapters are taken out when
        the next weight is asked for and there is none: before the last buffer is filled, or behind it if it is full.
        """
        before: list[int] = []
        self._merge(record)
        if self.joined.num_bytes:
            record.free(record.allocate(self.joined))
        for number, size in enumerate(self.chunks):
            if number == len(self.chunks) - 1 and size <= PACKED_BYTES:
                self._merge(record)
            waiting = Storage(size if self.holds else 0, "communication", "weights gathered to be packed")
            held = record.allocate(waiting)
            stream = PACKING[number % len(PACKING)]
            packed = record.allocate(Storage(size, "communication", "weights packed for vLLM's server", stream=stream))
            record.free_all([held, *before])
            before = [packed]
        if not self.chunks or self.chunks[-1] > PACKED_BYTES:
            self._merge(record)
        record.free_all(before)

    def _merge(self, record: Recorder) -> None:
        """The product of an adapter's matrices, and the same times its scale (peft 0.21: get_delta_weight)."""
        record.free_all(record.allocate_all([self.delta] * 2))

    def beside(self, storage: Storage) -> VllmRollout:
        """The generation with a storage that lives from its beginning to its end."""
        self.others.append(storage)
        return self

    def drop_copies(self, record: Recorder) -> None:
        """End of the optimizer step."""
        record.free_all(self.copies)
        self.copies = []

    def _moved(self, record: Recorder) -> tuple[list[int], list[Storage], list[Storage]]:
        """(Storages that move to the host, their kinds, buffers that stay but of which copies come back)."""
        offload = self.job.rollout_offload
        moved, copied = [*self.copies], []
        if offload == "none":
            return [], [], []
        kinds = []
        for number in _live(record):
            kind = record.kinds[record.kind_of[number]]
            weight = kind.category == "parameter" and offload in ("model", "all")
            state = kind.category == "optimizer_state" and offload in ("optimizer", "all")
            if number in self.copies or not (weight or state) or kind.label.startswith(MASTERS):
                continue
            if kind.label in FLAT:
                copied.append(replace(kind, label="weights that train, beside DeepSpeed's buffer"))
            else:
                moved.append(number)
                kinds.append(kind)
        trained, others = self.back
        return moved, kinds if others and others[0] in kinds else [*kinds, *others], [*copied, *trained]


def _live(record: Recorder) -> list[int]:
    """Numbers of the storages that are allocated now."""
    live: dict[int, None] = {}
    for event in record.events:
        if event >= 0:
            live[event] = None
        else:
            live.pop(~event, None)
    return list(live)


def packs_weights(job: Job) -> bool:
    """Whether weights go to a vLLM server in buffers (trl 1.11, generation/vllm_client.py: update_named_params)."""
    return job.generate_with == "vllm_server" and job.loss in OF_TRL


def _packed(step: Step) -> list[int]:
    """Bytes of each buffer: it ends with the weight that exceeds its size (vllm, packed_tensor.py: pack_tensors)."""
    sizes = [0]
    for one in step.placed:
        if one.parameter.is_adapter:
            continue
        if sizes[-1] > PACKED_BYTES:
            sizes.append(0)
        sizes[-1] += sent_bytes(one, step.job)
    return sizes


def _delta_bytes(step: Step) -> int:
    """Bytes of the largest product of an adapter's matrices; under FSDP each GPU makes its rows of it alone."""
    job = step.job
    if job.method == "full" or job.strategy == "fsdp" or job.loss not in OF_TRL:
        return 0
    outs = {one.parameter.name.partition(".lora_B")[0]: one for one in step.placed if ".lora_B." in one.parameter.name}
    ins = {one.parameter.name.partition(".lora_A")[0]: one for one in step.placed if ".lora_A." in one.parameter.name}
    sizes = (outs[name].parameter.shape[0] * ins[name].parameter.shape[-1] for name in outs.keys() & ins.keys())
    return max(sizes, default=0) * DTYPE_BYTES[job.dtype if job.engine_casts else job.lora_dtype]


def sent_bytes(one: Placed, job: Job) -> int:
    """Bytes of a weight as it is stored, which FSDP's mixed precision does not cast for vLLM."""
    if one.parameter.stored:
        return one.storages()[0].num_bytes
    stored = job.dtype if one.parameter.trains and job.strategy == "fsdp" else one.parameter.dtype
    return prod(one.parameter.shape) * DTYPE_BYTES[stored]


def _gathered_bytes(step: Step) -> int:
    """Bytes of sharded weights on their way to vLLM, as TRL and ms-swift gather them; 0 if none are.

    TRL gathers all at once to merge adapters under ZeRO-3, else one after another (_iter_named_params). ms-swift
    gathers all under ZeRO-3, adapters or not, or one of several parts (split_batches).
    """
    job = step.job
    if not job.shards_weights:
        return 0
    if job.strategy == "zero3" and swift_sync.sends_by_swift(job):
        return swift_sync.gathered_at_once(step)
    if VllmRollout.gathers_all(job):
        return weight_bytes(step)
    if job.loss not in OF_TRL:
        return gathered_bytes(step)
    return 0 if packs_weights(job) else max(sent_bytes(one, job) for one in step.placed)
