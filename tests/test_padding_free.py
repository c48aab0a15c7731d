"""All samples of a micro-batch in one row (`padding_free`): against traces, and as TRL and ms-swift make them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import card_of, spec_of
from vramplan import estimate
from vramplan.analytic import estimator
from vramplan.errors import VramplanError
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.registry import FRAMEWORKS
from vramplan.frameworks.settings import ConfigReader, ConfigSource, ConfigValue
from vramplan.inputs.job import Job

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
FLASH = {"attn_implementation": "flash_attention_2"}
TRACED: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("llama-3.2-1b", {"num_hidden_layers": 4}, {}),
    ("llama-3.2-1b", {"num_hidden_layers": 4}, {"attention": "eager", "micro_batch_size": 2}),
    ("gemma-3-1b-pt", {"num_hidden_layers": 7}, {"method": "full", "checkpointing": "full"}),
    ("qwen2.5-0.5b", {"num_hidden_layers": 4}, {"loss": "chunked", "gradient_accumulation_steps": 3}),
    ("gpt2", {"n_layer": 4}, {"method": "full"}),
    ("mistral-7b-v0.3", {"num_hidden_layers": 4, "sliding_window": 512}, {}),
)


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("model", "config", "given"), TRACED)
def test_rows_of_joined_samples_agree_with_a_trace(model: str, config: dict[str, Any], given: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    from vramplan.torch_backend import tracing

    base = {"micro_batch_size": 3, "sequence_length": 256, "batches": "flattened", "checkpointing": "none"}
    spec, job = spec_of(model, **config), Job(**{**base, **given})
    traced = tracing().estimate(spec, job, card_of())
    found = estimator.estimate(spec, job, card_of())
    errors = [found.phases[phase] / size - 1 for phase, size in traced.phases.items()]
    assert max(map(abs, errors)) <= 0.003
    whole = job.model_copy(update={"micro_batch_size": 1, "sequence_length": 256 * job.micro_batch_size})
    assert found.peak_tensor_bytes == estimator.estimate(spec, whole, card_of()).peak_tensor_bytes


def test_a_row_of_all_samples_has_a_mask_of_all_its_tokens() -> None:
    given = {"sequence_length": 4096, "micro_batch_size": 8, "method": "lora"}
    flattened = estimate("qwen2.5-0.5b", "h100", batches="flattened", **given).phases["forward"]
    packed = estimate("qwen2.5-0.5b", "h100", batches="packed", **given).phases["forward"]
    assert flattened - packed == pytest.approx((8 * 4096) ** 2 - 8 * 4096**2, rel=0.01)


def read_of(framework: str, program: str, version: str, **settings: Any) -> ParsedConfig:
    values = {name: ConfigValue(value, name) for name, value in settings.items()}
    source = ConfigSource(values, program=program, spelling="flags")
    return FRAMEWORKS[framework].read(ConfigReader(source, framework, ("transformers",)), 1, version)


def sft(version: str, **settings: Any) -> dict[str, Any]:
    given = {"model_name_or_path": MODEL, "per_device_train_batch_size": 4, **settings}
    return read_of("trl", "trl sft", version, **given).job


@pytest.mark.parametrize(
    ("version", "settings", "batches"),
    [
        ("1.16.0", {"packing": True}, "flattened"),
        ("1.16.0", {"packing": True, **FLASH}, "packed"),
        ("1.16.0", {"packing": True, "packing_strategy": "wrapped"}, "padded"),
        ("1.16.0", {"padding_free": True, "max_length": None}, "flattened"),
        ("0.28.0", {"padding_free": True, **FLASH}, "packed"),
        ("0.23.0", {"padding_free": True}, "flattened"),
        ("0.21.0", {"packing": True, "per_device_train_batch_size": 1}, "unpadded"),
        ("0.21.0", {"packing": True, **FLASH}, "packed"),
        ("0.18.2", {"packing": True}, "padded"),
        ("0.18.2", {"padding_free": True}, "flattened"),
    ],
)
def test_trls_rows_by_version_and_attention(version: str, settings: dict[str, Any], batches: str) -> None:
    assert sft(version, **settings)["batches"] == batches


@pytest.mark.parametrize(
    ("version", "settings", "said"),
    [
        ("1.16.0", {"padding_free": True}, "max_length: null"),
        ("0.21.0", {"padding_free": True}, "attn_implementation: flash_attention_2"),
    ],
)
def test_what_trl_stops_at_is_said(version: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        sft(version, **settings)


def test_dpo_of_older_versions_joins_its_answers_and_adds_a_cross_entropy() -> None:
    def dpo(version: str, **settings: Any) -> dict[str, Any]:
        return read_of("trl", "trl dpo", version, model_name_or_path=MODEL, **settings).job

    assert dpo("0.28.0", padding_free=True)["batches"] == "flattened"
    assert dpo("0.28.0", padding_free=True, **FLASH)["batches"] == "packed"
    assert dpo("0.29.1", padding_free=True)["batches"] == "padded"
    for settings in ({"rpo_alpha": 1.0}, {"rpo_alpha": 0.0}, {"loss_type": "sigmoid,sft"}):
        assert dpo("0.20.0", **settings)["adds_cross_entropy"]
    assert "adds_cross_entropy" not in dpo("0.20.0")


def test_ms_swift_needs_flash_attention() -> None:
    given = {"model": MODEL, "padding_free": True, "tuner_type": "lora"}
    with pytest.raises(VramplanError, match="stops at padding_free without --attn_impl flash_attn"):
        read_of("ms-swift", "swift sft", "4.6.0", **given)
    assert read_of("ms-swift", "swift sft", "4.6.0", **given, attn_impl="flash_attn").job["batches"] == "packed"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"attention": "flash"}, "use batches=packed"),
        ({"task": "dpo", "loss": "chunked"}, "TRL packs no pairs"),
        ({"batches": "padded", "task": "dpo", "adds_cross_entropy": True}, "TRL 0.15 to 0.28"),
    ],
)
def test_what_has_no_such_rows_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        estimate("qwen2.5-0.5b", "h100", **{"batches": "flattened", "sequence_length": 256, **given})
