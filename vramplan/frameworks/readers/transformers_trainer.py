"""Scripts around transformers' Trainer, and its TrainingArguments as JSON; ``accelerate launch``."""

from __future__ import annotations

from pathlib import Path

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.framework import ENGINES, Framework, Writer
from vramplan.frameworks.liger import liger_pairs
from vramplan.frameworks.losses_by_version import loss_of
from vramplan.frameworks.parsed_config import ParsedConfig, at_least, hold_back, resolve_version
from vramplan.frameworks.readers import classifiers, saved_adapters, speech
from vramplan.frameworks.readers.classifiers import read_classifier
from vramplan.frameworks.readers.trainer_arguments import (
    ALL_LINEAR,
    LENGTH_KEYS,
    NAMES,
    PYTHON_NAMES,
    adapter_fields,
    attention_field,
    autocast_dtype,
    checkpoint_dtype,
    checkpoints_outside,
    default_optimizer,
    eval_batch_size,
    experts_field,
    extra_adapter_fields,
    fsdp_loading_fields,
    gpus_and_device_map,
    lora_targets,
    num_processes,
    quantization_fields,
    read_checkpointing,
    read_dtype,
    read_image_caps,
    reentrant_fields,
    trainer_fields,
    vision_fields,
)
from vramplan.frameworks.readers.transformers_examples import BLOCKS, read_example
from vramplan.frameworks.readers.trl_trainers import TOKENIZER_KEY, stops_at_tokenizer
from vramplan.frameworks.readers.zero_config import stage_defaults
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers import nodes, python_scripts
from vramplan.frameworks.writers.config_text import ConfigText, Pairs, allocator_variables
from vramplan.frameworks.writers.trainer_based import half_precision, trainer_arguments
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.job import Job
from vramplan.inputs.sharding import Zero

PACKAGE, NEWEST = "transformers", "5.23.0"
LAST_WITH_EVALUATION_STRATEGY = "4.50.3"
"""The last version whose TrainingArguments take that name of eval_strategy (training_args.py; not in 4.51.3)."""

LAST_WITH_TOKENIZER = "4.57.6"
"""The last version whose Trainer takes a `tokenizer` (trainer.py: deprecate_kwarg)."""


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a script around the Trainer, by its flags, its Python calls, or TrainingArguments as JSON."""
    version, where = resolve_version(PACKAGE, framework_version, NEWEST)
    if framework_version is None and config.has("evaluation_strategy") and at_least(version, "4.51"):
        version, where = LAST_WITH_EVALUATION_STRATEGY, "from its evaluation_strategy"
    if config.has(TOKENIZER_KEY):
        if framework_version is None and at_least(version, "5.0"):
            version, where = LAST_WITH_TOKENIZER, "from its tokenizer"
        if at_least(version, "5.0"):
            raise stops_at_tokenizer(config, f"transformers {version}")
    model = config.string("model_name_or_path", "model", "model_id") or saved_adapters.base_of(config)
    job = trainer_fields(config, optimizer=default_optimizer(version))
    stored = read_dtype(config, "dtype", "torch_dtype")
    if stored is None and (config.has("dtype", "torch_dtype") or at_least(version, "5.0")):
        stored = checkpoint_dtype(config, "dtype", f"transformers {version} loads")
    elif stored is None:
        stored = "fp32"
        config.note("warning", "dtype", f"not set: transformers {version} loads fp32")
    half = autocast_dtype(config)
    mixed_precision = config.variable("ACCELERATE_MIXED_PRECISION")
    if half == "none" and mixed_precision in ("bf16", "fp16"):
        half = mixed_precision
    peft = _trains_adapters(config)
    job |= {"method": "lora" if peft else "full", "dtype": stored, "autocast": half}
    job |= vision_fields(job["method"])
    goes_on = bool(saved_adapters.names(config, saved_adapters.KEY))
    if goes_on:
        job |= saved_adapters.fields_of(config, saved_adapters.IN_SCRIPTS)
    elif peft:
        job |= adapter_fields(config, "lora_r", "lora_rank")
        if config.has("lora_target_modules"):
            job["lora_targets"] = lora_targets(config, "lora_target_modules")
        job |= extra_adapter_fields(config, "use_dora", "lora_modules_to_save")
    job |= quantization_fields(config, stored, job)
    job |= fsdp_loading_fields(job, not at_least(version, "5.0")) | experts_field(not at_least(version, "5.0"))
    if job.get("loss", "standard") == "standard" and (loss := loss_of(version)) != "standard":
        job["loss"] = loss
    job["checkpointing"] = read_checkpointing(config)
    job |= reentrant_fields(config, job, not at_least(version, "5.0"), checkpoints_outside(version))
    job |= attention_field(config, "attn_implementation")
    if config.has(*LENGTH_KEYS):
        job["sequence_length"] = config.integer(*LENGTH_KEYS, default=1)
    job |= read_classifier(config, _script_path(config), job)
    job |= read_example(config, _script_path(config), job)
    job |= speech.read_speech(config, _script_path(config))
    usual_key = "max_length" if config.source.spelling == "python" else LENGTH_KEYS[0]
    names = NAMES | {"sequence_length": next((name for name in LENGTH_KEYS if config.has(name)), usual_key)}
    if config.source.spelling == "python":
        names |= PYTHON_NAMES | {"method": {"lora": f"model get_peft_model(model, {ALL_LINEAR})"}}
    parsed = ParsedConfig("transformers", f"{version} ({where})", model or "", job, names, config.notes)
    parsed.model_config = speech.read_model_config(config, _script_path(config))
    parsed.uses_peft_targets = peft and not goes_on and config.boolean("uses_peft_targets", default=False)
    parsed.task = str(job.get("task", "Trainer")).replace("_", " ")
    read_image_caps(config, parsed)
    if config.has("max_train_samples"):
        parsed.num_train_samples = hold_back(0, config.integer("max_train_samples", default=1))
    if Path(_script_path(config)).name in BLOCKS:
        parsed.rows, job["batches"] = "packed", "unpadded"
    elif config.has("block_size"):
        parsed.rows = "packed"
    job |= gpus_and_device_map(config, num_gpus, num_processes)
    parsed.eval_batch_size = eval_batch_size(
        config, 8, config.boolean("do_eval", default=False) or config.has("eval_strategy", "evaluation_strategy")
    )
    return parsed


EXAMPLES = frozenset(
    {
        *("run_clm.py", "run_mlm.py", "run_fim.py", "run_summarization.py", "run_translation.py"),
        *(*classifiers.EXAMPLES, *speech.EXAMPLES),
    }
)
"""Scripts of transformers' own examples, which train every weight (examples/pytorch)."""


