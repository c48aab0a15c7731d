"""What is played: a family with its configuration, and a job."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from vramplan.analytic.architectures import Family
from vramplan.analytic.architectures.towers import VisionInput
from vramplan.analytic.layers.context import LayerKind
from vramplan.analytic.layers.modules import WeightConfig
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.model_spec import Config


class DevicePlacement(NamedTuple):
    """The cards that a model's modules lie on."""

    layers: tuple[tuple[int, int], ...]
    """Number and card of each layer that is played."""
    embed: int = 0
    norm: int = 0
    rotary: int = 0
    head: int = 0

    @property
    def cards(self) -> tuple[int, ...]:
        """All of them."""
        return tuple(sorted({*self[1:], *(card for _, card in self.layers)}))


@dataclass(frozen=True, slots=True)
class StepSpec:
    """What to play: a family with its configuration, and a job."""

    family: Family
    config: Config
    job: Job
    kinds: tuple[LayerKind, ...]
    """The layers to play, which may be fewer than the model has."""
    flash_fits: bool
    """Whether the card runs SDPA's flash kernel (compute capability 8.0)."""
    seen: VisionInput | None = None
    """How it sees, where it does."""
    peft_expert_pattern: str = ""
    """How PEFT adapts its experts (:mod:`vramplan.analytic.layers.moe_peft`)."""
    linear_experts: bool = False
    """Whether its experts are linear layers of their own (:mod:`vramplan.analytic.layers.moe_linear_experts`)."""
    stacks: tuple[tuple[Hashable, ...], ...] = ()
    """The layers to play of each stack, where it is no causal language model."""
    inputs: tuple[Input, ...] = ()
    """And what it takes."""
    spread_over: DevicePlacement | None = None
    """The cards that it is spread over, where these are several."""

    @property
    def spread(self) -> DevicePlacement:
        """Where everything lies: on one card, but for a model that is spread over several."""
        return self.spread_over or DevicePlacement(tuple((number, 0) for number in range(len(self.kinds))))

    @property
    def looks(self) -> bool:
        """Whether there is an image or a video in the batch."""
        return self.seen is not None and self.job.pictures > 0

    def training(self) -> WeightConfig:
        """Which weights there are and which train."""
        job = self.job
        lora = job.method != "full"
        used = job.dtype if job.engine_casts else job.computed_dtype
        # what all weights are used in, however they are stored
        return WeightConfig(
            dtype=used or ("fp32" if job.prepare_for_kbit_training else job.dtype),
            fp32_norms=job.fp32_norms and used is None and job.strategy != "zero3",  # there it reaches no part of them
            full=not lora,
            lora_rank=job.lora_rank if lora else 0,
            lora_targets=job.lora_targets,
            lora_dropout=job.lora_dropout,
            adapter_dtype=used or job.lora_dtype,
            adapter_input=job.lora_dtype if job.computed_dtype and job.fsdp.version == 1 else None,
            dora=job.method == "dora",
            modules_to_save=job.modules_to_save or (),
            saved_dtype=used or job.saved_dtype,
            quantize="nf4-double" if job.quantize == "nf4" and job.double_quant else job.quantize,
            peft_expert_pattern=self.peft_expert_pattern,
            linear_experts=self.linear_experts,
            compute_dtype=job.dtype,
            input_needs_grad=job.checkpointing == "full",  # modeling_utils.py: activation_checkpointing_enable
        )
