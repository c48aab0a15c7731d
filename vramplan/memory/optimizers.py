"""Optimizers, one record each. Names are transformers' (`optim`).

To add one, write what its step allocates in :mod:`vramplan.memory.optimizer_steps` and its record here; estimators,
planner and the trace ask :func:`optimizer_of` for everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError, VramplanError, setting
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import Loop
from vramplan.memory import optimizer_steps as steps
from vramplan.step_time.rates import rates_of


class Restriction(NamedTuple):
    """Values of a field of the job that an optimizer refuses."""

    field: str
    values: tuple[str, ...]
    reason: str
    """Why, and what to use instead."""
    error: type[VramplanError] = ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """All that is known about one optimizer."""

    name: str
    step: steps.Step
    """What a step allocates and frees under transformers' Trainer."""
    plain_step: steps.Step | None = None
    """The same in a plain loop, if it differs."""
    adaptive: bool = True
    """Adam-type: the learning rate scales with the root of the batch size instead of linearly."""
    state_passes: int
    """Tensors of the weight's size that one step reads and writes, for the roofline."""
    launches_per_weight: float
    aliases: tuple[str, ...] = ()
    trainer_name: str = ""
    """transformers' `optim`, if it differs from `name`."""
    torch_class: str = ""
    """Name in torch.optim of an optimizer that transformers' `optim` cannot name."""
    torch_arguments: Mapping[str, Any] = field(default_factory=dict)
    eight_bit: str = ""
    """The optimizer of the same rule with 8-bit states."""
    matrices_only: bool = False
    """Whether torch refuses weights that do not have two dimensions."""
    restrictions: tuple[Restriction, ...] = ()

    def step_in(self, loop: Loop) -> steps.Step:
        """What a step allocates and frees in a training loop."""
        return self.plain_step if self.plain_step and loop == "plain" else self.step


MUON_RESTRICTIONS = (
    Restriction(
        "loop",
        ("trainer",),
        "transformers 5.23 has no `optim` name for torch.optim.Muon; plan your own loop with"
        f" {setting('loop', 'plain')} or give {setting('optimizer', 'adamw_torch_fused')}",
    ),
    Restriction(
        "strategy",
        ("zero1", "zero2", "zero3"),
        "ZeRO flattens weights, and Muon takes two-dimensional weights only;"
        f" give {setting('strategy', 'ddp')} or {setting('optimizer', 'adamw_torch_fused')}",
    ),
    Restriction(
        "strategy",
        ("zero0", "fsdp"),
        "Muon's matrix products on weights that DeepSpeed or FSDP wraps are not modelled;"
        f" give {setting('strategy', 'ddp')} or {setting('optimizer', 'adamw_torch_fused')}",
        UnsupportedError,
    ),
)


def _bitsandbytes(name: str, states: Sequence[int], bits: int, paged: bool, **more: Any) -> Optimizer:
    in_trainer, plain = (steps.bitsandbytes(states, bits, paged, in_trainer) for in_trainer in (True, False))
    passes = 3 + 2 * len(states) * bits // 16
    return Optimizer(name=name, step=in_trainer, plain_step=plain, state_passes=passes, launches_per_weight=1, **more)


