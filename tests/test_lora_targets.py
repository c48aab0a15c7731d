"""PEFT's rule for targets: what matches nothing is ignored; the parameters that train are PEFT's own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import card_of
from vramplan import estimate
from vramplan.analytic.architectures import ARCHITECTURES
from vramplan.errors import ConfigError, UnknownNameError, UnsupportedError
from vramplan.frameworks.detect import from_path
from vramplan.frameworks.readers.trainer_arguments import lora_targets
from vramplan.frameworks.settings import ConfigReader, ConfigSource, ConfigValue
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.peft_targets import DEFAULT_TARGETS
from vramplan.planner import check

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # transformers' of its own names, in PEFT
TINY = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "tie_word_embeddings": False,
}  # fmt: skip
QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")


def trained_by_vramplan(**settings: Any) -> int:
    spec = ModelSpec(name="tiny", model_type="qwen2", config={**TINY, "model_type": "qwen2"})
    job = {"method": "lora", "lora_rank": 4, "sequence_length": 16, "micro_batch_size": 1, **settings}
    return estimate(spec, card_of("h100"), **job).num_trainable_parameters


@cache
def tiny_model() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.Qwen2Config(**TINY)


def trained_by_peft(targets: Any, modules_to_save: list[str] | None = None) -> int:
    peft = pytest.importorskip("peft")
    from transformers import Qwen2ForCausalLM

    config = peft.LoraConfig(r=4, target_modules=targets, modules_to_save=modules_to_save, task_type="CAUSAL_LM")
    model = peft.get_peft_model(Qwen2ForCausalLM(tiny_model()), config)
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


TARGETS = [
    ("q_proj",),
    ("q_proj", "v_proj"),
    (*QKVO, "gate_proj", "up_proj", "down_proj"),
    ("q_proj", "v_proj", "query_key_value"),
    ("W_pack", "o_proj", "gate_proj"),
    ("q_proj", "o_gate", "in_proj_qkv", "out_proj"),
    ("self_attn.q_proj", "mlp.down_proj"),
    ("attn.q_proj", "k_proj"),
    ("q_proj", "k_proj", "lm_head"),
    ("c_attn", "w1", "w2", "up_proj"),
    ("all", "down_proj"),
]


@pytest.mark.parametrize("targets", TARGETS, ids=",".join)
def test_as_many_parameters_train_as_in_peft(targets: tuple[str, ...]) -> None:
    assert trained_by_vramplan(lora_targets=targets) == trained_by_peft(list(targets))


@pytest.mark.parametrize(
    ("targets", "saved"),
    [
        (QKVO, ("embed_tokens", "lm_head")),
        (("q_proj", "lm_head"), ("lm_head",)),
        (("q_proj", "v_proj"), ("v_proj",)),
        (("q_proj", "up_proj"), ("self_attn.o_proj", "score")),
        (("q_proj", "up_proj"), ("norm",)),
        (("q_proj",), ("score", "classifier")),
    ],
)
def test_a_module_in_both_lists_is_saved(targets: tuple[str, ...], saved: tuple[str, ...]) -> None:
    ours = trained_by_vramplan(lora_targets=targets, modules_to_save=saved)
    assert ours == trained_by_peft(list(targets), list(saved))


@pytest.mark.parametrize("targets", [("query_key_value",), ("W_pack", "c_attn"), ("all-linear", "all"), ("proj",)])
def test_an_error_if_none_matches(targets: tuple[str, ...]) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown LoRA target .*this model has"):
        trained_by_vramplan(lora_targets=targets)
    with pytest.raises(ValueError, match="not found in the base model"):
        trained_by_peft(list(targets))


def test_an_error_if_all_that_match_are_saved() -> None:
    with pytest.raises(ConfigError, match="no layer gets an adapter"):
        trained_by_vramplan(lora_targets=("q_proj",), modules_to_save=("q_proj",))
    with pytest.raises(ValueError, match="No modules were targeted"):
        trained_by_peft(["q_proj"], ["q_proj"])


@pytest.mark.parametrize(
    ("targets", "text"),
    [
        (("q_proj", "embed_tokens"), "embed_tokens.*adapts embeddings"),
        (("q_proj", "norm"), "norm.*no linear layer"),
        (("q_proj", "mlp"), "mlp.*no linear layer"),
        (("q_proj", "model.layers.1.self_attn.k_proj"), "single layers"),
        (("layers.0.mlp",), "single layers"),
    ],
)
def test_what_peft_adapts_or_refuses_otherwise_is_refused(targets: tuple[str, ...], text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        trained_by_vramplan(lora_targets=targets)


def test_the_note_says_what_is_ignored_and_what_matched() -> None:
    spec = ModelSpec(name="tiny", model_type="qwen2", config={**TINY, "model_type": "qwen2"})
    result = estimate(spec, card_of("h100"), method="lora", sequence_length=16, lora_targets=("o_gate", "q_proj"))
    assert any("LoRA target o_gate" in note and "ignores it and adapts q_proj" in note for note in result.notes)


def test_modules_to_save_that_are_modules_of_modules_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="modules_to_save"):
        trained_by_vramplan(lora_targets=("q_proj",), modules_to_save=("mlp",))
    with pytest.raises(ConfigError, match="a module takes one of both"):
        trained_by_vramplan(lora_targets=("q_proj",), modules_to_save=("proj",))


def reading(framework: str, value: object, spelling: Any = "yaml") -> tuple[str, ...] | None:
    settings = {"lora_target_modules": ConfigValue(value, "a.yaml:3")}
    return lora_targets(ConfigReader(ConfigSource(settings, spelling=spelling), framework), "lora_target_modules")


EXPRESSIONS = [
    r".*q_proj",
    r".*\.(q|v)_proj",
    r"model\.layers\.\d+\.self_attn\.(q|k|v|o)_proj",
    r"(?:model\.)?layers\.[\d]+\.mlp\.(gate|up|down)_proj",
    r"^.*(self_attn|mlp)\..*_proj$",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_means_what_peft_matches(expression: str) -> None:
    targets = reading("axolotl", expression)
    assert trained_by_vramplan(lora_targets=targets) == trained_by_peft(expression)


@pytest.mark.parametrize("expression", [r"model\.layers\.[0-4]\..*_proj", r".*layers\.(0|1)\.self_attn\.q_proj"])
def test_an_expression_for_single_layers_is_refused(expression: str) -> None:
    with pytest.raises(UnsupportedError, match="single layers"):
        reading("axolotl", expression)


def test_one_name_alone_is_an_expression_in_trl_and_in_a_script() -> None:
    for framework, spelling in (("trl", "yaml"), ("trl", "python"), ("transformers", "python")):
        with pytest.raises(UnsupportedError, match=r"write \.\*q_proj"):
            reading(framework, "q_proj", spelling)
    with pytest.raises(ValueError, match="not found in the base model"):
        trained_by_peft("q_proj")
    assert reading("transformers", ["q_proj"], "python") == ("q_proj",)
    assert reading("axolotl", "q_proj") == ("q_proj",)


@pytest.mark.parametrize(
    "text",
    [
        "base_model: gpt2\nadapter: lora\nlora_r: 8\nlora_target_linear: true\nlora_target_modules: [lm_head]",
        "model: Qwen/Qwen2.5-7B\ntrain_type: lora\ntarget_modules: [all-linear, lm_head]\n",
        "model: Qwen/Qwen2.5-7B\ntrain_type: lora\ntarget_modules: [all-embedding]\n",
    ],
)
def test_targets_besides_all_linear_layers_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    framework = "axolotl" if "adapter" in text else "ms-swift"
    with pytest.raises(UnsupportedError, match="target_modules"):
        check.read(from_path(path, framework), 1)


def test_default_targets_are_those_of_peft() -> None:
    constants = pytest.importorskip("peft.utils.constants")
    mapping = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    listed = {name: tuple(layers) for name, layers in mapping.items() if isinstance(layers, list)}
    ours = {name: listed[name] for name in ARCHITECTURES if name in listed} | {"llama4": listed["llama4"]}
    assert ours == DEFAULT_TARGETS


@pytest.mark.parametrize(
    ("model", "targets"),
    [
        ("microsoft/phi-2", ("q_proj", "v_proj", "fc1", "fc2")),
        ("Qwen/Qwen3-8B", ("q_proj", "v_proj")),
        ("gpt2", ("c_attn",)),
    ],
)
def test_a_configuration_without_targets_gets_those_of_its_model(
    tmp_path: Path, model: str, targets: tuple[str, ...]
) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(f"model_name_or_path: {model}\ndataset_name: d\nuse_peft: true\nmax_length: 512\n")
    assert check.check(path, "h100", num_gpus=1, look_further=False).estimate.job.lora_targets == targets


def test_peft_stops_at_a_model_without_default_targets(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text("model_name_or_path: microsoft/Phi-3.5-mini-instruct\ndataset_name: d\nuse_peft: true\n")
    with pytest.raises(ConfigError, match="name the layers"):
        check.check(path, "h100", num_gpus=1)
