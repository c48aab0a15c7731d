"""Adds runs of ``swift sft --task_type ...`` on fake tensors to tests/trl_runs.jsonl: ms-swift's own trainers.

`python -m tests.swift_sft` runs those that the file lacks; `tests.swift_runs` says what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from tests import trl_trace
from tests.helpers import card_of
from tests.recorded_runs import add_missing, job_of, model_of
from tests.swift_runs import VERSION
from tests.swift_trace import SwiftRun, _template
from tests.trl_runs import FAMILIES, GPU, LAYERS, RUNS, SMALL
from tests.trl_trace import Setup, ones
from vramplan.inputs.job import Job
from vramplan.render.figures import texts_of_sample
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model.build import from_config

TYPES = {"sequence_classification": "seq_cls"}
"""Tasks whose task_type has another name."""
LOSSES = {
    "embedding": "infonce",
    "reranker": "pointwise_reranker",
    "generative_reranker": "pointwise_reranker",
    "sequence_classification": None,
}
"""loss_type by task."""


class Sft(Setup):
    """Trainer, EmbeddingTrainer and RerankerTrainer of ms-swift."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        from datasets import Dataset
        from peft import get_peft_model
        from swift.model.patcher import patch_output_normalizer
        from swift.model.register import ModelLoader
        from swift.trainers import TrainingArguments
        from swift.trainers.trainer_factory import TrainerFactory
        from transformers import GenerationConfig

        task, job = str(self.job.task), self.job
        kind = TYPES.get(task, task)
        meta = SimpleNamespace(is_multimodal=False, model_arch=None)
        model.generation_config, model.config.pad_token_id = GenerationConfig(), 0
        if task == "embedding":
            patch_output_normalizer(model, model_meta=meta)
        if task == "generative_reranker":
            loader = SimpleNamespace(model_meta=meta, _get_tokenizer=lambda processor: processor)
            ModelLoader._patch_generative_reranker(loader, model, words)
        if peft is not None:
            if job.checkpointing == "full":
                model.enable_input_require_grads()
            model = get_peft_model(model, peft)
        problem = self.options.get("problem_type")
        model.model_meta = meta
        model.model_info = SimpleNamespace(
            is_moe_model=False, max_model_len=None, task_type=kind, problem_type=problem, num_labels=job.num_labels
        )
        options = {name: one for name, one in self.options.items() if name != "problem_type"}
        own = self.arguments(folder) | {"loss_type": LOSSES[task], **options}
        own |= {"check_model": False, "remove_unused_columns": False, "tuner_type": "lora", "eval_metric": None}
        names = TrainingArguments.__dataclass_fields__
        given = {name: one for name, one in own.items() if name in names}
        template = _template(words, kind)
        template.padding_free = job.joins_samples
        made = TrainerFactory.get_trainer_cls(SimpleNamespace(task_type=kind))
        trainer = made(
            model=model,
            args=TrainingArguments(**given),
            template=template,
            train_dataset=Dataset.from_list([{"input_ids": [3]}]),
        )
        trainer.model_accepts_loss_kwargs = False
        return trainer

    def batch(self) -> dict[str, Any]:
        job = self.job
        rows = texts_of_sample(job) * job.micro_batch_size
        made = {name: ones(rows, job.sequence_length) for name in ("input_ids", "attention_mask")}
        if job.joins_samples:
            made = {name: ones(1, rows * job.sequence_length) for name in ("input_ids", "position_ids")}
        if job.task == "embedding":
            return {**made, "labels": torch.ones(job.micro_batch_size * (1 + job.negatives))}
        if self.options.get("problem_type") == "multi_label_classification":
            return {**made, "labels": torch.ones(rows, job.num_labels or 1)}
        return {**made, "labels": torch.ones(rows) if job.num_labels == 1 else torch.ones(rows, dtype=torch.int64)}


