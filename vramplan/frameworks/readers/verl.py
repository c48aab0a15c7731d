"""verl's supervised fine-tuning: ``verl.trainer.sft_trainer`` with hydra's overrides, and its YAML (0.9.1).

Its engine ``fsdp`` trains transformers' models under torch's FullyShardedDataParallel with packed rows and a loss of
log-probabilities (verl/trainer: sft_trainer.py, config/sft_trainer_engine.yaml; workers/engine/fsdp). Before 0.9 it
reduced gradients after every micro-batch and kept parts of earlier micro-batches' graphs.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, VramplanError, setting
from vramplan.frameworks.framework import Framework
from vramplan.frameworks.known_keys import refuse_unmodelled
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, at_least, resolve_version
from vramplan.frameworks.readers import verl_actor, verl_fsdp, verl_rl, verl_sequence
from vramplan.frameworks.readers.trainer_arguments import lora_targets, num_launched_processes
from vramplan.frameworks.readers.verl_batches import BUDGET, GLOBAL, LONGEST, SAMPLES, read_batches
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.syntax import hydra
from vramplan.inputs.images import IMAGE_PROCESSORS
from vramplan.inputs.job_values import FUSED_KERNELS
from vramplan.inputs.model_names import named_model

PACKAGE, FIRST, NEWEST = "verl", "0.9.0", "0.9.1"
LATER = "0.9.1"
"""The version from which on gradients are reduced, and logits divided, otherwise."""
SHARED = f"engine.{verl_sequence.NAME}"
HOST = ("engine.param_offload", "engine.optimizer_offload")
"""What the host keeps between steps; all of it is back on the GPU during a step (workers/engine/base.py)."""
OLD_PROGRAM = "fsdp_sft_trainer"
OLD_KEYS = ("model.partial_pretrain", "model.fsdp_config.model_dtype", "ulysses_sequence_parallel_size")
NAMES: dict[str, KeyNames] = {
    "checkpointing": {"full": "model.enable_gradient_checkpointing True"},
    "lora_rank": "model.lora_rank",
}


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a configuration of verl.

    Raises:
        UnsupportedError: for what is not modelled, with the nearest estimate.
    """
    if verl_rl.is_reinforcement(config):
        return verl_actor.read(config, framework_version)
    try:
        return _read(config, num_gpus, framework_version)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error.text}; nearest, with transformers' own step: {_nearest(config)}") from None


