"""The reference of a preference loss, or a teacher: a second forward, without gradients, in a phase of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from vramplan.analytic.layers.modules import Modules

WITH_MODEL = ("adapters_off", "frozen_adapters", "model")
"""References that take a forward."""


SECOND = ("reference", "teacher")
"""Phases in which a second model may run, without gradients."""


def reference_phase(phase: str, of: str = "", name: str = "reference") -> str:
    """The phase of a forward without gradients within `phase`; `of` tells several of one micro-step apart."""
    return f"{name}.{of}{phase.rpartition('.')[2]}"


def is_of_reference(phase: str) -> bool:
    """Whether the reference, or the teacher, runs in a phase, and not the trained model without gradients."""
    return phase.partition(".")[0] in SECOND and not phase.startswith("reference.policy.")


@contextmanager
def without_gradients(net: Modules, phase: str, of: str = "", name: str = "reference") -> Iterator[str]:
    """Inside, the model runs without gradients; gives the phase."""
    tape, outer = net.tape, net.tape.phase
    own = reference_phase(phase, of, name)
    tape.enter(own, None)
    try:
        with tape.no_grad():
            yield own
    finally:
        tape.enter(outer, None)


@contextmanager
def as_reference(net: Modules, phase: str, of: str = "") -> Iterator[str]:
    """The same of the model without adapters, or with frozen ones of the reference's own.

    A second model has the same weights, whose memory
    :func:`vramplan.analytic.unfolded_step.reference_storages` adds.
    """
    training, layers = net.training, net.liger
    if training.reference_adapters:
        net.training = replace(training, is_reference=True, adapter_dtype=training.reference_adapters)
    else:
        net.training = replace(training, lora_rank=0, dora=False, modules_to_save=())
    net.liger = net.reference_liger
    try:
        with without_gradients(net, phase, of) as own:
            yield own
    finally:
        net.training, net.liger = training, layers
