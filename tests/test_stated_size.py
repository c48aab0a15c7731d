"""A config.json that does not say how large the model is, where a trace would take the defaults of its type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the trace needs the extra vramplan[trace]")

import vramplan
from vramplan.errors import SpecError
from vramplan.torch_backend.model.stated_size import check_size


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"model_type": "jamba"}, "hidden_size"),
        ({"model_type": "jamba", "hidden_size": 64}, "num_hidden_layers"),
        ({"model_type": "emu3"}, "text_config"),
    ],
)
def test_a_trace_takes_no_default_for_the_size(settings: dict[str, Any], missing: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(SpecError, match=f"config.json has no '{missing}': transformers would take the default"):
        vramplan.estimate(str(tmp_path), "h100", by="trace", sequence_length=64)


@pytest.mark.full
def test_what_transformers_saves_says_it() -> None:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    saved = 0
    for model_type in CONFIG_MAPPING:
        try:
            config = AutoConfig.for_model(model_type)
            settings = json.loads(config.to_json_string(use_diff=True))
        except Exception:
            continue
        check_size(settings, config, model_type)
        saved += 1
    assert saved > 500
