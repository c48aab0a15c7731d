"""The record of a training framework: everything that the rest of vramplan knows about it by name.

Each module in ``readers/`` that reads a framework's configurations ends with its record, ``FRAMEWORK``; registry.py
lists the modules. Its keys stand in known_keys.json and, if they are not modelled, in unsupported_keys.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Literal

from vramplan.dataclass import dataclass
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.settings import ConfigReader, ConfigSource, ConfigValue
from vramplan.frameworks.syntax import argv
from vramplan.frameworks.writers.config_text import ConfigText
from vramplan.inputs.job import Job

ENGINES = ("ddp", "zero0", "zero1", "zero2", "zero3", "fsdp")
"""Strategies that transformers' Trainer runs by its own arguments."""
WHOLE_JOB = (
    "method", "lora_rank", "lora_targets", "lora_dropout", "lora_dtype", "dtype", "autocast", "quantize",
    "prepare_for_kbit_training", "fp32_norms", "modules_to_save", "saved_dtype", "optimizer", "experts",
    "vision", "projector", "max_pixels", "max_tiles", "images", "sequence_length", "micro_batch_size",
    "gradient_accumulation_steps", "checkpointing", "attention", "loss", "fused_kernels", "num_gpus", "num_nodes",
    "strategy", "offload", "task", "reference", "prompt_length", "generate_with", "num_generations",
    "steps_per_generation", "num_iterations", "vllm_share", "vllm_tensor_parallel", "vllm_max_length", "vllm_weights",
    "vllm_sync_parts", "rollout_offload", "entropy_graph", "reward_model", "importance_sampling", "adds_cross_entropy",
    "teacher", "teacher_dtype", "teacher_logits", "divergence", "generated_by", "reward_dtype",
    "reward_adapters", "swift", "mini_batch_size", "embedding_loss", "joins_texts", "negatives", "matryoshka_dims",
)  # fmt: skip
"""Fields of a job that a whole configuration sets, and that are compared once it is read again."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A form in which ``vramplan suggest --for NAME`` writes a job."""

    name: str
    """What ``--for`` takes."""
    write: Callable[[str, Job], ConfigText]
    """(model, job) -> the configuration to paste."""
    strategies: tuple[str, ...] = ("ddp",)
    """Strategies that such a configuration can say."""
    fields: tuple[str, ...] = WHOLE_JOB
    """Fields of a job that it can say."""
    tasks: tuple[str, ...] = ()
    """Tasks other than the next token that it can say."""
    writes_language_models: bool = True
    """Whether it can say the next token."""
    uses_ported_model: bool = True
    """Whether a model with remote code is written as its ``-hf`` port, which transformers' own classes load."""

    @property
    def writes_whole_job(self) -> bool:
        """Whether what is written can be estimated by itself."""
        return self.fields == WHOLE_JOB


@dataclass(frozen=True, slots=True)
class Program:
    """A training script that people run by its path, or as a module."""

    path: str
    """How its path ends: llava/train/train_mem.py. ``python -m llava.train.train_mem`` is the same."""
    marks: frozenset[str] = frozenset()
    """Flags of its own, of which at least one has to be set; empty if no other program's path ends like this."""
    required: frozenset[str] = frozenset()
    """Flags that all have to be set, if none of them is its own alone."""
    unread: str = ""
    """What it does, if that is refused: preference training."""


@dataclass(frozen=True, slots=True)
class Framework:
    """A training framework."""

    name: str
    """Its package's name."""
    read: Callable[[ConfigReader, int, str | None], ParsedConfig]
    """(settings, GPUs of the machine, version or None) -> job and notes."""
    commands: tuple[tuple[str, ...], ...] = ()
    """First words of the commands that train; scripts by the end of their path."""
    programs: tuple[Program, ...] = ()
    """Scripts that train, and scripts that are recognised and refused."""
    unread_commands: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    """First words of commands that are recognised and refused, each with what it does."""
    marks: frozenset[str] = frozenset()
    """Keys by which a configuration file is recognised as this framework's."""
    tells_tasks: bool = False
    """Whether its reader tells TRL's trainers apart by the configuration's keys."""
    task_keys: tuple[str, ...] = ()
    """Keys by which it says the kind of training."""
    inherits: tuple[str, ...] = ()
    """Other names in known_keys.json and unsupported_keys.json whose keys it takes as well."""
    variables: frozenset[str] = frozenset()
    """Environment variables of its own that change memory."""
    in_sections: bool = False
    """Whether settings stand in sections and are read as ``section.key``."""
    split: Callable[[Sequence[str]], tuple[list[str], dict[str, ConfigValue]]] = argv.split
    """(words after the command) -> (words that belong to no flag, settings)."""
    file_keys: tuple[str, ...] = ("config",)
    """Flags that name a configuration file."""
    overrides: Literal["flags", "pairs", "click", "hydra"] = "flags"
    """How settings follow a configuration file: ``--key value``; ``key=value``; click's ``--dashed-key``; hydra's
    ``key=value``, also without a file or behind a flag and its value."""
    valued_flags: tuple[str, ...] = ()
    """Click's flags that take more values than true and false."""
    stops_at_duplicates: bool = False
    """Whether its parser of files stops at a key that stands twice; the last one counts elsewhere."""
    stops_at_unknown: Callable[[ConfigSource], bool] | None = None
    """Whether it stops at a key of these settings that it does not know; None if it never does."""
    unknown_key: str = ""
    """The note on a key that is not known, if the default note would be wrong."""
    expands_all_linear: bool = False
    """Whether it looks for linear layers itself and passes their names to PEFT if all are wanted."""
    writers: tuple[Writer, ...] = ()
    """Forms in which a job is written for it."""


__all__ = ["ENGINES", "WHOLE_JOB", "Framework", "Program", "Writer"]
