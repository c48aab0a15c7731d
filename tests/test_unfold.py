"""A few simulated layers, unfolded, equal the simulation of all layers."""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import Any

import pytest

from tests.helpers import card_of, evaluation_of, flops_of, setting_of, spec_of
from vramplan.analytic.architectures.lookup import architecture_of
from vramplan.analytic.layer_folding import Fold, fold
from vramplan.analytic.layers.context import LayerKind
from vramplan.analytic.prepare import lay_out
from vramplan.analytic.run_timeline import SimulatedRun
from vramplan.analytic.unfolded_step import Step
from vramplan.inputs.images import IMAGE_PROCESSORS
from vramplan.inputs.job import Job
from vramplan.memory.fused_attention import FusedAttention
from vramplan.memory.replay import replay

MODELS = [
    "Qwen/Qwen2.5-0.5B",
    "google/gemma-2-2b",
    "google/gemma-3-1b-pt",
    "CohereLabs/c4ai-command-r7b-12-2024",
    "HuggingFaceTB/SmolLM3-3B",
    "openai-community/gpt2",
    "Qwen/Qwen3-30B-A3B",
    "deepseek-ai/DeepSeek-V3",
    "openai/gpt-oss-20b",
    "OpenGVLab/InternVL2-1B",
    "llava-hf/llava-1.5-7b-hf",
    "Qwen/Qwen2.5-VL-3B-Instruct",
    "Qwen/Qwen3-VL-4B-Instruct",
    "zai-org/GLM-4.1V-9B-Thinking",
    "meta-llama/Llama-3.2-11B-Vision-Instruct",
    "google/flan-t5-base",
    "facebook/bart-large-cnn",
]
JOBS: dict[str, dict[str, Any]] = {
    "lora": {},
    "full-plain": {"method": "full", "autocast": "none", "checkpointing": "none", "loop": "plain"},
    "fp32-eager": {"method": "full", "dtype": "fp32", "attention": "eager"},
    "accumulating": {
        "method": "full",
        "gradient_accumulation_steps": 4,
        "micro_batch_size": 2,
        "checkpointing": "none",
    },
}


@pytest.mark.one_of(3)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("settings", JOBS.values(), ids=JOBS)
def test_folded_equals_all_layers(name: str, settings: dict[str, Any]) -> None:
    spec = spec_of(name)
    seen = (
        {"images": 1, "image_size": (448, 448), "sequence_length": 1024} if spec.model_type in IMAGE_PROCESSORS else {}
    )
    attention = architecture_of(spec).architecture.attention[0]
    job = Job(**{"sequence_length": 512, "attention": attention, **seen, **settings})
    full_setting, full_plan = setting_of(spec, job)
    setting, plan = lay_out(spec, job, FusedAttention(flash=True))
    assert plan.stacks[-1].left_out > 0
    folded = SimulatedRun(Step(setting, plan, card_of(), brief=False))
    brief = SimulatedRun(Step(setting, plan, card_of()))
    full = SimulatedRun(Step(full_setting, full_plan, card_of()))
    levels, replays = [], []
    for step in (full, folded, brief):
        timeline = step.timeline
        sizes = [storage.rounded_bytes for storage in timeline.storages]
        changes = [sizes[event] if event >= 0 else -sizes[~event] for event in timeline.events]
        levels.append(array("q", accumulate(changes)))
        replays.append(replay(timeline.events, None, sizes).peak_reserved_bytes)
    assert max(levels[1]) == max(levels[0])
    assert levels[1][-1] == levels[0][-1] > 0
    assert len(levels[1]) == len(levels[0])
    assert folded.timeline.phase_peaks(levels[1]) == full.timeline.phase_peaks(levels[0])
    assert max(levels[2]) == max(levels[0])
    assert replays[1] == pytest.approx(replays[0], rel=2e-3)  # shared storages may be freed in another order
    assert replays[2] == pytest.approx(replays[1], rel=4e-3)
    assert folded.step.num_parameters == full.step.num_parameters
    assert folded.step.trained == full.step.trained
    assert evaluation_of(folded.step) == evaluation_of(full.step)


def test_kernels_are_multiplied() -> None:
    spec = spec_of("Qwen/Qwen2.5-0.5B")
    job = Job(sequence_length=256)
    setting, plan = setting_of(spec, job)
    full, folded = Step(setting, plan, card_of()), Step(*lay_out(spec, job, FusedAttention(flash=True)), card_of())
    assert flops_of(folded) == flops_of(full)
    assert moved_bytes(folded) == moved_bytes(full)


def moved_bytes(step: Step) -> int:
    return sum(step.record.kernels[number].moved_bytes * times for part in step.kernels() for number, times in part)


@pytest.mark.parametrize("count", range(1, 40))
@pytest.mark.parametrize("period", [1, 2, 4, 6])
def test_a_fold_stands_for_every_layer(count: int, period: int) -> None:
    kinds = [LayerKind(sliding=(layer + 1) % period != 0) for layer in range(count)]
    plan = fold(kinds)
    assert [plan.simulated[layer] for layer in plan.layers()] == kinds
    assert sum(plan.copies_of(layer) for layer in range(len(plan.simulated))) == count


def test_irregular_layers_are_all_simulated() -> None:
    kinds = [LayerKind(sliding=layer in (0, 5, 6)) for layer in range(12)]
    assert fold(kinds) == Fold(tuple(kinds), tuple(range(12)))


def test_leading_layers_of_another_kind_are_not_folded() -> None:
    kinds = [LayerKind(dense=layer < 3) for layer in range(61)]
    plan = fold(kinds)
    assert (plan.places(5), len(plan.simulated)) == (tuple(range(5, 60)), 7)
    assert [plan.simulated[layer] for layer in plan.layers()] == kinds


def test_one_layer_of_each_kind_in_context_stands_for_the_others() -> None:
    """Qwen2.5-VL's tower: seven layers of windows, one of whole images."""
    kinds = [layer % 8 == 7 for layer in range(32)]
    assert len(fold(kinds).simulated) == 16
    plan = fold(kinds, alone=())
    assert [plan.simulated[layer] for layer in plan.layers()] == kinds
    assert len(plan.simulated) == 9
    assert plan.layers()[:8] == [0, 1, 2, 2, 2, 2, 3, 4]
    for number, layer in enumerate(plan.layers()[1:-1], 1):  # neighbours of the same kinds
        assert (plan.simulated[layer - 1], plan.simulated[layer + 1]) == (kinds[number - 1], kinds[number + 1])
