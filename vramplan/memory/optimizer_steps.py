"""What each optimizer allocates and frees while it steps: its states, and its temporaries.

The order of allocations is that of torch 2.13 (optim/*.py), transformers 5.23's Adafactor (optimization.py) and
bitsandbytes 0.50 (optim/optimizer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod

from vramplan.dataclass import dataclass
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Storage
from vramplan.units import DTYPE_BYTES, ceil_div


def is_embedding(name: str) -> bool:
    """Whether a weight of this name belongs to an embedding."""
    return "emb" in name or ".wte" in name or ".wpe" in name


@dataclass(frozen=True, slots=True)
class Weight:
    """A trained weight as the optimizer sees it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes in its stored dtype."""
        return self.num_elements * DTYPE_BYTES[self.dtype]

    @property
    def is_embedding(self) -> bool:
        """Whether it belongs to an embedding."""
        return is_embedding(self.name)

    @property
    def decays(self) -> bool:
        """Whether transformers' Trainer puts it in the group with weight decay: matrices, not norms and biases."""
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
    """Adam._init_group: first the states of the whole group, in the dtype of the weight."""
    counter = [_state("step counters", (), "fp32")] if step_on_device else []
    states = cache(lambda shape, dtype: [*counter, *(_state(name, shape, dtype) for name in ("exp_avg", "exp_avg_sq"))])
    record.allocate_all([state for weight in group for state in states(weight.shape, weight.dtype)])


