"""TRL: ``trl sft``, its YAML and its script (0.12 to 1.16; trl/scripts/sft.py, trainer/sft_config.py)."""

from __future__ import annotations

from typing import Any

from vramplan.frameworks.framework import ENGINES, Framework, Writer
from vramplan.frameworks.parsed_config import ParsedConfig, at_least, settle
from vramplan.frameworks.readers import zero_config
from vramplan.frameworks.readers.trainer_arguments import (
    ALL_LINEAR,
    NAMES,
    PYTHON,
    adapters,
    arguments,
    attention,
    beside,
    capped,
    dtype_of,
    evaluation,
    experts,
    launched,
    mapped,
    parts,
    quantized,
    reentrant,
    sharing,
    taken_over,
    targets,
)
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import ConfigText, allocator_variables
from vramplan.frameworks.writers.trainer_based import adapter, reentrant_kwargs, trainer_arguments
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.job import Job

PACKAGE, NEWEST = "trl", "1.16.0"


def read(keys: ConfigReader, cards: int, asked: str | None) -> ParsedConfig:
    """The job of a ``trl sft`` configuration."""
    version, where = settle(PACKAGE, asked, NEWEST)
    if asked is None and keys.has("max_seq_length"):
        version, where = "0.19.1", "from its max_seq_length"
    job = arguments(keys) | _strategy(keys)
    method = "lora" if keys.flag("use_peft", default=False) else "full"
    job["method"] = method
    job |= parts(method)
    job |= experts(not at_least(version, "0.27"))
    if method == "lora":
        job |= adapters(keys, "lora_r", usual=16, dropout=0.05)
        named = ("q_proj", "v_proj")  # what PEFT takes for most models
        job["lora_targets"] = targets(keys, "lora_target_modules") if keys.has("lora_target_modules") else named
        job |= beside(keys, "use_dora", "lora_modules_to_save")
    elif keys.has("lora_r"):
        keys.note("warning", "lora_r", "has no effect without use_peft: every weight trains")
    job |= _dtypes(keys, version)
    job |= _quantized(keys, version, job)
    job["checkpointing"] = "full" if keys.flag("gradient_checkpointing", default=at_least(version, "0.22")) else "none"
    job |= reentrant(keys, job, not at_least(version, "0.27"))
    job |= attention(keys, "attn_implementation")
    job |= _loss(keys, version)
    if not keys.is_null("max_length"):
        job["sequence_length"] = keys.count("max_seq_length", "max_length", default=1024)
    if not keys.has("max_length", "max_seq_length") and not keys.is_null("max_length"):
        keys.note("default", "max_length", "not set: 1024")
    if keys.flag("packing", default=False) or keys.flag("padding_free", default=False):
        job["batches"] = "packed"
        if job.get("attention") != "flash":
            keys.note(
                "warning", "packing", "without attn_implementation: flash_attention_2 samples of a row see each other"
            )
    job |= sharing(keys, cards, launched)
    if at_least(version, "1.5") and job["num_gpus"] == 1 and keys.source.spelling != "python":
        job |= mapped(job)  # trainer/utils.py: create_model_from_path, in one process
    names = NAMES | {"sequence_length": "max_seq_length" if keys.has("max_seq_length") else "max_length"}
    if keys.source.spelling == "python":
        names |= PYTHON | {"method": {"lora": f"peft_config {ALL_LINEAR}"}}
    else:
        names |= {
            "method": {"lora": "use_peft true"},
            "quantize": {"nf4": "load_in_4bit true", "int8": "load_in_8bit true"},
            "strategy": {
                found["strategy"]: f"accelerate_config {name}" for name, found in CONFIGURATIONS.items() if found
            },
        }
    reading = ParsedConfig("trl", f"{version} ({where})", keys.name("model_name_or_path") or "", job, names, keys.notes)
    capped(keys, reading)
    reading.brings = {found["strategy"]: found for found in CONFIGURATIONS.values() if found}
    reading.rows = "packed" if keys.flag("packing", default=False) else "samples"
    reading.eval_batch_size = evaluation(keys, 8, keys.has("eval_strategy"))
    return reading


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "single_gpu": {},
    "multi_gpu": {},
    **{f"zero{stage}": zero_config.unset(stage) for stage in (1, 2, 3)},
    "fsdp2": {"strategy": "fsdp", "fsdp": {"version": 2, "reshard_after_forward": True}},
}
"""TRL's own accelerate configurations, by name (accelerate_configs/*.yaml)."""


def _strategy(keys: ConfigReader) -> dict[str, Any]:
    given = keys.text("accelerate_config", default="single_gpu")
    if given not in CONFIGURATIONS:
        raise keys.refuse("accelerate_config")
    return CONFIGURATIONS[given]


