"""torchtitan: the TOML of 0.2 and its flags (``--section.key``); one card (0.2.2; torchtitan/config/job_config.py).

On one card no weight is sharded: weights and states are fp32 under autocast (distributed/utils.py: maybe_enable_amp).
Its own layers, traced that way, agree with transformers' Llama within 0.4 % of what torch allocates. More cards are
sharded by FSDP2, the default, which is not modelled for its layers yet.
"""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError
from vramplan.frameworks.framework import Framework
from vramplan.frameworks.known_keys import refuse_unmodelled
from vramplan.frameworks.parsed_config import ParsedConfig, Words, settle
from vramplan.frameworks.readers.trainer_arguments import DTYPES, launched
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
NAMES: dict[str, Words] = {
    "micro_batch_size": "training.local_batch_size",
    "sequence_length": "training.seq_len",
    "checkpointing": {"full": "activation_checkpoint.mode full"},
    "optimizer": {"adamw_torch_fused": "optimizer.implementation fused"},
    "autocast": {"fp16": "training.mixed_precision_param float32"},
}


def read(keys: ConfigReader, cards: int, asked: str | None) -> ParsedConfig:
    """The job of a torchtitan configuration."""
    if keys.has("module") or keys.has("config"):
        raise keys.refuse("config", "is Python of torchtitan 0.3, which is not read yet; read: the TOML of 0.2")
    version, where = settle(PACKAGE, asked, LAST_TOML)
    refuse_unmodelled(keys)
    ranks = launched(keys, cards)
    for name in DEGREES:
        if keys.count(f"parallelism.{name}_parallel_degree", default=1) > 1:
            raise keys.refuse(f"parallelism.{name}_parallel_degree")
    if ranks > 1:
        raise UnsupportedError(
            f"{keys.source.where}: {ranks} cards: torchtitan shards by FSDP2 (parallelism.data_parallel_shard_degree),"
            " which is not modelled yet; one card is"
        )
    keys.asked |= {f"parallelism.data_parallel_{name}_degree" for name in ("shard", "replicate")}
    batch = keys.count("training.local_batch_size", default=8)
    job: dict[str, Any] = {
        "loop": "plain",
        "method": "full",
        "micro_batch_size": batch,
        "gradient_accumulation_steps": _accumulation(keys, batch),
        "sequence_length": keys.count("training.seq_len", default=2048),
        "dtype": _dtype(keys, "training.dtype", "float32"),
        "autocast": _dtype(keys, "training.mixed_precision_param", "bfloat16").replace("fp32", "none"),
        "optimizer": _optimizer(keys),
        "checkpointing": _checkpointing(keys),
        "batches": "unpadded",
        "attention": "sdpa",
        "num_gpus": 1,
    }
    for name, default in (("training.local_batch_size", 8), ("training.seq_len", 2048)):
        if not keys.has(name):
            keys.note("default", name, f"not set: {default}")
    if keys.flag("compile.enable", default=False):
        keys.note("warning", "compile.enable", "compiled layers and losses keep less than is counted here")
    keys.note("default", "", "its own layers are estimated by transformers' Llama (within 0.4 % in traces)")
    whole = batch * job["gradient_accumulation_steps"]
    steps = {"gradient_accumulation_steps": dict.fromkeys(divisors(whole), f"training.global_batch_size {whole}")}
    reading = ParsedConfig(PACKAGE, f"{version} ({where})", _model(keys), job, NAMES | steps, keys.notes)
    if keys.flag("validation.enable", default=False):
        reading.eval_batch_size = keys.count("validation.local_batch_size", default=8)
    return reading


def _model(keys: ConfigReader) -> str:
    name, flavor = keys.text("model.name", default="llama3"), keys.text("model.flavor", default="debugmodel")
    if name != "llama3":
        raise keys.refuse("model.name", "has layers of its own that are not modelled yet; read: llama3")
    if (name, flavor) not in MODELS:
        known = [one for _, one in MODELS]
        raise UnknownNameError("torchtitan flavor", flavor, known, f"read: {', '.join(one.upper() for one in known)}")
    return MODELS[name, flavor]


def _accumulation(keys: ConfigReader, batch: int) -> int:
    """global_batch_size over what one step takes; unset or -1 is no accumulation (train.py)."""
    if keys.text("training.global_batch_size", default="-1") == "-1":
        return 1
    whole = keys.count("training.global_batch_size", default=batch)
    if whole % batch:
        raise ConfigError(f"training.global_batch_size {whole} is no multiple of training.local_batch_size {batch}")
    return whole // batch


def _dtype(keys: ConfigReader, name: str, usual: str) -> str:
    given = keys.text(name, default=usual)
    if DTYPES.get(given) not in ("bf16", "fp32"):
        raise keys.wrong((name,), "float32 or bfloat16")
    return DTYPES[given]


def _optimizer(keys: ConfigReader) -> str:
    """AdamW in three implementations; fused where nothing is said (components/optimizer.py)."""
    if keys.text("optimizer.name", default="adamw") != "adamw":
        raise keys.refuse("optimizer.name", "is not modelled yet; modelled: AdamW")
    kinds = {"fused": "adamw_torch_fused", "foreach": "adamw_torch", "for-loop": "adamw_torch_loop"}
    given = keys.text("optimizer.implementation", default="fused")
    if given not in kinds:
        raise keys.refuse("optimizer.implementation", f"is not modelled yet; modelled: {', '.join(kinds)}")
    return kinds[given]


def _checkpointing(keys: ConfigReader) -> str:
    """Selective by default: every second layer, or every second product of matrices."""
    if keys.is_null("activation_checkpoint.mode"):  # "none" is one of its modes
        return "none"
    mode = keys.text("activation_checkpoint.mode", default="selective")
    if mode not in ("full", "none"):
        if not keys.has("activation_checkpoint.mode"):
            raise UnsupportedError(
                f"{keys.source.where}: activation_checkpoint.mode is not set: selective, which is not modelled yet;"
                ' modelled: "full", "none"'
            )
        raise keys.refuse("activation_checkpoint.mode", 'is not modelled yet; modelled: "full", "none"')
    return mode


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    commands=(("torchtitan.train",), ("torchtitan/train.py",)),
    marks=frozenset({"training", "parallelism", "activation_checkpoint"}),
    in_sections=True,
    file_keys=("job.config_file",),
)
