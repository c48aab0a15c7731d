"""What the matrix traces: families of models made small, methods, dtypes, checkpointing, attention and shapes.

Models are shipped ones with few layers and a small vocabulary, so that a case takes a second and the layers, not the
logits, make the peak.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from tests.helpers import card_of, spec_of
from vramplan.inputs.images import processed_image
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import MODEL_INPUTS
from vramplan.inputs.model_spec import Config, ModelSpec
from vramplan.planner.job_defaults import complete_job

VOCABULARY = 2048

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("meta-llama/Llama-3.2-1B", {"num_hidden_layers": 6}),
    "qwen2": ("Qwen/Qwen2.5-0.5B", {"num_hidden_layers": 6}),
    "qwen3": ("Qwen/Qwen3-0.6B", {"num_hidden_layers": 6}),
    "mistral": ("mistralai/Mistral-7B-v0.1", {"num_hidden_layers": 5}),
    "mistral, window": ("mistralai/Mistral-7B-v0.1", {"num_hidden_layers": 5, "sliding_window": 200}),
    "gemma": ("google/gemma-2b", {"num_hidden_layers": 5}),
    "gemma, 16 heads": ("google/gemma-7b", {"num_hidden_layers": 5}),
    "gemma2": ("google/gemma-2-2b", {"num_hidden_layers": 7}),
    "gemma3_text": ("google/gemma-3-1b-pt", {"num_hidden_layers": 15}),
    "gemma3_text, window": ("google/gemma-3-1b-pt", {"num_hidden_layers": 7, "sliding_window": 200}),
    "phi": ("microsoft/phi-2", {"num_hidden_layers": 5}),
    "phi3": ("microsoft/Phi-3-mini-4k-instruct", {"num_hidden_layers": 5}),
    "phi3, partial": ("microsoft/Phi-4-mini-instruct", {"num_hidden_layers": 5}),
    "gpt2": ("openai-community/gpt2", {"n_layer": 6}),
    "gpt_neox": ("EleutherAI/pythia-410m", {"num_hidden_layers": 6}),
    "gptj": ("EleutherAI/gpt-j-6b", {"n_layer": 5}),
    "opt": ("facebook/opt-125m", {"num_hidden_layers": 6}),
    "opt, post-norm": ("facebook/opt-350m", {"num_hidden_layers": 6}),
    "bloom": ("bigscience/bloom-560m", {"n_layer": 6}),
    "falcon": ("tiiuae/falcon-7b", {"num_hidden_layers": 5}),
    "falcon, grouped": ("tiiuae/falcon-40b", {"num_hidden_layers": 5}),
    "olmo2": ("allenai/OLMo-2-0425-1B", {"num_hidden_layers": 5}),
    "olmo3": ("allenai/Olmo-3-1025-7B", {"num_hidden_layers": 11}),
    "starcoder2": ("bigcode/starcoder2-3b", {"num_hidden_layers": 5}),
    "glm": ("THUDM/glm-4-9b-chat-hf", {"num_hidden_layers": 5}),
    "glm4": ("THUDM/GLM-4-9B-0414", {"num_hidden_layers": 5}),
    "granite": ("ibm-granite/granite-3.1-2b-instruct", {"num_hidden_layers": 5}),
    "cohere": ("CohereLabs/c4ai-command-r-v01", {"num_hidden_layers": 5}),
    "cohere, qk-norm": ("CohereLabs/c4ai-command-r-plus", {"num_hidden_layers": 5}),
    "cohere2": ("CohereLabs/c4ai-command-r7b-12-2024", {"num_hidden_layers": 11}),
    "smollm3": ("HuggingFaceTB/SmolLM3-3B", {"num_hidden_layers": 11}),
    "seed_oss": ("ByteDance-Seed/Seed-OSS-36B-Instruct", {"num_hidden_layers": 5}),
}
HEADS = {"num_attention_heads": 16, "num_key_value_heads": 16}
MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("mistralai/Mixtral-8x7B-v0.1", {"num_hidden_layers": 5, "intermediate_size": 3584}),
    "qwen2_moe": ("Qwen/Qwen1.5-MoE-A2.7B", {"num_hidden_layers": 5, "num_experts": 12}),
    "qwen3_moe": ("Qwen/Qwen3-30B-A3B", {"num_hidden_layers": 5, "num_experts": 16}),
    "olmoe": ("allenai/OLMoE-1B-7B-0924", {"num_hidden_layers": 5, "num_experts": 16}),
    "deepseek_v2": ("deepseek-ai/DeepSeek-V2-Lite", {"num_hidden_layers": 6, "n_routed_experts": 16}),
    "deepseek_v2, groups": (
        "deepseek-ai/DeepSeek-V2",
        {"num_hidden_layers": 6, "n_routed_experts": 32, "hidden_size": 2048, **HEADS},
    ),
    "deepseek_v3": (
        "deepseek-ai/DeepSeek-V3",
        {"num_hidden_layers": 8, "n_routed_experts": 32, "hidden_size": 2048, **HEADS},
    ),
    "glm4_moe": ("zai-org/GLM-4.5-Air", {"num_hidden_layers": 6, "n_routed_experts": 16, "hidden_size": 2048}),
    "glm4_moe, qk-norm": ("zai-org/GLM-4.5", {"num_hidden_layers": 8, "n_routed_experts": 16, "hidden_size": 2048}),
    "gpt_oss": ("openai/gpt-oss-20b", {"num_hidden_layers": 7, "num_local_experts": 8}),
    "phimoe": ("microsoft/Phi-3.5-MoE-instruct", {"num_hidden_layers": 5, "intermediate_size": 1600}),
}
"""Mixtures of experts; few experts or narrow ones, so that their weights do not hide the rest."""
SEEING: dict[str, tuple[str, dict[str, Any]]] = {
    "internvl": ("OpenGVLab/InternVL2_5-1B", {}),
    "internvl, RMS norm": ("OpenGVLab/InternVL3-1B", {"norm_type": "rms_norm", "use_qk_norm": True}),
    "llava": ("llava-hf/llava-1.5-7b-hf", {}),
    "llava_next": ("llava-hf/llava-v1.6-mistral-7b-hf", {}),
    "llava_onevision": ("llava-hf/llava-onevision-qwen2-0.5b-ov-hf", {}),
    "pixtral": ("mistral-community/pixtral-12b", {}),
    "mistral3": ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", {}),
    "paligemma": ("google/paligemma-3b-pt-224", {}),
    "gemma3": ("google/gemma-3-4b-it", {}),
    "idefics3": ("HuggingFaceM4/Idefics3-8B-Llama3", {}),
    "smolvlm": ("HuggingFaceTB/SmolVLM-256M-Instruct", {}),
    "smolvlm2": ("HuggingFaceTB/SmolVLM2-2.2B-Instruct", {}),
    "qwen2_vl": ("Qwen/Qwen2-VL-2B-Instruct", {"depth": 5}),
    "qwen2_5_vl": ("Qwen/Qwen2.5-VL-3B-Instruct", {"depth": 12, "fullatt_block_indexes": [3, 7, 11]}),
    "qwen3_vl": ("Qwen/Qwen3-VL-2B-Instruct", {"depth": 6, "deepstack_visual_indexes": [1, 2, 4]}),
    "mllama": (
        "meta-llama/Llama-3.2-11B-Vision-Instruct",
        {"intermediate_layers_indices": [1, 3], "vision_output_dim": 3 * 1280, "num_global_layers": 2},
    ),
    "glm4v": ("zai-org/GLM-4.1V-9B-Thinking", {"depth": 5}),
}
"""Models that see; what is changed of their tower besides its five layers."""
NO_FLASH = {"mllama"}  # its masks of images have four dimensions
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("google-bert/bert-base-uncased", {}),
    "roberta": ("FacebookAI/roberta-base", {}),
    "distilbert": ("distilbert/distilbert-base-uncased", {}),
    "modernbert": ("answerdotai/ModernBERT-base", {}),
    "deberta-v2": ("microsoft/deberta-v3-base", {}),
    "vit": ("google/vit-base-patch16-224-in21k", {}),
    "clip": ("openai/clip-vit-base-patch16", {}),
    "siglip": ("google/siglip-base-patch16-224", {}),
    "t5": ("google-t5/t5-base", {}),
    "t5, gated": ("google/flan-t5-base", {}),
    "whisper": ("openai/whisper-small", {}),
}
"""Encoders, encoder-decoders, pairs, images alone."""
EAGER_ONLY = {
    "gemma2",
    "bloom",
    "gptj",
    "deberta-v2",
    "gpt_oss",
}  # transformers 5.23 runs them without SDPA, or fails in it
SETTINGS: dict[str, dict[str, Any]] = {
    "full-bf16": {"method": "full", "dtype": "bf16", "autocast": "none"},
    "full-autocast": {"method": "full", "dtype": "fp32", "autocast": "bf16"},
    "full-fp32": {"method": "full", "dtype": "fp32", "autocast": "none"},
    "lora-bf16": {"dtype": "bf16", "autocast": "none", "lora_dtype": "bf16"},
    "lora-autocast": {"dtype": "bf16", "autocast": "bf16"},
    "lora-fp32": {"dtype": "fp32", "autocast": "none"},
}
SHAPES = ((1, 256), (1, 1024), (2, 256), (2, 1024))
OTHER_JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {"checkpointing": "none", "micro_batch_size": 2}),
    ("full-bf16", {"checkpointing": "full", "attention": "eager", "micro_batch_size": 3}),
    ("full-autocast", {"checkpointing": "full", "micro_batch_size": 2}),
    ("full-autocast", {"checkpointing": "none", "attention": "eager", "micro_batch_size": 2}),
    ("full-fp32", {"checkpointing": "none", "micro_batch_size": 1}),
    ("lora-bf16", {"checkpointing": "full", "micro_batch_size": 3}),
    ("lora-autocast", {"checkpointing": "none", "micro_batch_size": 2}),
    ("lora-autocast", {"checkpointing": "full", "attention": "eager", "micro_batch_size": 1}),
    ("lora-autocast", {"checkpointing": "none", "loop": "plain", "micro_batch_size": 2}),
    ("lora-autocast", {"checkpointing": "none", "gradient_accumulation_steps": 2, "lora_dropout": 0.05}),
)
ROUTED_JOBS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("full-bf16", {"checkpointing": "none", "micro_batch_size": 2, "sequence_length": 256}),
    ("full-bf16", {"checkpointing": "full", "micro_batch_size": 1, "sequence_length": 1024}),
    ("full-autocast", {"checkpointing": "none", "micro_batch_size": 1, "sequence_length": 256, "attention": "eager"}),
    ("lora-bf16", {"checkpointing": "none", "micro_batch_size": 1, "sequence_length": 256}),
    ("lora-bf16", {"checkpointing": "full", "micro_batch_size": 2, "sequence_length": 1024, "attention": "eager"}),
    ("lora-autocast", {"checkpointing": "none", "micro_batch_size": 2, "sequence_length": 1024}),
    ("lora-autocast", {"checkpointing": "full", "micro_batch_size": 1, "sequence_length": 1024}),
    ("lora-autocast", {"checkpointing": "full", "micro_batch_size": 2, "sequence_length": 256, "batches": "padded"}),
    (
        "lora-autocast",
        {
            "checkpointing": "none",
            "sequence_length": 256,
            "gradient_accumulation_steps": 2,
            "lora_targets": ("o_proj",),
        },
    ),
    ("lora-fp32", {"checkpointing": "full", "micro_batch_size": 1, "sequence_length": 256}),
)
"""For mixtures of experts."""
PADDED = {"checkpointing": "none", "batches": "padded", "micro_batch_size": 2}
OTHER_SIZE = {"checkpointing": "full", "image_size": (384, 240), "micro_batch_size": 2}
"""For those that read, and for those that see."""
LOOKS: dict[str, dict[str, Any]] = {
    "lora": {},
    "lora-tower": {"vision": "lora", "projector": "lora", "autocast": "none"},
    "full": {"method": "full", "autocast": "none"},
    "full-projector": {"method": "full", "autocast": "none", "projector": "train"},
    "full-tower": {"method": "full", "dtype": "fp32", "vision": "train", "projector": "train"},
}
"""What trains where there are images."""
IMAGES: tuple[dict[str, Any], ...] = (
    {"images": 1, "image_size": (500, 400), "micro_batch_size": 2},
    {"images": 2, "image_size": (900, 600), "micro_batch_size": 1},
)
FILMING = ("internvl", "llava_onevision", "smolvlm2", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v")
"""Models that take videos."""
VIDEOS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("lora", {"videos": 1, "frames": 8, "image_size": (320, 240), "micro_batch_size": 2, "checkpointing": "full"}),
    ("lora-tower", {"videos": 2, "frames": 5, "image_size": (500, 280), "checkpointing": "none"}),
    ("full-tower", {"videos": 1, "frames": 3, "image_size": (240, 500), "checkpointing": "full"}),
    ("full", {"videos": 1, "frames": 4, "image_size": (320, 240), "checkpointing": "none", "attention": "eager"}),
    ("lora", {"videos": 1, "frames": 6, "image_size": (320, 240), "checkpointing": "none", "attention": "flash"}),
)
"""Videos: what trains, and how; frames that pair up and some that do not."""
PANNED = {"images": 1, "image_size": (1200, 400), "max_tiles": 4, "micro_batch_size": 2}
"""Gemma 3's pan and scan."""
EXTRAS: tuple[dict[str, Any], ...] = (
    {"batches": "padded"},
    {"batches": "packed"},
    {"attention": "flash"},
    {"attention": "flash", "batches": "padded"},
    {"attention": "flash", "micro_batch_size": 1},
    {"attention": "flash", "micro_batch_size": 1, "batches": "packed"},
    {"gradient_accumulation_steps": 2},
    {"gradient_accumulation_steps": 3, "method": "full", "autocast": "none", "optimizer": "adamw_torch"},
    {"loop": "plain"},
    {"lora_dropout": 0.05},
    {"lora_dropout": 0.05, "autocast": "none"},
    {"loss": "sliced"},
    {"loss": "liger"},
    {"loss": "chunked"},
    {"loss": "cut"},
    {"loss": "cut", "method": "full", "autocast": "none", "micro_batch_size": 3},
    {"loss": "cut", "modules_to_save": ["lm_head"], "saved_dtype": "fp32", "checkpointing": "full"},
    {"method": "full", "dtype": "fp32", "loss": "liger"},
    {"method": "full", "dtype": "fp32", "loss": "chunked"},
    {"method": "full", "autocast": "none", "optimizer": "adamw_torch"},
    {"method": "full", "autocast": "none", "optimizer": "adamw_torch_loop"},
    {"method": "full", "autocast": "none", "optimizer": "sgd_momentum"},
    {"method": "full", "autocast": "none", "optimizer": "adafactor"},
    {"checkpointing": "full", "reentrant": True},
    {"checkpointing": "full", "reentrant": True, "method": "full", "autocast": "none"},
    {"checkpointing": "full", "reentrant": True, "lora_dropout": 0.05, "autocast": "none", "batches": "padded"},
    {"checkpointing": "full", "reentrant": True, "attention": "eager", "gradient_accumulation_steps": 2},
    {"fp32_norms": True},
    {"method": "dora", "micro_batch_size": 1},
    {"method": "dora", "autocast": "none"},
    {"method": "dora", "dtype": "fp32", "checkpointing": "full"},
    {"method": "dora", "lora_dropout": 0.05},
    {"method": "dora", "checkpointing": "full", "attention": "eager"},
    {"method": "dora", "autocast": "none", "lora_dtype": "bf16", "lora_dropout": 0.05, "checkpointing": "full"},
    {"method": "dora", "optimizer": "adamw_torch"},
    {"modules_to_save": ["embed_tokens", "lm_head"], "micro_batch_size": 1},
    {"modules_to_save": ["embed_tokens"], "checkpointing": "full"},
    {"modules_to_save": ["embed_tokens", "lm_head"], "saved_dtype": "fp32", "attention": "eager"},
    {"modules_to_save": ["lm_head"], "loss": "liger"},
    {"modules_to_save": ["lm_head", "norm"], "loss": "chunked", "autocast": "none", "gradient_accumulation_steps": 2},
    {"lora_targets": ["q_proj", "v_proj"]},
    {"method": "full", "dtype": "fp16", "autocast": "none", "loop": "plain", "card": "t4"},
)
"""Rarer settings, on one family: changes to lora-autocast at 2 x 256 without checkpointing."""


