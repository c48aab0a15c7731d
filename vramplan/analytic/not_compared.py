"""What of a job no run of its trainer's own code was compared with."""

from __future__ import annotations

from vramplan.inputs.image_task_rules import runs_swift
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import PPO_TRAINERS, ROLLOUTS
from vramplan.inputs.task_rules import OF_FRAMEWORKS

SGLANG_REPORTS = (
    ", and for CUDA graphs, which stay while the model trains, others' reports: it was not measured, and graphs of a"
    " large mixture may take more"
)


HOOKED = ("qwen3_5", "qwen3_5_moe", "glm4v", "glm4v_moe", "glm_ocr", "internvl")
"""Types of models whose template in ms-swift 4.6 computes the tower in a hook in front of the model, but for those
whose hook was run and is counted (templates/qwen.py, glm.py and internvl.py: _post_encode)."""


def hook_of_template(job: Job, model_type: str) -> list[str]:
    """That ms-swift's DPO of a model runs its tower where no run was compared."""
    if not (runs_swift(job) and job.pictures and job.task == "dpo" and model_type in HOOKED):
        return []
    return [
        f"ms-swift 4.6 runs the tower of {model_type} in a hook in front of the model, without autocast: DPO was not"
        " compared with its runs there (of Qwen2-VL the hook took up to 12 % less)"
    ]


def not_compared(job: Job) -> list[str]:
    """What no run of the trainer's own code was compared with, although it may need more than the estimate says."""
    if job.runs_verl:
        alone = ["FSDP on one GPU, which shards nothing, follows torch's events: it was not compared with verl's runs"]
        images = ["images in verl up to 0.8 follow its source and transformers 5.9: no run of it was compared"]
        older = ["verl before 0.7 under FSDP 2 follows its source and torch's: it was not compared with its runs"]
        return [
            *(alone if job.num_gpus == job.fsdp.replicas else ()),
            *(older if job.verl.head_in_root else ()),
            *(images if job.pictures and job.verl.logits == "in_place" else ()),
            f"verl's actor {'' if job.verl.critic is None else 'and critic '}"
            f"{'was' if job.verl.critic is None else 'were'} compared with runs of its own code: of 0.7.1 on one GPU,"
            f" of 0.9.1 on two emulated GPUs; what {job.verl.engine_name} takes follows its source"
            + (SGLANG_REPORTS if job.verl.engine == "sglang" else ""),
        ]
    if job.runs_openrlhf:
        return [
            "OpenRLHF's models were compared with runs of its own code on one GPU; how DeepSpeed shares them, and what"
            " goes to vLLM, follow their sources"
        ]
    if job.task in ROLLOUTS and job.num_gpus > 1 and (job.loss != "chunked" or job.quantize != "none"):
        package = OF_FRAMEWORKS.get(job.loss, "its trainer" if job.loss == "standard" else "TRL")
        what = " of quantized models" if job.loss == "chunked" else ""
        return [f"{str(job.task).upper()}{what} on several GPUs was not compared with runs of {package}"]
    by_swift = job.strategy == "zero3" and job.generated_by == "none"  # two emulated GPUs
    if job.task == "gkd" and job.num_gpus > 1 and job.loss not in ("standard", "chunked") and not by_swift:
        return [f"GKD of this loss on several GPUs was not compared with runs of {OF_FRAMEWORKS.get(job.loss, 'TRL')}"]
    if job.value_model is not None:  # under DeepSpeed two emulated GPUs
        several = job.num_gpus > 1 and not job.uses_deepspeed
        return [f"PPO of {PPO_TRAINERS[job.ppo_trainer]} under DDP was not compared with runs"] if several else []
    if job.task == "ppo" and (job.num_gpus > 1 or job.quantize != "none"):
        return ["PPO of LLaMA-Factory on several GPUs, and of quantized models, was not compared with runs"]
    if job.loss == "kept_log_probs" and job.num_gpus > 1:
        return [
            "OpenRLHF's loops were compared with runs on one GPU; DeepSpeed's share is that of other trainers' runs"
        ]
    if job.layers_of == "torchtune":  # two emulated GPUs
        return []
    sharded = job.strategy == "zero3" or (job.strategy == "fsdp" and job.fsdp.version == 2)
    if job.task not in ("dpo", "kto") or not sharded:
        return []
    notes = []
    compared = ("chunked", "log_softmax", *(("logits_to_keep",) if job.strategy == "zero3" else ()))
    if job.loss not in compared:
        package = OF_FRAMEWORKS.get(job.loss, "TRL")
        notes.append(
            f"{job.task.upper()} by whole logits under ZeRO-3 and FSDP 2 was not compared with runs of {package}"
        )
    if job.strategy == "zero3" and job.method != "full" and job.checkpointing == "none":
        notes.append("DPO and KTO with adapters under ZeRO-3 without checkpointing: 1.6 % above a run of TRL")
    return notes
