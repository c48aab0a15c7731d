"""The layers that PEFT adapts if a configuration names none, by the model's type (peft 0.21, utils/constants.py)."""

from __future__ import annotations

from collections.abc import Mapping

from vramplan.errors import ConfigError
from vramplan.inputs.model_spec import ModelSpec


def _of(types: str, *layers: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(types.split(), layers)


DEFAULT_TARGETS: Mapping[str, tuple[str, ...]] = {
    **_of(
        "llama llama4 mistral mixtral gemma gemma2 gemma3_text qwen2 qwen3 opt gptj gpt_neo stablelm bart",
        "q_proj",
        "v_proj",
    ),
    **_of("phi", "q_proj", "v_proj", "fc1", "fc2"),
    **_of("gpt2 gpt_bigcode", "c_attn"),
    **_of("bloom gpt_neox falcon chatglm", "query_key_value"),
    **_of("bert roberta xlm-roberta electra", "query", "value"),
    **_of("deberta-v2", "query_proj", "value_proj"),
    **_of("t5 mt5", "q", "v"),
    **_of("nemotron_h", "q_proj", "k_proj", "v_proj", "o_proj"),
}


def default_targets(spec: ModelSpec) -> tuple[str, ...]:
    """The layers that PEFT adapts by default.

    Raises:
        ConfigError: for a type of models without a default, at which PEFT stops.
    """
    if spec.model_type not in DEFAULT_TARGETS:
        raise ConfigError(f"PEFT 0.21 stops: it has no default target_modules for {spec.model_type}; name the layers")
    return DEFAULT_TARGETS[spec.model_type]
