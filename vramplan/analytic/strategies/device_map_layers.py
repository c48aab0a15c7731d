"""Assigns layers to the GPUs of one process (device_map): which layers to simulate for each GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import replace

from vramplan import errors
from vramplan.analytic.architectures.forward_pass import DevicePlacement
from vramplan.analytic.layer_folding import Fold, FoldPlan, fold
from vramplan.analytic.step_inputs import StepSpec
from vramplan.analytic.step_record import record_of
from vramplan.analytic.strategies.device_map import Module, balanced, loaded_bytes, spread
from vramplan.analytic.train_step import declare
from vramplan.analytic.unfolded_step import buffers_of
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs.gpu import Gpu
from vramplan.memory.estimate import CardShare, Estimate
from vramplan.memory.overheads import outside_bytes

EMBED, NORM, ROTARY, HEAD = "model.embed_tokens", "model.norm", "model.rotary_emb", "lm_head"
"""The modules around the layers, for models that have these and no others."""


def spread_out(setting: StepSpec, plan: FoldPlan, card: Gpu, model: str) -> tuple[StepSpec, FoldPlan]:
    """The model and its folding, with the layers of each GPU simulated separately.

    Raises:
        UnsupportedError: for a model with other modules around its layers.
        ConfigError: for a model that is too small for more than one GPU.
    """
    architecture, config, job = setting.architecture, setting.config, setting.job
    modules, leaf = modules_of(setting, plan, model)
    free = card.usable_bytes - outside_bytes(job, card)
    tied = (EMBED, HEAD) if architecture.is_tied(config) else None
    found = spread(modules, balanced(modules, leaf, job.num_gpus, free, job.quantize != "none"), tied)
    if len(set(found.values())) == 1:
        raise ConfigError(
            f"{errors.setting('strategy', 'device_map')}: {model} is so small that transformers puts all of it on the"
            " first GPU"
        )
    if job.loss == "liger" and found[NORM] != found[HEAD]:
        raise ConfigError(
            f"{errors.setting('strategy', 'device_map')} {errors.setting('loss', 'liger')}: Liger multiplies hidden"
            f" states by the head's weight, which lie on GPUs {found[NORM]} and {found[HEAD]} here; use"
            f" {errors.setting('loss', 'standard')}"
        )
    (kinds,) = architecture.stacks(config)
    folds: list[Fold] = []
    simulated: list[Hashable] = []
    layers: list[tuple[int, int]] = []
    of_layer = [found[_layer(number)] for number in range(len(kinds))]
    for one in sorted(set(of_layer)):
        folded = fold([kind for kind, on in zip(kinds, of_layer, strict=True) if on == one], len(folds))
        layers += [(folded.base + number, one) for number in range(len(folded.simulated))]
        simulated += folded.simulated
        folds.append(folded)
    lies = DevicePlacement(tuple(layers), found[EMBED], found[NORM], found[ROTARY], found[HEAD])
    return replace(setting, stacks=(tuple(simulated),), device_map=lies), FoldPlan(tuple(folds))


def modules_of(setting: StepSpec, plan: FoldPlan, owner: str) -> tuple[tuple[Module, ...], int]:
    """The model's modules with their bytes as they are loaded, and the largest that has weights of its own.

    Raises:
        UnsupportedError: for a model with other modules around its layers.
    """
    architecture = setting.architecture
    sizes: Counter[tuple[int | None, str]] = Counter()
    for weight in record_of(declare(setting).tape).weights:
        if not weight.is_adapter:
            sizes[weight.layer, weight.name.rpartition(".")[0]] += loaded_bytes(weight, setting.job.dtype)
    around = {module: size for (layer, module), size in sizes.items() if layer is None}
    if (
        not {EMBED, NORM} <= around.keys() <= {EMBED, NORM, HEAD}
        or architecture.remote_code
        or architecture.decoder is None
        or architecture.decoder.rotary(setting.config) is None
    ):
        raise UnsupportedError(
            f"{errors.setting('strategy', 'device_map')}: {owner} is not modelled yet; use ddp or fsdp"
        )
    around[ROTARY] = sum(buffer.num_bytes for buffer in buffers_of(setting))
    of_layer: Counter[int] = Counter()
    for (layer, _), size in sizes.items():
        if layer is not None:
            of_layer[layer] += size
    (text,) = plan.stacks
    layers = tuple(Module(_layer(number), of_layer[simulated]) for number, simulated in enumerate(text.layers()))
    stack = Module("model.layers", sum(one.num_bytes for one in layers), layers)
    inner = (Module(EMBED, around[EMBED]), stack, Module(NORM, around[NORM]), Module(ROTARY, around[ROTARY]))
    model = Module("model", sum(one.num_bytes for one in inner), inner)
    return (model, Module(HEAD, around.get(HEAD, 0))), max(sizes.values())


def _layer(number: int) -> str:
    return f"model.layers.{number}"


def contents(setting: StepSpec, plan: FoldPlan) -> dict[int, str]:
    """The modules on each GPU, in words."""
    lies = setting.placement
    found: dict[int, list[str]] = {card: [] for card in lies.gpus}
    found[lies.embed].append("embeddings")
    first, numbers = 0, dict(lies.layers)
    for stack in plan.stacks:
        count = len(stack.layers())
        found[numbers[stack.base]].append(f"layers {first}-{first + count - 1}")
        first += count
    found[lies.norm].append("norm")
    found[lies.head].append("head")
    return {card: ", ".join(parts) for card, parts in found.items()}


def with_shares(most: Estimate, estimates: Mapping[int, Estimate], held: Mapping[int, str]) -> Estimate:
    """The estimate of the GPU that needs most, with the shares of all GPUs."""
    cards = tuple(
        CardShare(
            number,
            held[number],
            sum(term.num_bytes for term in one.terms if term.category == "parameter"),
            one.peak_allocated_bytes,
            one.peak_reserved_bytes,
            one.device_total_bytes,
            one.phases["eval"],
            one.fits,
        )
        for number, one in estimates.items()
    )
    return replace(most, cards=cards)
