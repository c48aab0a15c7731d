"""The jobs that `vramplan measure` runs, the most informative first."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import UnknownNameError
from vramplan.inputs.catalog import find_model
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.job_defaults import complete_job


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the matrix."""

    model: str
    job: dict[str, Any] = field(default_factory=dict)
    history: bool = False
    """Record every allocation and free, so that they can be replayed."""
    as_gpu: str | None = None
    """The GPU that the one in this machine stands in for."""
    find_max: bool = False
    """Search for the largest micro-batch that runs."""

    @property
    def name(self) -> str:
        """The case in one line, unique in the matrix."""
        settings = [
            f"{key.removesuffix('_size')}={'+'.join(map(str, value)) if isinstance(value, tuple) else value}"
            for key, value in self.job.items()
        ]
        options = [f"as {self.as_gpu}"] * bool(self.as_gpu) + ["largest"] * self.find_max + ["history"] * self.history
        return " ".join([self.model, *settings, *options])

    @property
    def num_gpus(self) -> int:
        """The number of GPUs that it needs."""
        return int(self.job.get("num_gpus", 1))

    def full_job(self, gpu: Gpu) -> tuple[ModelSpec, Job]:
        """The model, and the job with its defaults filled in.

        Raises:
            VramplanError: for a model that is not shipped, or a job that the GPU cannot run.
        """
        spec = find_model(self.model)
        if spec is None:
            raise UnknownNameError("model", self.model, ())
        return spec, complete_job(spec, gpu, self.job)


def _case(model: str, batch: int, length: int, **settings: Any) -> Case:
    """A row of the matrix; settings other than `history`, `as_gpu` and `find_max` are fields of the job."""
    options = {name: settings.pop(name) for name in ("history", "as_gpu", "find_max") if name in settings}
    return Case(model, {"micro_batch_size": batch, "sequence_length": length, **settings}, **options)


FULL: dict[str, Any] = {"method": "full", "autocast": "none"}
AMP: dict[str, Any] = {"method": "full", "dtype": "fp32", "autocast": "bf16"}
NONE: dict[str, Any] = {"checkpointing": "none"}
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")

CASES = (
    # the common job, then its parts: logits, casts of adapters, saved tensors, optimizer peaks
    _case("qwen2.5-7b", 1, 2048, history=True),
    _case("qwen2.5-7b", 1, 2048, **NONE),
    _case("llama-3.2-1b", 4, 2048, **FULL, **NONE, history=True),
    _case("qwen2.5-1.5b", 8, 1024, **AMP, **NONE),
    _case("qwen2.5-7b", 4, 2048, loop="plain"),
    _case("qwen2.5-1.5b", 4, 2048, **FULL, optimizer="adamw_torch"),
    _case("qwen2.5-7b", 2, 2048, lora_rank=16, lora_dropout=0.05, **NONE),
    _case("mistralai/Mistral-7B-v0.1", 4, 4096, lora_rank=16, lora_targets=QKVO, lora_dropout=0.1, autocast="none"),
    # the most common question: the largest batch on a 24 GB card
    _case("qwen2.5-7b", 1, 2048, as_gpu="rtx4090", find_max=True),
    _case("llama-3.1-8b", 1, 8192, **FULL, history=True),
    # images: a frozen vision tower that is still differentiated, windows, DeepStack
    _case("Qwen/Qwen2.5-VL-3B-Instruct", 1, 2048, images=1, image_size=(1344, 896), history=True),
    _case("OpenGVLab/InternVL2_5-2B", 2, 2048, images=1, image_size=(1344, 896), **NONE),
    _case("Qwen/Qwen3-VL-2B-Instruct", 2, 2048, **FULL, images=1, image_size=(1024, 1024), vision="train"),
    _case("google/gemma-3-4b-it", 1, 1024, images=2, image_size=(896, 896), vision="lora", projector="lora"),
    # masks, scores, accumulation
    _case("llama-3.2-1b", 4, 2048, **FULL, **NONE, batches="padded"),
    _case("llama-3.2-1b", 4, 2048, **FULL, **NONE, attention="eager"),
    _case("qwen2.5-0.5b", 8, 2048, **FULL, **NONE, gradient_accumulation_steps=4, history=True),
    # other architectures
    _case("google/gemma-2-2b", 2, 2048, lora_rank=16, attention="eager", **NONE),
    _case("Qwen/Qwen3-8B", 2, 2048, **NONE),
    _case("microsoft/Phi-3-mini-4k-instruct", 2, 2048, **FULL, **NONE),
    _case("EleutherAI/pythia-1.4b", 4, 2048, **FULL, **NONE),
    _case("openai-community/gpt2-large", 8, 1024, **AMP, **NONE),
    _case("llama-3.1-8b", 2, 2048, lora_rank=32, lora_targets=("q_proj", "v_proj"), **NONE),
    _case("llama-3.1-8b", 1, 16384),
    # the largest batch, from a poor start
    _case("llama-3.2-1b", 2, 1024, **FULL, as_gpu="rtx4090", find_max=True),
    _case("mistralai/Mistral-7B-v0.1", 2, 4096, **FULL),
    _case("qwen2.5-1.5b", 2, 4096, method="full", dtype="fp32", autocast="none"),
    _case("qwen2.5-7b", 4, 1024, lora_rank=16, autocast="none", **NONE),
    _case("llama-3.2-1b", 16, 512, **AMP, **NONE),
    _case("qwen2.5-0.5b", 32, 512, **FULL, **NONE, optimizer="sgd"),
    _case("llama-3.1-8b", 4, 2048, as_gpu="a100-40gb", find_max=True),
    _case("google/gemma-2-2b", 2, 2048, **FULL, attention="eager"),
    _case("Qwen/Qwen3-8B", 1, 4096, **FULL),
    _case("microsoft/Phi-3-mini-4k-instruct", 4, 2048, batches="padded"),
    _case("llama-3.2-1b", 4, 2048, **FULL, **NONE, expandable_segments=True, history=True),
    _case("qwen2.5-7b", 2, 2048, method="dora"),
    _case("qwen2.5-1.5b", 4, 2048, **FULL, optimizer="adafactor"),
    # several GPUs: gradient buckets, what each strategy divides and gathers
    _case("qwen2.5-1.5b", 4, 2048, **FULL, num_gpus=2),
    _case("llama-3.2-1b", 4, 2048, **FULL, **NONE, num_gpus=2, strategy="fsdp", history=True),
    _case("llama-3.1-8b", 1, 2048, **FULL, num_gpus=4, strategy="fsdp"),
    _case("qwen2.5-7b", 2, 2048, lora_dtype="bf16", num_gpus=2, strategy="fsdp"),
    _case("llama-3.2-1b", 4, 2048, **FULL, num_gpus=2, strategy="zero2"),
    _case("llama-3.1-8b", 1, 2048, **FULL, num_gpus=4, strategy="zero3"),
)
"""The matrix, the most informative runs first."""
