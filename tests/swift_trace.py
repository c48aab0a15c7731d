"""ms-swift's own preference trainers on fake tensors (`tests.swift_runs` says what it needs)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests import trl_trace
from tests.trl_trace import SETUPS, Setup, TrlRun, ones
from vramplan.inputs.job import Job

MASKS = ("masking_utils.py", "modeling_flash_attention_utils.py")
"""Files of transformers that read masks, whose answer is the job's."""


REFERENCE = "ref_adapter"
"""What it calls the adapters of the reference."""


def as_swift_loads(model: nn.Module, reference: nn.Module | None, peft: Any, job: Job) -> Any:
    """The model with its adapters, and what ms-swift notes on it and on a second model."""
    from peft import get_peft_model

    if peft is not None:
        if job.checkpointing == "full":
            model.enable_input_require_grads()  # type: ignore[operator]
        model = get_peft_model(model, peft)  # type: ignore[arg-type]
        if job.reference == "frozen_adapters":  # ref_adapters (pipelines/train/rlhf.py: prepare_model)
            model.add_adapter(REFERENCE, peft)  # type: ignore[operator]
            for name, parameter in model.named_parameters():
                if f".{REFERENCE}." in name:
                    parameter.requires_grad_(True)
    for one in (model, model.get_base_model() if peft is not None else None, reference):  # type: ignore[operator]
        if one is not None:
            one.model_meta = SimpleNamespace(is_multimodal=False, model_arch=None)  # type: ignore[assignment]
            one.model_info = SimpleNamespace(is_moe_model=False, max_model_len=None)  # type: ignore[assignment]
    return model


class Swift(Setup):
    """DPOTrainer, KTOTrainer, ORPOTrainer, CPOTrainer and RewardTrainer of ms-swift, whose template is a stand-in."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        from datasets import Dataset
        from swift import rlhf_trainers as trainers
        from swift.rlhf_trainers import arguments as configs
        from transformers import GenerationConfig

        task, options = str(self.job.task), dict(self.options)
        if task == "reward":  # transformers gives such a class none
            model.generation_config, model.config.pad_token_id = GenerationConfig(), 0
        model = as_swift_loads(model, reference, peft, self.job)
        if self.job.reference == "frozen_adapters":
            options |= {"ref_adapter_name": REFERENCE}
        kind = {"dpo": "DPO", "kto": "KTO", "orpo": "ORPO", "reward": "Reward"}.get(task, "CPO")
        if task in ("cpo", "simpo"):
            options |= {"loss_type": "simpo", "cpo_alpha": float(task == "cpo")} | options
        self.options = {"loss_type": {"dpo": "sigmoid", "kto": "kto"}.get(task)} | options
        own = self.arguments(folder) | {"check_model": False, "remove_unused_columns": False, "tuner_type": "lora"}
        names = getattr(configs, f"{kind}Config").__dataclass_fields__
        arguments = getattr(configs, f"{kind}Config")(**{name: one for name, one in own.items() if name in names})
        given = {} if task in ("orpo", "cpo", "simpo", "reward") else {"ref_model": reference}
        return getattr(trainers, f"{kind}Trainer")(
            model=model,
            args=arguments,
            template=_template(words, "seq_cls" if task == "reward" else "causal_lm", self.job.batches == "packed"),
            train_dataset=Dataset.from_list([{"input_ids": [3]}]),
            **given,
        )

    def with_adapters(self, model: nn.Module, peft: Any) -> tuple[Any, Any]:
        return model, peft

    def batch(self) -> dict[str, Any]:
        samples, length = self.job.micro_batch_size, self.job.sequence_length
        names = ("input_ids", "attention_mask", "labels")
        if self.job.batches == "packed":  # padding_free: Template.packing_row
            names, samples, length = ("input_ids", "labels", "position_ids"), 1, samples * length
        if self.job.task == "reward":
            return {name: ones(2 * samples, length) for name in names[:2]}
        if self.job.task == "dpo" and self.job.batches == "packed":
            return {name: ones(1, 2 * length) for name in names}
        if self.job.task != "kto":
            return {name: ones(2 * samples, length) for name in names}
        made = {f"{kl}completion_{name}": ones(samples, length) for kl in ("", "KL_") for name in names}
        return {**made, "label": torch.zeros(self.job.micro_batch_size, dtype=torch.bool)}


def _template(words: Any, task_type: str, padding_free: bool = False) -> Any:
    """What the trainers ask of a template."""
    return SimpleNamespace(
        is_encoder_decoder=False,
        padding_free=padding_free,
        padding_side="right",
        packing=False,
        task_type=task_type,
        tokenizer=words,
        processor=words,
        max_length=None,
        sequence_parallel_size=1,
        data_collator=lambda rows, padding_to=None: rows,
        get_base_model=lambda model: model.get_base_model() if hasattr(model, "get_base_model") else model,
        forward_context=lambda model, inputs: nullcontext(),
        template_meta=SimpleNamespace(suffix=[], stop_words=[]),
    )


class SwiftRun(TrlRun):
    """One tracked run of a trainer of ms-swift."""

    def __init__(self, *args: Any, **options: Any) -> None:
        with patch.dict(SETUPS, dict.fromkeys(SETUPS, Swift)):
            super().__init__(*args, **options)

    def _on_device(self, tensor: torch.Tensor) -> Any:
        """Labels of answers stay numbers: half of them are desirable."""
        if tensor.dtype is torch.bool:
            return [place % 2 == 0 for place in range(len(tensor))]
        return super()._on_device(tensor)

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        with _called_by_swift(), self._in_one_row():
            return super().go()

    def _in_one_row(self) -> AbstractContextManager[Any]:
        """Inside, masks of a row select the tokens of all its answers, and those of its beginnings a token of each."""
        if self.job.batches != "packed":
            return nullcontext()
        answers = self.job.micro_batch_size * (2 if self.job.task == "dpo" else 1)
        own = self.fakes.answer_tokens
        self.fakes.answer_tokens = answers * own

        def selected(shape: Sequence[int], answer_tokens: int) -> int:
            if trl_trace._called_by("swift/utils/transformers_utils.py"):  # get_packed_seq_params
                return answers
            return min(answer_tokens, prod(shape))

        return patch.object(trl_trace, "num_scored", selected)


@contextmanager
def _called_by_swift() -> Iterator[None]:
    """Inside, its trainers may read numbers back as TRL's may."""
    original = trl_trace._called_by_trl

    def called(function: str = "") -> bool:
        frame: Any = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.endswith(MASKS):
                return False
            if "/swift/" in frame.f_code.co_filename and function in ("", frame.f_code.co_name):
                return True
            frame = frame.f_back
        return original(function)

    with patch.object(trl_trace, "_called_by_trl", called):
        yield
