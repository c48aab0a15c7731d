"""The jobs that run on emulated GPUs as the referee of the estimates, and the searches for the largest micro-batch.

Models, settings and GPUs are drawn by chance, with a fixed seed, so that nothing is chosen by how well it is estimated.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from vramplan.inputs.catalog import find_gpu


class Case(NamedTuple):
    """A job, or a search for the largest micro-batch of a job that has none."""

    name: str
    model: str
    gpu: str
    settings: dict[str, Any]
    """Fields of :class:`vramplan.Job`."""

    @property
    def is_search(self) -> bool:
        """Whether the largest micro-batch is looked for."""
        return "micro_batch_size" not in self.settings


TEXT = {  # model: the largest micro-batch and length that are drawn
    "qwen2.5-0.5b": (8, 4096), "qwen2.5-1.5b": (4, 4096), "qwen2.5-7b": (2, 4096), "qwen3-0.6b": (8, 4096),
    "qwen3-4b": (4, 4096), "llama-3.2-1b": (8, 8192), "llama-3.1-8b": (4, 8192), "mistral-7b-v0.1": (3, 4096),
    "gemma-2-2b": (4, 4096), "gemma-3-1b-it": (4, 4096), "phi-3-mini-4k-instruct": (2, 4096), "phi-2": (2, 2048),
    "gpt2": (8, 1024), "gpt2-xl": (4, 1024), "pythia-410m": (8, 2048), "pythia-1.4b": (4, 2048), "opt-1.3b": (4, 2048),
    "bloom-560m": (4, 2048), "falcon-7b": (2, 2048), "starcoder2-3b": (2, 4096), "smollm3-3b": (4, 4096),
    "olmo-2-0425-1b": (4, 4096), "olmoe-1b-7b-0924": (2, 2048), "qwen3-30b-a3b": (1, 2048),
    "deepseek-v2-lite": (1, 2048), "gpt-oss-20b": (1, 2048), "c4ai-command-r7b-12-2024": (1, 4096),
}  # fmt: skip
OTHERS = {
    "bert-base-uncased": (32, 512), "roberta-base": (32, 512), "modernbert-base": (8, 2048), "t5-base": (16, 512),
    "whisper-small": (16, 448), "vit-base-patch16-224-in21k": (64, 0), "deberta-v3-base": (16, 512),
}  # fmt: skip
VISION = {
    "qwen2-vl-2b-instruct": 2, "qwen2.5-vl-3b-instruct": 1, "llava-1.5-7b-hf": 2, "internvl3-1b": 2, "gemma-3-4b-it": 1,
}  # fmt: skip
GPUS = ("t4", "rtx3090", "rtx4090", "l4", "a100-40gb", "a100-80gb", "h100-sxm", "b200", "rtx5090")
HELD_OUT = "H"
"""First letter of the names of jobs that are held out."""
SHARDED = ("qwen2.5-0.5b", "llama-3.2-1b", "qwen3-0.6b", "gemma-2-2b", "qwen2.5-1.5b")


def jobs(seed: int = 20, prefix: str = "") -> list[Case]:
    """Every job: 135 of text models, 28 of others, 20 of vision, 40 on several GPUs."""
    drawn = random.Random(seed)
    cases = [(model, draw_text(drawn, *limits)) for model, limits in TEXT.items() for _ in range(5)]
    cases += [(model, draw_other(drawn, *limits)) for model, limits in OTHERS.items() for _ in range(4)]
    cases += [(model, draw_vision(drawn, limit)) for model, limit in VISION.items() for _ in range(4)]
    cases += [(model, draw_sharded(drawn)) for model in SHARDED for _ in range(8)]
    named = []
    for number, (model, settings) in enumerate(cases):
        gpu = drawn.choice(GPUS)
        settings = adapted(model, settings)
        if not find_gpu(gpu).supports("bf16"):
            sharded = str(settings.get("strategy", "")).startswith("zero")  # DeepSpeed has no autocast
            stored = "fp32" if settings["method"] == "full" and not sharded else "fp16"  # as the gradient scaler asks
            settings = {**settings, "dtype": stored, "autocast": "none" if sharded else "fp16"}
        named.append(Case(f"{prefix}{number:03} {model} {gpu}", model, gpu, settings))
    return named


def held_out() -> list[Case]:
    """Jobs of another draw, a fifth of it. The estimate may be mended by what the others show, but not by these.

    If it is, another seed takes their place.
    """
    return jobs(2026, HELD_OUT)[::5]


def searches() -> list[Case]:
    """100 searches for the largest micro-batch, of text models."""
    drawn = random.Random(100)
    named = []
    while len(named) < 100:
        model = drawn.choice(list(TEXT))
        settings = draw_text(drawn, 1, TEXT[model][1])
        settings["sequence_length"] = max(1024, settings["sequence_length"])  # else hundreds of samples fit
        gpu = drawn.choice(("rtx3090", "rtx4090", "l4", "a100-40gb", "rtx5090"))
        del settings["micro_batch_size"]
        named.append(Case(f"S{len(named):02} {model} {gpu}", model, gpu, adapted(model, settings)))
    return named


def adapted(model: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as transformers and PEFT run the model."""
    if model.startswith(("gemma-2", "bloom")):  # no SDPA
        settings = {**settings, "attention": "eager"}
    stacks_experts = model.startswith(("olmoe", "qwen3-30b", "gpt-oss", "deepseek"))
    if stacks_experts and settings["method"] == "dora":
        settings = {**settings, "method": "lora"}
    return settings


