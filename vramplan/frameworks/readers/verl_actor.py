"""verl's GRPO and its kin on FSDP, as its own actor runs it (0.4 to 0.9.1): ``verl.trainer.main_ppo``.

One GPU's part of a step: vLLM generates in processes of its own, the actor scores the completions, and is updated. The
reference comes from host memory, a layer at a time, and needs less than the actor's own scoring. (0.9.1:
trainer/ppo/v1, workers/engine_workers.py, workers/engine/fsdp; before 0.8: workers/fsdp_workers.py,
workers/actor/dp_actor.py.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.parsed_config import KeyNames, ParsedConfig, allocator_settings, at_least, resolve_version
from vramplan.frameworks.readers import verl_critic, verl_fsdp, verl_images, verl_rl, verl_sequence, verl_sglang
from vramplan.frameworks.readers.trainer_arguments import lora_targets
from vramplan.frameworks.readers.verl_batches import check_holds, group_of, most_tokens, note_fullest, padded_rows
from vramplan.frameworks.readers.verl_nearest import nearest_settings
from vramplan.frameworks.readers.verl_rl import (
    ACTOR,
    BUDGET,
    GENERATIONS,
    MICRO_BATCH,
    MINI_BATCH,
    MODEL,
    REF,
    ROLLOUT,
    SECTION,
    STRATEGY,
)
from vramplan.frameworks.readers.verl_scoring import longest_text, refers, scored_tokens, scoring_keys
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.job_values import EXPANDABLE_SEGMENTS, FUSED_KERNELS
from vramplan.inputs.verl import Verl
from vramplan.units import ceil_div, divisors

PACKAGE, FIRST, NEWEST = "verl", "0.4", "0.9.1"
FSDP = f"{ACTOR}fsdp_config."
PADDING = f"{MODEL}use_remove_padding"
FUSED, BACKEND = f"{MODEL}use_fused_kernels", f"{MODEL}fused_kernel_options.impl_backend"
NOT_MODELLED: tuple[str, ...] = (
    f"{ACTOR}calculate_sum_pi_squared",
    f"{ACTOR}use_prefix_grouper", f"{ACTOR}entropy_checkpointing", f"{ACTOR}entropy_from_logits_with_chunking",
    f"{ACTOR}pad_to_length",
    f"{FSDP}entropy_checkpointing",
    f"{FSDP}entropy_from_logits_with_chunking", f"{FSDP}pad_to_length", f"{FSDP}qat.enable",
    f"{FSDP}wrap_policy.min_num_params", f"{FSDP}wrap_policy.disable",
    f"{FSDP}wrap_policy.transformer_layer_cls_to_wrap",
    f"{MODEL}enable_activation_offload", f"{MODEL}tiled_mlp.enabled",
    f"{MODEL}mtp.enable", f"{MODEL}lora_adapter_path", f"{MODEL}target_parameters",
    f"{MODEL}external_lib", f"{MODEL}lora.merge", f"{MODEL}lora.rank",
    f"{REF}entropy_checkpointing", f"{REF}model.path", f"{REF}fsdp_config.model_dtype",
    f"{ROLLOUT}nnodes", f"{ROLLOUT}quantization", f"{ROLLOUT}qat.enable", "distillation.enabled",
)  # fmt: skip
"""Settings that change memory, and are not modelled unless they are off."""
ONLY: dict[str, tuple[str, ...]] = {
    f"{ACTOR}use_torch_compile": ("true",),
    f"{FSDP}use_torch_compile": ("true",),
    f"{FSDP}dtype": ("bfloat16", "bf16"),
    f"{ROLLOUT}dtype": ("bfloat16", "bf16"),
    f"{ROLLOUT}pipeline_model_parallel_size": ("1",),
    f"{ROLLOUT}data_parallel_size": ("1",),
    f"{ROLLOUT}expert_parallel_size": ("1",),
    f"{ROLLOUT}checkpoint_engine.backend": ("naive",),
    f"{SECTION}.hybrid_engine": ("true",),
    "trainer.v1.trainer_mode": ("sync",),
    "trainer.use_v1": ("true",),
    "trainer.use_legacy_worker_impl": ("auto", "enable"),
    "trainer.device": ("cuda",),
}
"""Settings of which these values alone are modelled."""


def read(config: ConfigReader, framework_version: str | None) -> ParsedConfig:
    """The job of a command or file.

    Raises:
        UnsupportedError: for what is not modelled, with the estimate that comes nearest.
        ConfigError: for a batch with which verl stops.
    """
    version, where = _version(config, framework_version)
    reasons = _reasons(config, version)
    if reasons:
        only = {name: values[0] for name, values in ONLY.items()}
        off = (*NOT_MODELLED, *verl_critic.off(version))
        near = nearest_settings(config, reasons, off, only, lambda one: _modelled(one, framework_version))
        raise verl_rl.refuse(config, reasons, near)
    return _read(config, version, where)


def _reasons(config: ConfigReader, version: str) -> list[str]:
    """What of a configuration is not modelled."""
    of_critic = verl_critic.not_modelled(config, version) if verl_rl.has_critic(config) else ()
    of_sglang = verl_sglang.not_modelled(config, version)
    return [*verl_rl.named(config), *_not_modelled(config, version), *of_sglang, *of_critic]


def _modelled(config: ConfigReader, framework_version: str | None) -> ParsedConfig:
    """The job of a configuration, and nothing about what comes nearest to one that is not modelled.

    Raises:
        UnsupportedError: for what is not modelled.
    """
    version, where = _version(config, framework_version)
    if reasons := _reasons(config, version):
        raise UnsupportedError("; ".join(reasons))
    return _read(config, version, where)


def _read(config: ConfigReader, version: str, where: str) -> ParsedConfig:
    has_critic = verl_rl.has_critic(config)
    gpus, sharded_by = verl_rl.num_gpus(config), verl_fsdp.fsdp_version(config, STRATEGY)
    shared = verl_sequence.of_actor(config, version)
    verl_sequence.check_divides(config, verl_sequence.OWN, shared, gpus, removes_padding=not _pads(config, version))
    read_batch = _by_tokens if verl_rl.counts_tokens(config) else _by_samples
    batch = read_batch(config, gpus // shared, shared)
    if _pads(config, version):
        batch["batches"] = "padded"
    job: dict[str, Any] = {
        "task": "grpo",
        "loss": "log_probs",
        "loop": "plain",
        "optimizer": verl_fsdp.optimizer(config, f"{ACTOR}optim."),
        "attention": verl_fsdp.attention(config, MODEL),
        "checkpointing": "full" if config.boolean(f"{MODEL}enable_gradient_checkpointing", default=True) else "none",
        "prompt_length": config.integer("data.max_prompt_length", default=512),
        "num_generations": config.integer(GENERATIONS, default=1),
        "num_gpus": gpus,
        "strategy": "fsdp",
        "fsdp": verl_fsdp.sharding(config, gpus, FSDP, sharded_by)
        | {"sync_each_batch": _reduces_each(config, version), **_prefetching(config, version, sharded_by)},
        **_adapters(config),
        **verl_images.parts(config, version, batch),
        **verl_fsdp.dtypes(config, FSDP),
        **batch,
        **_engine(config, version, gpus),
        "verl": _verl(config, version, batch)
        | _groups(config, version, sharded_by)
        | _critic(config, version, gpus, has_critic)
        | verl_sglang.engine(config, version),
        # workers/fsdp_workers.py: trainer_mode; 0.8: workers/engine_workers.py: update_weights
        **allocator_settings(config, expandable=at_least(version, "0.6")),
    }
    if job["method"] == "lora":
        job["lora_dtype"] = job["dtype"]
    if verl_fsdp.offloads_for_good(config, FSDP, sharded_by):
        job |= {"offload": "all", "verl": job["verl"] | {"param_offload": False, "optimizer_offload": False}}
    if config.boolean(f"{MODEL}use_liger", default=False):
        job["fused_kernels"] = FUSED_KERNELS
    if refers(config):
        job["reference"] = "adapters_off" if job["method"] == "lora" else "model"
    _note_defaults(config)
    verl_sequence.note_unused(config, version)
    if not job.get("expandable_segments"):
        config.note(
            "doubt",
            "micro-batches",
            f"differ in length, and what they leave in torch's cache is not counted; set {EXPANDABLE_SEGMENTS}",
        )
    return ParsedConfig(
        PACKAGE,
        f"{version} ({where})",
        _model(config),
        job,
        _names(config, batch)
        | {
            "verl": _offloads(job["verl"], version)
            | scoring_keys(config, version, job)
            | verl_sglang.eager_keys(job["verl"])
        },
        config.notes,
        task="PPO" if has_critic else "GRPO",
        rows="packed" if batch["batches"] == "packed" else "samples",
    )


def _version(config: ConfigReader, given: str | None) -> tuple[str, str]:
    """The version and where it comes from: keys that others do not have say which."""
    version, where = resolve_version(PACKAGE, given, NEWEST)
    if where != "newest known":
        return version, where
    if first := verl_rl.first_key(config):
        text = f"is of verl before {FIRST}: read as {FIRST}, with entropies in the loss, which it always has"
        config.note("warning", first, f"{text}; its generation was not looked at")
        return FIRST, "the oldest known"
    if verl_critic.is_old(config):
        return verl_critic.LAST_OLD, f"the newest with {verl_critic.OLD_FSDP[:-1]}"
    if verl_images.knows_freezing(config):
        return verl_images.LAST_WITH_FREEZE, f"the newest with {verl_images.FREEZE}"
    return version, where


def _not_modelled(config: ConfigReader, version: str) -> Iterator[str]:
    """What keeps the job from being estimated, each named by its setting."""
    if not at_least(version, FIRST):
        yield f"{config.source.where}: verl {version}: its step before {FIRST} is not modelled"
    for name in NOT_MODELLED:
        if not config.is_off(name, 0, 0.0):
            yield str(config.unsupported(name))
    for name, values in ONLY.items():
        if config.has(name) and str(config.get(name).value).lower() not in values:  # type: ignore[union-attr]
            yield str(config.unsupported(name, f"is not modelled yet; modelled: {values[0]}"))
    if _pads(config, version) and verl_rl.counts_tokens(config):
        given = config.place(PADDING) if config.has(PADDING) else PADDING
        samples = max(1, _samples(config) // verl_rl.num_gpus(config))
        rows = padded_rows(config, longest_text(config), samples, (ROLLOUT, REF) if refers(config) else (ROLLOUT,))
        yield f"{given}: off, so rows are padded, {rows}; modelled: True"
    if not config.is_off(f"{ACTOR}calculate_entropy") and not _has_entropy(config, version):
        yield str(config.unsupported(f"{ACTOR}calculate_entropy", f"without {ACTOR}entropy_coeff is not modelled yet"))
    yield from _not_fused(config, version)
    yield from verl_sequence.not_modelled(config, version, refers(config))
    for name in (f"{FSDP}strategy", f"{REF}strategy"):
        if config.lowercase(name, default="fsdp") != config.lowercase(STRATEGY, default="fsdp") and config.has(name):
            yield str(config.unsupported(name, f"is not modelled yet beside another {STRATEGY}"))
    yield from verl_images.not_modelled(config, version)


def _by_samples(config: ConfigReader, groups: int, shared: int) -> dict[str, Any]:
    """Samples without padding, in the worst case all of the longest; of each group of `shared` GPUs.

    Raises:
        ConfigError: for a batch with which verl stops.
    """
    length, mini = longest_text(config), _mini_batch(config, groups)
    micro = verl_rl.micro_batch(config, length, groups)
    if mini % micro:
        raise ConfigError(
            f"{config.place(MICRO_BATCH)}: {micro} does not divide the {mini} samples of {group_of(shared)}"
            f" ({MINI_BATCH} x {GENERATIONS} over {groups * shared} GPUs): verl stops at that"
        )
    return {
        "batches": "unpadded",
        "sequence_length": length,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": mini // micro,
    }


def _by_tokens(config: ConfigReader, groups: int, shared: int) -> dict[str, Any]:
    """One packed row of the budget, or of all tokens if the budget holds more than a GPU's samples can have.

    A group of `shared` GPUs takes as many budgets, and each GPU its part (workers/engine/utils.py:
    prepare_micro_batches).

    Raises:
        ConfigError: for a budget with which verl stops.
    """
    budget, longest = shared * config.integer(BUDGET, default=16384), longest_text(config)
    total = _mini_batch(config, groups) * longest
    check_holds(config, BUDGET, budget, longest, shared)
    if budget < total:
        note_fullest(config, BUDGET, ceil_div(min(total, most_tokens(budget, longest)), shared))
    return {
        "batches": "packed",
        "sequence_length": ceil_div(min(budget, total), shared),
        "micro_batch_size": 1,
        "gradient_accumulation_steps": ceil_div(total, budget),
    }


def _verl(config: ConfigReader, version: str, batch: dict[str, Any]) -> dict[str, Any]:
    """What verl alone has: temperature, scoring, host memory, and the way to vLLM."""
    warm = config.number(f"{ROLLOUT}temperature", default=1.0) != 1
    logits = "in_place" if not at_least(version, "0.9") else "copied"
    if at_least(version, "0.9.1") and not warm:
        logits = "undivided"
    return {
        "logits": logits,
        "scored_tokens": scored_tokens(config, version, batch),
        **_sharing(config, version),
        "entropy": _has_entropy(config, version),
        "param_offload": config.boolean(f"{FSDP}param_offload", default=False),
        "optimizer_offload": config.boolean(f"{FSDP}optimizer_offload", default=False),
        "layered_summon": config.boolean(f"{ROLLOUT}layered_summon", default=False),
        **({"fused_head": fused} if (fused := _fused_head(config)) else {}),
        "bucket_mib": config.integer(f"{ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes", default=2048),
        **({"samples": _samples(config)} if batch["batches"] == "packed" else {}),
        **({"joins_rows": True} if batch["batches"] == "padded" and at_least(version, "0.8") else {}),
    }


def _sharing(config: ConfigReader, version: str) -> dict[str, int]:
    """The GPUs that share the actor's micro-batches, and the reference's if these are others."""
    sizes = {"sequence_parallel": verl_sequence.of_actor(config, version)}
    reference = verl_sequence.of_reference(config, version)
    if refers(config) and not config.integer(f"{MODEL}lora_rank", default=0, least=0):
        gpus = verl_rl.num_gpus(config)
        verl_sequence.check_divides(config, verl_sequence.REFERENCE, reference, gpus, not _pads(config, version))
        if reference != sizes["sequence_parallel"]:
            return sizes | {"reference_sequence_parallel": reference}
    return sizes if sizes["sequence_parallel"] > 1 else {}


def _fused_head(config: ConfigReader) -> str:
    """What computes log-probabilities without whole logits; empty for nothing (trainer/config/model/hf_model.yaml)."""
    backend = config.lowercase(BACKEND, default="torch")
    config.read_keys.add(f"{ACTOR}use_fused_kernels")  # by default the model's
    return backend if config.boolean(FUSED, default=False) else ""


def _not_fused(config: ConfigReader, version: str) -> Iterator[str]:
    """What of a fused head is not modelled."""
    fused = _fused_head(config)
    if fused and fused not in ("torch", "triton"):
        yield str(config.unsupported(BACKEND, "is not modelled yet; modelled: torch, triton"))
    if fused == "torch" and not at_least(version, "0.7"):
        yield str(config.unsupported(FUSED, f"with torch is not modelled before verl 0.7; modelled: {BACKEND}=triton"))
    if fused and _pads(config, version):
        yield str(config.unsupported(FUSED, f"is not modelled with padded rows; modelled: {PADDING}=True"))


def _groups(config: ConfigReader, version: str, sharded_by: int) -> dict[str, bool]:
    """What FSDP gathers together, and what stays gathered when completions are scored.

    Under FSDP 2 verl 0.6 came with PyTorch 2.8, which drops the root as well; the head is in a group of its own from
    0.7 on (utils/fsdp_utils.py: apply_fsdp2). Under FSDP 1 workers before 0.8 drop the root; its engine does so with a
    ``fsdp_size`` alone (workers/engine/fsdp/transformer_impl.py: EngineEvalModeCtx).
    """
    if sharded_by == 2:
        now = {"stages_all": not at_least(version, "0.9"), "head_in_root": not at_least(version, "0.7")}
        columns = at_least(version, "0.6") and not at_least(version, "0.8")  # get_shard_placement_fn
        found = now | {"keeps_root": not at_least(version, "0.6"), "shares_columns": columns}
    else:
        size = config.get(f"{FSDP}fsdp_size")
        has_size = size is not None and str(size.value).isdecimal() and int(str(size.value)) > 1
        found = {"keeps_root": at_least(version, "0.8") and not has_size}
    return {name: value for name, value in found.items() if value}


def _prefetching(config: ConfigReader, version: str, sharded_by: int) -> dict[str, bool]:
    """Whether layers are gathered ahead in a forward: under FSDP 2 from 0.8 on."""
    prefetches = verl_fsdp.prefetching(config, FSDP, sharded_by)
    return prefetches if at_least(version, "0.8") else {}


def _pads(config: ConfigReader, version: str) -> bool:
    """Whether rows are padded (trainer/config/model/hf_model.yaml; before 0.7 ppo_trainer.yaml)."""
    return not config.boolean(PADDING, default=at_least(version, "0.7"))


def _has_entropy(config: ConfigReader, version: str) -> bool:
    """Whether entropies have a gradient; from 0.8 on with a coefficient of 0 too (utils/losses.py: ppo_loss)."""
    computed = config.boolean(f"{ACTOR}calculate_entropy", default=False)
    if verl_rl.first_key(config):  # verl 0.1, workers/actor/dp_actor.py: update_policy
        config.read_keys.add(f"{ACTOR}entropy_coeff")
        return True
    return config.number(f"{ACTOR}entropy_coeff", default=0.0) != 0 or (computed and at_least(version, "0.8"))


def _critic(config: ConfigReader, version: str, gpus: int, is_on: bool) -> dict[str, Any]:
    """The critic, if there is one."""
    if not is_on:
        return {}
    mini_batch = config.integer(MINI_BATCH, default=256)
    return {"critic": verl_critic.read_critic(config, version, gpus, longest_text(config), mini_batch)}


def _engine(config: ConfigReader, version: str, gpus: int) -> dict[str, Any]:
    """VLLM, whose longest text is the model's positions, before 0.7 a prompt with its response."""
    engine = verl_rl.engine(config, gpus)
    if "vllm_max_length" not in engine and not at_least(version, "0.7"):
        engine["vllm_max_length"] = longest_text(config)
    return engine


