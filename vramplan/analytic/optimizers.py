"""Optimizers: what state they keep for each weight, and what they hold while they step.

Names are transformers' (`--optim`). The order of allocations is that of torch 2.13's optim/*.py, transformers 5.23's
Adafactor (optimization.py) and bitsandbytes 0.50's optimizer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

from vramplan.analytic.autograd.recorder import Recorder
from vramplan.errors import UnknownNameError, UnsupportedError
from vramplan.inputs.gpu import Gpu
from vramplan.memory.roofline import BANDWIDTH_EFFICIENCY, LAUNCH_SECONDS
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, ceil_div


def is_embedding(name: str) -> bool:
    """Whether a weight of this name is an embedding's."""
    return "emb" in name or ".wte" in name or ".wpe" in name


@dataclass(frozen=True, slots=True)
class Weight:
    """A trained weight as the optimizer sees it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_elements(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes in its stored dtype."""
        return self.num_elements * DTYPE_BYTES[self.dtype]

    @property
    def is_embedding(self) -> bool:
        """Whether it is an embedding's."""
        return is_embedding(self.name)

    @property
    def decays(self) -> bool:
        """Whether transformers' Trainer puts it in the group with weight decay (matrices; not norms and biases)."""
        return len(self.shape) > 1 or "lora_magnitude" in self.name


@cache
def _storage(category: str, label: str, shape: tuple[int, ...], dtype: str) -> Storage:
    formula = f"{' x '.join(map(str, shape)) or 'scalar'} {dtype}"
    return Storage(prod(shape) * DTYPE_BYTES[dtype], category, label, formula)


def _state(label: str, shape: tuple[int, ...], dtype: str) -> Storage:
    return _storage("optimizer_state", label, shape, dtype)


def _temporary(label: str, shape: tuple[int, ...], dtype: str) -> Storage:
    return _storage("temporary", label, shape, dtype)


Step = Callable[[Recorder, Sequence[Weight], bool], None]
"""(record, one group of weights, whether this is the first step) -> events."""


def _adam_states(record: Recorder, group: Sequence[Weight], step_on_device: bool) -> None:
    """Adam.__init__group: states of the whole group first, in the dtype of the weight."""
    for weight in group:
        if step_on_device:
            record.allocate(_state("step counters", (), "fp32"))
        record.allocate(_state("exp_avg", weight.shape, weight.dtype))
        record.allocate(_state("exp_avg_sq", weight.shape, weight.dtype))


