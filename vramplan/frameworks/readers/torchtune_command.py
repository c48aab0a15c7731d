"""The words of ``tune run``, as torchtune reads them (0.6.1, _cli/run.py, config/_parse.py, config/_utils.py)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from vramplan.errors import ConfigError
from vramplan.frameworks.known_keys import known_keys
from vramplan.frameworks.readers.torchtune_configs import settings_of
from vramplan.frameworks.readers.torchtune_recipes import NAMES
from vramplan.frameworks.settings import OWN_FLAGS, ConfigReader, ConfigValue, is_unknown
from vramplan.frameworks.syntax import argv

COMPONENTS = (
    "checkpointer", "dataset", "loss", "lr_scheduler", "metric_logger", "model", "optimizer", "profiler",
    "ref_checkpointer", "tokenizer",
)  # fmt: skip
"""Sections that name what they build: ``optimizer=torch.optim.SGD`` sets ``optimizer._component_``."""
VALUELESS = ("standalone", "no_python", "module", "run_path")
"""Flags of torchrun that take no value."""


def split(words: Sequence[str]) -> tuple[list[str], dict[str, ConfigValue]]:
    """Words after ``tune run``: torchrun's flags, the recipe, ``--config NAME``, ``key=value`` and ``~key``.

    Raises:
        ConfigError: at a flag with which torchtune stops.
        UnknownNameError: if the configuration is no file, and none that torchtune ships.
    """
    _, pairs = argv.split([word for word in words if "=" in word and not word.startswith(("-", "~"))])
    settings = {f"{key}._component_" if key in COMPONENTS else key: value for key, value in pairs.items()}
    settings |= {word[1:].partition("=")[0]: ConfigValue(None, word) for word in words if word.startswith("~")}
    rest = [word for word in words if not word.startswith("~") and ("=" not in word or word.startswith("-"))]
    while rest:
        word = rest.pop(0)
        name, mark, value = word.lstrip("-").replace("-", "_").partition("=")
        if word.startswith("-"):
            _refuse_flag(word, rest, "recipe" in settings)
        if word.startswith("-") and not mark:
            value = rest.pop(0) if rest and name not in VALUELESS else "true"
        if word.startswith("-"):
            settings[name] = ConfigValue(value, word.partition("=")[0])
        else:
            settings.setdefault("recipe", ConfigValue(word, "tune run"))
    recipe = settings.get("recipe")
    if recipe is not None:
        settings["recipe"] = recipe._replace(value=PurePosixPath(str(recipe.value)).name.removesuffix(".py"))
    file = settings.get("config")
    if recipe is not None and str(settings["recipe"].value) not in NAMES:  # refused, whatever else it says
        return [], {"recipe": settings["recipe"]}
    if file is not None and not is_unknown(file.value) and not str(file.value).endswith((".yaml", ".yml")):
        name = str(settings.pop("config").value)
        return [], settings_of(name, "" if recipe is None else str(settings["recipe"].value)) | settings
    return [], settings


def _refuse_flag(word: str, rest: Sequence[str], behind_recipe: bool) -> None:
    """Refuse a flag with which ``tune run`` stops, where torchrun's and ``--config FILE`` alone are known.

    torchtune 0.6.1, config/_parse.py: parse_known_args, _cli/run.py: _run_cmd.

    Raises:
        ConfigError: with what to write in its place.
    """
    flag, mark, value = word.partition("=")
    key = flag.lstrip("-")
    if flag == "--config" and mark:
        raise ConfigError(f"{word}: torchtune stops at it (the '--config' argument is required); write {flag} {value}")
    if key.replace("-", "_") in OWN_FLAGS and behind_recipe:
        raise ConfigError(f"{flag}: torchtune stops at it; vramplan's own flags go before the --")
    if flag != "--config" and (behind_recipe or key in known_keys("torchtune")):
        value = value if mark else rest[0] if rest and not rest[0].startswith("-") else "true"
        raise ConfigError(
            f"{flag}: torchtune stops at it (additional flag arguments not supported); write {key}={value} behind the"
            " recipe, and torchrun's flags before it"
        )


def refuse_texts(config: ConfigReader) -> None:
    """Refuse a section that is one text, as ``--set optimizer=X`` makes it.

    Raises:
        ConfigError: with the key to set.
    """
    for name in COMPONENTS:
        value = config.source.settings.get(name)
        if value is not None and isinstance(value.value, str) and "$" not in value.value:  # a reference
            raise ConfigError(f"{value.place}: {name} is a section; write {name}._component_={value.value}")