def adamw_fused(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """One kernel without temporaries; the step counters live on the GPU."""
    if first:
        _adam_states(record, group, step_on_device=True)


def adamw_foreach(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """A list of roots as large as all weights of the group (_multi_tensor_adam: exp_avg_sq_sqrt)."""
    if first:
        _adam_states(record, group, step_on_device=False)
    roots = record.allocate_all([_temporary("AdamW foreach roots", weight.shape, weight.dtype) for weight in group])
    record.free_all(reversed(roots))


def adamw_loop(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """One weight at a time (_single_tensor_adam): root and denominator; the local `denom` lives until the next."""
    if first:
        _adam_states(record, group, step_on_device=False)
    denominator: int | None = None
    for weight in group:
        root = record.allocate(_temporary("AdamW root", weight.shape, weight.dtype))
        quotient = record.allocate(_temporary("AdamW denominator", weight.shape, weight.dtype))
        record.free(root)
        if denominator is not None:
            record.free(denominator)
        denominator = quotient
    if denominator is not None:
        record.free(denominator)


def sgd(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """Without momentum and weight decay, the Trainer's default, SGD allocates nothing."""


def sgd_momentum(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """The first step clones every gradient into its momentum buffer."""
    if first:
        for weight in group:
            record.allocate(_state("momentum_buffer", weight.shape, weight.dtype))


def adafactor(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """Transformers' Adafactor: fp32 row and column means, and fp32 copies of one weight at a time."""
    locals_alive: list[int] = []  # of the previous weight: its fp32 copy, its update
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
        update, weight_copy = locals_alive[-1:], locals_alive[:-1]
        record.free_all(weight_copy)
        copy = [record.allocate(_temporary("Adafactor weight in fp32", shape, "fp32"))] if half else []
        square = record.allocate(_temporary("Adafactor squared gradient", shape, "fp32"))
        shifted = record.allocate(_temporary("Adafactor squared gradient", shape, "fp32"))
        record.free(square)
        record.free_all(update)
        new_update = record.allocate(_temporary("Adafactor update", shape, "fp32"))
        record.free(shifted)
        record.free(record.allocate(_temporary("Adafactor update", shape, "fp32")))
        record.free_all(grad)
        locals_alive = [*copy, new_update]
    record.free_all(locals_alive)


def muon(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """Torch's Muon (optim/_muon.py: _single_tensor_muon): one weight at a time, Newton-Schulz iterations in bf16."""
    if first:
        for weight in group:
            record.allocate(_state("momentum_buffer", weight.shape, weight.dtype))
    update: list[int] = []
    for weight in group:
        lerped = _replace(record, update, _temporary("Muon update", weight.shape, weight.dtype))
        update = _newton_schulz(record, weight)
        record.free_all(lerped)
    record.free_all(update)


def _newton_schulz(record: Recorder, weight: Weight) -> list[int]:
    """``_zeropower_via_newtonschulz``: number of the storage it returns, the weight's shape in bf16."""
    side = min(weight.shape)  # a tall matrix is transposed first, as a view
    ortho_grad: list[int] = []  # grad.bfloat16() is the caller's `update` itself if that is bf16 already
    if weight.dtype != "bf16":
        ortho_grad = [record.allocate(_temporary("Muon update in bf16", weight.shape, "bf16"))]
    norm = _replace(record, [], _temporary("Muon norm", (), "bf16"))
    record.free_all(_replace(record, norm, _temporary("Muon norm", (), "bf16")))  # clamp
    gram_matrix: list[int] = []
    gram_update: list[int] = []
    for _ in range(5):  # DEFAULT_NS_STEPS
        gram_matrix = _replace(record, gram_matrix, _temporary("Muon gram matrix", (side, side), "bf16"))
        gram_update = _replace(record, gram_update, _temporary("Muon gram update", (side, side), "bf16"))
        ortho_grad = _replace(record, ortho_grad, _temporary("Muon orthogonal update", weight.shape, "bf16"))
    record.free_all(gram_matrix + gram_update)  # locals, held until the function returns
    return ortho_grad


def _replace(record: Recorder, old: list[int], new: Storage) -> list[int]:
    """Assign a Python variable: allocate its new value, then free the old one. Returns the new one's number."""
    number = record.allocate(new)
    record.free_all(old)
    return [number]


EIGHT_BIT_BLOCK, LEAST_EIGHT_BIT = 256, 4096
"""Elements that share a scale, and those below which a tensor's states stay fp32 (bitsandbytes 0.50, optimizer.py)."""
LEAST_PAGED = 100_000
"""Elements from which a paged optimizer's states are managed memory, which torch does not count (get_state_buffer)."""


def bitsandbytes(states: Sequence[int], bits: int, paged: bool, in_trainer: bool) -> Step:
    """A bitsandbytes optimizer: states in `bits`, each `states[i]` times the weight, whatever the weight's dtype.

    8-bit states come with a scale for each block. Kernels work in place.

    Args:
        states: elements of each state for one of the weight.
        bits: 8 or 32.
        paged: whether states of large weights are in managed memory.
        in_trainer: whether transformers' Trainer constructs the optimizer, which registers embeddings to keep 32-bit
            states (5.23, trainer.py: create_optimizer).
    """

    def step(record: Recorder, group: Sequence[Weight], first: bool) -> None:
        if not first:
            return
        for weight in group:
            count = weight.num_elements
            small = bits == 32 or count < LEAST_EIGHT_BIT or (in_trainer and weight.is_embedding)
            outside = paged and count >= LEAST_PAGED
            for number, times in enumerate(states, 1):
                if not outside:
                    record.allocate(_state(f"state{number}", (times * count,), "fp32" if small else "uint8"))
            if not small:
                blocks = ceil_div(count, EIGHT_BIT_BLOCK)
                for number, times in enumerate(states, 1):
                    record.allocate(_state(f"scales of state{number}", (times * blocks,), "fp32"))
        for table in levels if bits == 8 else ():
            if not record.has(table):  # all weights share it
                record.allocate(table)

    levels = _levels(len(states))
    return step


def _levels(num_states: int) -> list[Storage]:
    """The tables of levels of an optimizer with 8-bit states."""
    return [_state(f"256 levels of state{number + 1}", (256,), "fp32") for number in range(min(2, num_states))]


def level_tables(optimizer: str) -> list[Storage]:
    """The tables of bitsandbytes' optimizers that all weights of one share; empty for others (init_state)."""
    if not optimizer.endswith("_8bit") or optimizer.startswith("adamw_torch"):
        return []
    return _levels(1 if "lion" in optimizer else 2)


def has_levels(weight: Weight) -> bool:
    """Whether a weight's 8-bit states need such tables."""
    return weight.num_elements >= LEAST_EIGHT_BIT


def torchao(record: Recorder, group: Sequence[Weight], first: bool) -> None:
    """Torchao 0.18's AdamW8bit: states in blocks with their own scales and levels; one compiled step for each weight.

    Temporaries are those of inductor's code for the CPU: both scales, and both states in fp32, scaled. On a GPU it may
    fuse more and keep less.
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
            temporaries = [record.allocate(_temporary("AdamW states in fp32", shape, "fp32")) for shape in shapes]
            record.free_all(reversed(temporaries))