@dataclass(frozen=True)
class Case:
    """One cell: a family and a job, which its name spells."""

    family: str
    setting: str
    job: Job
    card: str = "h100"

    @property
    def name(self) -> str:
        """What the committed table calls it."""
        shown = self.job.model_dump(mode="json", exclude_defaults=True)
        return json.dumps([self.family, self.setting, self.card, shown])


def case_of(name: str) -> Case:
    """The case that is called `name`."""
    family, setting, card, given = json.loads(name)
    for key in ("lora_targets", "modules_to_save", "image_size"):
        if given.get(key):
            given[key] = tuple(given[key])
    return Case(family, setting, Job(**given), card)


def spec_for(family: str) -> ModelSpec:
    """The family's model, shortened."""
    if family in SEEING:
        return seeing_spec(*SEEING[family])
    if family in OTHERS:
        return other_spec(OTHERS[family][0])
    name, changes = {**FAMILIES, **MIXTURES}[family]
    layers = changes.get("num_hidden_layers", changes.get("n_layer"))
    whole = spec_of(name)
    lists = {key: whole.config[key][:layers] for key in ("layer_types", "no_rope_layers") if whole.config.get(key)}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    return spec_of(name, **changes, **lists, **tokens, vocab_size=VOCABULARY)


def routed_cases() -> Iterator[Case]:
    """Mixtures: methods, dtypes, checkpointing, lengths; adapters on the experts and beside them."""
    for family in MIXTURES:
        for setting, given in ROUTED_JOBS:
            job = {**SETTINGS[setting], **given}
            if family in EAGER_ONLY:
                job["attention"] = "eager"
            if family == "phimoe" and setting.startswith("lora"):  # PEFT fails on its router
                job["lora_targets"] = ("o_proj",)
            yield Case(family, setting, Job(**job))


