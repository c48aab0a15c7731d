"""The reference of a preference loss: a second forward, without gradients, in a phase of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.job import Job


def reference_phase(phase: str) -> str:
    """The phase of the reference's forward within `phase`: that of the same micro-step."""
    return f"reference.{phase.rpartition('.')[2]}"


def reference_of(job: Job) -> str:
    """Where the log-probabilities of the reference come from."""
    if job.reference is not None:
        return job.reference
    return "model" if job.method == "full" else "adapters_off"


@contextmanager
def as_reference(net: Modules, phase: str) -> Iterator[str]:
    """Inside, the model runs without adapters and without gradients; gives the phase.

    A second model has the same weights, whose memory
    :func:`vramplan.analytic.unfolded_step.reference_storages` adds.
    """
    tape, training, outer = net.tape, net.training, net.tape.phase
    own = reference_phase(phase)
    tape.enter(own, None)
    net.training = replace(training, lora_rank=0, dora=False, modules_to_save=())
    try:
        with tape.no_grad():
            yield own
    finally:
        net.training = training
        tape.enter(outer, None)
