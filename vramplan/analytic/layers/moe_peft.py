"""Weights of all experts in one parameter, and the adapters that PEFT puts on those.

transformers 5 stacks the experts of a mixture, so that they are no linear layers any more. For some architectures PEFT
0.21 still takes the old names, `all-linear` included, and adapts the stacks, and the router, that these have become
(utils/transformers_weight_conversion.py: _convert_peft_config_moe). It does so by a weight of the whole stack with the
adapter folded in, which backward keeps (tuners/lora/layer.py: ParamWrapper, _LoraFactorsProxy).
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
"""By PEFT's pattern the parameter that a name means now (_MOE_TARGET_MODULE_MAPPING); none where there is no pattern.

In every module of that name: those of shared experts and of layers that are no mixture are left out.
"""
DOUBLED = "gate_up_proj"
"""Two in one: neither can be adapted alone, and together they get twice the rank (_MOE_FUSED_TARGETS)."""


def meant(pattern: str, target: str) -> str | None:
    """The parameter that a target or module of this name means, if any."""
    return FORMER[pattern].get(target.rpartition(".")[2])


def adapted(pattern: str, targets: tuple[str, ...] | None) -> set[str]:
    """Stacks and router weights that get an adapter; no targets are all linear layers."""
    if targets is None:
        return set(FORMER[pattern].values())
    return {parameter for target in targets if (parameter := meant(pattern, target)) is not None}


def missing_half(pattern: str, targets: tuple[str, ...]) -> str | None:
    """The name that has to be given too where only one of the two is."""
    given = {target.rpartition(".")[2] for target in targets}
    absent = [name for name, parameter in FORMER[pattern].items() if parameter == DOUBLED and name not in given]
    return absent[0] if len(absent) == 1 else None


def rank_of(parameter: str, rank: int) -> int:
    """The rank of a stack's adapter for each expert."""
    return 2 * rank if parameter == DOUBLED else rank
