"""torchtitan: the TOML of 0.2 and its flags (``--section.key``); one GPU (0.2.2; torchtitan/config/job_config.py).

On one GPU no weight is sharded: weights and states are fp32 under autocast (distributed/utils.py: maybe_enable_amp).
Its own layers, traced that way, agree with transformers' Llama within 0.4 % of the allocated bytes. Several GPUs are
sharded by FSDP2, the default, which is not modelled for its layers yet.
"""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError
from vramplan.frameworks.framework import Framework
from vramplan.frameworks.known_keys import refuse_unmodelled
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, resolve_version
from vramplan.frameworks.readers.trainer_arguments import DTYPES, num_launched_processes
from vramplan.frameworks.settings import ConfigReader
from vramplan.units import divisors

PACKAGE, LAST_TOML = "torchtitan", "0.2.2"
MODELS = {
    ("llama3", "8b"): "meta-llama/Llama-3.1-8B",
    ("llama3", "70b"): "meta-llama/Llama-3.1-70B",
    ("llama3", "405b"): "meta-llama/Llama-3.1-405B",
}
"""model.name and model.flavor of models whose layers are transformers' Llama (models/llama3/__init__.py)."""
DEGREES = ("tensor", "pipeline", "context", "expert", "expert_tensor")
NAMES: dict[str, KeyNames] = {
    "micro_batch_size": "training.local_batch_size",
    "sequence_length": "training.seq_len",
    "checkpointing": {"full": "activation_checkpoint.mode full"},
    "optimizer": {"adamw_torch_fused": "optimizer.implementation fused"},
    "autocast": {"fp16": "training.mixed_precision_param float32"},
}


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a torchtitan configuration."""
    if config.has("module") or config.has("config"):
        raise config.unsupported("config", "is Python of torchtitan 0.3, which is not read yet; read: the TOML of 0.2")
    version, where = resolve_version(PACKAGE, framework_version, LAST_TOML)
    refuse_unmodelled(config)
    processes = num_launched_processes(config, num_gpus)
    for name in DEGREES:
        if config.integer(f"parallelism.{name}_parallel_degree", default=1) > 1:
            raise config.unsupported(f"parallelism.{name}_parallel_degree")
    if processes > 1:
        raise UnsupportedError(
            f"{config.source.where}: {processes} GPUs: torchtitan shards by FSDP2"
            " (parallelism.data_parallel_shard_degree), which is not modelled yet; one GPU is"
        )
    config.read_keys |= {f"parallelism.data_parallel_{name}_degree" for name in ("shard", "replicate")}
    batch = config.integer("training.local_batch_size", default=8)
    job: dict[str, Any] = {
        "loop": "plain",
        "method": "full",
        "micro_batch_size": batch,
        "gradient_accumulation_steps": _accumulation(config, batch),
        "sequence_length": config.integer("training.seq_len", default=2048),
        "dtype": _dtype(config, "training.dtype", "float32"),
        "autocast": _dtype(config, "training.mixed_precision_param", "bfloat16").replace("fp32", "none"),
        "optimizer": _optimizer(config),
        "checkpointing": _checkpointing(config),
        "batches": "unpadded",
        "attention": "sdpa",
        "num_gpus": 1,
    }
    for name, default in (("training.local_batch_size", 8), ("training.seq_len", 2048)):
        if not config.has(name):
            config.note("default", name, f"not set: {default}")
    if config.boolean("compile.enable", default=False):
        config.note("warning", "compile.enable", "compiled layers and losses keep less than is counted here")
    config.note("default", "", "its own layers are estimated by transformers' Llama (within 0.4 % in traces)")
    global_batch = batch * job["gradient_accumulation_steps"]
    steps = {
        "gradient_accumulation_steps": dict.fromkeys(
            divisors(global_batch), f"training.global_batch_size {global_batch}"
        )
    }
    parsed = ParsedConfig(PACKAGE, f"{version} ({where})", _model(config), job, NAMES | steps, config.notes)
    if config.boolean("validation.enable", default=False):
        parsed.eval_batch_size = config.integer("validation.local_batch_size", default=8)
    return parsed


def _model(config: ConfigReader) -> str:
    name, flavor = (
        config.lowercase("model.name", default="llama3"),
        config.lowercase("model.flavor", default="debugmodel"),
    )
    if name != "llama3":
        raise config.unsupported("model.name", "has layers of its own that are not modelled yet; read: llama3")
    if (name, flavor) not in MODELS:
        known = [known_flavor for _, known_flavor in MODELS]
        raise UnknownNameError("torchtitan flavor", flavor, known, f"read: {', '.join(name.upper() for name in known)}")
    return MODELS[name, flavor]


def _accumulation(config: ConfigReader, batch: int) -> int:
    """global_batch_size / local_batch_size; unset or -1 is no accumulation (train.py)."""
    if config.lowercase("training.global_batch_size", default="-1") == "-1":
        return 1
    global_batch = config.integer("training.global_batch_size", default=batch)
    if global_batch % batch:
        raise ConfigError(
            f"training.global_batch_size {global_batch} is no multiple of training.local_batch_size {batch}"
        )
    return global_batch // batch


def _dtype(config: ConfigReader, name: str, default: str) -> str:
    dtype = config.lowercase(name, default=default)
    if DTYPES.get(dtype) not in ("bf16", "fp32"):
        raise config.invalid((name,), "float32 or bfloat16")
    return DTYPES[dtype]


def _optimizer(config: ConfigReader) -> str:
    """AdamW in three implementations, by default fused (components/optimizer.py)."""
    if config.lowercase("optimizer.name", default="adamw") != "adamw":
        raise config.unsupported("optimizer.name", "is not modelled yet; modelled: AdamW")
    optimizers = {"fused": "adamw_torch_fused", "foreach": "adamw_torch", "for-loop": "adamw_torch_loop"}
    implementation = config.lowercase("optimizer.implementation", default="fused")
    if implementation not in optimizers:
        raise config.unsupported("optimizer.implementation", f"is not modelled yet; modelled: {', '.join(optimizers)}")
    return optimizers[implementation]


def _checkpointing(config: ConfigReader) -> str:
    """Selective by default: every second layer, or every second matmul."""
    if config.is_null("activation_checkpoint.mode"):  # "none" is one of its modes
        return "none"
    mode = config.lowercase("activation_checkpoint.mode", default="selective")
    if mode not in ("full", "none"):
        if not config.has("activation_checkpoint.mode"):
            raise UnsupportedError(
                f"{config.source.where}: activation_checkpoint.mode is not set: selective, which is not modelled yet;"
                ' modelled: "full", "none"'
            )
        raise config.unsupported("activation_checkpoint.mode", 'is not modelled yet; modelled: "full", "none"')
    return mode


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(("torchtitan.train",), ("torchtitan/train.py",)),
    marks=frozenset({"training", "parallelism", "activation_checkpoint"}),
    in_sections=True,
    file_keys=("job.config_file",),
)