def adamw_fused(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """One kernel, no temporaries; the step counters live on the device."""
    if first:
        _adam_states(record, group, step_on_device=True)


def adamw_foreach(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """One list of roots as large as the group's weights (_multi_tensor_adam: exp_avg_sq_sqrt)."""
    if first:
        _adam_states(record, group, step_on_device=False)
    roots = [record.allocate(_temporary("AdamW foreach roots", weight.shape, weight.dtype)) for weight in group]
    record.free_all(reversed(roots))


def adamw_loop(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """One weight at a time: root, quotient; the last quotient lives until the next is there."""
    if first:
        _adam_states(record, group, step_on_device=False)
    last: int | None = None
    for weight in group:
        root = record.allocate(_temporary("AdamW root", weight.shape, weight.dtype))
        quotient = record.allocate(_temporary("AdamW denominator", weight.shape, weight.dtype))
        record.free(root)
        if last is not None:
            record.free(last)
        last = quotient
    if last is not None:
        record.free(last)


def sgd(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """No momentum, no weight decay (the Trainer's default): nothing at all."""


def sgd_momentum(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """The first step clones every gradient."""
    if first:
        for weight in group:
            record.allocate(_state("momentum_buffer", weight.shape, weight.dtype))


def adafactor(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """Transformers' Adafactor: fp32 row and column means, and fp32 copies of one weight at a time."""
    held: list[int] = []
    for weight in group:
        shape = weight.shape
        half = weight.dtype != "fp32"
        grad = [record.allocate(_temporary("Adafactor gradient in fp32", shape, "fp32"))] if half else []
        if first:
            if len(shape) > 1:
                record.allocate(_state("exp_avg_sq_row", shape[:-1], "fp32"))
                record.allocate(_state("exp_avg_sq_col", shape[:-2] + shape[-1:], "fp32"))
            else:
                record.allocate(_state("exp_avg_sq", shape, "fp32"))
            record.allocate(_state("RMS", (), "fp32"))
        update, rest = held[-1:], held[:-1]
        record.free_all(rest)
        copy = [record.allocate(_temporary("Adafactor weight in fp32", shape, "fp32"))] if half else []
        square = record.allocate(_temporary("Adafactor squared gradient", shape, "fp32"))
        shifted = record.allocate(_temporary("Adafactor squared gradient", shape, "fp32"))
        record.free(square)
        record.free_all(update)
        new_update = record.allocate(_temporary("Adafactor update", shape, "fp32"))
        record.free(shifted)
        record.free(record.allocate(_temporary("Adafactor update", shape, "fp32")))
        record.free_all(grad)
        held = [*copy, new_update]
    record.free_all(held)


EIGHT_BIT_BLOCK, LEAST_EIGHT_BIT = 256, 4096
"""Elements that share a scale, and those below which a tensor's states stay fp32 (bitsandbytes 0.50, optimizer.py)."""
LEAST_PAGED = 100_000
"""Elements from which a paged optimizer's states are managed memory, which torch does not count (get_state_buffer)."""


def bitsandbytes(states: Sequence[int], bits: int, paged: bool = False) -> Step:
    """Bitsandbytes' optimizers: states in `bits`, each `states[i]` times the weight, whatever the weight's dtype.

    8-bit states come with a scale for each block; embeddings keep 32 bits (transformers' trainer_optimizer.py). Kernels
    work in place.
    """

    def step(record: Recorder, group: Sequence[Weight], first: bool) -> None:
        if not first:
            return
        for weight in group:
            count = weight.num_elements
            small = bits == 32 or count < LEAST_EIGHT_BIT or weight.is_embedding
            outside = paged and count >= LEAST_PAGED
            for number, times in enumerate(states, 1):
                if not outside:
                    record.allocate(_state(f"state{number}", (times * count,), "fp32" if small else "uint8"))
            if not small:
                blocks = ceil_div(count, EIGHT_BIT_BLOCK)
                for number, times in enumerate(states, 1):
                    record.allocate(_state(f"scales of state{number}", (times * blocks,), "fp32"))
        if bits == 8:
            for number in range(min(2, len(states))):
                level = _state(f"256 levels of state{number + 1}", (256,), "fp32")
                if not any(one is level for one in record.storages):  # all weights share it
                    record.allocate(level)

    return step


def torchao(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """Torchao 0.18's AdamW8bit: states in blocks, each with scales and levels of its own; one compiled step a weight.

    What inductor keeps within the step is read off its code for the CPU: both scales, and both states in fp32, scaled.
    On a card it may fuse more and keep less.
    """
    for weight in group:
        count = weight.num_elements
        blocks, left = divmod(count, EIGHT_BIT_BLOCK)
        is_small = count < LEAST_EIGHT_BIT or left > 0
        for label in ("exp_avg", "exp_avg_sq") if first else ():
            record.allocate(_state(label, weight.shape, weight.dtype if is_small else "uint8"))
            if not is_small:
                record.allocate(_state(f"scales of {label}", (blocks,), "fp32"))
                record.allocate(_state(f"256 levels of {label}", (256,), "fp32"))
        if not is_small:
            shapes = ((blocks,), (blocks,), weight.shape, weight.shape)
            held = [record.allocate(_temporary("AdamW states in fp32", shape, "fp32")) for shape in shapes]
            record.free_all(reversed(held))


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One row of the table."""

    step: Step
    adaptive: bool
    """Adam-type: the learning rate goes with the root of the batch, not with the batch itself."""
    state_passes: int
    """Tensors the size of the weight that one step reads and writes, for the roofline."""
    launches_per_weight: float
    title: str


OPTIMIZERS: dict[str, Optimizer] = {
    "adamw_torch_fused": Optimizer(adamw_fused, True, 7, 0.05, "AdamW, fused kernel"),
    "adamw_torch": Optimizer(adamw_foreach, True, 12, 0.2, "AdamW, foreach"),
    "adamw_torch_loop": Optimizer(adamw_loop, True, 14, 8, "AdamW, one weight at a time (foreach=False)"),
    "adamw_torch_8bit": Optimizer(torchao, True, 5, 3, "AdamW, 8-bit states (torchao)"),
    "sgd": Optimizer(sgd, False, 3, 0.05, "SGD without momentum"),
    "sgd_momentum": Optimizer(sgd_momentum, False, 5, 0.1, "SGD with momentum"),
    "adafactor": Optimizer(adafactor, True, 16, 20, "Adafactor (transformers)"),
    **{
        f"{'paged_' if paged else ''}{name}": Optimizer(
            bitsandbytes(states, bits, paged), True, 3 + 2 * len(states) * bits // 16, 1, title + " (bitsandbytes)"
        )
        for name, states, bits, title in (
            ("adamw_8bit", (1, 1), 8, "AdamW, 8-bit states"),
            ("adamw_32bit", (1, 1), 32, "AdamW, fp32 states"),
            ("lion_8bit", (1,), 8, "Lion, 8-bit state"),
            ("lion_32bit", (1,), 32, "Lion, fp32 state"),
            ("ademamix_8bit", (2, 1), 8, "AdEMAMix, 8-bit states"),
            ("ademamix_32bit", (2, 1), 32, "AdEMAMix, fp32 states"),
        )
        for paged in (False, True)
        if (name, paged) != ("adamw_32bit", False)
    },
}
ALIASES = {
    "adamw": "adamw_torch_fused",
    "adamw_hf": "adamw_torch",
    "lion": "lion_32bit",
    "adamw_bnb_8bit": "adamw_8bit",
    "ao_adamw_8bit": "adamw_torch_8bit",
    "paged_adamw": "paged_adamw_32bit",
    "ademamix": "ademamix_32bit",
}
KNOWN_UNMODELLED = frozenset(
    """
    rmsprop rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit adagrad adamw_torch_4bit galore_adamw
    galore_adamw_8bit galore_adafactor
    galore_adamw_layerwise galore_adamw_8bit_layerwise galore_adafactor_layerwise lomo adalomo grokadamw
    schedule_free_radam schedule_free_adamw schedule_free_sgd apollo_adamw apollo_adamw_layerwise stable_adamw
    adamw_anyprecision adamw_torch_xla adamw_torch_npu_fused
    """.split()  # noqa: SIM905
)
"""transformers 5.23's other names: known, and refused until they are modelled."""


def optimizer_of(name: str) -> Optimizer:
    """The optimizer transformers calls `name`.

    Raises:
        UnsupportedError: for one that is known but not modelled.
        UnknownNameError: for any other, with the nearest names.
    """
    key = name.lower()
    key = ALIASES.get(key, key)
    if key in OPTIMIZERS:
        return OPTIMIZERS[key]
    if key in KNOWN_UNMODELLED:
        raise UnsupportedError(f"optimizer {name!r} is not modelled yet; modelled: {', '.join(OPTIMIZERS)}")
    raise UnknownNameError("optimizer", name, [*OPTIMIZERS, *ALIASES, *KNOWN_UNMODELLED])


def optimizer_seconds(name: str, weights: Sequence[Weight], card: Gpu) -> float:
    """Time of one optimizer step: traffic over weights, gradients and states, or its launches."""
    row = optimizer_of(name)
    traffic = row.state_passes * sum(weight.num_bytes for weight in weights)
    bandwidth = card.bandwidth_bytes_per_second * BANDWIDTH_EFFICIENCY
    return max(traffic / bandwidth, row.launches_per_weight * len(weights) * LAUNCH_SECONDS)
