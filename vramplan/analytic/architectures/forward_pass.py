"""One forward of a model: its layers, inputs and masks, whatever the architecture."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vramplan.analytic.architectures.vision_tower import VisionInput
from vramplan.analytic.autograd.graph import Tensor
from vramplan.analytic.autograd.tape import Tape
from vramplan.analytic.layer_folding import STACK
from vramplan.analytic.layers.context import Context
from vramplan.analytic.layers.masks import MaskParts, attention_mask
from vramplan.analytic.layers.modules import Modules
from vramplan.dataclass import dataclass
from vramplan.inputs.job import Job
from vramplan.memory.fused_attention import FusedAttention

if TYPE_CHECKING:
    from vramplan.analytic.architectures.architecture import Architecture

Layer = Callable[..., "Tensor | tuple[Tensor, ...]"]
"""Takes the state and the other outputs of the layer before."""


class ModelOutput(NamedTuple):
    """The loss, and the other outputs of a forward, which live until the loop has the loss."""

    loss: Tensor
    outputs: list[Tensor]


class DevicePlacement(NamedTuple):
    """The GPUs that a model's modules lie on."""

    layers: tuple[tuple[int, int], ...]
    """Number and GPU of each layer that is simulated."""
    embed: int = 0
    norm: int = 0
    rotary: int = 0
    head: int = 0

    @property
    def gpus(self) -> tuple[int, ...]:
        """All of them, in order."""
        return tuple(sorted({*self[1:], *(gpu for _, gpu in self.layers)}))


@dataclass(slots=True)
class ForwardPass:
    """One forward: the architecture, the job, the batch, the layers to simulate."""

    net: Modules
    architecture: Architecture
    job: Job
    fused: FusedAttention
    """The kernels that SDPA may choose on the GPU."""
    phase: str
    stacks: tuple[tuple[Hashable, ...], ...]
    """The kinds of the layers to simulate, for each stack."""
    inputs: dict[str, Tensor]
    """The batch."""
    vision: VisionInput | None
    """The vision tower of a vision-language model."""
    placement: DevicePlacement
    past: int | None = None
    """Tokens in the cache of ``generate`` before this forward; None outside of it."""
    caches: bool = True
    """Whether ``generate`` keeps keys and values (`use_cache`)."""

    @property
    def has_images(self) -> bool:
        """Whether a vision tower gets an image or a video."""
        return self.vision is not None and self.job.pictures > 0

    @property
    def tape(self) -> Tape:
        """The tape of the modules."""
        return self.net.tape

    def context(self, mask: Tensor | None, dropout: float) -> Context:
        """Settings and mask that the layers of one stack share."""
        made = Context(self.job.attention, self.fused, padded=self.job.batches == "padded")
        made.masks[False] = mask
        made.attention_dropout = dropout if self.tape.training else 0.0
        return made

    def layers(
        self,
        stack: int,
        x: Tensor,
        layers: Layer | Sequence[Layer],
        states: list[Tensor] | None = None,
        others: list[Tensor] | None = None,
    ) -> Tensor:
        """The state after all layers of a stack; other outputs of a layer go to the next layer as well.

        `layers`: one function if all layers are alike. `states` collects each layer's, if the model holds them,
        `others` the last layer's other outputs, if the model holds those to its end.
        """
        further: tuple[Tensor, ...] = ()
        for number in range(len(self.stacks[stack])):
            layer = layers[number] if isinstance(layers, Sequence) else layers
            self.net.enter_layer(self.phase, stack * STACK + number, x)
            checkpointed = self.job.checkpointing == "full"
            outputs = self.tape.checkpoint(layer, x, *further) if checkpointed else layer(x, *further)
            if isinstance(outputs, tuple):
                x, *rest = outputs
                further = tuple(rest)
                del rest
            else:
                x = outputs
            if states is not None:
                states.append(x)
        if others is not None:
            others.extend(further)
        del outputs, layer
        self.tape.enter(self.phase, None)
        return x

    @property
    def has_mask(self) -> bool:
        """Whether the batch has a 2D attention mask, with padding or of ones only."""
        return "attention_mask" in self.inputs

    def padding(self, x: Tensor, queries: int | None = None) -> Tensor | None:
        """``create_bidirectional_mask``: None if no sample is padded, else (B, 1, queries, keys).

        The keys are made of `x` (B, S, ...); the mask is boolean for SDPA, additive in the dtype of `x` for eager.
        """
        if self.job.batches != "padded" or self.job.attention == "flash":
            return None
        self.tape.module = "inputs"
        dtype = x.dtype if self.job.attention == "eager" else "bool"
        return attention_mask(self.tape, x.shape[0], x.shape[1], dtype, MaskParts(causal=False, padded=True), queries)

    def causal(self, x: Tensor, padded: bool = True) -> Tensor | None:
        """``create_causal_mask``: for SDPA only if samples are padded and the model passes the padding (`padded`)."""
        attention = self.job.attention
        if attention == "flash" or (attention == "sdpa" and not (padded and self.job.batches == "padded")):
            return None
        self.tape.module = "inputs"
        dtype, parts = x.dtype if attention == "eager" else "bool", MaskParts(padded=padded and self.has_mask)
        return attention_mask(self.tape, x.shape[0], x.shape[1], dtype, parts)
