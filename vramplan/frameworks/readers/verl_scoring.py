"""The forwards without gradients of verl's reinforcement training: their tokens, and the keys of fewer (0.4 to 0.9.1).

The actor scores completions by keys of the rollout, the reference by its own (trainer/config: rollout.yaml, ref.yaml).
"""

from __future__ import annotations

from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.readers import verl_rl, verl_sequence
from vramplan.frameworks.readers.verl_batches import check_holds
from vramplan.frameworks.readers.verl_rl import ACTOR, BUDGET, REF, ROLLOUT
from vramplan.frameworks.settings import ConfigReader
from vramplan.inputs.job_values import MAX_COUNT
from vramplan.inputs.verl import Verl
from vramplan.units import ceil_div


def scored_tokens(config: ConfigReader, version: str, batch: dict[str, Any]) -> int:
    """Tokens of the largest forward that scores, the actor's or the reference's: of a GPU, or of whole samples.

    Raises:
        ConfigError: if the actor's is not set, at which verl stops.
    """
    longest, packed = longest_text(config), batch["batches"] == "packed"
    scorings = _scorings(config, version, packed)
    scored = {
        key: ceil_div(tokens, shared) if packed else ceil_div(tokens, longest) * longest
        for key, (tokens, shared) in scorings.items()
    }
    key, most = max(scored.items(), key=lambda item: item[1])
    if most > MAX_COUNT:
        raise ConfigError(f"{config.source.where}: {key}: scores {most:,} tokens at a time; at most {MAX_COUNT:,}")
    return most


def _scorings(config: ConfigReader, version: str, packed: bool) -> dict[str, tuple[int, int]]:
    """(Tokens of a forward that scores, GPUs that share them), by the key that says so: the actor's, the reference's.

    Raises:
        ConfigError: if one is not set, or holds too few tokens, at which verl stops.
    """
    found = {}
    actor, reference = verl_sequence.of_actor(config, version), verl_sequence.of_reference(config, version)
    for section, scores, shared in ((ROLLOUT, True, actor), (REF, refers(config), reference)):
        each, whole = (f"{section}log_prob_micro_batch_size{end}" for end in ("_per_gpu", ""))
        tokens = f"{section}log_prob_max_token_len_per_gpu"
        config.read_keys |= {each, whole, tokens, f"{section}log_prob_use_dynamic_bsz"}
        if not scores:
            continue
        if config.boolean(f"{section}log_prob_use_dynamic_bsz", default=packed):
            key = tokens if config.has(tokens) else BUDGET
            budget = config.integer(key, default=16384) * shared
            check_holds(config, key, budget, longest_text(config), shared)
            found[tokens] = budget, shared
        elif config.has(each) and not config.is_null(each):
            found[each] = config.integer(each, default=1) * longest_text(config), shared
        elif config.has(whole) and not config.is_null(whole):
            samples = ceil_div(config.integer(whole, default=1), max(1, verl_rl.num_gpus(config) // shared))
            found[whole] = samples * longest_text(config), shared
        else:
            raise ConfigError(f"{config.source.where}: {each} is not set: verl stops at that")
    return found


def scoring_keys(config: ConfigReader, version: str, job: dict[str, Any]) -> dict[Verl, str]:
    """The keys of fewer samples for each scoring, where samples are counted."""
    if job["batches"] == "packed":
        return {}
    found, gpus = _scorings(config, version, packed=False), verl_rl.num_gpus(config)
    length: int = job["sequence_length"]

    def keys(tokens: int) -> str:
        """What scores more now, each in its own unit: tokens, samples of a GPU, or samples of all."""
        samples = tokens // length

        def unit(key: str, shared: int) -> int:
            if key.endswith("token_len_per_gpu"):
                return ceil_div(tokens, shared)
            whole = samples * (gpus // shared)
            return whole if key.endswith("micro_batch_size") else samples

        return "; ".join(f"{key} {unit(key, shared)}" for key, (now, shared) in found.items() if now > tokens)

    return {verl: keys(verl.scored_tokens or 0) for verl in Verl(**job["verl"]).fewer_scored(length)}


def refers(config: ConfigReader) -> bool:
    """Whether a reference scores as well."""
    return config.boolean(f"{ACTOR}use_kl_loss", default=False) or config.boolean(
        "algorithm.use_kl_in_reward", default=False
    )


def longest_text(config: ConfigReader) -> int:
    """Tokens of a prompt with its response."""
    return config.integer("data.max_prompt_length", default=512) + config.integer(
        "data.max_response_length", default=512
    )
