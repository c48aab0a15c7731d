"""One rank of TRL's DPO, KTO or GRPO trainer of a model that sees, under ZeRO or FSDP on an emulated GPU.

Batches have images as processors make them; completions come from elsewhere, and are scored where the trainer would.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.recorded_runs import job_of, model_of
from tests.trl_sharing_run import STEPS, Peaks, adapters, observe, print_peaks, sharing, usual_arguments
from vramplan.inputs.images import IMAGE_PROCESSORS
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import ROLLOUTS
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model.adapters import excluded_modules, freeze
from vramplan.torch_backend.model.batches import image_batch
from vramplan.torch_backend.model.build import from_config
from vramplan.torch_backend.model.subject import ImageInputs

LAYERS = {
    "qwen2_5_vl": ["Qwen2_5_VLDecoderLayer", "Qwen2_5_VLVisionBlock"],
    "qwen2_vl": ["Qwen2VLDecoderLayer", "Qwen2VLVisionBlock"],
    "qwen3_vl": ["Qwen3VLTextDecoderLayer", "Qwen3VLVisionBlock"],
    "llava": ["LlamaDecoderLayer", "CLIPEncoderLayer"],
    "gemma3": ["Gemma3DecoderLayer", "SiglipEncoderLayer"],
}


def rows(job: Job, images: ImageInputs, count: int) -> dict[str, torch.Tensor]:
    """So many texts with images."""
    return image_batch(images, (count, job.sequence_length), "cpu")


def mask_of(job: Job, count: int) -> torch.Tensor:
    """Which tokens are of the answers."""
    places = torch.arange(job.sequence_length)[None].repeat(count, 1)
    return (places >= (job.prompt_length or 1)).long()


def preferences(job: Job, images: ImageInputs) -> dict[str, torch.Tensor]:
    """A micro-batch of the vision collators of DPO and KTO."""
    count = job.micro_batch_size
    if job.task == "dpo":
        return rows(job, images, 2 * count) | {"completion_mask": mask_of(job, 2 * count)}
    batch = rows(job, images, count)
    shape = (count, job.sequence_length)
    batch |= {f"KL_{name}": one.clone() for name, one in batch.items() if one.shape == shape}
    batch |= {f"{kl}completion_mask": mask_of(job, count) for kl in ("", "KL_")}
    return {**batch, "label": torch.arange(count) % 2 == 0}


def completions(job: Job, images: ImageInputs) -> dict[str, Any]:
    """A micro-batch of a generation."""
    prompt, batch, count = job.prompt_length or 1, rows(job, images, job.micro_batch_size), job.micro_batch_size
    ids, mask = batch.pop("input_ids"), batch.pop("attention_mask")
    made: dict[str, Any] = {"advantages": torch.zeros(count), "num_items_in_batch": torch.ones(())}
    for kind, whole in (("ids", ids), ("mask", mask)):
        made |= {f"prompt_{kind}": whole[:, :prompt].clone(), f"completion_{kind}": whole[:, prompt:].clone()}
    return {**made, **batch, "num_images": [job.images] * count}


def run(row: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank."""
    import trl
    from datasets import Dataset

    from tests.trl_trace import tokenizer

    job, spec = job_of(row), model_of(row)
    name = {"dpo": "DPO", "kto": "KTO", "grpo": "GRPO"}[str(job.task)]
    made, arguments = getattr(trl, f"{name}Trainer"), getattr(trl, f"{name}Config")
    settings: dict[str, Any] = {
        **usual_arguments(job),
        "remove_unused_columns": False,
    }
    if job.task == "grpo":
        settings |= {"num_generations": job.num_generations, "beta": 0.0}
        settings["max_completion_length"] = job.sequence_length - (job.prompt_length or 1)
    else:
        settings["max_length"] = None
    shared = sharing(job, "llama")
    if "fsdp_config" in shared:
        shared["fsdp_config"]["transformer_layer_cls_to_wrap"] = LAYERS[spec.model_type]
    subject = from_config(spec, job, "meta", False, nullcontext)
    images = subject.images
    assert images is not None
    args = arguments(**settings, **shared)
    processor = IMAGE_PROCESSORS[spec.model_type]

    def model() -> nn.Module:
        config = subject.module.config
        kind = {"dtype": DTYPES[job.dtype], "attn_implementation": job.attention}
        found: nn.Module = type(subject.module)._from_config(config, **kind)
        freeze(found, job, processor)
        return found

    peft = adapters(job)
    if peft is not None:
        peft.exclude_modules = excluded_modules(job, processor)
    peaks = Peaks()
    peaks.enter("loaded")
    same = lambda self, dataset, *_, **__: dataset  # noqa: E731
    extra: dict[str, Any] = {"ref_model": model()} if job.loads_reference else {}
    data = Dataset.from_list([{"prompt": "w3"}] * (job.num_gpus * job.global_batch_size * STEPS))
    if job.task in ROLLOUTS:
        extra["reward_funcs"] = lambda **_: [0.0]
    else:
        extra["data_collator"] = lambda _: preferences(job, images)
    with (
        patch.object(made, "_prepare_dataset", same, create=True),
        patch(f"{made.__module__}.hash_module", lambda _: "", create=True),
    ):
        trainer = made(
            model(), args=args, train_dataset=data, processing_class=tokenizer(64), peft_config=peft, **extra
        )
        if job.task in ROLLOUTS:
            generated(trainer, job, images, peaks)
        observe(trainer, peaks)
        trainer.train()
    peaks.enter("over")
    return peaks.found


def generated(trainer: Any, job: Job, images: ImageInputs, peaks: Peaks) -> None:
    """Score completions in front of each step, and hand them to it."""
    from trl.models.utils import disable_gradient_checkpointing

    texts = ("prompt", "completion", "advantages", "num_items")
    held: dict[str, Any] = {}

    def prepare(_: Any) -> Mapping[str, Any]:
        if peaks.phase != "loaded":
            peaks.enter("scoring")
        made = completions(job, images)
        batch = {key: one.cuda() if isinstance(one, torch.Tensor) else one for key, one in made.items()}
        ids, mask = (
            torch.cat([batch[f"{part}_{kind}"] for part in ("prompt", "completion")], 1) for kind in ("ids", "mask")
        )
        seen = {key: one for key, one in batch.items() if not key.startswith(texts)}
        if job.importance_sampling:
            peaks.enter("scoring")
            with (
                torch.no_grad(),
                disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs),
            ):
                trainer._get_per_token_logps_and_entropies(
                    trainer.model, ids, mask, batch["completion_ids"].size(1), batch_size=job.micro_batch_size, **seen
                )
        held["batch"] = batch
        peaks.enter("forward")
        return batch

    trainer._prepare_inputs = prepare


if __name__ == "__main__":
    print_peaks(run)
