"""The training frameworks: what each one's configuration says, as a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from vramplan.frameworks import axolotl, llamafactory, swift, trainer, trl
from vramplan.frameworks.reading import Reading
from vramplan.frameworks.source import Keys, Note, Setting, Source


class Framework(NamedTuple):
    """One training framework."""

    read: Callable[[Keys, int, str | None], Reading]
    """(settings, cards, version asked for) -> what they come to."""
    commands: tuple[tuple[str, ...], ...]
    """First words of its commands; scripts by their last part."""
    marks: frozenset[str]
    """Keys that only its configurations have."""


FRAMEWORKS: dict[str, Framework] = {
    "ms-swift": Framework(
        swift.read,
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
    "transformers": Framework(
        trainer.read,
        (),
        frozenset(),
    ),
}
"""By package, the ones whose words say most about themselves first; what none of them claims is the Trainer's."""

__all__ = ["FRAMEWORKS", "Framework", "Keys", "Note", "Reading", "Setting", "Source"]
