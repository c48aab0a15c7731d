"""What a model is trained for, if not for what its checkpoint was: the class of transformers, its labels, its head.

Names are those of transformers 5.23 (models/auto/modeling_auto.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vramplan.errors import ConfigError, UnsupportedError, setting

if TYPE_CHECKING:
    from vramplan.inputs.job import Job
    from vramplan.inputs.job_values import Task
    from vramplan.inputs.model_spec import Config


class ClassNames(NamedTuple):
    """How transformers calls the classes of one architecture."""

    prefix: str
    """What all begin with: Llama of LlamaForCausalLM."""
    classifies_tokens: bool = True
    """Whether there is a class for labels of tokens, with the usual head."""
    head: str = "score"
    """The module that makes the labels' logits, which PEFT trains in full (peft_model.py: classifier_module_names)."""
    causal: str = ""
    """The causal language model's class, if it is not `prefix` and ForCausalLM."""
    tasks: tuple[Task, ...] = (
        "sequence_classification", "token_classification", "embedding", "reranker", "generative_reranker", "reward",
    )  # fmt: skip
    """Tasks whose classes it has."""


def _decoders(names: str, classifies_tokens: bool) -> dict[str, ClassNames]:
    pairs = (name.split("=") for name in names.split())
    return {model_type: ClassNames(prefix, classifies_tokens) for model_type, prefix in pairs}


IMAGES: tuple[Task, ...] = ("image_classification",)
SOUND: tuple[Task, ...] = ("sequence_classification",)
CLASS_NAMES: dict[str, ClassNames] = {
    **_decoders(
        "llama=Llama mistral=Mistral ministral=Ministral ministral3=Ministral3 exaone4=Exaone4"
        " arcee=Arcee qwen2=Qwen2 qwen3=Qwen3 seed_oss=SeedOss"
        " smollm3=SmolLM3 gemma=Gemma gemma2=Gemma2"
        " phi=Phi phi3=Phi3 glm=Glm glm4=Glm4 starcoder2=Starcoder2 mixtral=Mixtral qwen2_moe=Qwen2Moe"
        " qwen3_moe=Qwen3Moe deepseek_v3=DeepseekV3 gpt_oss=GptOss helium=Helium nemotron=Nemotron stablelm=StableLm",
        classifies_tokens=True,
    ),
    **_decoders(
        "minicpm3=MiniCPM3 olmo2=Olmo2 olmo3=Olmo3 phimoe=Phimoe deepseek_v2=DeepseekV2 gptj=GPTJ opt=OPT"
        " gpt_neox=GPTNeoX hunyuan_v1_dense=HunYuanDenseV1 hunyuan_v1_moe=HunYuanMoEV1"
        " olmo=Olmo",
        classifies_tokens=False,
    ),
    "gemma3_text": ClassNames("Gemma3Text", False, causal="Gemma3ForCausalLM"),
    "gpt2": ClassNames("GPT2", False, causal="GPT2LMHeadModel"),
    "gpt_bigcode": ClassNames("GPTBigCode", False),
    "bert": ClassNames("Bert", head="classifier"),
    "roberta": ClassNames("Roberta", head="classifier"),
    "xlm-roberta": ClassNames("XLMRoberta", head="classifier"),
    "camembert": ClassNames("Camembert", head="classifier"),
    "electra": ClassNames("Electra", head="classifier"),
    "albert": ClassNames("Albert", head="classifier"),
    "distilbert": ClassNames("DistilBert", head="classifier"),
    "deberta-v2": ClassNames("DebertaV2", head="classifier"),
    "modernbert": ClassNames("ModernBert", head="classifier"),
    "eurobert": ClassNames("EuroBert", head="classifier"),
    "nomic_bert": ClassNames("NomicBert", head="classifier"),
    "gte": ClassNames("Gte", head="classifier"),
    "mpnet": ClassNames("MPNet", head="classifier"),
    "wav2vec2": ClassNames("Wav2Vec2", head="classifier", tasks=SOUND),
    "hubert": ClassNames("Hubert", head="classifier", tasks=SOUND),
    "vit": ClassNames("ViT", head="classifier", tasks=IMAGES),
    "dinov3_vit": ClassNames("DINOv3ViT", head="classifier", tasks=IMAGES),
    "dinov2": ClassNames("Dinov2", head="classifier", tasks=IMAGES),
    "dinov2_with_registers": ClassNames("Dinov2WithRegisters", head="classifier", tasks=IMAGES),
}
"""By model_type, those whose tasks are modelled."""