def seeing_spec(name: str, tower: dict[str, Any]) -> ModelSpec:
    """A model that sees, tower and language model shortened to a few layers."""
    spec = spec_of(name)
    config = {**spec.config, "image_token_id": 7, "video_token_id": 8}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0)
    changes = {"num_hidden_layers": 7, "vocab_size": VOCABULARY, **tokens}
    if "text_config" in config:
        config["text_config"] = {**config["text_config"], **changes}
        config["text_config"].pop("layer_types", None)
        if "cross_attention_layers" in config["text_config"]:
            config["text_config"]["cross_attention_layers"] = [1, 3, 5]
    else:
        config |= changes
    config["vision_config"] = {
        **config["vision_config"],
        **({} if "depth" in tower else {"num_hidden_layers": 5}),
        **tower,
    }
    return spec.model_copy(update={"config": config})


def seeing_cases() -> Iterator[Case]:
    """Images of two sizes, one and two a sample; what is frozen, adapted, trained."""
    for family, (what, given), checkpointing, shown in product(SEEING, LOOKS.items(), ("full", "none"), IMAGES):
        for attention in ("sdpa", "eager") if shown["images"] == 1 and checkpointing == "none" else ("sdpa",):
            yield Case(
                family, what, seeing_job(family, attention=attention, checkpointing=checkpointing, **given, **shown)
            )
    for family in SEEING:
        flash = {"attention": "flash", "checkpointing": "none", "dtype": "bf16"}
        if family not in NO_FLASH:
            yield Case(family, "lora", seeing_job(family, **flash, **IMAGES[1]))
        yield Case(family, "lora", seeing_job(family, **IMAGES[0], gradient_accumulation_steps=2))
        yield Case(family, "lora-tower", seeing_job(family, vision="lora", images=0))
    for family, (what, given) in product(FILMING, VIDEOS):
        yield Case(family, what, seeing_job(family, **LOOKS[what], **given))
    yield Case("gemma3", "lora-tower", seeing_job("gemma3", **LOOKS["lora-tower"], **PANNED))
    yield Case("gemma3", "full", seeing_job("gemma3", **LOOKS["full"], **PANNED, checkpointing="full"))


