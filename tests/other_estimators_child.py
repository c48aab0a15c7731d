"""Asks the other estimators of an environment of their own: ``python other_estimators_child.py RUNS.json``.

Prints for each run what each estimator says in bytes, or why it says nothing. ``tests/other_estimators.py`` starts it;
nothing of vramplan is imported here.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB, GIB = 1 << 20, 1 << 30
EIGHT_BIT = ("8bit",)


class Refused(Exception):
    """An estimator does not know such a job."""


def only_one_gpu(run: dict[str, Any]) -> None:
    if run["job"]["num_gpus"] > 1 or run["job"]["strategy"] != "ddp":
        raise Refused("one GPU only")


def is_eight_bit(run: dict[str, Any]) -> bool:
    return any(mark in run["job"]["optimizer"] for mark in EIGHT_BIT)


def fitcheck(run: dict[str, Any]) -> int:
    from fitcheck import TrainingConfig, config_parser, estimate, get_gpu

    only_one_gpu(run)
    job, raw = run["job"], run["config"]
    config_parser._reject_unsupported(raw, run["model"])
    fields = config_parser._parse_fields(raw)
    names = (
        "hidden_size", "num_layers", "num_attention_heads", "num_kv_heads", "intermediate_size", "vocab_size",
        "head_dim", "tie_word_embeddings",
    )  # fmt: skip
    shape = {name: getattr(fields, name) for name in names}
    model = config_parser.ModelConfig(name=run["model"], num_params=run["parameters"], **shape)
    settings = {"lora_targets": job["lora_targets"]} if job["lora_targets"] else {}
    training = TrainingConfig(
        precision=job["dtype"],
        quantization="nf4" if job["quantize"] == "nf4" else "none",
        double_quant=job["quantize"] == "nf4" and job["double_quant"],
        optimizer="adam8bit" if is_eight_bit(run) else "adamw",
        batch_size=job["micro_batch_size"],
        seq_len=job["sequence_length"],
        lora_rank=None if job["method"] == "full" else job["lora_rank"],
        grad_checkpoint=job["checkpointing"] == "full",
        flash_attn=job["attention"] == "flash",
        grad_accum_steps=job["gradient_accumulation_steps"],
        **settings,
    )
    return round(estimate(model, training, get_gpu(vram_mib=run["gpu_mib"])).total_mib * MIB)


def fitscout(run: dict[str, Any]) -> int:
    from fitscout.memory.estimator import estimate_memory
    from fitscout.model.introspect import extract_arch_fields
    from fitscout.model.profile import ModelProfile

    only_one_gpu(run)
    job = run["job"]
    method = "full" if job["method"] == "full" else "qlora" if job["quantize"] == "nf4" else "lora"
    found = estimate_memory(
        ModelProfile(params=run["parameters"], **extract_arch_fields(run["config"])),
        method=method,
        micro_batch=job["micro_batch_size"],
        seq_len=job["sequence_length"],
        grad_ckpt=job["checkpointing"] == "full",
        opt_8bit=is_eight_bit(run),
        lora_rank=job["lora_rank"],
    )
    return round(found.total_gb * GIB)


def canifinetune(run: dict[str, Any]) -> int:
    from canifinetune.estimator.memory import EstimateRequest, estimate

    only_one_gpu(run)
    job = run["job"]
    method = "full" if job["method"] == "full" else "qlora" if job["quantize"] == "nf4" else "lora"
    attention = {"flash": "flash_attention_2"}.get(job["attention"], job["attention"])
    in_attention = set(job["lora_targets"] or ["gate_proj"]) <= {"q_proj", "k_proj", "v_proj", "o_proj"}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(run["config"]))
        request = EstimateRequest(
            model_id=folder,
            gpu_vram_gb=run["gpu_mib"] / 1024,
            method=method,
            seq_len=job["sequence_length"],
            micro_batch_size=job["micro_batch_size"],
            gradient_accumulation_steps=job["gradient_accumulation_steps"],
            base_dtype=job["dtype"],
            lora_rank=job["lora_rank"],
            lora_target_scope="attention" if in_attention else "all_linear",
            optimizer="paged_adamw_8bit" if is_eight_bit(run) else "adamw_torch",
            gradient_checkpointing=job["checkpointing"] == "full",
            attention_implementation=attention,
            loss_backend="liger" if job["loss"] == "liger" else "stock",
            use_network=False,
        )
        memory = estimate(request).memory
    return round((memory.total_estimated_gb - memory.safety_margin_gb) * GIB)


def torch_preflight(run: dict[str, Any]) -> int:
    from torch_preflight.vram import costmodel, types

    job, raw = run["job"], run["config"]
    if job["quantize"] != "none":
        raise Refused("quantized weights are not known")
    shardings = {"ddp": "ddp" if job["num_gpus"] > 1 else "none", "fsdp": "zero-3"}
    strategy = shardings.get(job["strategy"], job["strategy"].replace("zero", "zero-"))
    shape = types.TransformerShape(
        layers=raw["num_hidden_layers"],
        hidden=raw["hidden_size"],
        heads=raw["num_attention_heads"],
        vocab=raw["vocab_size"],
        intermediate=raw.get("intermediate_size") or 0,
        kv_heads=raw.get("num_key_value_heads"),
        tied_embeddings=bool(raw.get("tie_word_embeddings")),
        gated_mlp=True,
        has_lm_head=True,
    )
    profile = types.ModelProfile(
        name=run["model"],
        param_count=run["parameters"],
        trainable_params=run["trainable"],
        source="formula",
        confidence=types.Confidence.HIGH,
        kind=types.ModelKind.TRANSFORMER,
        shape=shape,
    )
    config = types.RunConfig(
        batch_size=job["micro_batch_size"],
        seq_len=job["sequence_length"],
        precision=types.PrecisionMode({"bf16": "pure-bf16", "fp16": "pure-fp16", "fp32": "fp32"}[job["dtype"]]),
        optimizer=types.OptimizerKind("adamw-8bit" if is_eight_bit(run) else "adamw"),
        gradient_checkpointing=job["checkpointing"] == "full",
        flash_attention=job["attention"] != "eager",
        accumulation_steps=job["gradient_accumulation_steps"],
        world_size=job["num_gpus"],
        sharding=types.Sharding(strategy),
        offload_optimizer=job["offload"] != "none",
        offload_params=job["offload"] == "all",
        frozen_fraction=1 - run["trainable"] / run["parameters"],
    )
    return int(costmodel.estimate(profile, config).breakdown.total)


def accelerate(run: dict[str, Any]) -> int:
    from accelerate.commands.estimate import estimate_training_usage

    only_one_gpu(run)
    if run["job"]["method"] != "full":
        raise Refused("full training alone")
    return int(max(estimate_training_usage(run["parameters"] * 4, "bfloat16").values()))


def deepspeed(run: dict[str, Any]) -> int:
    job = run["job"]
    if job["strategy"] not in ("zero2", "zero3") or job["method"] != "full":
        raise Refused("full training with ZeRO-2 or ZeRO-3 alone")
    with contextlib.redirect_stdout(io.StringIO()):
        from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as stage3
        from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as stage2
    offload = job["offload"] != "none"
    if job["strategy"] == "zero2":
        return int(stage2(run["parameters"], job["num_gpus"], 1, offload)[1])
    return int(stage3(run["parameters"], run["largest_layer"], job["num_gpus"], 1, offload, job["offload"] == "all")[1])


ESTIMATORS: dict[str, Callable[[dict[str, Any]], int]] = {
    "fitcheck-llm": fitcheck,
    "fitscout": fitscout,
    "canifinetune": canifinetune,
    "torch-preflight": torch_preflight,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
}


def main() -> None:
    runs = json.loads(Path(sys.argv[1]).read_text())
    answers: dict[str, dict[str, Any]] = {}
    for run in runs:
        answers[run["id"]] = {}
        for name, ask in ESTIMATORS.items():
            try:
                answers[run["id"]][name] = ask(run)
            except (Refused, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
                answers[run["id"]][name] = f"{type(error).__name__}: {error}"[:200]
    versions = {name: importlib.metadata.version(name) for name in ESTIMATORS}
    print(json.dumps({"versions": versions, "answers": answers}))


if __name__ == "__main__":
    main()
