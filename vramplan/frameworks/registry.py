"""The training frameworks by package name."""

from __future__ import annotations

from vramplan.frameworks.framework import Framework, Writer
from vramplan.frameworks.readers import (
    alignment_handbook,
    alpaca_lora,
    axolotl,
    chinese_llama_alpaca,
    deepspeed_json,
    fastchat,
    firefly,
    internvl,
    litgpt,
    llamafactory,
    llava,
    lmflow,
    medicalgpt,
    megatron,
    ms_swift,
    nemo_automodel,
    nemo_rl,
    open_instruct,
    open_r1,
    openrlhf,
    qlora,
    qwen,
    qwen2_vl_finetune,
    qwen_vl_finetune,
    sentence_transformers,
    stanford_alpaca,
    torchtitan,
    torchtune,
    transformers_trainer,
    trl,
    unsloth,
    unsloth_studio,
    verl,
    xtuner,
)

_MODULES = (
    alignment_handbook,
    open_r1,
    internvl,
    qwen,
    qwen_vl_finetune,
    qwen2_vl_finetune,
    unsloth_studio,
    litgpt,
    verl,
    xtuner,
    ms_swift,
    llamafactory,
    axolotl,
    trl,
    unsloth,
    sentence_transformers,
    torchtune,
    torchtitan,
    nemo_automodel,
    nemo_rl,
    megatron,
    deepspeed_json,
    qlora,
    llava,
    fastchat,
    firefly,
    medicalgpt,
    open_instruct,
    openrlhf,
    lmflow,
    alpaca_lora,
    chinese_llama_alpaca,
    stanford_alpaca,
    transformers_trainer,
)
"""If a file has as many marks of several frameworks, or a script's path ends as several do, it is the first one's:
programs go before what they use."""
FRAMEWORKS: dict[str, Framework] = {module.FRAMEWORK.name: module.FRAMEWORK for module in _MODULES}
DEFAULT = transformers_trainer.FRAMEWORK
"""For scripts and files that no framework's command or marks claim: transformers' Trainer."""


def writers() -> dict[str, tuple[Framework, Writer]]:
    """(framework, writer) by the name that ``suggest --for`` takes."""
    return {writer.name: (framework, writer) for framework in FRAMEWORKS.values() for writer in framework.writers}


def environment_variables() -> frozenset[str]:
    """Environment variables that change memory, of all frameworks."""
    return COMMON_VARIABLES.union(*(framework.variables for framework in FRAMEWORKS.values()))


COMMON_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE", "NNODES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
        "ACCELERATE_MIXED_PRECISION",
    }
)  # fmt: skip
"""Those of torch and accelerate, and of launchers that several frameworks share."""

__all__ = ["DEFAULT", "FRAMEWORKS", "Framework", "Writer", "environment_variables", "writers"]