def _reduces_each(config: ConfigReader, version: str) -> bool:
    """Whether gradients are reduced after every micro-batch; 0.9.0 always keeps them whole until the last."""
    keeps = config.boolean(f"{FSDP}use_no_sync_for_gradient_accumulation", default=False)
    return not at_least(version, "0.9") or (at_least(version, "0.9.1") and not keeps)


def _adapters(config: ConfigReader) -> dict[str, Any]:
    """LoRA from a rank of 1 on."""
    rank = config.integer(f"{MODEL}lora_rank", default=0, least=0)
    targets = f"{MODEL}target_modules"
    if rank == 0:
        config.read_keys.add(targets)
        return {"method": "full"}
    return {"method": "lora", "lora_rank": rank, "lora_targets": lora_targets(config, targets)}


def _samples(config: ConfigReader) -> int:
    """Samples of an optimizer step, of all GPUs."""
    return config.integer(MINI_BATCH, default=256) * config.integer(GENERATIONS, default=1)


def _mini_batch(config: ConfigReader, groups: int) -> int:
    """Samples of a GPU, or of a group of GPUs that share them, for one update.

    Raises:
        ConfigError: if there are none.
    """
    samples = _samples(config) // groups
    if samples < 1:
        raise ConfigError(f"{config.place(MINI_BATCH)}: fewer samples than {groups} GPUs: verl stops at that")
    return samples