def draw_text(drawn: random.Random, largest_batch: int, longest: int) -> dict[str, Any]:
    """Settings of a text model's job; half of them are LoRA with checkpointing, as most people train."""
    settings: dict[str, Any] = {
        "method": drawn.choice(("lora", "lora", "lora", "full", "full", "dora")),
        "checkpointing": drawn.choice(("full", "full", "none")),
        "sequence_length": drawn.choice([n for n in (256, 512, 1000, 1024, 2048, 3000, 4096, 8192) if n <= longest]),
        "micro_batch_size": drawn.randint(1, largest_batch),
        "gradient_accumulation_steps": drawn.choice((1, 1, 2, 4)),
        "batches": drawn.choice(("unpadded", "unpadded", "padded", "packed")),
        "attention": drawn.choice(("sdpa", "sdpa", "sdpa", "eager")),
        "dtype": drawn.choice(("bf16", "bf16", "bf16", "fp32")),
        "optimizer": drawn.choice(("adamw_torch_fused", "adamw_torch_fused", "adamw_torch", "sgd", "adafactor")),
        "loop": drawn.choice(("trainer", "trainer", "plain")),
        "expandable_segments": drawn.choice((False, False, True)),
    }
    settings["autocast"] = drawn.choice(("bf16", "none")) if settings["dtype"] == "fp32" else "bf16"
    if settings["method"] != "full":
        settings["lora_rank"] = drawn.choice((4, 8, 16, 64))
    return settings


def draw_other(drawn: random.Random, largest_batch: int, longest: int) -> dict[str, Any]:
    """Settings of an encoder's, an encoder-decoder's or an image model's job."""
    settings: dict[str, Any] = {
        "method": drawn.choice(("full", "full", "lora")),
        "checkpointing": drawn.choice(("none", "none", "full")),
        "micro_batch_size": drawn.randint(1, largest_batch),
        "dtype": drawn.choice(("fp32", "bf16")),
        "autocast": "bf16",
    }
    if longest:
        settings["sequence_length"] = drawn.choice([n for n in (128, 256, 448, 512, 2048) if n <= longest])
    return settings


def draw_vision(drawn: random.Random, largest_batch: int) -> dict[str, Any]:
    """Settings of a vision-language model's job."""
    method = drawn.choice(("lora", "lora", "full"))
    return {
        "method": method,
        "checkpointing": drawn.choice(("full", "none")),
        "images": drawn.choice((1, 1, 2)),
        "micro_batch_size": drawn.randint(1, largest_batch),
        "sequence_length": drawn.choice((3072, 6144)),
        "vision": drawn.choice(("frozen", "frozen", "train" if method == "full" else "lora")),
    }


def draw_sharded(drawn: random.Random) -> dict[str, Any]:
    """Settings of a job on 2 or 4 GPUs."""
    settings = {
        "strategy": drawn.choice(("ddp", "fsdp", "zero1", "zero2", "zero3")),
        "num_gpus": drawn.choice((2, 2, 4)),
        "method": drawn.choice(("full", "lora")),
        "checkpointing": drawn.choice(("full", "none")),
        "sequence_length": drawn.choice((512, 1024, 2048)),
        "micro_batch_size": drawn.randint(1, 3),
    }
    if settings["strategy"] == "fsdp" and settings["method"] == "lora":
        settings["lora_dtype"] = "bf16"
    return settings
