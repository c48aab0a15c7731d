"""Every shipped model: schema, path, and our own count equal to the official one."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests.helpers import setting_of
from vramplan.analytic.architectures import ARCHITECTURES
from vramplan.analytic.architectures.lookup import architecture_of
from vramplan.analytic.architectures.towers import TOWERS
from vramplan.analytic.layers.moe_peft import FORMER
from vramplan.analytic.prepare import lay_out
from vramplan.analytic.unfolded_step import count_parameters
from vramplan.errors import UnknownNameError
from vramplan.inputs.catalog import aliases, find_model, load_spec, model_names, specs_folder
from vramplan.inputs.images import IMAGE_PROCESSORS, TOWER_MODULES
from vramplan.inputs.images.sounds import HEARD
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import MODEL_INPUTS, published_task
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.fused_attention import FusedAttention

TEXT_ONLY_WITHIN = {
    "qwen2_vl_text",
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "qwen3_vl_text",
    "qwen3_vl_moe_text",
    "glm4v_moe_text",
    "glm4v_text",
    "llama4_text",
    "granitemoeshared",
    "ministral",
    "ministral3",
    "gemma3n_text",
    "gemma4_text",
    "gemma4_unified_text",
    "mllama_text",
}
"""Language models that no one ships by themselves."""


def counted(spec: ModelSpec) -> Job:
    """A job of which every shipped model has one."""
    attention = architecture_of(spec).architecture.attention[0]
    return Job(method="full", autocast="none", attention=attention, task=published_task(spec))


@pytest.mark.parametrize("name", model_names())
def test_count_equals_the_official_one(name: str) -> None:
    """As answers count: of layers that are alike one is laid out."""
    spec = load_spec(name)
    assert spec.name == name
    assert spec.sources
    assert spec.counted_from
    _, whole = setting_of(spec, counted(spec))
    setting, folded = lay_out(spec, counted(spec), FusedAttention(flash=True))
    assert count_parameters(setting, folded) == spec.num_parameters
    assert [len(one.layers()) for one in folded.stacks] == [len(one.simulated) for one in whole.stacks]


def by_size_of_each_type() -> list[Any]:
    """All shipped models; of each type the smallest runs by default."""
    names: dict[str, list[str]] = defaultdict(list)
    for name in sorted(model_names(), key=lambda name: load_spec(name).num_parameters):
        names[load_spec(name).model_type].append(name)
    others = [name for _, *larger in names.values() for name in larger]
    return [*(first for first, *_ in names.values()), *(pytest.param(name, marks=pytest.mark.full) for name in others)]


@pytest.mark.parametrize("name", by_size_of_each_type())
def test_every_layer_laid_out_counts_the_same(name: str) -> None:
    spec = load_spec(name)
    assert count_parameters(*setting_of(spec, counted(spec))) == spec.num_parameters


@pytest.mark.parametrize("name", model_names())
def test_file_is_valid(name: str) -> None:
    strict = ModelSpec.model_validate_json((specs_folder() / f"{name}.json").read_bytes())
    assert strict == load_spec(name)


UNPUBLISHED = {
    "afmoe", "bamba", "cohere2_moe", "exaone_moe", "hy_v3", "m2m_100", "marian", "pegasus", "umt5", "vaultgemma",
}  # fmt: skip
"""Types of which no published configuration was read."""


def test_every_architecture_has_a_shipped_model() -> None:
    known = {load_spec(name).model_type for name in model_names()}
    seeing = {key.partition("/")[0] for key in TOWERS} - {"glm46v", "minicpmv4_7"}  # GLM-4.6V: as glm4v(_moe)
    assert known == (set(ARCHITECTURES) - TEXT_ONLY_WITHIN - UNPUBLISHED) | seeing
    assert len(model_names()) >= 110


def test_every_architecture_has_its_samples() -> None:
    """An architecture's record and its samples are joined by model_type: each has what its forward takes."""
    for model_type, architecture in ARCHITECTURES.items():
        assert (architecture.decoder is None) == (model_type in MODEL_INPUTS), model_type
        assert len(architecture.attention) > 0
        assert architecture.peft_experts in FORMER
    assert set(MODEL_INPUTS) <= set(ARCHITECTURES)
    assert {key.partition("/")[0] for key in TOWERS} <= set(TOWER_MODULES)
    assert {tower.text_type for tower in TOWERS.values()} <= {None, *ARCHITECTURES}
    assert {*HEARD} == {*TOWER_MODULES} - {*IMAGE_PROCESSORS}
    assert set(ARCHITECTURES).isdisjoint(TOWERS)


def test_names_are_unique() -> None:
    names = [name.lower() for name in model_names()]
    known = names + [alias.lower() for alias in aliases()]
    assert len(known) == len(set(known))


def test_aliases_resolve_to_their_architecture() -> None:
    spec = find_model("qwen2.5-7b-instruct")
    assert spec is not None
    assert spec.name == "Qwen/Qwen2.5-7B-Instruct"
    assert spec.config["hidden_size"] == 3584
    assert find_model("DeepSeek-R1-Distill-Llama-8B") is not None
    assert find_model("nothing-like-it") is None


def test_a_short_name_shared_by_organisations_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import vramplan.inputs.catalog as catalog

    monkeypatch.setattr(catalog, "model_names", lambda: ["one/same", "two/same"])
    with pytest.raises(UnknownNameError, match="shared by several"):
        find_model("same")


def test_specs_lie_where_the_wheel_has_them() -> None:
    assert (specs_folder() / "README.md").is_file()
