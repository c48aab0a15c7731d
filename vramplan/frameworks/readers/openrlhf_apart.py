"""OpenRLHF's models and vLLM on GPUs of their own, beside those of the actor (0.11.2: cli/train_ppo_ray.py).

The reference and the reward model score in an engine without an optimizer, below ZeRO-3 whole on each GPU
(utils/deepspeed/deepspeed.py: ds_init_eval_model); the critic trains on as many samples as the actor. Each group takes
the samples of a batch in equal parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from vramplan.errors import VramplanError
from vramplan.frameworks.gpu_groups import Engines, GpuGroup
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers.openrlhf_groups import Group, own_critic, reward_model_of
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.model_names import named_model

OF_THE_ACTOR = ("reference", "reward_model", "vllm_share", "vllm_tensor_parallel", "vllm_max_length")
"""Fields about what shares the actor's GPUs."""
ON_THE_HOST = "its weights wait in host memory (ds.zero_stage 3 with an offload), which is not planned"


def groups_apart(
    config: ConfigReader,
    actor: ParsedConfig,
    groups: list[Group],
    batch_on: Callable[[int], dict[str, Any]],
    engines: Engines,
    waits: Callable[[str], bool],
) -> Iterator[GpuGroup]:
    """The groups that are not on the actor's GPUs.

    Args:
        config: the settings.
        actor: what was read of the actor's GPUs.
        groups: all groups beside the actor.
        batch_on: the fields of the batch that each of so many GPUs gets.
        engines: vLLM's engines.
        waits: whether a model's weights wait on the host, by the setting that says so.
    """
    apart = [group for group in groups if not group.is_shared and group.gpus]
    for group in apart:
        place = group.name, group.key, group.gpus
        if group.name == "vLLM":
            yield GpuGroup(*place, engines=engines)
            continue
        if group.name == "the reference":
            own = {"reference": "model"}
            unknown = ON_THE_HOST if waits("ref.offload") else ""
            model = ""
        elif group.name == "the critic":
            beside = next((one for one in apart if one.is_beside_critic), None)
            own, unknown, model = {}, "", own_critic(config)
            if beside is not None and not waits("reward.offload"):
                own["reward_model"], unknown = _known(config, "reward", reward_model_of(config))
        elif group.is_beside_critic:
            continue
        else:
            model = reward_model_of(config)
            own, unknown = {"reward_model": model}, ON_THE_HOST if waits("reward.offload") else ""
        if model and not unknown:
            model, unknown = _known(config, group.name.removeprefix("the "), model)
            own |= {"reward_model": model} if group.name == "the reward model" else {}
        if unknown:
            yield GpuGroup(*place, unknown=unknown)
            continue
        yield GpuGroup(*place, reading=_reading(actor, group, batch_on(group.gpus), own, model))


def _reading(actor: ParsedConfig, group: Group, batch: dict[str, Any], own: dict[str, Any], model: str) -> ParsedConfig:
    """What is read of a group's GPUs."""
    scored = {name: actor.job["openrlhf"].get(name) for name in ("scored_samples", "scored_tokens")}
    job = {name: value for name, value in actor.job.items() if name not in OF_THE_ACTOR}
    job |= {**batch, **own, "num_gpus": group.gpus, "generate_with": "vllm_server"}
    job["openrlhf"] = {name: value for name, value in scored.items() if value is not None}
    if group.name == "the critic":
        job["openrlhf"] |= {"trains": "critic", "processes": int("reward_model" in own)}
        names = {name: keys for name, keys in actor.names.items() if not name.startswith("vllm")}
    else:
        job["openrlhf"] |= {"trains": "nothing"}
        job["method"] = "full"  # it has no adapters
        job = {name: value for name, value in job.items() if not name.startswith("lora")}
        names = {name: keys for name, keys in actor.names.items() if name == "strategy"}
        job["checkpointing"], job["reentrant"] = "none", False
        job.pop("offload", None)
    if group.name != "the reference":  # models/model.py: get_llm_for_sequence_regression knows no Liger
        job.pop("fused_kernels", None)
    task = f"{actor.task.partition(',')[0]}, {group.name}'s GPUs"
    return replace(actor, model=model, job=job, names=names, notes=[], task=task, groups=())


def _known(config: ConfigReader, field: str, model: str) -> tuple[str, str]:
    """(the name by which a model is known here, why it is not known)."""
    try:
        spec, note = named_model(model)
    except VramplanError:
        return model, f"{model} is not a model that is known here"
    if note:
        config.note("warning", field, note)
    return spec.name, ""