class SftRun(SwiftRun):
    """One tracked run of such a trainer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        setups = dict.fromkeys(LOSSES, Sft)
        with patch.dict(trl_trace.SETUPS, setups), patch.object(SwiftRun, "__init__", trl_trace.TrlRun.__init__):
            super().__init__(*args, **options)

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        texts = 2 + self.job.negatives

        def samples(sentences: torch.Tensor, labels: Any, hard: Any = None) -> list[torch.Tensor]:
            return [sentences[at : at + texts] for at in range(0, len(sentences), texts)]

        with ExitStack() as stack:
            stack.enter_context(patch("swift.loss.embedding._parse_multi_negative_sentences", samples))
            stack.enter_context(patch("swift.trainers.mixin.compute_acc", lambda *args, **kwargs: {}))
            if self.job.joins_samples:
                stack.enter_context(_of_equal_texts(self.job))
            return super().go()

    def _model(self) -> nn.Module:
        from transformers import AutoModelForSequenceClassification

        job = self.job
        plain = job.model_copy(
            update={"task": None, "num_labels": None, "joins_texts": False, "negatives": 0, "batches": "padded"}
        )
        model: nn.Module = from_config(self.spec, plain, "meta", False, nullcontext).module
        if job.task in ("embedding", "generative_reranker"):
            return model
        config: Any = model.config
        config.num_labels = job.num_labels or 1
        config.problem_type = self.setup.options.get("problem_type")
        with torch.device("meta"):
            made: nn.Module = AutoModelForSequenceClassification.from_config(
                config, attn_implementation=config._attn_implementation, dtype=DTYPES[job.dtype]
            )
        return made

    def _adapters(self) -> Any:
        peft = super()._adapters()
        if peft is not None:
            peft.task_type = {"embedding": None, "generative_reranker": "CAUSAL_LM"}.get(str(self.job.task), "SEQ_CLS")
        return peft


@contextmanager
def _of_equal_texts(job: Job) -> Iterator[None]:
    """Inside, texts in one row are told apart by positions that are numbers: fake tensors have none.

    What it compares them with on the device, a few bytes for each token, is not counted.
    """
    from swift.model import patcher

    original, rows = patcher.revert_padding_free, texts_of_sample(job) * job.micro_batch_size

    def separate(outputs: Any, inputs: Any, padding_side: str = "left") -> Any:
        positions = np.tile(np.arange(job.sequence_length), rows)[None]
        with patch("torch.where", np.nonzero):
            return original(outputs, {"position_ids": positions}, padding_side)

    with patch("swift.trainers.mixin.revert_padding_free", separate):
        yield


FULL: dict[str, Any] = {"method": "full", "modules_to_save": None}
EMBEDDING: dict[str, Any] = {"task": "embedding", "joins_texts": True, "batches": "padded"}
HEAD = ("score",)
"""What PEFT trains beside adapters of a classifier."""
RERANKER: dict[str, Any] = {"task": "reranker", "batches": "padded", "modules_to_save": HEAD}
GENERATIVE: dict[str, Any] = {"task": "generative_reranker", "batches": "padded"}
ONE_ROW: dict[str, Any] = {"batches": "packed", "attention": "flash"}
"""padding_free."""
CLASSES: dict[str, Any] = {**RERANKER, "task": "sequence_classification", "num_labels": 5}
OF_LLAMA: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({**EMBEDDING, "micro_batch_size": 1}, {}),
    ({**EMBEDDING, "negatives": 3, "gradient_accumulation_steps": 2}, {}),
    ({**EMBEDDING, "autocast": "none", "checkpointing": "none"}, {}),
    ({**EMBEDDING, "micro_batch_size": 16, "sequence_length": 64}, {}),
    ({**EMBEDDING, "embedding_loss": "cosine_similarity"}, {"loss_type": "cosine_similarity"}),
    ({**EMBEDDING, "embedding_loss": "contrastive", **FULL}, {"loss_type": "contrastive"}),
    ({**RERANKER, "negatives": 4, "micro_batch_size": 1}, {}),
    ({**RERANKER, "negatives": 2, **FULL, "checkpointing": "none"}, {}),
    (CLASSES, {}),
    ({**CLASSES, **FULL, "autocast": "none"}, {}),
    ({**CLASSES, "num_labels": 1}, {"problem_type": "regression"}),
    ({**CLASSES, "num_labels": 200}, {"problem_type": "multi_label_classification"}),
    ({**EMBEDDING, **ONE_ROW}, {}),
    ({**EMBEDDING, **ONE_ROW, **FULL, "micro_batch_size": 3, "negatives": 1}, {}),
    ({**EMBEDDING, **ONE_ROW, "autocast": "none", "checkpointing": "none", "sequence_length": 1024}, {}),
    ({**RERANKER, **ONE_ROW, "negatives": 3}, {}),
    ({**RERANKER, **ONE_ROW, **FULL, "micro_batch_size": 1}, {}),
    ({**CLASSES, **ONE_ROW}, {}),
    ({**CLASSES, **ONE_ROW, **FULL, "micro_batch_size": 1, "checkpointing": "none"}, {}),
    ({**GENERATIVE, "negatives": 3}, {}),
    ({**GENERATIVE, **FULL, "negatives": 1}, {}),
    ({**GENERATIVE, "negatives": 2, "autocast": "none", "checkpointing": "none"}, {}),
    ({**GENERATIVE, **ONE_ROW, "negatives": 3}, {}),
    ({**GENERATIVE, **ONE_ROW, **FULL, "negatives": 2, "micro_batch_size": 1}, {}),
)
"""A job on Llama, and ms-swift's settings."""


def cases() -> Iterator[dict[str, Any]]:
    """All runs."""

    def case(model: str, config: dict[str, Any], job: dict[str, Any], **options: Any) -> dict[str, Any]:
        return {"model": model, "config": config, "job": {**SMALL, **job}, "options": options}

    for model, config, own in FAMILIES[:4]:
        for job in (EMBEDDING, {**EMBEDDING, **FULL}, {**RERANKER, "negatives": 1}):
            yield case(model, config, {**own, **job})
    for job, options in OF_LLAMA:
        yield case("llama-3.2-1b", {LAYERS: 6}, job, **options)
    yield case("mistral-7b-v0.3", {LAYERS: 6}, {**EMBEDDING, **FULL})  # its head is not tied
    yield case("mistral-7b-v0.3", {LAYERS: 6}, {**GENERATIVE, **FULL, **ONE_ROW})
    yield case("mistral-7b-v0.3", {LAYERS: 6}, {**GENERATIVE, "negatives": 1})
    yield case("qwen3-0.6b", {LAYERS: 6}, {**GENERATIVE, **ONE_ROW, "negatives": 7, "micro_batch_size": 1})
    yield case("llama-3.1-8b", {}, {**EMBEDDING, "negatives": 2, "sequence_length": 1024})


def main() -> int:
    """Run what the file lacks."""

    def run(row: dict[str, Any]) -> dict[str, int]:
        return SftRun(model_of(row), job_of(row), card_of(GPU), str(row["job"]["task"]), 0, **row["options"]).go()

    add_missing(RUNS, ({"trl": VERSION, **case} for case in cases()), run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
