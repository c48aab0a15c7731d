"""Scripts around transformers' Trainer, and its TrainingArguments as JSON; ``accelerate launch``."""

from __future__ import annotations

from vramplan.errors import UnsupportedError, setting
from vramplan.frameworks.framework import ENGINES, Framework, Writer
from vramplan.frameworks.parsed_config import ParsedConfig, at_least, settle, without
from vramplan.frameworks.readers.trainer_arguments import (
    ALL_LINEAR,
    LENGTHS,
    NAMES,
    PYTHON,
    adapters,
    arguments,
    attention,
    beside,
    capped,
    checkpointing,
    checkpoints_outside,
    dtype_of,
    evaluation,
    experts,
    half_of,
    loaded,
    parts,
    quantized,
    ranks,
    reentrant,
    sharing,
    taken_over,
    targets,
)
from vramplan.frameworks.readers.zero_config import unset
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import ConfigText, Pairs, allocator_variables, word
from vramplan.frameworks.writers.trainer_based import half_precision, trainer_arguments
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.job import Job, Zero

PACKAGE, NEWEST = "transformers", "5.23.0"


def read(keys: ConfigReader, cards: int, asked: str | None) -> ParsedConfig:
    """A script of one's own around the Trainer, or its TrainingArguments as JSON."""
    known, where = settle(PACKAGE, asked, NEWEST)
    model = keys.name("model_name_or_path", "model", "model_id")
    job = arguments(keys)
    stored = dtype_of(keys, "dtype", "torch_dtype")
    if stored is None and (keys.has("dtype", "torch_dtype") or at_least(known, "5.0")):
        stored = taken_over(keys, "dtype", f"transformers {known} loads")
    elif stored is None:
        stored = "fp32"
        keys.note("warning", "dtype", f"not set: transformers {known} loads fp32")
    half = half_of(keys)
    launched = keys.variable("ACCELERATE_MIXED_PRECISION")
    if half == "none" and launched in ("bf16", "fp16"):
        half = launched
    peft = keys.flag("use_peft", "use_lora", default=False)
    job |= {"method": "lora" if peft else "full", "dtype": stored, "autocast": half}
    job |= parts(job["method"])
    if peft:
        job |= adapters(keys, "lora_r", "lora_rank")
        if keys.has("lora_target_modules"):
            job["lora_targets"] = targets(keys, "lora_target_modules")
        job |= beside(keys, "use_dora", "lora_modules_to_save")
    job |= quantized(keys, stored, job)
    job |= loaded(job, not at_least(known, "5.0")) | experts(not at_least(known, "5.0"))
    if not at_least(known, "4.49") and job.get("loss", "standard") == "standard":
        job["loss"] = "sliced"
    job["checkpointing"] = checkpointing(keys)
    job |= reentrant(keys, job, not at_least(known, "5.0"), checkpoints_outside(known))
    job |= attention(keys, "attn_implementation")
    if keys.has(*LENGTHS):
        job["sequence_length"] = keys.count(*LENGTHS, default=1)
    usual = "max_length" if keys.source.spelling == "python" else LENGTHS[0]
    names = NAMES | {"sequence_length": next((name for name in LENGTHS if keys.has(name)), usual)}
    if keys.source.spelling == "python":
        names |= PYTHON | {"method": {"lora": f"model get_peft_model(model, {ALL_LINEAR})"}}
    reading = ParsedConfig("transformers", f"{known} ({where})", model or "", job, names, keys.notes)
    capped(keys, reading)
    if keys.has("max_train_samples"):
        reading.taken = without(0, keys.count("max_train_samples", default=1))
    reading.rows = "packed" if keys.has("block_size") else "samples"  # run_clm.py joins all texts, and cuts blocks
    job |= sharing(keys, cards, ranks)
    reading.eval_batch_size = evaluation(
        keys, 8, keys.flag("do_eval", default=False) or keys.has("eval_strategy", "evaluation_strategy")
    )
    return reading


def write(model: str, job: Job) -> ConfigText:
    """Flags for a script around transformers' Trainer.

    Raises:
        UnsupportedError: for what only the script's own code can say.
    """
    command = f"torchrun --nproc_per_node {job.num_gpus} train.py"
    return ConfigText(_script(model, job) | sharding(job), allocator_variables(job), command, launcher="nproc_per_node")


def write_accelerate(model: str, job: Job) -> ConfigText:
    """The same flags behind ``accelerate launch``, which is told how cards share the work.

    Raises:
        UnsupportedError: for what only the script's own code can say.
    """
    half = half_precision(job) if half_precision(job) in ("bf16", "fp16") else "no"
    launcher: Pairs = {"num_processes": job.num_gpus, "mixed_precision": half}
    pairs, shared = _script(model, job), ""
    if job.strategy == "fsdp":
        shared, told = "--use_fsdp", sharding(job)["fsdp_config"]
        launcher |= {f"fsdp_{name.removeprefix('fsdp_')}": value for name, value in told.items()}
        launcher |= {"fsdp_offload_params": True} if job.offload == "all" else {}
    elif job.strategy.startswith("zero") and job.zero == Zero(**unset(int(job.strategy[-1]))["zero"]):
        shared, host = "--use_deepspeed", ("offload_optimizer_device", "offload_param_device")
        launcher["zero_stage"] = job.strategy[-1]
        launcher |= dict.fromkeys(host[: ("none", "optimizer", "all").index(job.offload)], "cpu")
    else:  # with sizes of one's own, which its flags do not say
        pairs |= sharding(job)
    said = " ".join(f"--{name} {word(value)}" for name, value in launcher.items())
    command = f"accelerate launch {shared} {said} train.py".replace("  ", " ")
    return ConfigText(pairs, allocator_variables(job), command, launcher="num_processes")


def _script(model: str, job: Job) -> Pairs:
    if job.quantize != "none" or job.method == "dora" or job.lora_targets is not None or job.modules_to_save:
        raise UnsupportedError(
            f"{setting('for_framework', 'transformers')} or accelerate: quantized bases, DoRA, LoRA targets and modules"
            " to save are said in the script's own code"
        )
    pairs = trainer_arguments(model, job)
    if job.method != "full":
        pairs |= {"use_peft": True, "lora_r": job.lora_rank, "lora_dropout": job.lora_dropout}
    if job.loss == "liger":
        pairs["use_liger_kernel"] = True
    return pairs


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    inherits=("scripts",),
    unknown_key="is no argument of transformers' Trainer (the script's own?)",
    writers=(Writer("transformers", write, ENGINES), Writer("accelerate", write_accelerate, ENGINES)),
)
