"""Names by which people know settings from training frameworks; and those that may mean two things.

From transformers' TrainingArguments, PEFT's LoraConfig, TRL's SFTConfig and the configurations of LLaMA-Factory,
axolotl, ms-swift and DeepSpeed. Underscores and dashes are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from functools import cache, wraps
from inspect import signature
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar
from warnings import warn

from vramplan.errors import ConfigError, setting
from vramplan.units import in_digits, ungrouped

P = ParamSpec("P")
Result = TypeVar("Result")

SAME: Mapping[str, str] = MappingProxyType(
    {
        "per_device_train_batch_size": "micro_batch_size",
        "per_device_batch_size": "micro_batch_size",
        "train_micro_batch_size_per_gpu": "micro_batch_size",
        "micro_batch_size": "micro_batch_size",
        "micro_batch": "micro_batch_size",
        "accumulation": "gradient_accumulation_steps",
        "mbs": "micro_batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
        "gradient_accumulation": "gradient_accumulation_steps",
        "accumulation_steps": "gradient_accumulation_steps",
        "grad_accum": "gradient_accumulation_steps",
        "grad_accumulation": "gradient_accumulation_steps",
        "gas": "gradient_accumulation_steps",
        "global_batch": "global_batch",
        "global_batch_size": "global_batch",
        "effective_batch_size": "global_batch",
        "total_batch_size": "global_batch",
        "train_batch_size": "global_batch",
        "sequence_length": "sequence_length",
        "sequence_len": "sequence_length",
        "seq_length": "sequence_length",
        "seq_len": "sequence_length",
        "seqlen": "sequence_length",
        "max_length": "sequence_length",
        "max_len": "sequence_length",
        "max_seq_length": "sequence_length",
        "max_seq_len": "sequence_length",
        "model_max_length": "sequence_length",
        "cutoff_len": "sequence_length",
        "context_length": "sequence_length",
        "context": "sequence_length",
        "ctx": "sequence_length",
        "rank": "lora_rank",
        "lora_r": "lora_rank",
        "lora_target": "lora_targets",
        "lora_target_modules": "lora_targets",
        "target_modules": "lora_targets",
        "optim": "optimizer",
        "torch_dtype": "dtype",
        "quantization": "quantize",
        "attn": "attention",
        "attn_implementation": "attention",
        "attn_impl": "attention",
        "n_gpus": "num_gpus",
        "num_gpu": "num_gpus",
        "gpu_count": "num_gpus",
        "ngpus": "num_gpus",
        "nproc_per_node": "num_gpus",
        "nnodes": "num_nodes",
        "card": "gpu",
        "num_images": "images",
        "resolution": "image_size",
        "image_resolution": "image_size",
        "train_type": "method",
        "finetuning_type": "method",
        "adapter": "method",
        "model_name_or_path": "model",
        "base_model": "model",
        "model": "model",
        "task_type": "task",
        "n_labels": "num_labels",
        "num_classes": "num_labels",
        "output": "out",
        "teacher_model": "teacher",
        "teacher_model_name_or_path": "teacher",
    }
)
"""Name -> the setting of vramplan that is the same."""
EMBEDDINGS = (
    "embed", "embedder", "embeddings", "feature_extraction", "bi_encoder", "retrieval", "retriever",
    "sentence_similarity", "sentence_transformers", "sentence_embedding",
)  # fmt: skip
"""What people call training for embeddings."""
VALUES: dict[tuple[str, str], str] = {
    ("attention", "flash_attention_2"): "flash",
    ("attention", "flash_attention_3"): "flash",
    ("attention", "flash_attn"): "flash",
    ("dtype", "bfloat16"): "bf16",
    ("dtype", "float16"): "fp16",
    ("dtype", "half"): "fp16",
    ("dtype", "float32"): "fp32",
    ("quantize", "4bit"): "nf4",
    ("quantize", "bnb4"): "nf4",
    ("quantize", "8bit"): "int8",
    ("strategy", "zero_1"): "zero1",
    ("strategy", "zero_2"): "zero2",
    ("strategy", "zero_3"): "zero3",
    ("lora_targets", "all"): "all-linear",
    **{
        ("task", name): "sequence_classification"
        for name in (
            "classification",
            "classifier",
            "seq_cls",
            "seqcls",
            "sequence_cls",
            "text_cls",
            "text_classification",
            "audio_classification",
            "cls",
        )
    },
    **{("task", name): "token_classification" for name in ("token_cls", "tokencls", "ner", "tagging", "pos")},
    ("task", "image_cls"): "image_classification",
    **{("task", name): "embedding" for name in EMBEDDINGS},
    **{("task", name): "reranker" for name in ("rerank", "reranking", "rerankers", "cross_encoder", "text_ranking")},
    **{("task", name): "reward" for name in ("rm", "reward_model", "reward_modeling", "rewards")},
    **{("task", name): "dpo" for name in ("ipo",)},
    **{("task", name): "gkd" for name in ("distill", "knowledge_distillation", "kd")},
    **{("task", name): "grpo" for name in ("dapo", "dr_grpo", "bnpo", "gspo")},
}
"""(setting, other name of a value) -> the value."""
UNKNOWN_VALUES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        **{
            ("task", name): "leave it out: supervised fine-tuning and pretraining are planned without it"
            for name in (
                "sft",
                "cpt",
                "pt",
                "pretrain",
                "pretraining",
                "instruction_tuning",
                "lm",
                "clm",
                "causal_lm",
                "chat",
                "causal_language_modeling",
                "language_modeling",
                "text_generation",
            )
        },
        **{
            ("task", name): "leave it out: an encoder trains on masked words without it"
            for name in ("mlm", "masked_lm", "fill_mask", "masked_language_modeling")
        },
        **{
            ("task", name): "leave it out: the model says it"
            for name in (
                "summarization",
                "translation",
                "seq2seq",
                "text2text_generation",
                "asr",
                "speech_recognition",
                "automatic_speech_recognition",
                "vlm",
            )
        },
        ("task", "regression"): "give {task=sequence_classification} and {num_labels=1}",
        **{
            ("task", name): "not modelled yet; nearest, two numbers for each token, is {task=token_classification}"
            for name in ("qa", "question_answering", "squad")
        },
        **{
            ("task", name): "not modelled yet; nearest, each choice as a row, is {task=sequence_classification}"
            for name in ("multiple_choice", "swag")
        },
        ("task", "distillation"): "give {task=gkd} with its {teacher}, and {loss=chunked} as TRL's DistillationTrainer",
        ("task", "reinforce"): "not modelled yet; nearest is {task=rloo}",
        **{("task", name): "not modelled yet; nearest is {task=dpo}" for name in ("bco", "online_dpo", "xpo")},
        **{
            ("task", name): "not modelled yet; nearest is {task=gkd}, TRL's GKDTrainer, with its {teacher}"
            for name in ("minillm", "gold")
        },
    }
)
"""(setting, a value that people give) -> what to do instead."""
_NONE: Mapping[str, str] = MappingProxyType({})
SWITCHES: Mapping[str, Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "full": {"true": {"method": "full"}},
        "lora": {"true": {"method": "lora"}, "false": {"method": "full"}},
        "use_lora": {"true": {"method": "lora"}, "false": {"method": "full"}},
        "use_peft": {"true": {"method": "lora"}, "false": {"method": "full"}},
        "qlora": {"true": {"method": "qlora"}, "false": _NONE},
        "dora": {"true": {"method": "dora"}, "false": _NONE},
        "use_dora": {"true": {"method": "dora"}, "false": _NONE},
        "load_in_4bit": {"true": {"quantize": "nf4"}, "false": _NONE},
        "4bit": {"true": {"quantize": "nf4"}},
        "load_in_8bit": {"true": {"quantize": "int8"}, "false": _NONE},
        "8bit": {"true": {"quantize": "int8"}},
        "gradient_checkpointing": {"true": {"checkpointing": "full"}, "false": {"checkpointing": "none"}},
        "activation_checkpointing": {"true": {"checkpointing": "full"}, "false": {"checkpointing": "none"}},
        "no_gradient_checkpointing": {"true": {"checkpointing": "none"}},
        "flash_attn": {"true": {"attention": "flash"}, "false": _NONE},
        "flash_attention": {"true": {"attention": "flash"}, "false": _NONE},
        "flash_attention_2": {"true": {"attention": "flash"}, "false": _NONE},
        "liger": {"true": {"loss": "liger", "fused_kernels": "all"}, "false": _NONE},
        "use_liger": {"true": {"loss": "liger", "fused_kernels": "all"}, "false": _NONE},
        "use_liger_kernel": {"true": {"loss": "liger", "fused_kernels": "all"}, "false": _NONE},
        "packing": {"true": {"batches": "packed"}, "false": _NONE},
        "sample_packing": {"true": {"batches": "packed"}, "false": _NONE},
        "fsdp": {
            **{value: {"strategy": "fsdp"} for value in ("true", "full_shard", "full_shard auto_wrap")},
            "false": _NONE,
        },
        "ddp": {"true": {"strategy": "ddp"}, "false": _NONE},
        **{name: {stage: {"strategy": f"zero{stage}"} for stage in "123"} for name in ("zero", "zero_stage")},
        **{
            f"{name}{stage}": {"true": {"strategy": f"zero{stage}"}, "false": _NONE}
            for name in ("zero", "zero_", "deepspeed_zero")
            for stage in "123"
        },
        "deepspeed": {
            f"{prefix}{stage}": {"strategy": f"zero{stage}"} for prefix in ("", "zero", "stage") for stage in "123"
        },
    }
)
"""Switch -> its value, "true" if it stands alone -> settings of vramplan and their values."""
_BATCHES = ("micro_batch_size", "samples of one forward on one GPU"), ("global_batch", "of one optimizer step")
_DTYPES = ("dtype", "how weights are stored"), ("autocast", "what transformers' switch means")
TWO_MEANINGS: Mapping[str, tuple[tuple[str, str], ...]] = MappingProxyType(
    {
        **dict.fromkeys(("batch_size", "batchsize", "batch", "bs"), _BATCHES),
        **dict.fromkeys(("bf16", "fp16", "precision", "mixed_precision"), _DTYPES),
    }
)
"""Name -> the settings that it may mean, and what each is."""


THOUSAND: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(
            ("sequence_length", "target_length", "prompt_length", "prompt_tokens", "generate_tokens"), 1024
        ),
        **dict.fromkeys(("samples", "tokens_total"), 1000),
    }
)
"""Setting -> what k is there: 4k tokens of a sample are 4,096, 52k samples of a data set 52,000."""
NO_EFFECT = frozenset(
    """
    learning_rate lr lora_alpha weight_decay warmup_steps max_steps num_train_epochs seed output_dir logging_steps
    save_steps lr_scheduler_type adam_beta1 adam_beta2 report_to
    """.split()  # noqa: SIM905
)
"""Settings that people know and that do not change memory: taken, and left out of account."""


def plain(name: str) -> str:
    """A name as these tables write it."""
    return name.lstrip("-").replace("-", "_").lower()


def with_own_names(settings: Mapping[str, Any], parameters: Container[str] = ()) -> dict[str, Any]:
    """Settings given in Python by the names of frameworks, by vramplan's own; others stay as they are.

    Args:
        settings: what was given.
        parameters: names of the parameters of the function that it was given to, beside the fields of a job.

    >>> with_own_names({"lora_r": 16, "load_in_4bit": True, "seq_len": "4k"})
    {'lora_rank': 16, 'quantize': 'nf4', 'sequence_length': 4096}

    Raises:
        ConfigError: for a setting that is given by two names, and for a name that may mean two settings.
    """
    own: dict[str, Any] = {}
    for name, value in settings.items():
        if name in NO_EFFECT and name not in parameters:
            warn(does_not_matter(name), stacklevel=3)
            continue
        for field, own_value in _own(name, value, parameters).items():
            if field in own and own[field] != own_value:
                raise ConfigError(f"{setting(field)} is given twice, by {name} and by another name")
            own[field] = own_value
    return own


def does_not_matter(name: str) -> str:
    """What is said of a setting without effect."""
    return f"{name} does not change memory: it is left out of account"


def two_meanings(name: str, meanings: Iterable[tuple[str, str]]) -> str:
    """What to give instead of a name that may mean several settings."""
    return f"{name} may mean two settings: " + " or ".join(f"{setting(field)} ({text})" for field, text in meanings)


def accepts_usual_names(function: Callable[P, Result]) -> Callable[P, Result]:
    """`function`, whose keyword arguments may have the names of frameworks too."""

    @cache
    def parameters() -> frozenset[str]:
        return frozenset(signature(function).parameters)

    @wraps(function)
    def with_names(*args: P.args, **settings: P.kwargs) -> Result:
        return function(*args, **with_own_names(settings, parameters() if settings else ()))

    return with_names


def _own(name: str, value: Any, parameters: Container[str]) -> Mapping[str, Any]:
    if name in parameters and name not in THOUSAND:
        return {name: value}
    if name in TWO_MEANINGS:
        name = _one_meaning(name, parameters)
    if name in SAME or name in THOUSAND:
        field = SAME.get(name, name)
        return {field: _value(field, value) if isinstance(value, str) else value}
    by_value = SWITCHES.get(name, {}).get(str(value).lower())
    return {name: value} if by_value is None else by_value


def _one_meaning(name: str, parameters: Container[str]) -> str:
    """What a name means to a function with these parameters: the one that it has, else the field of a job that it is.

    Raises:
        ConfigError: if that is not one.
    """
    from vramplan.inputs.job import Job

    meanings = TWO_MEANINGS[name]
    own = [field for field, _ in meanings if field in parameters]
    own = own or [field for field, _ in meanings if parameters and field in Job.model_fields]
    if len(own) != 1:
        raise ConfigError(two_meanings(name, meanings))
    return own[0]


def _value(field: str, text: str) -> Any:
    """A value given as text."""
    if field not in THOUSAND:
        return VALUES.get((field, text), text)
    digits = in_digits(ungrouped(text), THOUSAND[field])
    return int(digits) if digits.isdecimal() else text
