"""FSDP: transformers' ``fsdp`` and ``fsdp_config``, accelerate's and axolotl's keys of the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vramplan.frameworks.settings import FALSE, TRUE, UNSET, ConfigReader, ConfigSource, ConfigValue
from vramplan.frameworks.syntax.config_files import named

SHARDS = {"full_shard": True, "1": True, "true": True, "shard_grad_op": False, "2": False, "false": False}
"""Whether gathered layers are dropped behind the forward, by the name or number of the strategy."""
HYBRID = {"hybrid_shard": "full_shard", "4": "full_shard", "hybrid_shard_zero2": "shard_grad_op", "5": "shard_grad_op"}
"""Sharding within each node, every one of which holds everything: what it is there."""
WORDS = {"auto_wrap", "full_shard", "shard_grad_op", "offload", *TRUE}
"""What `fsdp` may say of this."""
WRAPPED = ("transformer_based_wrap", "transformer_based_wrapper")
PRESETS: dict[str, dict[str, Any]] = {
    "fsdp2": {
        "fsdp": "full_shard auto_wrap",
        "fsdp_config": {"fsdp_version": 2, "reshard_after_forward": True, "activation_checkpointing": True},
    }
}
"""ms-swift's names for the configurations that it ships (swift/config/fsdp2.json)."""
VERSION = 2
"""What transformers 5 takes where nothing is said (training_args.py); before, and in accelerate's launcher, it is 1."""


def referenced(keys: ConfigReader, usual: int = VERSION) -> dict[str, Any]:
    """What `fsdp` and its configuration come to; nothing where neither is there. `usual`: the version unless said.

    Raises:
        ConfigError: for a file that is not there.
        UnsupportedError: for what is not modelled in them.
    """
    keys = _unpacked(keys)
    said = keys.names("fsdp") if keys.has("fsdp") else ()
    words = {word.lower() for one in said for word in one.split()}
    config = _config(keys)
    if words <= set(FALSE) and config is None:
        return {}
    if words - WORDS:
        raise keys.refuse("fsdp")
    own = config or ConfigReader(ConfigSource({}, {}, (), keys.source.where), "FSDP")
    version = _version(keys, own, usual)
    strategy = own.text("fsdp_sharding_strategy", "sharding_strategy", default="")
    strategy = own.text("fsdp_reshard_after_forward", "reshard_after_forward", default=strategy)
    if not strategy:
        strategy = "shard_grad_op" if "shard_grad_op" in words else "full_shard"
    if version == 1 and "shard_grad_op" in words:
        keys.note("warning", "fsdp", "shard_grad_op has no effect on FSDP 1: accelerate takes FULL_SHARD (1.15)")
        strategy = "full_shard"
    nodes = 1
    if version == 1 and strategy in HYBRID:
        strategy, nodes = HYBRID[strategy], max(keys.count("nnodes", default=1), own.count("num_machines", default=1))
    if strategy not in SHARDS:
        raise own.refuse(next(name for name in own.source.settings if name.endswith(("strategy", "forward"))))
    wrap = own.text("fsdp_auto_wrap_policy", "auto_wrap_policy", default=WRAPPED[0])
    if wrap not in WRAPPED:
        raise own.refuse("fsdp_auto_wrap_policy", "is not modelled yet; modelled: TRANSFORMER_BASED_WRAP")
    for name in ("forward_prefetch", "activation_checkpointing_offload"):
        for spelt in (name, f"fsdp_{name}"):
            own.only(spelt)
    fsdp: dict[str, Any] = {"version": version, "reshard_after_forward": SHARDS[strategy]}
    fsdp |= {"replicas": nodes} if nodes > 1 else {}
    if version == 1:
        prefetch = own.text("fsdp_backward_prefetch", "backward_prefetch", default="no_prefetch")
        if not own.flag("fsdp_use_orig_params", "use_orig_params", default=True):
            fsdp["use_orig_params"] = False
        fsdp["backward_prefetch"] = prefetch.removeprefix("backward_").removeprefix("no_prefetch") or "none"
    job: dict[str, Any] = {"strategy": "fsdp", "fsdp": fsdp}
    if "offload" in words or own.flag("fsdp_offload_params", "offload_params", "cpu_offload", default=False):
        job["offload"] = "all"
    if own.flag("fsdp_activation_checkpointing", "activation_checkpointing", default=False):
        job["checkpointing"] = "full"
    return job


def _unpacked(keys: ConfigReader) -> ConfigReader:
    """ms-swift's `fsdp` names a configuration of both keys (arguments/sft_args.py: _init_fsdp)."""
    found = keys.setting("fsdp")
    if keys.framework != "ms-swift" or found is None or set(str(found.value).lower().split()) <= {*WORDS, *FALSE}:
        return keys
    preset = PRESETS.get(str(found.value))
    inner = named(found if preset is None else ConfigValue(preset, found.place), keys.folder, "fsdp")
    both: dict[str, ConfigValue] = {name: inner[name] for name in ("fsdp", "fsdp_config") if name in inner}
    both.setdefault("fsdp", ConfigValue("full_shard auto_wrap", found.place))
    packed = ConfigReader(replace(keys.source, settings={**keys.source.settings, **both}), keys.framework)
    packed.asked, packed.notes = keys.asked, keys.notes
    return packed


def _config(keys: ConfigReader) -> ConfigReader | None:
    """`fsdp_config`: a mapping, JSON, or a file's."""
    found = keys.setting("fsdp_config")
    if found is None:
        return None
    where = keys.source.where if isinstance(found.value, dict) else str(found.value)
    return ConfigReader(ConfigSource(named(found, keys.folder, "fsdp_config"), {}, (), where), "FSDP")


def _version(keys: ConfigReader, own: ConfigReader, usual: int) -> int:
    source = keys if keys.has("fsdp_version") else own
    version = source.count("fsdp_version", "version", default=usual)
    if version not in (1, 2):
        raise source.refuse("fsdp_version")
    if not (keys.has("fsdp_version") or own.has("fsdp_version", "version")):
        since = ", as in transformers 5; before it was 1" if usual == VERSION else ""
        keys.note("default", "fsdp", f"version not set: {version}{since}")
    return version


def launched(found: dict[str, ConfigValue]) -> dict[str, ConfigValue]:
    """The launcher's own keys as the Trainer's; its version is 1 where nothing is said (commands/launch.py)."""
    inner = found.get("fsdp_config", ConfigValue({}, "accelerate"))
    given: dict[str, Any] = dict(inner.value) if isinstance(inner.value, dict) else {}
    given |= {name: one.value for name, one in found.items() if name.startswith("fsdp_") and name != "fsdp_config"}
    given = {name: value for name, value in given.items() if value not in UNSET}
    given |= {"num_machines": found["num_machines"].value} if "num_machines" in found else {}
    wrap = {"fsdp_auto_wrap_policy": "NO_WRAP"}
    return {
        "fsdp": ConfigValue(True, inner.place),
        "fsdp_config": ConfigValue({"fsdp_version": 1} | wrap | given, inner.place),
    }
