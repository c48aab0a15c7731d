"""Layers that mix tokens without attention: traces of the real classes, kernels of other packages, what is refused."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

import vramplan
from tests import matrix, mixer_cases
from tests.helpers import card_of, cli_json, spec_of
from tests.traced_table import name_of
from vramplan.analytic.generation import generation
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.inputs.job import Job

ROWS = mixer_cases.TABLE.load()
FAMILIES = [*mixer_cases.FAMILIES, "qwen3_5"]
QWEN, GRANITE, MAMBA = "Qwen/Qwen3.5-9B", "ibm-granite/granite-4.0-h-micro", "mistralai/Mamba-Codestral-7B-v0.1"
NEMOTRON = "nvidia/NVIDIA-Nemotron-Nano-9B-v2"
FALCON = "tiiuae/Falcon-H1-0.5B-Base"
PACKAGES = {"mixer_kernels": "packages"}


@pytest.mark.parametrize("family", FAMILIES)
def test_estimates_agree_with_traces(family: str) -> None:
    errors = []
    for name, job in mixer_cases.cases():
        if name != family:
            continue
        found, traced = mixer_cases.TABLE.analytic(family, job), ROWS[name_of(family, job)]
        of = dict(zip(matrix.COLUMNS[1:], (a / b - 1 for a, b in zip(found, traced, strict=True)), strict=True))
        assert abs(of["tensors"]) <= (0.01 if job.images else 0.002), (job, of)
        assert all(abs(of[phase]) <= 0.015 for phase in ("allocated", *matrix.PHASES)), (job, of)
        assert abs(of["flops"]) <= 1e-3, (job, of)
        assert found[7:] == traced[7:], "parameters"
        errors.append(abs(of["allocated"]))
    assert median(errors) <= (2e-3 if family == "qwen3_5" else 1e-3)


def test_every_case_has_been_traced() -> None:
    assert {name_of(*case) for case in mixer_cases.cases()} == set(ROWS)


@pytest.mark.parametrize(("name", "attention"), [(QWEN, "sdpa"), (GRANITE, "sdpa"), (MAMBA, "eager")])
def test_kernels_of_packages_keep_less(name: str, attention: str) -> None:
    job = {"method": "full", "checkpointing": "none", "attention": attention, "sequence_length": 2048}
    torch, packages = (vramplan.estimate(name, "h200", **job, mixer_kernels=code) for code in ("torch", "packages"))
    assert packages.peak_allocated_bytes < 0.85 * torch.peak_allocated_bytes
    assert packages.num_parameters == torch.num_parameters
    assert any("run transformers' own torch code" in note for note in torch.notes)
    assert any("read off their source" in note for note in packages.notes)


def test_what_the_delta_rule_of_flash_linear_attention_saves() -> None:
    """Each token more keeps what ChunkGatedDeltaRuleFunction.forward and CausalConv1dFn.forward save."""
    spec = mixer_cases.spec_for("qwen3_5_text")
    few, many = (
        vramplan.estimate(
            spec, "h200", method="full", autocast="none", checkpointing="none", sequence_length=length, **PACKAGES
        )
        for length in (1024, 2048)
    )
    config, layers = mixer_cases.DELTA, 9
    keys, values = 2 * 32, 4 * 64
    saved = 2 * (2 * keys + values + 4 + 4 * 64) + 4 * (2 * 2 + 4)  # q, k, v, beta, inverse; lengths, decay
    rest = (many.peak_allocated_bytes - few.peak_allocated_bytes) / 1024 / config["num_hidden_layers"]
    assert layers * saved / 12 < rest


@pytest.mark.parametrize(
    ("name", "settings", "error", "message"),
    [
        ("Qwen/Qwen3-8B", PACKAGES, ConfigError, "no layers without attention"),
        (GRANITE, {**PACKAGES, "quantize": "nf4"}, UnsupportedError, "is packed"),
        (GRANITE, PACKAGES, UnsupportedError, "its adapter does nothing"),
        (FALCON, {"mixer_kernels": "packages", "method": "full"}, UnsupportedError, "mamba_rms_norm = false"),
        (NEMOTRON, {"hybrid_override_pattern": "M-Q*"}, VramplanError, "expected a list of"),
        (NEMOTRON, {"method": "lora"}, ConfigError, "which all-linear includes"),
        (FALCON, {"method": "lora"}, ConfigError, "which all-linear includes"),
        (MAMBA, {"attention": "eager", "lora_targets": ("out_proj",)}, ConfigError, "PEFT does not adapt out_proj"),
        (MAMBA, {"attention": "flash", "lora_targets": ("in_proj",)}, ConfigError, "only with eager"),
        (QWEN, {"linear_num_value_heads": 3}, VramplanError, "not a multiple of linear_num_key_heads"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", {"output_router_logits": True}, UnsupportedError, "by=trace runs it"),
    ],
)
def test_what_is_refused(name: str, settings: dict[str, Any], error: type[VramplanError], message: str) -> None:
    job = {key: value for key, value in settings.items() if key in Job.model_fields}
    spec = spec_of(name)
    changes = {key: value for key, value in settings.items() if key not in job}
    config = {**spec.config, **changes}
    if changes and "text_config" in config:
        config["text_config"] = {**config["text_config"], **changes}
    with pytest.raises(error, match=message):
        vramplan.estimate(spec.model_copy(update={"config": config}), "h200", **job)


@pytest.mark.parametrize("name", [QWEN, GRANITE, MAMBA, "LiquidAI/LFM2-350M"])
def test_generation_is_refused_by_name(name: str) -> None:
    job = Job(attention="eager") if name == MAMBA else Job()
    if name == MAMBA:
        job = job.model_copy(update={"lora_targets": ("in_proj",)})
    with pytest.raises(UnsupportedError, match="what layers without attention keep"):
        generation(spec_of(name), job, card_of(), 16)


def test_the_option_that_the_assumption_names() -> None:
    command = ("estimate", "qwen3.5-0.8b", "--gpu", "h200", "--checkpointing", "none")
    torch, packages = (cli_json(*command, *more) for more in ((), ("--mixer-kernels", "packages")))
    assert any("which --mixer-kernels packages counts" in text for text in torch["notes"])
    assert packages["job"]["mixer_kernels"] == "packages"
    assert packages["peak_allocated_bytes"] < torch["peak_allocated_bytes"]
