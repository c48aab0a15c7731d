"""What loading leaves behind: how weights lie in the allocator's segments before the first step."""

from __future__ import annotations

from typing import Any

import pytest

import vramplan
from tests.helpers import card_of, spec_of
from vramplan.analytic.prepare import prepare
from vramplan.analytic.strategies.device_map import loaded_bytes
from vramplan.analytic.unfolded_step import Step
from vramplan.errors import ConfigError
from vramplan.memory.replay import replay
from vramplan.units import GiB, MiB

MIXTURE = "Qwen/Qwen3-30B-A3B"


def _loaded(model: str, **settings: Any) -> tuple[int, int]:
    """Bytes (of weights, reserved for them) when the model is loaded."""
    timeline = vramplan.estimate(model, "h200", **settings).timeline
    sizes = [storage.rounded_bytes for storage in timeline.storages]
    events = timeline.events[: timeline.marks[1].first_event]
    live = sum(sizes[event] if event >= 0 else -sizes[~event] for event in events)
    return live, replay(events, None, sizes).peak_reserved_bytes


def test_a_device_map_asks_for_the_model_in_one_piece() -> None:
    """Experts of 3 MiB each leave 2 of every 20 MiB empty, where they are moved one by one."""
    live, reserved = _loaded(MIXTURE, experts="linear")
    assert reserved > 1.09 * live
    live, reserved = _loaded(MIXTURE, experts="linear", device_map=True)
    assert live <= reserved < live + 64 * MiB


@pytest.mark.parametrize("settings", [{}, {"strategy": "zero2", "num_gpus": 2, "autocast": "none"}])
def test_a_quantized_model_is_mapped_without_being_told(settings: dict[str, Any]) -> None:
    """Transformers' update_device_map; scales come on top of what is asked for in one piece."""
    plain = _loaded("Qwen/Qwen2.5-7B", quantize="nf4", **settings)
    assert plain == _loaded("Qwen/Qwen2.5-7B", quantize="nf4", device_map=True, **settings)
    assert plain[1] < 1.05 * plain[0]


def test_before_transformers_5_half_of_the_unquantized_model_is_asked_for() -> None:
    """Experts of 0.75 MiB then lie in small segments, beside it; no more is asked for than the card has."""
    parameters = 30_532_122_624  # safetensors' total on the Hub
    asked = {}
    for card in ("h200", "a100-40gb"):
        found = vramplan.estimate(MIXTURE, card, quantize="nf4", experts="linear")
        asked[card] = found.timeline.storage(0).rounded_bytes
        assert found.peak_allocated_bytes < 26 * GiB
        assert found.peak_reserved_bytes > asked[card] + 16 * GiB
    assert parameters <= asked["h200"] < parameters + MiB
    assert asked["a100-40gb"] < 20 * GiB


@pytest.mark.parametrize("strategy", ["zero3", "fsdp"])
def test_it_goes_with_no_strategy_that_loads_parts(strategy: str) -> None:
    with pytest.raises(ConfigError, match=f"device_map with strategy={strategy}"):
        vramplan.estimate("Qwen/Qwen2.5-7B", "h200", device_map=True, num_gpus=2, strategy=strategy, autocast="none")


def test_it_is_what_transformers_counts() -> None:
    """get_total_byte_count, over a model of its own."""
    torch = pytest.importorskip("torch")
    modeling = pytest.importorskip("transformers.modeling_utils")
    from transformers import AutoConfig, AutoModelForCausalLM

    spec = spec_of("Qwen/Qwen2.5-0.5B")  # whose head is tied
    config = AutoConfig.for_model("qwen2", **{k: v for k, v in spec.config.items() if k != "model_type"})
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.tie_weights()
    card = torch.device("cuda:0")
    counted = modeling.get_total_byte_count(model, {name: card for name, _ in model.named_parameters()}, None)[card]
    job = vramplan.Job(device_map=True)
    setting, plan, *_ = prepare(spec, job, card_of())
    placed = [one.parameter for one in Step(setting, plan, card_of()).placed if not one.parameter.is_adapter]
    assert sum(loaded_bytes(weight, job.dtype) for weight in placed) == counted
