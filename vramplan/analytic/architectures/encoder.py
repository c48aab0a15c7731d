"""What a model that is no causal language model is made of, and what it finds when it runs."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.layer_folding import STACK
from vramplan.analytic.layers.attention_kernels import causal_mask
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.modules import Modules
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config

Layer = Callable[..., "Tensor | tuple[Tensor, ...]"]
"""Takes the state, and what the layer before returned beside it."""


class ModelOutput(NamedTuple):
    """What a forward returns: the loss, and the other outputs, which live until the loop has the loss."""

    loss: Tensor
    outputs: list[Tensor]


@dataclass(slots=True)
class ForwardPass:
    """One forward: the job, the batch, the layers to play."""

    net: Modules
    job: Job
    flash_fits: bool
    """Whether the card runs SDPA's flash kernel (compute capability 8.0)."""
    phase: str
    kinds: tuple[tuple[Hashable, ...], ...]
    """What sets the layers of each stack apart from their neighbours; those to play."""
    inputs: dict[str, Tensor]

    @property
    def tape(self) -> Tape:
        """Where it is recorded."""
        return self.net.tape

    def context(self, mask: Tensor | None, dropout: float) -> Context:
        """What the layers of one stack share."""
        made = Context(self.job.attention, self.flash_fits, padded=self.job.batches == "padded")
        made.masks[False] = mask
        made.attention_dropout = dropout if self.tape.training else 0.0
        return made

    def layers(self, stack: int, x: Tensor, layer: Layer, states: list[Tensor] | None = None) -> Tensor:
        """All layers of a stack, one after another; what a layer returns beside the state goes to the next as well.

        `states`: where each layer's is put, if the model holds them.
        """
        more: tuple[Tensor, ...] = ()
        for number in range(len(self.kinds[stack])):
            self.net.enter_layer(self.phase, stack * STACK + number, x)
            checkpointed = self.job.checkpointing == "full"
            outputs = self.tape.checkpoint(layer, x, *more) if checkpointed else layer(x, *more)
            if isinstance(outputs, tuple):
                x, *others = outputs
                more = tuple(others)
                del others
            else:
                x = outputs
            if states is not None:
                states.append(x)
        del outputs
        self.tape.enter(self.phase, None)
        return x

    def padding(self, x: Tensor, queries: int | None = None) -> Tensor | None:
        """``create_bidirectional_mask``: nothing where no sample is padded, else (B, 1, queries, keys).

        `x` (B, S, ...) is what the keys are made of; boolean for SDPA, additive in its dtype for eager.
        """
        if self.job.batches != "padded" or self.job.attention == "flash":
            return None
        self.tape.module = "inputs"
        dtype = x.dtype if self.job.attention == "eager" else "bool"
        return causal_mask(self.tape, x.shape[0], x.shape[1], dtype, queries)

    def causal(self, x: Tensor, padded: bool = True) -> Tensor | None:
        """``create_causal_mask``: for SDPA only where samples are padded, and that is told (`padded`)."""
        attention = self.job.attention
        if attention == "flash" or (attention == "sdpa" and not (padded and self.job.batches == "padded")):
            return None
        self.tape.module = "inputs"
        return causal_mask(self.tape, x.shape[0], x.shape[1], x.dtype if attention == "eager" else "bool")


@dataclass(frozen=True, slots=True)
class ForwardSpec:
    """One architecture, described once."""

    forward: Callable[[ForwardPass, Config], ModelOutput]
    stacks: Callable[[Config], list[list[Hashable]]]
    """For each stack of layers what sets each layer apart from its neighbours."""
    loads: tuple[str | int, ...] = ()
    """Beginnings of the names of weights and numbers of stacks, in the order that transformers' class makes them, where
    that is not embeddings, layers, the rest: blocks of weights lie beside each other in that order."""
    clamps_fp16: bool = False
    """Whether its layers clamp what is stored in fp16."""
    tables: Callable[[Config], list[Input]] = field(default=lambda c: [])
    """Buffers: positions and the like, which are loaded with the weights."""


def alike(*counts: int) -> list[list[Hashable]]:
    """Stacks whose layers all do the same."""
    return [[None] * count for count in counts]
