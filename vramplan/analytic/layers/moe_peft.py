"""PEFT's adapters on stacked expert weights.

transformers 5 stacks the experts of an MoE layer in one parameter, so they are no linear layers any more. For some
architectures PEFT 0.21 still accepts the old names, `all-linear` included, and adapts the stacked weights and the
router instead (utils/transformers_weight_conversion.py: _convert_peft_config_moe): it computes the full stacked weight
plus its adapter, which backward saves (tuners/lora/layer.py: ParamWrapper, _LoraFactorsProxy).
"""

from __future__ import annotations

from collections.abc import Mapping

FORMER: Mapping[str, Mapping[str, str]] = {
    "": {},
    "mixtral": {"gate": "gate.weight", "w1": "gate_up_proj", "w3": "gate_up_proj", "w2": "down_proj"},
    "qwen2_moe": {
        "gate": "gate.weight",
        "gate_proj": "gate_up_proj",
        "up_proj": "gate_up_proj",
        "down_proj": "down_proj",
    },
}
"""By PEFT's pattern, the stacked parameter that an old name means (_MOE_TARGET_MODULE_MAPPING).

It holds for every module of that name, so modules of shared experts and of dense layers get no adapter.
"""
DOUBLED = "gate_up_proj"
"""Two old names in one parameter: they are adapted together, with twice the rank (_MOE_FUSED_TARGETS)."""


def meant(pattern: str, target: str) -> str | None:
    """The stacked parameter that a target or module name means; None if none."""
    return FORMER[pattern].get(target.rpartition(".")[2])


def adapted(pattern: str, targets: tuple[str, ...] | None) -> set[str]:
    """Stacked weights and router weights with an adapter; `targets=None` is all-linear."""
    if targets is None:
        return set(FORMER[pattern].values())
    return {parameter for target in targets if (parameter := meant(pattern, target)) is not None}


def missing_half(pattern: str, targets: tuple[str, ...]) -> str | None:
    """The second name that is missing if `targets` has one of the two of DOUBLED; None otherwise."""
    names = {target.rpartition(".")[2] for target in targets}
    absent = [name for name, parameter in FORMER[pattern].items() if parameter == DOUBLED and name not in names]
    return absent[0] if len(absent) == 1 else None


def rank_of(parameter: str, rank: int) -> int:
    """Rank of a stacked weight's adapter, for each expert."""
    return 2 * rank if parameter == DOUBLED else rank