CLASSES: dict[Task, str] = {
    "sequence_classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "image_classification": "ForImageClassification",
    "reward": "ForSequenceClassification",
    "reranker": "ForSequenceClassification",
    "generative_reranker": "ForCausalLM",
    "embedding": "Model",
}
"""What a task's class is called behind the architecture's prefix."""
RERANKERS: tuple[Task, ...] = ("reranker", "generative_reranker")
"""Tasks whose sample is a query with several texts."""
SCORES: tuple[Task, ...] = ("reward", *RERANKERS)
"""Tasks with one label, a number."""
LABELLED: tuple[Task, ...] = ("sequence_classification", "token_classification", "reranker", *IMAGES)
"""Tasks of transformers' and sentence-transformers' trainers with a head for labels."""
OTHER_TASKS = "task embedding, reranker, or sequence or token classification"


def class_of(model_type: str, task: Task, owner: str) -> str:
    """The class that a task trains.

    Raises:
        UnsupportedError: if there is none, or none that is modelled.
    """
    names, chosen = CLASS_NAMES.get(model_type), setting("task", task)
    if names is None:
        raise UnsupportedError(
            f"{chosen}: {owner} is of type {model_type}, whose {CLASSES[task]} is not modelled; modelled are"
            f" {', '.join(name for name, one in CLASS_NAMES.items() if task in one.tasks)}"
        )
    if task not in names.tasks or (task == "token_classification" and not names.classifies_tokens):
        raise UnsupportedError(f"{chosen}: no {names.prefix}{CLASSES[task]} is modelled")
    return names.prefix + CLASSES[task]


def head_of(model_type: str, task: Task | None) -> str | None:
    """The module that makes a task's logits; None for a task without labels."""
    names = CLASS_NAMES.get(model_type)
    return None if names is None or task not in LABELLED or task not in names.tasks else names.head


def num_labels(c: Config, job: Job) -> int:
    """Labels of a classification: those of the job, else as many as the configuration names, else transformers' two.

    A reward model and a reranker have one.
    """
    if job.num_labels is not None:
        return job.num_labels
    if job.task in SCORES:
        return 1
    return c.count("num_labels", len(c.get("id2label") or ()) or 2)


def has_language_head(job: Job) -> bool:
    """Whether the model has the head of a language model, which may be its embedding."""
    return job.task not in (*LABELLED, "embedding") and not (job.task == "reward" and job.loss == "standard")


def joins_texts_of_swift(job: Job) -> bool:
    """Whether ms-swift puts all texts of a micro-batch into one row, of a task that is not the next token's."""
    return job.joins_samples and (job.joins_texts or job.task in ("sequence_classification", *RERANKERS))


def check_task(job: Job) -> None:
    """Check the settings that belong to a task.

    Raises:
        ConfigError: for one that has no meaning with the job's task.
    """
    if job.num_labels is None:
        return
    if job.task not in (*LABELLED, "reward"):
        raise ConfigError(
            f"{setting('num_labels', job.num_labels)} has no meaning without {setting('task', 'classification')}"
        )
    if job.task in SCORES and job.num_labels != 1:
        raise ConfigError(f"{setting('num_labels', job.num_labels)}: {setting('task', job.task)} has one label")