def seeing_job(family: str, **given: Any) -> Job:
    """A job whose samples hold the images and some text."""
    job = Job(**given, sequence_length=1 << 20)
    picture = processed_image(spec_for(family), job)
    assert picture is not None
    return job.model_copy(update={"sequence_length": job.pictures * picture.all_tokens // 64 * 64 + 192})


def other_spec(name: str) -> ModelSpec:
    """A model that is no causal language model, each of its stacks shortened to six layers."""
    spec = spec_of(name)
    changes = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    layers = dict.fromkeys(
        ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers"), 6
    )

    def shortened(config: Mapping[str, Any]) -> dict[str, Any]:
        one = {**config, **{key: value for key, value in layers.items() if key in config}}
        one |= changes if "vocab_size" in config else {}
        return {key: shortened(value) if isinstance(value, dict) else value for key, value in one.items()}

    return spec.model_copy(update={"config": {**shortened(spec.config), "decoder_start_token_id": 0}})


def other_cases() -> Iterator[Case]:
    """Some of each: methods, dtypes, checkpointing, attention; padding for texts, another size for images."""
    for family in OTHERS:
        feed = MODEL_INPUTS[spec_for(family).model_type]
        jobs = [*OTHER_JOBS]
        if feed.image_config is None:
            jobs.append(("full-bf16", PADDED))
        else:
            jobs.append(("lora-autocast", OTHER_SIZE))
        for setting, given in jobs:
            attention = {"attention": "eager"} if family in EAGER_ONLY else {}
            yield Case(family, setting, other_job(family, {**SETTINGS[setting], **given, **attention}))


def other_job(family: str, given: dict[str, Any]) -> Job:
    """A job of some 200 to 500 tokens, or what the image makes."""
    spec = spec_for(family)
    feed = MODEL_INPUTS[spec.model_type]
    most = feed.most_tokens(Config(spec.config, spec.name)) if feed.has_text else None
    if feed.has_text:
        given["sequence_length"] = min(440, most or 440)
    return complete_job(spec, card_of(), given)


@cache
def all_cases() -> tuple[Case, ...]:
    """The matrix; making it takes a second."""
    return tuple(_cases())


def _cases() -> Iterator[Case]:
    """The whole matrix."""
    yield from seeing_cases()
    yield from other_cases()
    yield from routed_cases()
    for family in FAMILIES:
        attentions = ("eager",) if family in EAGER_ONLY else ("sdpa", "eager")
        for (setting, given), checkpointing, attention, (batch, length) in product(
            SETTINGS.items(), ("full", "none"), attentions, SHAPES
        ):
            job = Job(
                micro_batch_size=batch,
                sequence_length=length,
                checkpointing=checkpointing,
                attention=attention,
                **given,
            )
            yield Case(family, setting, job)
    for extra in EXTRAS:
        changes = {**SETTINGS["lora-autocast"], "micro_batch_size": 2, "checkpointing": "none", **extra}
        card = changes.pop("card", "h100")
        for key in ("lora_targets", "modules_to_save"):
            if changes.get(key):
                changes[key] = tuple(changes[key])
        for family in ("llama", "qwen2") if "lora_targets" not in extra else ("llama",):
            yield Case(family, "rarer", Job(sequence_length=256, **changes), card)
