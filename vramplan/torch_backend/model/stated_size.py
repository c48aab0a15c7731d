"""Whether a config.json says how large its model is, which transformers would fill in from the defaults of its type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import SpecError

SIZES = ("hidden_size", "num_hidden_layers")
TEXT = "text_config"


def check_size(settings: Mapping[str, Any], config: Any, name: str) -> None:
    """Refuse a config.json without the width or the number of layers, or without the section that has them.

    transformers writes both whenever it saves a model (5.23, configuration_utils.py: to_diff_dict, which leaves out
    what equals the defaults of all models alone); only sections may be without what is a default of their type.

    Args:
        settings: the keys of config.json.
        config: what transformers made of them.
        name: what the model is called in the error.

    Raises:
        SpecError: naming the key.
    """
    if TEXT in type(config).sub_configs:
        missing = [TEXT] if TEXT not in settings and not _stated("hidden_size", settings, config) else []
    else:
        defaults = type(config)().to_dict()
        missing = [
            size
            for size in SIZES
            if not _stated(size, settings, config)
            and (key := config.attribute_map.get(size, size)) in defaults
            and getattr(config, size) == defaults[key]
        ]
    if missing:
        raise SpecError(
            f"{name}: config.json has no {missing[0]!r}: transformers would take the default of"
            f" {config.model_type}, a model of another size; give the whole file"
        )


def _stated(size: str, settings: Mapping[str, Any], config: Any) -> bool:
    return any(key in settings for key in (size, config.attribute_map.get(size, size)))
