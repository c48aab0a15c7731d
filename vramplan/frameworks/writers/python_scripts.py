"""Python scripts to paste, for trainings that no command of a framework runs: classifiers, embeddings, rerankers."""

from __future__ import annotations

import json
from typing import Any

from vramplan.errors import UnsupportedError, setting
from vramplan.frameworks.writers import nodes
from vramplan.frameworks.writers.config_text import FULL_NAMES, ConfigText, Pairs, allocator_variables
from vramplan.frameworks.writers.trainer_based import ATTENTION_NAMES, adapter, batch_and_optimizer, half_precision
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.embedding import LOSSES, SCORED, columns
from vramplan.inputs.job import Job
from vramplan.inputs.tasks import CLASSES

DATA = 'load_dataset("json", data_files="train.jsonl", split="train")'
"""The data, which no plan knows."""


def classifier(model: str, job: Job) -> ConfigText:
    """Transformers' Trainer with a class for labels.

    Raises:
        UnsupportedError: for quantized bases in eight bits.
    """
    head = f"AutoModel{CLASSES[job.task]}" if job.task is not None else ""
    load: Pairs = {"num_labels": job.num_labels or 2, **_loading(job)}
    imports = ["from datasets import load_dataset"]
    imports += _peft_imports(job, "LoraConfig, get_peft_model")
    collator = "DataCollatorForTokenClassification" if job.task == "token_classification" else "DataCollatorWithPadding"
    names = sorted([head, "AutoTokenizer", collator, "Trainer", "TrainingArguments"])
    quantized = ""
    if job.quantize == "nf4":
        names.insert(2, "BitsAndBytesConfig")
        quantized = f"quantization = BitsAndBytesConfig({_call(_four_bits(job))})\n"
    elif job.quantize != "none":
        raise UnsupportedError(
            f"{setting('for_framework', 'transformers')}: {setting('quantize', job.quantize)} is not written for"
            f" {setting('task', job.task or '')}"
        )
    is_split = job.task == "token_classification"
    given = ", is_split_into_words=True" if is_split else ""
    columns_needed = "tokens, labels (one for each token of the tokenizer)" if is_split else "text, label"
    tokenized = (
        f"# columns: {columns_needed}\ndata = {DATA}\ndataset = data.map(\n"
        f'    lambda samples: tokenizer(samples["{"tokens" if is_split else "text"}"], truncation=True,'
        f" max_length={job.sequence_length}{given}),\n    batched=True,\n)\n"
    )
    padding = "" if is_split else "model.config.pad_token_id = tokenizer.pad_token_id\n"
    return _script(
        job,
        [*imports, _import("transformers", names)],
        f"tokenizer = AutoTokenizer.from_pretrained({_literal(model)})\n{tokenized}{quantized}"
        f"model = {head}.from_pretrained({_call(load, _literal(model), _quantization(job))})\n"
        f"{padding}"
        f"{_adapted(job, 'SEQ_CLS' if job.task == 'sequence_classification' else 'TOKEN_CLS')}"
        f"collator = {collator}(tokenizer)\narguments = TrainingArguments({_call(_arguments(job))})\n"
        "trainer = Trainer(model=model, args=arguments, train_dataset=dataset, data_collator=collator)\n",
    )


def sentence_transformers(model: str, job: Job) -> ConfigText:
    """SentenceTransformerTrainer or CrossEncoderTrainer.

    Raises:
        UnsupportedError: for what their scripts are not read with.
    """
    name = setting("for_framework", "sentence-transformers")
    if job.joins_texts:
        raise UnsupportedError(f"{name}: {setting('joins_texts', True)} is ms-swift's")
    if job.quantize != "none" or (job.modules_to_save and job.task == "embedding"):
        raise UnsupportedError(f"{name}: quantized bases and modules to save are not written for it")
    if job.task == "reranker":
        return _reranker(model, job, name)
    loss, arguments = LOSSES[job.embedding_loss], "model"
    if job.embedding_loss == "cached_multiple_negatives":
        arguments += f", mini_batch_size={job.mini_batch_size}"
    made = f"losses.{loss}({arguments})"
    if job.matryoshka_dims is not None:
        made = f"losses.MatryoshkaLoss(model, {made}, matryoshka_dims={list(job.matryoshka_dims)})"
    texts = [*columns(job), *(("score",) if job.embedding_loss in SCORED else ())]
    trainer = "SentenceTransformerTrainer"
    names = ["SentenceTransformer", trainer, f"{trainer[:-2]}ingArguments", "losses"]
    loaded = f"model = SentenceTransformer({_call({'model_kwargs': _loading(job)}, _literal(model))})\n"
    if job.pooling is not None:
        names.append("models")
        loaded = (
            f"states = models.Transformer({_call({'model_kwargs': _loading(job)}, _literal(model))})\n"
            f"pooling = models.Pooling(states.get_word_embedding_dimension(), {_literal(job.pooling)})\n"
            "model = SentenceTransformer(modules=[states, pooling])\n"
        )
    added = (
        "" if job.method == "full" else f"model.add_adapter(LoraConfig({_call(_lora(job, 'FEATURE_EXTRACTION'))}))\n"
    )
    return _script(
        job,
        [
            "from datasets import load_dataset",
            *_peft_imports(job, "LoraConfig"),
            _import("sentence_transformers", names),
        ],
        f"dataset = {DATA}.select_columns({json.dumps(texts)})\n{loaded}"
        f"model.max_seq_length = {job.sequence_length}\n{added}"
        f"loss = {made}\narguments = {trainer[:-2]}ingArguments({_call(_arguments(job))})\n"
        f"trainer = {trainer}(model=model, args=arguments, train_dataset=dataset, loss=loss)\n",
    )


