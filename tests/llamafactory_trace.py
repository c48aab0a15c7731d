"""LLaMA-Factory's own preference and reward trainers on fake tensors (`tests.llamafactory_runs` says what it needs).

Its trainer classes are the real ones; what they import from the rest of the package is left out, except the function
that makes log-probabilities.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests import trl_trace
from tests.trl_trace import SETUPS, Setup, TrlRun, num_scored, ones
from vramplan.torch_backend.model.build import from_config

PACKAGE = "llamafactory"
TRAINERS = {
    "dpo": ("dpo", "CustomDPOTrainer"),
    "kto": ("kto", "CustomKTOTrainer"),
    "reward": ("rm", "PairwiseTrainer"),
}
"""The stage and the trainer's class of each task."""
PRESENT = ("datasets", "requests")
"""Packages that TRL 0.24 may use."""


def load(folder: Path) -> dict[str, Any]:
    """The trainer's class of each task from the unpacked package in `folder`."""
    with patch("transformers.utils.import_utils._is_package_available", _is_present):
        import trl.import_utils  # noqa: F401  (it asks which packages there are)
    for name in ("", ".train", ".train.dpo", ".train.kto", ".train.rm", ".extras"):
        package = ModuleType(PACKAGE + name)
        package.__path__ = []
        sys.modules[PACKAGE + name] = package
    from transformers import TrainerCallback

    own: dict[str, dict[str, Any]] = {
        "extras.constants": {"IGNORE_INDEX": -100},
        "extras.packages": {"is_transformers_version_greater_than": lambda _: True},
        "extras.logging": {"get_logger": lambda name: None},
        "train.callbacks": {"SaveProcessorCallback": object, "FixValueHeadModelCallback": TrainerCallback},
        "train.trainer_utils": _functions(folder / "train/trainer_utils.py", ("get_batch_logps", "nested_detach")),
    }
    own["train.trainer_utils"] |= dict.fromkeys(("create_custom_optimizer", "create_custom_scheduler"), lambda *_: None)
    for name, values in own.items():
        module = ModuleType(f"{PACKAGE}.{name}")
        vars(module).update(values)
        sys.modules[module.__name__] = module
        setattr(sys.modules[f"{PACKAGE}.{name.rpartition('.')[0]}"], name.rpartition(".")[2], module)
    return {task: getattr(_module(f"train.{stage}.trainer", folder / f"train/{stage}/trainer.py"), name)
            for task, (stage, name) in TRAINERS.items()}  # fmt: skip


def _is_present(name: str, return_version: bool = False) -> Any:
    """transformers 4's answer to whether a package is installed, which TRL 0.24 expects."""
    return (name in PRESENT, "") if return_version else name in PRESENT


def _functions(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Functions of a file, without the rest of it."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    scope: dict[str, Any] = {"torch": torch, "IGNORE_INDEX": -100, "Mapping": Mapping}
    exec("from typing import *", scope)
    exec(compile(tree, str(path), "exec"), scope)
    return {name: scope[name] for name in names}


def _module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{PACKAGE}.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class FinetuningArguments:
    """The preference settings that trainers read, with LLaMA-Factory's defaults (hparams/finetuning_args.py)."""

    pref_beta, pref_ftx, pref_bco_weight, pref_loss = 0.1, 0.0, 0.0, "sigmoid"
    dpo_label_smoothing, simpo_gamma, ld_alpha = 0.0, 0.5, None
    kto_chosen_weight = kto_rejected_weight = 1.0
    use_badam = disable_shuffling = False

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)
        self.use_ref_model = self.pref_loss not in ("orpo", "simpo")


class Custom(Setup):
    """CustomDPOTrainer and CustomKTOTrainer."""

    classes: dict[str, Any]

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        from datasets import Dataset
        from peft import get_peft_model
        from transformers import TrainingArguments

        if peft is not None:
            if self.job.checkpointing == "full":
                model.enable_input_require_grads()
            peft.task_type = "CAUSAL_LM"  # whatever the stage
            model = get_peft_model(model, peft)
        own = {"ref_model": reference}
        if self.job.task == "reward":
            from trl import AutoModelForCausalLMWithValueHead

            own, model = {}, AutoModelForCausalLMWithValueHead.from_pretrained(model)
        options, self.options = self.options, {}
        arguments = TrainingArguments(**self.arguments(folder), remove_unused_columns=False)
        return self.classes[str(self.job.task)](
            **own,
            model=model,
            finetuning_args=FinetuningArguments(**options),
            processor=None,
            args=arguments,
            data_collator=lambda rows: rows,
            train_dataset=Dataset.from_list([{"input_ids": [3]}]),
            tokenizer=words,
        )

    def batch(self) -> dict[str, torch.Tensor]:
        samples, length = self.job.micro_batch_size, self.job.sequence_length
        names = ("input_ids", "attention_mask", "labels")
        if self.job.task in ("dpo", "reward"):
            return {name: ones(2 * samples, length) for name in names}
        made = {f"{kl}{name}": ones(samples, length) for kl in ("", "kl_") for name in names}
        return {**made, "kto_tags": torch.zeros(samples, dtype=torch.bool)}


def _half_of_samples(shape: Sequence[int], answer_tokens: int) -> int:
    """Half of the samples are desirable."""
    return num_scored(shape, answer_tokens) if len(shape) > 1 else shape[0] // 2


class LlamaFactoryRun(TrlRun):
    """One tracked run of a trainer of LLaMA-Factory."""

    def __init__(self, *args: Any, **options: Any) -> None:
        with patch.dict(SETUPS, dict.fromkeys(TRAINERS, Custom)):
            super().__init__(*args, **options)

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        with patch.object(trl_trace, "num_scored", _half_of_samples), _called_by_llamafactory():
            return super().go()

    def _needs_reference(self) -> bool:
        return self.job.reference != "none" and self.job.task != "reward"

    def _model(self) -> nn.Module:
        return from_config(self.spec, self.job, "meta", False, nullcontext).module


@contextmanager
def _called_by_llamafactory() -> Iterator[None]:
    """Inside, its trainers may read numbers back as TRL's may."""
    original = trl_trace._called_by_trl

    def called(function: str = "") -> bool:
        frame: Any = sys._getframe(1)
        while frame is not None and not function:
            if f"/{PACKAGE}/train/" in frame.f_code.co_filename:
                return True
            frame = frame.f_back
        return original(function)

    with patch.object(trl_trace, "_called_by_trl", called):
        yield
