"""One rank of a trainer of classifiers, embeddings or rerankers on an emulated GPU (see `tests.task_sharing`)."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Any

import torch

from tests.recorded_runs import job_of, model_of
from tests.trl_sharing_run import STEPS, Peaks, observe, print_peaks, sharing, usual_arguments
from tests.trl_trace import tokenizer
from vramplan.inputs.job import Job
from vramplan.torch_backend.dtypes import DTYPES

TOKEN = 3
"""A token of a text; all texts have the job's tokens."""


def arguments(job: Job, model_type: str, options: dict[str, Any]) -> dict[str, Any]:
    """What all trainers are told."""
    return {
        **usual_arguments(job),
        "remove_unused_columns": False,
        **sharing(job, model_type),
        **options,
    }


def adapter(job: Job, kind: str) -> Any:
    """PEFT's configuration."""
    from peft import LoraConfig

    return LoraConfig(r=job.lora_rank, target_modules="all-linear", lora_dropout=0.0, task_type=kind)


def adapted(model: Any, job: Job, kind: str) -> Any:
    """The model with adapters."""
    if job.method == "full":
        return model
    from peft import get_peft_model

    return get_peft_model(model, adapter(job, kind), autocast_adapter_dtype=job.lora_dtype == "fp32")


def samples(job: Job, row: dict[str, Any]) -> Any:
    """The same sample as often as the run reads one."""
    from datasets import Dataset

    return Dataset.from_list([row] * (job.num_gpus * job.global_batch_size * STEPS))


def texts(job: Job, rows: int) -> dict[str, torch.Tensor]:
    """Texts as a tokenizer gives them."""
    shape = rows, job.sequence_length
    return {"input_ids": torch.full(shape, TOKEN), "attention_mask": torch.ones(shape, dtype=torch.int64)}


def classifier(job: Job, spec: Any, options: dict[str, Any]) -> Any:
    """transformers' Trainer of a model with a head for labels."""
    from transformers import (
        AutoConfig,
        AutoModelForSequenceClassification,
        AutoModelForTokenClassification,
        Trainer,
        TrainingArguments,
    )

    args = TrainingArguments(**arguments(job, spec.model_type, options))
    config = AutoConfig.for_model(**{**spec.config, "model_type": spec.model_type})
    config.pad_token_id, config.num_labels = 0, job.num_labels or 2
    per_token = job.task == "token_classification"
    auto = AutoModelForTokenClassification if per_token else AutoModelForSequenceClassification
    model = auto.from_config(config, dtype=DTYPES[job.dtype], attn_implementation=job.attention)

    def collate(rows: list[Any]) -> dict[str, torch.Tensor]:
        shape = (len(rows), job.sequence_length) if per_token else (len(rows),)
        return {**texts(job, len(rows)), "labels": torch.ones(shape, dtype=torch.int64)}

    kind = "TOKEN_CLS" if per_token else "SEQ_CLS"
    data = samples(job, {"text": "w3"})
    return Trainer(model=adapted(model, job, kind), args=args, data_collator=collate, train_dataset=data)


def _saved(job: Job, spec: Any, auto: Any) -> str:
    """A folder with the model and a tokenizer."""
    from transformers import AutoConfig

    config = AutoConfig.for_model(**{**spec.config, "model_type": spec.model_type})
    config.pad_token_id, config.num_labels = 0, job.num_labels or 1
    folder = tempfile.mkdtemp()
    auto.from_config(config, dtype=DTYPES[job.dtype]).save_pretrained(folder)
    tokenizer(64).save_pretrained(folder)
    return folder


def _tokenized(job: Job, inputs: list[Any], **options: Any) -> dict[str, Any]:
    return texts(job, len(inputs))


def embedder(job: Job, spec: Any, options: dict[str, Any]) -> Any:
    """sentence-transformers' trainer of embeddings."""
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer import losses
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import AutoModel

    from vramplan.inputs.embedding import LOSSES

    folder = _saved(job, spec, AutoModel)
    args = SentenceTransformerTrainingArguments(**arguments(job, spec.model_type, options))
    loading = {"dtype": DTYPES[job.dtype], "attn_implementation": job.attention}
    transformer = Transformer(folder, model_kwargs=loading)
    width = transformer.auto_model.config.hidden_size
    model = SentenceTransformer(modules=[transformer, Pooling(width, job.pooling or "lasttoken")])
    if job.method != "full":
        model.add_adapter(adapter(job, "FEATURE_EXTRACTION"))
    trainer = SentenceTransformerTrainer(
        model=model,
        args=args,
        train_dataset=samples(job, {"anchor": "w3", "positive": "w4"}),
        loss=getattr(losses, LOSSES[job.embedding_loss])(model),
    )
    trainer.data_collator.preprocess_fn = partial(_tokenized, job)
    return trainer


def reranker(job: Job, spec: Any, options: dict[str, Any]) -> Any:
    """sentence-transformers' trainer of rerankers."""
    from sentence_transformers.cross_encoder import (
        CrossEncoder,
        CrossEncoderTrainer,
        CrossEncoderTrainingArguments,
        losses,
    )
    from transformers import AutoModelForSequenceClassification

    folder = _saved(job, spec, AutoModelForSequenceClassification)
    args = CrossEncoderTrainingArguments(**arguments(job, spec.model_type, options))
    loading = {"dtype": DTYPES[job.dtype], "attn_implementation": job.attention}
    model = CrossEncoder(folder, device="cpu", num_labels=1, model_kwargs=loading)
    trainer = CrossEncoderTrainer(
        model=model,
        args=args,
        train_dataset=samples(job, {"query": "w3", "answer": "w4", "label": 1.0}),
        loss=losses.BinaryCrossEntropyLoss(model),
    )
    model.preprocess = partial(_tokenized, job)
    return trainer


TRAINERS = {
    "sequence_classification": classifier,
    "token_classification": classifier,
    "embedding": embedder,
    "reranker": reranker,
}


def run(row: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank."""
    job, spec = job_of(row), model_of(row)
    peaks = Peaks()
    peaks.enter("loaded")
    trainer = TRAINERS[str(job.task)](job, spec, row.get("options", {}))
    observe(trainer, peaks)
    trainer.train()
    peaks.enter("over")
    return peaks.found


if __name__ == "__main__":
    print_peaks(run)