def _script_path(config: ConfigReader) -> str:
    """The script that a command runs; empty for a file."""
    return next((word for word in config.source.command if word.endswith(".py")), "")


def _trains_adapters(config: ConfigReader) -> bool:
    """Whether an adapter trains instead of the model.

    Raises:
        ConfigError: for the flags of a script that is not known, if none of them says it.
    """
    script = _script_path(config)
    is_said = config.has("use_peft", "use_lora") or config.source.settings.keys() & {"use_peft", "use_lora"}
    if script and config.source.spelling == "flags" and not is_said and Path(script).name not in EXAMPLES:
        raise ConfigError(
            f"{config.source.where}: {script} is not here, and its flags do not say whether all weights train: give"
            f" {setting('set', 'use_peft=false')} if they do, else {setting('set', 'use_peft=true')} and"
            f" {setting('set', 'lora_r=RANK')}"
        )
    if not is_said and config.source.spelling == "yaml":
        config.note(
            "doubt",
            "use_peft",
            "is not set, and the script that reads this file is not known: all weights are taken to train;"
            " --set use_peft=true if an adapter does",
        )
    return config.boolean("use_peft", "use_lora", default=False)


def write(model: str, job: Job) -> ConfigText:
    """Flags for a script around transformers' Trainer.

    Raises:
        UnsupportedError: for settings that only the script's own code can make.
    """
    if job.task is not None:
        return python_scripts.classifier(model, job)
    command = f"{nodes.torchrun_command(job)} {_script_name(job)}"
    return ConfigText(_script(model, job) | sharding(job), allocator_variables(job), command, notes=nodes.notes(job))


def write_accelerate(model: str, job: Job) -> ConfigText:
    """The same flags after ``accelerate launch``, whose own flags set the strategy.

    Raises:
        UnsupportedError: for settings that only the script's own code can make.
    """
    precision = half_precision(job) if half_precision(job) in ("bf16", "fp16") else "no"
    launcher: Pairs = {"mixed_precision": precision}
    pairs, engine_flag = _script(model, job), ""
    if job.strategy == "fsdp":
        engine_flag, section = "--use_fsdp", sharding(job)["fsdp_config"]
        launcher |= {f"fsdp_{name.removeprefix('fsdp_')}": value for name, value in section.items()}
        launcher |= {"fsdp_offload_params": True} if job.offload == "all" else {}
    elif job.strategy.startswith("zero") and job.zero == Zero(**stage_defaults(int(job.strategy[-1]))["zero"]):
        engine_flag, offload_flags = "--use_deepspeed", ("offload_optimizer_device", "offload_param_device")
        launcher["zero_stage"] = job.strategy[-1]
        if job.num_nodes > 1:  # by default it reaches the other nodes by ssh, from a file of hosts
            launcher["deepspeed_multinode_launcher"] = "standard"
        launcher |= dict.fromkeys(offload_flags[: ("none", "optimizer", "all").index(job.offload)], "cpu")
    else:  # other ZeRO sizes than the defaults, for which it has no flags
        pairs |= sharding(job)
    command = f"{nodes.accelerate_command(job, engine_flag, launcher)} {_script_name(job)}"
    return ConfigText(pairs, allocator_variables(job), command, notes=nodes.notes(job))


def _script_name(job: Job) -> str:
    """Transformers' example, which trains every weight; it takes no adapters."""
    return "run_clm.py" if job.method == "full" else "train.py"


def _script(model: str, job: Job) -> Pairs:
    if job.quantize != "none" or job.method == "dora" or job.lora_targets is not None or job.modules_to_save:
        raise UnsupportedError(
            f"{setting('for_framework', 'transformers')} or accelerate: quantized bases, DoRA, LoRA targets and modules"
            " to save are set in the script's own code"
        )
    pairs = trainer_arguments(model, job)
    if job.method != "full":
        pairs |= {"use_peft": True, "lora_r": job.lora_rank, "lora_dropout": job.lora_dropout}
    return pairs | liger_pairs(job)


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    inherits=("scripts",),
    unknown_key="is no argument of transformers' Trainer (the script's own?)",
    writers=(
        Writer("transformers", write, ENGINES, tasks=tuple(classifiers.HEADS.values())),
        Writer("accelerate", write_accelerate, ENGINES),
    ),
)