def _reranker(model: str, job: Job, name: str) -> ConfigText:
    if job.method != "full" or job.negatives:
        raise UnsupportedError(
            f"{name}: a reranker is written with {setting('method', 'full')} and {setting('negatives', 0)}; adapters:"
            f" {setting('for_framework', 'swift')}"
        )
    load: Pairs = {"num_labels": 1, "max_length": job.sequence_length, "model_kwargs": _loading(job)}
    names = ["CrossEncoder", "CrossEncoderTrainer", "CrossEncoderTrainingArguments"]
    return _script(
        job,
        [
            "from datasets import load_dataset",
            _import("sentence_transformers.cross_encoder", names),
            "from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss",
        ],
        f'dataset = {DATA}.select_columns(["query", "answer", "label"])\n'
        f"model = CrossEncoder({_call(load, _literal(model))})\nloss = BinaryCrossEntropyLoss(model)\n"
        f"arguments = CrossEncoderTrainingArguments({_call(_arguments(job))})\n"
        "trainer = CrossEncoderTrainer(model=model, args=arguments, train_dataset=dataset, loss=loss)\n",
    )


def _script(job: Job, imports: list[str], body: str) -> ConfigText:
    text = "\n".join(imports) + f"\n\n{body}trainer.train()\n"
    command = f"{nodes.torchrun_command(job)} train.py" if job.num_gpus > 1 else "python train.py"
    return ConfigText(
        {},
        allocator_variables(job),
        command,
        file="train.py",
        launcher=nodes.torchrun(job),
        body=text,
        notes=nodes.notes(job),
    )


def _import(package: str, names: list[str]) -> str:
    line = f"from {package} import {', '.join(names)}"
    return line if len(line) <= 100 else f"from {package} import (\n    {', '.join(names)},\n)"


def _peft_imports(job: Job, names: str) -> list[str]:
    return [] if job.method == "full" else [f"from peft import {names}"]


def _loading(job: Job) -> Pairs:
    return {"dtype": FULL_NAMES[job.dtype], "attn_implementation": ATTENTION_NAMES[job.attention]}


def _four_bits(job: Job) -> Pairs:
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": job.double_quant,
        "bnb_4bit_compute_dtype": FULL_NAMES[job.dtype],
    }


def _quantization(job: Job) -> str:
    return "quantization_config=quantization" if job.quantize == "nf4" else ""


def _lora(job: Job, task_type: str) -> Pairs:
    pairs = adapter(job, "r", "target_modules", "all-linear", "use_dora", "modules_to_save")
    pairs.pop("modules_to_save", None)  # PEFT trains a classifier's head by itself
    return {"task_type": task_type, **pairs, "lora_alpha": 2 * job.lora_rank}


def _adapted(job: Job, task_type: str) -> str:
    config = f"LoraConfig({_call(_lora(job, task_type))})"
    return "" if job.method == "full" else f"model = get_peft_model(model, {config})\n"


def _arguments(job: Job) -> Pairs:
    half = half_precision(job)
    return {
        "output_dir": "output",
        **batch_and_optimizer(job),
        "gradient_checkpointing": job.checkpointing == "full",
        "bf16": half == "bf16",
        "fp16": half == "fp16",
        **sharding(job),
    }


def _call(pairs: Pairs, *positional: str) -> str:
    """Arguments of a call, one on each line."""
    lines = [*filter(None, positional), *(f"{name}={_literal(value)}" for name, value in pairs.items())]
    return "\n" + "".join(f"    {line},\n" for line in lines)


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)