def _dtypes(keys: ConfigReader, version: str) -> dict[str, str]:
    """fp32 weights unless said otherwise, by transformers 4 before 0.27; bf16 autocast by default since 0.19."""
    stored = dtype_of(keys, "dtype", "torch_dtype")
    if stored is None and keys.has("dtype", "torch_dtype"):
        stored = taken_over(keys, "dtype", f"TRL {version} loads")
    elif stored is None and not at_least(version, "0.27") and keys.flag("load_in_8bit", default=False):
        stored = "fp16"  # transformers 4.57, quantizer_bnb_8bit.py: update_dtype
    elif stored is None:
        stored = "fp32"
        keys.note(
            "warning",
            "dtype",
            f"is not set: TRL {version} loads fp32 weights, frozen ones too; dtype: bfloat16 halves them",
        )
    fp16 = keys.flag("fp16", default=False)
    bf16 = keys.flag("bf16", default=at_least(version, "0.19") and not fp16)
    return {"dtype": stored, "autocast": "bf16" if bf16 else "fp16" if fp16 else "none"}


def _quantized(keys: ConfigReader, version: str, job: dict[str, Any]) -> dict[str, Any]:
    """Four or eight bits; the scales only where asked for. What trains is bf16 (trainer/sft_trainer.py).

    Before 0.27, PEFT's preparation makes the rest fp32, of which bf16 runs in four bits keep the norms alone
    (models/utils.py: prepare_peft_model, peft_module_casting_to_bf16); not where FSDP has the base on the host.
    """
    four, eight = (keys.flag(name, default=False) for name in ("load_in_4bit", "load_in_8bit"))
    if not four and not eight:
        return {}
    if four and eight:
        raise keys.wrong(("load_in_8bit",), "false beside load_in_4bit: TRL takes one of both")
    on_host = four and job.get("strategy") == "fsdp" and not at_least(version, "0.27")
    if on_host:
        job["fsdp"] = job["fsdp"] | {"loads_whole_model": False}
    prepares = not at_least(version, "0.27") and not on_host
    if four and prepares and dtype_of(keys, "dtype", "torch_dtype") is None:
        raise keys.refuse("load_in_4bit", "computing in fp32 or fp16 is not modelled yet; give dtype: bfloat16")
    found = quantized(keys, job["dtype"], job)
    if prepares:
        raised = "fp32_norms" if four and job["autocast"] == "bf16" else "prepare_for_kbit_training"
        return found | {raised: True}
    if job["method"] == "dora":
        raise keys.refuse("use_dora", "on a quantized base, whose magnitudes stay fp32, is not modelled yet")
    return found | {"lora_dtype": "bf16"} | ({"saved_dtype": "bf16"} if "modules_to_save" in job else {})


def _loss(keys: ConfigReader, version: str) -> dict[str, Any]:
    """Full logits up to 1.6; after that never (chunked_nll)."""
    if keys.flag("use_liger_kernel", "use_liger", default=False):
        return {"loss": "chunked" if at_least(version, "1.16") else "liger"}  # 1.16 leaves its fused head in place
    kind = keys.text("loss_type", default="")
    if kind not in ("", "nll", "chunked_nll"):
        raise keys.refuse("loss_type")
    if at_least(version, "1.16") or kind == "chunked_nll" or (at_least(version, "1.7") and not kind):
        return {"loss": "chunked"}
    return {}


def write(model: str, job: Job) -> ConfigText:
    """TRL's YAML."""
    pairs = trainer_arguments(model, job) | {"num_processes": job.num_gpus}
    if job.method != "full":
        pairs |= {
            "use_peft": True,
            **adapter(job, "lora_r", "lora_target_modules", "all-linear", "use_dora", "lora_modules_to_save"),
        }
    if job.quantize == "nf4":
        pairs |= {"load_in_4bit": True, "use_bnb_nested_quant": job.double_quant}
    if job.quantize == "int8":
        pairs |= {"load_in_8bit": True} | reentrant_kwargs(job)
    if job.batches == "packed":
        pairs["packing"] = True
    shipped = ((name, Job.model_validate(found, strict=False)) for name, found in CONFIGURATIONS.items())
    alike = [name for name, one in shipped if _shares_alike(job, one)]
    pairs |= {"accelerate_config": alike[0]} if alike and job.strategy != "ddp" else sharding(job)
    return ConfigText(pairs, allocator_variables(job), "trl sft --config train.yaml", file="train.yaml")


def _shares_alike(job: Job, other: Job) -> bool:
    """Whether cards share the work in the same way."""
    ways = ((one.strategy, one.offload, one.fsdp, one.zero) for one in (job, other))
    return len(set(ways)) == 1


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(("trl", "sft"), ("trl/scripts/sft.py",), ("scripts/sft.py",), ("sft.py",)),
    unread_commands={("trl", "dpo"): "preference training", ("trl", "grpo"): "reinforcement training"},
    marks=frozenset(
        {"use_peft", "dataset_name", "lora_target_modules", "packing_strategy", "max_length", "accelerate_config"}
    ),
    inherits=("transformers",),
    writers=(Writer("trl", write, ENGINES),),
)
