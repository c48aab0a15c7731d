"""GPUs that share the tokens of a micro-batch in verl's training: its Ulysses sequence parallelism (0.4 to 0.9.1).

Before 0.8 workers read the actor's and the critic's own keys (workers/fsdp_workers.py); since then the engine reads
those of FSDP, where the actor's and the reference's own keys are copied to, and the critic's is not
(workers/config/actor.py, critic.py: FSDPActorConfig, FSDPCriticConfig).
"""

from __future__ import annotations

from collections.abc import Iterator

from vramplan.errors import ConfigError
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.readers.verl_rl import ACTOR, REF
from vramplan.frameworks.settings import ConfigReader

NAME = "ulysses_sequence_parallel_size"
OWN, REFERENCE, CRITIC = f"{ACTOR}{NAME}", f"{REF}{NAME}", f"critic.{NAME}"
ENGINE = "0.8"
"""The version from which on the engine's keys count."""


def of_actor(config: ConfigReader, version: str) -> int:
    """The actor's size."""
    return _size(config, version, OWN, f"{ACTOR}fsdp_config.{NAME}")


def of_reference(config: ConfigReader, version: str) -> int:
    """The reference's: by default that of the actor's own key (trainer/config/ref/dp_ref.yaml)."""
    inner = f"{REF}fsdp_config.{NAME}"
    if not config.has(REFERENCE) and config.has(OWN):
        own = config.integer(OWN, default=1)
        return own if own > 1 else _size(config, version, REFERENCE, inner)
    return _size(config, version, REFERENCE, inner)


def of_critic(config: ConfigReader, version: str, fsdp: str) -> int:
    """The critic's; `fsdp` stands before the keys of its FSDP."""
    inner = f"{fsdp}{NAME}"
    if not at_least(version, ENGINE):
        _note_unused(config, CRITIC, inner)
        return config.integer(CRITIC, default=1)
    if config.integer(CRITIC, default=1) > 1:
        config.note("warning", CRITIC, f"has no effect from verl {ENGINE} on; {inner} has")
    return config.integer(inner, default=1)


def note_unused(config: ConfigReader, version: str) -> None:
    """Name keys of the actor and the reference that this version does not read."""
    if not at_least(version, ENGINE):
        for section in (ACTOR, REF):
            _note_unused(config, f"{section}{NAME}", f"{section}fsdp_config.{NAME}")


def check_divides(config: ConfigReader, name: str, size: int, gpus: int, removes_padding: bool) -> None:
    """Check a size.

    Raises:
        ConfigError: where verl stops.
    """
    if size > 1 and gpus % size:
        raise ConfigError(f"{_place(config, name)}: {size} does not divide {gpus} GPUs: verl stops at that")
    if size > 1 and not removes_padding:
        raise ConfigError(f"{_place(config, name)}: {size} without use_remove_padding: verl stops at that")


def not_modelled(config: ConfigReader, version: str, refers: bool) -> Iterator[str]:
    """A reference of another size before the engine, whose groups are the actor's."""
    actor, reference = of_actor(config, version), of_reference(config, version)
    if refers and actor != reference and not at_least(version, ENGINE):
        yield str(config.unsupported(REFERENCE, f"beside {actor} of the actor is not modelled; modelled: {actor}"))


def _size(config: ConfigReader, version: str, own: str, inner: str) -> int:
    size, of_engine = config.integer(own, default=1), config.integer(inner, default=1)
    return size if size > 1 or not at_least(version, ENGINE) else of_engine


def _note_unused(config: ConfigReader, own: str, inner: str) -> None:
    if config.integer(inner, default=1) > 1:
        config.note("warning", inner, f"has no effect before verl {ENGINE}; {own} has")


def _place(config: ConfigReader, name: str) -> str:
    return config.place(name) if config.has(name) else name
