"""The last hidden states of a model without its usual head."""

from __future__ import annotations

from vramplan.analytic.architectures.causal_lm import language_model
from vramplan.analytic.architectures.forward_pass import ForwardPass
from vramplan.analytic.autograd.graph import Tensor
from vramplan.errors import UnsupportedError, setting
from vramplan.inputs.model_spec import Config


def encoded(forward: ForwardPass, c: Config) -> Tensor:
    """The last hidden states.

    Raises:
        UnsupportedError: if the architecture is described with its usual head alone.
    """
    if forward.architecture.decoder is not None:
        return language_model(forward, c)
    encode = forward.architecture.encode
    if encode is None:
        raise UnsupportedError(
            f"{setting('task', forward.job.task or '')}: not modelled for this architecture; {setting('by', 'trace')}"
            " runs it"
        )
    return encode(forward, c)
