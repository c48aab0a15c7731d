"""SGLang as what generates in verl's reinforcement training (``rollout.name=sglang``; verl 0.7.1 to 0.9.1).

(workers/rollout/sglang_rollout/async_sglang_server.py, sglang_rollout.py.) Before 0.7 it ran in the training processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.readers.verl_rl import MODEL, ROLLOUT
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.verl import Verl

FIRST = "0.7"
ARGUMENTS = f"{ROLLOUT}engine_kwargs.sglang."
HARMLESS = ("attention_backend", "mm_attention_backend")
"""Arguments of SGLang that change no weights, cache or graphs."""


def is_on(config: ConfigReader) -> bool:
    """Whether SGLang generates."""
    return config.lowercase(f"{ROLLOUT}name", default="vllm") == "sglang"


def engine(config: ConfigReader, version: str) -> dict[str, Any]:
    """Its settings in a job; of vLLM none."""
    eager = config.boolean(f"{ROLLOUT}enforce_eager", default=False)
    texts = config.integer(f"{ROLLOUT}max_num_seqs", default=256 if at_least(version, "0.9.1") else 1024)
    return {"engine": "sglang", "texts": texts, **({"eager": True} if eager else {})} if is_on(config) else {}


def eager_keys(settings: dict[str, Any]) -> dict[Verl, str]:
    """The key that switches SGLang's CUDA graphs off, where they are on."""
    if settings.get("engine") != "sglang" or settings.get("eager"):
        return {}
    return {Verl(**settings | {"eager": True}): f"{ROLLOUT}enforce_eager True"}


def not_modelled(config: ConfigReader, version: str) -> Iterator[str]:
    """What of it keeps the job from being estimated, each named by its setting."""
    if not is_on(config):
        return
    name = f"{ROLLOUT}name"
    if not at_least(version, FIRST):
        yield str(config.unsupported(name, f"of verl {version} is not modelled; modelled: from {FIRST} on, or vllm"))
    if config.integer(f"{MODEL}lora_rank", default=0, least=0):
        yield str(config.unsupported(name, f"with {MODEL}lora_rank is not modelled yet; modelled: {name}=vllm"))
    if not config.is_off(f"{ROLLOUT}disaggregation.enabled"):
        yield str(config.unsupported(f"{ROLLOUT}disaggregation.enabled"))
    for key in config.source.settings:
        if key.startswith(ARGUMENTS) and key.removeprefix(ARGUMENTS) not in HARMLESS:
            yield str(config.unsupported(key))