_RECORDS = (
    Optimizer(
        name="adamw_torch_fused",
        step=steps.adamw_fused,
        state_passes=7,
        launches_per_weight=0.05,
        aliases=("adamw",),
        eight_bit="adamw_8bit",
    ),
    Optimizer(
        # with foreach kernels, which take FSDP 2's DTensors too (torch 2.13, distributed/tensor/__init__.py)
        name="adamw_torch",
        step=steps.adamw_foreach,
        state_passes=12,
        launches_per_weight=0.2,
        aliases=("adamw_hf",),
        eight_bit="adamw_8bit",
    ),
    Optimizer(
        name="adamw_torch_loop",
        step=steps.adamw_loop,
        state_passes=14,
        launches_per_weight=8,
        torch_class="AdamW",
        torch_arguments={"foreach": False},
        eight_bit="adamw_8bit",
    ),
    Optimizer(
        name="adamw_torch_8bit", step=steps.torchao, state_passes=5, launches_per_weight=3, aliases=("ao_adamw_8bit",)
    ),
    Optimizer(name="sgd", step=steps.sgd, adaptive=False, state_passes=3, launches_per_weight=0.05),
    Optimizer(
        name="sgd_momentum",
        step=steps.sgd_momentum,
        adaptive=False,
        state_passes=5,
        launches_per_weight=0.1,
        torch_class="SGD",
        torch_arguments={"momentum": 0.9},
    ),
    Optimizer(name="adafactor", step=steps.adafactor, state_passes=16, launches_per_weight=20),
    _bitsandbytes("adamw_8bit", (1, 1), 8, paged=False, aliases=("adamw_bnb_8bit",)),
    _bitsandbytes("paged_adamw_8bit", (1, 1), 8, paged=True),
    _bitsandbytes("paged_adamw_32bit", (1, 1), 32, paged=True, aliases=("paged_adamw",)),
    _bitsandbytes("lion_8bit", (1,), 8, paged=False),
    _bitsandbytes("paged_lion_8bit", (1,), 8, paged=True),
    _bitsandbytes("lion_32bit", (1,), 32, paged=False, aliases=("lion",)),
    _bitsandbytes("paged_lion_32bit", (1,), 32, paged=True),
    _bitsandbytes("ademamix_8bit", (2, 1), 8, paged=False),
    _bitsandbytes("paged_ademamix_8bit", (2, 1), 8, paged=True),
    _bitsandbytes("ademamix_32bit", (2, 1), 32, paged=False, aliases=("ademamix",), trainer_name="ademamix"),
    _bitsandbytes("paged_ademamix_32bit", (2, 1), 32, paged=True),
    Optimizer(
        name="muon",  # adaptive: updates are orthogonalized, so their size does not follow the gradient's
        step=steps.muon,
        state_passes=28,  # of fp32 weights: 13 around five Newton-Schulz iterations of 3 each, in bf16
        launches_per_weight=33,
        torch_class="Muon",
        matrices_only=True,
        restrictions=MUON_RESTRICTIONS,
    ),
)
OPTIMIZERS: dict[str, Optimizer] = {record.name: record for record in _RECORDS}
ALIASES = {alias: record.name for record in _RECORDS for alias in record.aliases}
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


def modelled(name: str) -> Optimizer | None:
    """The record of an optimizer by name or alias, in any case; None if it is not modelled."""
    key = name.lower()
    return OPTIMIZERS.get(ALIASES.get(key, key))


def optimizer_of(name: str) -> Optimizer:
    """The record of an optimizer by name or alias, in any case.

    Raises:
        UnsupportedError: for a known optimizer that is not modelled.
        UnknownNameError: for any other name, with the nearest names.
    """
    record = modelled(name)
    if record is not None:
        return record
    if name.lower() in KNOWN_UNMODELLED:
        raise UnsupportedError(f"{setting('optimizer', name)} is not modelled yet; modelled: {', '.join(OPTIMIZERS)}")
    raise UnknownNameError("optimizer", name, [*OPTIMIZERS, *ALIASES, *KNOWN_UNMODELLED])


def check_optimizer(job: Job) -> None:
    """Refuse settings of the job that its optimizer does not run with.

    Raises:
        ConfigError: for a setting that cannot run.
        UnsupportedError: for a setting that is not modelled.
    """
    record = modelled(job.optimizer)
    for restriction in record.restrictions if record is not None else ():
        value = getattr(job, restriction.field)
        if value in restriction.values:
            names = f"{setting('optimizer', job.optimizer)} with {setting(restriction.field, value)}"
            raise restriction.error(f"{names}: {restriction.reason}")


def check_weights(job: Job, trained: Iterable[tuple[str, tuple[int, ...]]]) -> None:
    """Refuse trained weights, given as (name, shape), that the job's optimizer does not take.

    Raises:
        ConfigError: naming the first such weight.
    """
    record = modelled(job.optimizer)
    if record is None or not record.matrices_only:
        return
    for name, shape in trained:
        if len(shape) != 2:
            raise ConfigError(
                f"{setting('optimizer', job.optimizer)} takes two-dimensional weights only, and {name}"
                f" ({' x '.join(map(str, shape))}) trains too; train LoRA adapters alone ({setting('method', 'lora')})"
                f" or give {setting('optimizer', 'adamw_torch_fused')}"
            )


CLIPPING_PASSES = 3
"""Gradients are read for their norm, then read and scaled (torch.nn.utils.clip_grad_norm_), which transformers' Trainer
does by default (max_grad_norm 1.0)."""


def optimizer_seconds(job: Job, num_bytes: int, num_weights: int, card: Gpu) -> float:
    """Seconds of one optimizer step: its traffic over weights, gradients and states, or its launches if longer.

    Args:
        job: the job.
        num_bytes: bytes of the trained weights that one GPU updates.
        num_weights: how many there are.
        card: the GPU.
    """
    record, rates = optimizer_of(job.optimizer), rates_of(card)
    traffic = (record.state_passes + (CLIPPING_PASSES if job.loop == "trainer" else 0)) * num_bytes
    on_gpu = traffic / (card.bandwidth_bytes_per_second * rates.bandwidth)
    return max(on_gpu, record.launches_per_weight * num_weights * rates.launch_seconds) + rates.step_seconds