def _read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    version, where = resolve_version(PACKAGE, framework_version, NEWEST)
    _refuse_other_programs(config, version)
    refuse_unmodelled(config)
    _refuse_engine(config)
    gpus, sharded_by = _num_gpus(config, num_gpus), verl_fsdp.fsdp_version(config, "engine.strategy")
    shared = config.integer(SHARED, default=1)
    verl_sequence.check_divides(config, SHARED, shared, gpus, removes_padding=True)
    batches = read_batches(config, gpus // shared, shared)
    own: dict[str, Any] = {"logits": "copied"} if not at_least(version, LATER) else {}
    own |= {"samples": config.integer(GLOBAL, default=256)} if batches.rows == "packed" else {}
    own |= {"sequence_parallel": shared} if shared > 1 else {}
    job: dict[str, Any] = {
        "loop": "plain",
        "optimizer": verl_fsdp.optimizer(config, "optim."),
        "attention": verl_fsdp.attention(config, "model."),
        "checkpointing": "full" if config.boolean("model.enable_gradient_checkpointing", default=True) else "none",
        "loss": "log_probs",
        "num_gpus": gpus,
        "strategy": "fsdp",
        "fsdp": verl_fsdp.sharding(config, gpus, "engine.", sharded_by)
        | _reduction(config, version)
        | verl_fsdp.prefetching(config, "engine.", sharded_by),
        **_adapters(config),
        **verl_fsdp.dtypes(config, "engine."),
        **({"verl": own} if own else {}),
        **batches.job,
    }
    if job["method"] == "lora":
        job["lora_dtype"] = job["dtype"]  # adapters are cast to the base's (transformer_impl.py: _build_lora_module)
    if verl_fsdp.offloads_for_good(config, "engine.", sharded_by):
        job["offload"] = "all"
    if config.boolean("model.use_liger", default=False):
        job["fused_kernels"] = FUSED_KERNELS
    for name in HOST:
        if config.boolean(name, default=False):
            config.note("warning", name, "does not lower a step's peak: all of it is on the GPU during a step")
    names = {**NAMES, **batches.names}
    return ParsedConfig(PACKAGE, f"{version} ({where})", _model(config), job, names, config.notes, rows=batches.rows)


def _reduction(config: ConfigReader, version: str) -> dict[str, bool]:
    """Whether gradients are reduced after every micro-batch, as from 0.9.1 on unless it is told otherwise."""
    keeps = config.boolean("engine.use_no_sync_for_gradient_accumulation", default=False)
    return {"sync_each_batch": not keeps} if at_least(version, LATER) else {}


def _refuse_other_programs(config: ConfigReader, version: str) -> None:
    """Refuse the trainer before 0.8, and versions before 0.9."""
    where = config.source.where
    old = next((key for key in OLD_KEYS if key in config.source.settings), "")
    if old or OLD_PROGRAM in config.source.program:
        raise UnsupportedError(
            f"{where}: {old or OLD_PROGRAM}: verl's trainer before 0.8 (fsdp_sft_trainer) is not modelled; read:"
            " verl.trainer.sft_trainer"
        )
    if not at_least(version, FIRST):
        raise UnsupportedError(f"{where}: verl {version}: its step differs before {FIRST}, and is not modelled")


def _refuse_engine(config: ConfigReader) -> None:
    """Refuse engines other than FSDP's."""
    defaults = config.get("defaults")
    items = defaults.value if defaults is not None and isinstance(defaults.value, list) else []
    chosen = {
        str(key).partition("@")[0]: str(value)
        for item in items
        if isinstance(item, dict)
        for key, value in item.items()
    }
    engine = config.lowercase("engine", default=chosen.get("engine", "fsdp"))
    config.read_keys |= {"model", "optim", "profiler", "checkpoint"}
    if engine != "fsdp":
        raise UnsupportedError(f"{config.place('engine')}: engine={engine} is not modelled yet; modelled: fsdp")
    if not config.boolean("model.use_remove_padding", default=True):
        raise config.unsupported("model.use_remove_padding", "pads rows, which is not modelled yet; modelled: True")
    if config.lowercase("data.pad_mode", default="no_padding") != "no_padding":
        raise ConfigError(f"{config.place('data.pad_mode')}: verl {FIRST} trains with no_padding alone")


def _num_gpus(config: ConfigReader, num_gpus: int) -> int:
    """GPUs of the job: the launcher's processes, or under Ray trainer.nnodes x trainer.n_gpus_per_node.

    Raises:
        UnsupportedError: for one GPU, where torch shards nothing (NO_SHARD).
    """
    under_ray = config.integer("trainer.n_gpus_per_node", default=1) * config.integer("trainer.nnodes", default=1)
    uses_ray = config.source.program.endswith("sft_trainer_ray.py")
    gpus = under_ray if uses_ray else num_launched_processes(config, num_gpus)
    if gpus == 1:
        raise UnsupportedError(
            f"{config.source.where}: one GPU, on which FSDP keeps whole weights beside their copies (NO_SHARD), is not"
            f" modelled; if there are more, give {setting('num_gpus')}"
        )
    return gpus


def _adapters(config: ConfigReader) -> dict[str, Any]:
    """LoRA from a rank of 1 on (workers/config/model.py: HFModelConfig)."""
    rank = config.integer("model.lora_rank", default=0, least=0)
    if rank == 0:
        config.read_keys.add("model.target_modules")
        return {"method": "full"}
    return {"method": "lora", "lora_rank": rank, "lora_targets": lora_targets(config, "model.target_modules")}


def _model(config: ConfigReader) -> str:
    """The model's name.

    Raises:
        UnsupportedError: for a model with images, which a token budget does not count.
    """
    name = config.string("model.path") or ""
    model_type = ""
    if name:
        with suppress(VramplanError):  # whoever loads it says why it cannot be
            model_type = named_model(name).spec.model_type
    if model_type in IMAGE_PROCESSORS:
        raise config.unsupported("model.path", "has images, which verl's batches are not modelled with yet")
    return name


def _nearest(config: ConfigReader) -> str:
    """The estimate of the same job by transformers' own step; of settings that can be read."""

    def number(name: str, default: int) -> int:
        value = config.source.settings.get(name)
        return int(str(value.value)) if value is not None and str(value.value).isdecimal() else default

    value = config.source.settings.get("model.path") or config.source.settings.get("model.partial_pretrain")
    words = ["vramplan estimate", "MODEL" if value is None else str(value.value), "--gpu GPU"]
    rank = number("model.lora_rank", 0)
    words += [f"--method lora --lora-rank {rank}" if rank else "--method full", "--dtype fp32 --autocast bf16"]
    gpus = number("nproc_per_node", 1) * number("nnodes", 1)
    words += [f"--num-gpus {gpus} --strategy fsdp --accumulation 2"] if gpus > 1 else []
    if OLD_KEYS[0] in config.source.settings or OLD_PROGRAM in config.source.program:
        words.append(f"--seq-len {number(LONGEST, 1024)} --micro-batch {number(SAMPLES, 4)}")
    else:
        words.append(f"--seq-len {number(BUDGET, 8192)} --batches packed")
    return " ".join([*words, "--attention flash"])


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=tuple(
        (f"verl{mark}trainer{mark}{name}{end}",)
        for name in ("sft_trainer", "sft_trainer_ray", OLD_PROGRAM, verl_rl.PROGRAM)
        for mark, end in ((".", ""), ("/", ".py"))
    ),
    marks=frozenset({"engine", "use_remove_padding", "ulysses_sequence_parallel_size", verl_rl.SECTION}),
    in_sections=True,
    split=hydra.split,
    overrides="hydra",
    # hydra's configuration is a struct; a file that a command names in place of verl's own says what it holds
    stops_at_unknown=lambda source: source.spelling != "yaml" and "config" not in source.settings,
    unknown_key="is not in verl's configuration: hydra stops at it, unless + stands before it",
)
