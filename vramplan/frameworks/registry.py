"""The training frameworks: what each one's configuration says, as a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers import (
    axolotl,
    deepspeed_json,
    llamafactory,
    megatron,
    ms_swift,
    torchtitan,
    torchtune,
    transformers_trainer,
    trl,
    unsloth,
)
from vramplan.frameworks.settings import ConfigReader, ConfigSource, ConfigValue, Note
from vramplan.frameworks.syntax import argv


class Framework(NamedTuple):
    """One training framework."""

    read: Callable[[ConfigReader, int, str | None], ParsedConfig]
    """(settings, cards, version asked for) -> what they come to."""
    commands: tuple[tuple[str, ...], ...]
    """First words of its commands; scripts by their last part."""
    marks: frozenset[str]
    """Keys that only its configurations have."""
    in_sections: bool = False
    """Whether its settings stand in sections, and are read as section.key."""
    split: Callable[[Sequence[str]], tuple[list[str], dict[str, ConfigValue]]] = argv.split
    """(words behind its command) -> words of no flag, settings."""
    file_keys: tuple[str, ...] = ("config",)
    """Flags that name a configuration file."""


FRAMEWORKS: dict[str, Framework] = {
    "ms-swift": Framework(
        ms_swift.read,
        (("swift", "sft"), ("swift", "pt"), ("swift/cli/sft.py",), ("swift/cli/pt.py",)),
        frozenset({"train_type", "tuner_type", "sft_type", "torch_dtype", "vit_gradient_checkpointing"}),
    ),
    "llamafactory": Framework(
        llamafactory.read,
        (("llamafactory-cli", "train"), ("lmf", "train"), ("src/train.py",), ("src/llamafactory/launcher.py",)),
        frozenset({"finetuning_type", "stage", "cutoff_len", "lora_target", "template", "pure_bf16", "do_train"}),
    ),
    "axolotl": Framework(
        axolotl.read,
        (("axolotl", "train"), ("axolotl.cli.train",), ("scripts/finetune.py",)),
        frozenset(
            {"base_model", "sequence_len", "micro_batch_size", "adapter", "sample_packing", "lora_target_linear"}
        ),
    ),
    "trl": Framework(
        trl.read,
        (("trl", "sft"), ("trl/scripts/sft.py",), ("scripts/sft.py",), ("sft.py",)),
        frozenset(
            {"use_peft", "dataset_name", "lora_target_modules", "packing_strategy", "max_length", "accelerate_config"}
        ),
    ),
    "unsloth": Framework(
        unsloth.read,
        (),
        frozenset({"load_in_16bit", "full_finetuning", "use_gradient_checkpointing"}),
    ),
    "torchtune": Framework(
        torchtune.read,
        (("tune", "run"),),
        frozenset(
            {"checkpointer", "optimizer_in_bwd", "enable_activation_checkpointing", "tokenizer", "metric_logger"}
        ),
        in_sections=True,
        split=torchtune.split,
    ),
    "torchtitan": Framework(
        torchtitan.read,
        (("torchtitan.train",), ("torchtitan/train.py",)),
        frozenset({"training", "parallelism", "activation_checkpoint"}),
        in_sections=True,
        file_keys=("job.config_file",),
    ),
    "megatron": Framework(
        megatron.read,
        (("megatron", "sft"), ("megatron", "pt"), *((f"pretrain_{one}.py",) for one in ("gpt", "bert", "t5", "vlm"))),
        frozenset({"tensor_model_parallel_size", "recompute_granularity", "global_batch_size"}),
    ),
    "deepspeed": Framework(
        deepspeed_json.read,
        (),
        frozenset(
            {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "zero_allow_untested_optimizer"}
        ),
    ),
    "transformers": Framework(
        transformers_trainer.read,
        (),
        frozenset(),
    ),
}
"""By package, the ones whose words say most about themselves first; what none of them claims is the Trainer's."""

__all__ = ["FRAMEWORKS", "ConfigReader", "ConfigSource", "ConfigValue", "Framework", "Note", "ParsedConfig"]