def _note_defaults(config: ConfigReader) -> None:
    """Name what decides memory and was not given."""
    for name, default in (
        ("data.max_prompt_length", "512"),
        ("data.max_response_length", "512"),
        (MINI_BATCH, "256"),
        (GENERATIONS, "1"),
        ("trainer.n_gpus_per_node", "8"),
        (f"{ROLLOUT}gpu_memory_utilization", "0.5"),
    ):
        if not config.has(name):
            config.note("default", name, f"not set: {default}")


def _names(config: ConfigReader, batch: dict[str, Any]) -> dict[str, KeyNames]:
    """The keys of what may be changed."""
    names: dict[str, KeyNames] = {
        "checkpointing": {"full": f"{MODEL}enable_gradient_checkpointing True"},
        "lora_rank": f"{MODEL}lora_rank",
        "dtype": {"bf16": f"{ACTOR}fsdp_config.model_dtype bfloat16"},
        "vllm_share": f"{ROLLOUT}gpu_memory_utilization",
        "vllm_max_length": f"{ROLLOUT}max_model_len",
        "vllm_tensor_parallel": verl_rl.TENSOR_PARALLEL,
    }
    if batch["batches"] == "packed":
        return names | {"sequence_length": BUDGET}
    samples = batch["micro_batch_size"] * batch["gradient_accumulation_steps"]
    whole = config.integer(MINI_BATCH, default=256)
    steps = dict.fromkeys(divisors(samples), f"{MINI_BATCH} {whole}")
    return names | {"micro_batch_size": MICRO_BATCH, "gradient_accumulation_steps": steps}


def _offloads(verl: dict[str, Any], version: str) -> dict[Verl, str]:
    """What waits in host memory, by the keys."""

    def key(name: str) -> str:
        owner, _, own = name.rpartition(".")
        return f"{verl_critic.offload_keys(version) if owner else FSDP}{own} True"

    return {settings: "; ".join(map(key, names.split())) for names, settings in Verl(**verl).offloads().items()}


def _model(config: ConfigReader) -> str:
    return config.string(f"{MODEL}path") or ""
