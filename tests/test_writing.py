"""`suggest --for`: what is written, read again, is the same job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import card_of, cli, spec_of
from vramplan.errors import UnsupportedError
from vramplan.frameworks.detect import from_path, from_words
from vramplan.frameworks.registry import writers
from vramplan.frameworks.syntax.shell import commands
from vramplan.frameworks.write import write
from vramplan.inputs.catalog import find_gpu, find_model
from vramplan.planner import check, export
from vramplan.planner.job_defaults import complete_job

QWEN = "Qwen/Qwen2.5-7B-Instruct"
BUILT = {"torchtune": "meta-llama/Llama-3.1-8B"}
"""Models that a framework builds, where that is not Qwen."""
JOBS: dict[str, dict[str, Any]] = {
    "lora": {"lora_rank": 16, "lora_dropout": 0.05, "micro_batch_size": 2, "gradient_accumulation_steps": 4},
    "targets": {"lora_targets": ("q_proj", "v_proj"), "checkpointing": "none", "sequence_length": 1024, "num_gpus": 2},
    "qlora": {"method": "qlora", "loss": "liger", "expandable_segments": True},
    "full": {"method": "full", "attention": "flash", "optimizer": "adamw_torch", "num_gpus": 4},
    "int8": {"quantize": "int8", "modules_to_save": ("embed_tokens", "lm_head"), "reentrant": True},
    "kept": {"quantize": "int8", "num_gpus": 2},
    "dora": {"method": "dora"},
    "fp32": {"method": "full", "dtype": "fp32", "autocast": "bf16"},
    "one": {"lora_dtype": "bf16", "autocast": "none", "loss": "sections", "lora_targets": ("q_proj", "down_proj")},
    "zero": {"method": "full", "autocast": "none", "strategy": "zero2", "num_gpus": 2, "micro_batch_size": 4},
    "hosted": {"strategy": "zero3", "offload": "all", "num_gpus": 4},
    "shipped": {
        "strategy": "zero2", "num_gpus": 4,
        "zero": {"reduce_bucket_size": 500_000_000, "overlap_comm": False},
    },
    "sharded": {"strategy": "fsdp", "num_gpus": 4},
    "flat": {
        "strategy": "fsdp", "num_gpus": 4, "offload": "all", "reentrant": False,
        "fsdp": {"version": 1, "reshard_after_forward": False, "backward_prefetch": "pre", "use_orig_params": False},
    },
}  # fmt: skip
SHARED = ("zero", "hosted", "shipped", "sharded", "flat")
OTHERWISE: dict[tuple[str, str], set[str]] = {
    **{("trl", name): {"loss"} for name in JOBS},
    **{(name, "one"): {"lora_dtype", "autocast", "loss"} for name in ("swift", "transformers", "accelerate")},
    ("trl", "qlora"): {"loss", "lora_dtype"},
    **{("trl", name): {"loss", "lora_dtype"} for name in ("one", "kept", "hosted")},
    ("trl", "int8"): {"loss", "lora_dtype", "saved_dtype"},
    ("llamafactory", "int8"): {"saved_dtype"},
    ("swift", "fp32"): {"autocast"},
    ("axolotl", "fp32"): {"dtype"},
    ("axolotl", "one"): {"autocast", "loss"},
    ("axolotl", "sharded"): {"fsdp.wraps_embeddings"},
    ("llamafactory", "full"): {"autocast"},
    ("llamafactory", "qlora"): {"fused_kernels"},  # its switch is for the loss and all kernels
    ("llamafactory", "one"): {"lora_dtype", "autocast", "loss"},
    ("torchtune", "lora"): {"lora_dtype", "autocast"},
    ("torchtune", "fp32"): {"autocast"},
    ("torchtune", "one"): {"lora_targets"},
    **{("unsloth", name): {"loss"} for name in ("lora", "targets", "fp32")},
    ("unsloth", "full"): {"attention", "loss"},
    ("unsloth", "one"): {"lora_dtype", "autocast", "loss"},
}
"""What a framework cannot be told, and is said: TRL 1.16 never has whole logits, its adapters on nf4 are bf16 ..."""
OWN_CODE, ZERO = "are set in the", "only zero1, zero2, zero3"
NEVER: dict[tuple[str, str], str] = {
    ("axolotl", "fp32"): "fp32 embeddings",  # it loads bf16, and sdpa keeps these
    **{(name, job): "is not written for it" for name in ("torchtune", "unsloth") for job in SHARED},
    **{
        ("llamafactory", job): "written for swift, axolotl, trl, transformers, accelerate"
        for job in ("sharded", "flat")
    },
    **{
        (name, job): OWN_CODE
        for name in ("transformers", "accelerate")
        for job in ("targets", "qlora", "one", "int8", "kept", "dora")
    },
    **{("torchtune", job): "only its single-device" for job in ("targets", "kept", "full")},
    ("torchtune", "qlora"): "quantized recipes",
    **{(name, "int8"): "int8 is not modelled there" for name in ("torchtune", "unsloth")},
    ("unsloth", "kept"): "int8 is not modelled there",
    **{(name, "dora"): "dora is not modelled there" for name in ("torchtune", "unsloth")},
    **{("deepspeed", job): ZERO for job in JOBS if job not in ("zero", "hosted", "shipped")},
}
"""What it is refused for."""
LANGUAGE_MODELS = [name for name, (_, writer) in writers().items() if writer.writes_language_models]
"""Writers of the next token."""


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("framework", LANGUAGE_MODELS)
def test_what_is_written_comes_back(framework: str, name: str) -> None:
    model = BUILT.get(framework, QWEN)
    job = complete_job(spec_of(model), card_of(), JOBS[name])
    if (framework, name) in NEVER:
        with pytest.raises(UnsupportedError, match=NEVER[framework, name]):
            export.written_as(framework, model, job)
        return
    text, _, notes, _ = export.written_as(framework, model, job)
    assert {note.split()[2] for note in notes} == OTHERWISE.get((framework, name), set())
    assert text.endswith("\n")


@pytest.mark.parametrize("framework", LANGUAGE_MODELS)
def test_the_text_itself_is_read(framework: str, tmp_path: Path) -> None:
    """The lines as they are pasted, through the readers of files and commands."""
    model = BUILT.get(framework, QWEN)
    job = complete_job(spec_of(model), card_of(), JOBS["zero" if framework == "deepspeed" else "lora"])
    written = write(framework, model, job)
    if written.file:
        path = tmp_path / written.file
        path.write_text(str(written))
        found = from_path(path, None, {})
    else:
        (command,) = commands(str(written), "pasted", {})
        words = [f"{name}={value}" for name, value in command.environment.items()] + command.words
        found = from_words(words, None, {})
    reading = check.read(found, job.num_gpus)
    assert reading.model == ("" if framework == "deepspeed" else model)
    assert reading.job.get("lora_rank") == (None if framework == "deepspeed" else 16)
    assert reading.job["micro_batch_size"] == job.micro_batch_size
    assert reading.job["gradient_accumulation_steps"] == job.gradient_accumulation_steps
    assert not [note for note in reading.notes if note.kind == "unknown"]


def test_the_command() -> None:
    done = cli("suggest", QWEN, "--gpu", "rtx4090", "--global-batch", "16", "--for", "llamafactory")
    assert done.returncode == 0, done.stderr
    assert "gradient_accumulation_steps: 16" in done.stdout
    done = cli("suggest", QWEN, "--gpu", "rtx4090", "--global-batch", "16", "--for", "megatron")
    assert done.returncode == 2
    assert "known: swift, llamafactory, axolotl, trl, unsloth" in done.stderr


def test_images_come_from_the_data() -> None:
    """A cap that a framework applies before the processor comes to other tokens, which is told."""
    spec = spec_of("Qwen/Qwen2.5-VL-7B-Instruct")
    given = {"image_size": (1344, 896), "max_pixels": 501_760, "sequence_length": 2048}
    job = complete_job(spec, card_of(), given)
    assert export.written_as("swift", spec.name, job).notes == []
    text, _, notes, _ = export.written_as("llamafactory", spec.name, job)
    assert "image_max_pixels: 501760\n" in text
    assert notes == ["llamafactory makes 653 tokens of an image, not 602"]
    whole = complete_job(spec, card_of(), {**given, "max_pixels": None})
    text, _, notes, _ = export.written_as("llamafactory", spec.name, whole)
    assert "image_max_pixels: 1204224\n" in text
    assert not notes


def test_a_plan_is_judged_as_its_framework_reads_it() -> None:
    """LLaMA-Factory keeps Gemma 2's fp32 weights; torchtune casts nothing; DeepSpeed's file is no whole job."""
    spec, card = spec_of("google/gemma-2-9b"), find_gpu("a100-40gb-sxm")
    job = complete_job(spec, card, {"sequence_length": 1024, "micro_batch_size": 2})
    told = export.export("llamafactory", spec, job, card)
    assert not told.fits
    assert "as llamafactory takes it, micro-batch 2 needs" in told.notes[-1]
    assert export.export("swift", find_model("google/gemma-2-9b-it") or spec, job, card).fits
    spec, card = spec_of("Qwen/Qwen2.5-7B"), find_gpu("h100")
    job = complete_job(spec, card, {"strategy": "zero2", "num_gpus": 4, "sequence_length": 512})
    assert export.export("deepspeed", spec, job, card).fits
    spec = spec_of("OpenGVLab/InternVL3-1B")
    text = export.export("trl", spec, complete_job(spec, card, {}), card).text
    assert "model_name_or_path: OpenGVLab/InternVL3-1B-hf\n" in text


def test_another_micro_batch_where_a_framework_takes_more() -> None:
    spec, card = spec_of("meta-llama/Llama-3.2-1B"), find_gpu("rtx4090")
    given = {"checkpointing": "none", "sequence_length": 1024, "dtype": "fp32", "autocast": "bf16"}
    job = complete_job(spec, card, {**given, "micro_batch_size": 4, "gradient_accumulation_steps": 4})
    told = export.export("torchtune", spec, job, card)
    assert told.fits
    assert told.settings["micro_batch_size"] < 4
    assert told.settings["micro_batch_size"] * told.settings["gradient_accumulation_steps"] == 16
    assert told.notes[-1].endswith("planned again")
