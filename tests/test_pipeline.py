"""Models spread over cards by ``device_map``: where layers go, what each card needs, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

import vramplan
from tests.helpers import card_of, evaluation_of
from vramplan.analytic.prepare import prepare
from vramplan.analytic.run_timeline import SimulatedRun
from vramplan.analytic.strategies.device_map import Module, spread
from vramplan.analytic.unfolded_step import Step
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs.catalog import find_gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.memory.estimate import Estimate
from vramplan.memory.summarize import evaluation_peak
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.search_result import Search

TOGETHER = {"strategy": "device_map", "num_gpus": 2}


def estimate(model: str, gpu: str = "rtx4090", **job: Any) -> Estimate:
    return vramplan.estimate(model, gpu, **{**TOGETHER, **job})


def places(spec: ModelSpec, job: Job) -> dict[str, int]:
    """The card of every module, as the estimate takes it."""
    setting, plan, _ = prepare(spec, job, card_of())
    lies = setting.placement
    of_stack, layers = dict(lies.layers), []
    for stack in plan.stacks:
        layers += [of_stack[stack.base]] * len(stack.layers())
    around = {"embed_tokens": lies.embed, "norm": lies.norm, "rotary_emb": lies.rotary}
    found = {f"model.{name}": card for name, card in around.items()} | {"lm_head": lies.head}
    return found | {f"model.layers.{number}": card for number, card in enumerate(layers)}


# -- the real libraries ------------------------------------------------------------------------------------------------

LLAMA = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4000,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
TIED = {"tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("model", "cards", "quantize"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 2, "none"),
        ("Qwen/Qwen2.5-7B-Instruct", 4, "none"),
        ("Qwen/Qwen2.5-7B-Instruct", 3, "nf4"),
        ("Qwen/Qwen2.5-1.5B", 3, "none"),
        ("meta-llama/Llama-3.1-8B", 2, "int8"),
        ("meta-llama/Llama-3.1-70B", 2, "nf4"),
        ("google/gemma-2-2b", 2, "none"),
        ("mistralai/Mistral-7B-v0.1", 8, "none"),
        ("microsoft/Phi-3-mini-4k-instruct", 3, "none"),
        ("allenai/OLMoE-1B-7B-0924", 2, "none"),
    ],
)
def test_layers_lie_where_transformers_puts_them(model: str, cards: int, quantize: Any) -> None:
    pytest.importorskip("torch", reason="the real map needs the extra vramplan[probe]")
    pytest.importorskip("accelerate")
    from tests.spread import bare_model, card_in, real_map

    spec = vramplan.load_model(model)
    found = places(spec, complete_job(spec, card_of(), {**TOGETHER, "num_gpus": cards, "quantize": quantize}))
    real = real_map(bare_model(spec, "bf16"), cards, quantize=quantize)
    assert found == {name: card_in(real, name) for name in found}


TRACED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {}, {"gradient_accumulation_steps": 2}),
    ("llama", TIED, {"method": "full", "checkpointing": "none", "num_gpus": 3}),
    ("llama", {}, {"batches": "padded", "loop": "plain", "loss": "chunked"}),
    ("qwen2", TIED, {"reentrant": True, "method": "dora"}),
    ("gemma2", {**TIED, "head_dim": 64, "query_pre_attn_scalar": 64}, {"attention": "eager", "num_gpus": 4}),
    ("qwen3_moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 64}, {}),
]


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("model_type", "config", "given"), TRACED)
def test_each_card_needs_what_a_traced_run_takes(model_type: str, config: Any, given: Any) -> None:
    """Real layers, real hooks, fake tensors: every phase's peak, card by card."""
    pytest.importorskip("torch", reason="the trace needs the extra vramplan[probe]")
    pytest.importorskip("accelerate")
    from tests.spread import spread_run

    spec = ModelSpec(name="small", model_type=model_type, config={**LLAMA, **config})
    job = Job(**{**TOGETHER, "sequence_length": 128, "micro_batch_size": 2, **given})
    setting, plan, _ = prepare(spec, job, card_of())
    run = SimulatedRun(Step(setting, plan, card_of()))
    found, evaluations = {}, evaluation_of(run.step)
    for card, timeline in run.timelines.items():
        levels = timeline.live_bytes(with_kernels=False)
        found[card] = timeline.phase_peaks(levels) | {"loaded": levels[timeline.marks[1].first_event - 1]}
        left = [timeline.kinds[kind] for kind in timeline.live_at(len(timeline.events) - 1)]
        workspaces = sum(storage.rounded_bytes for storage in left if storage.in_kernel)
        found[card]["eval"] = evaluation_peak(timeline, evaluations[card]) - workspaces
    real = spread_run(spec, job, card_of()).peaks()
    assert found == {card: pytest.approx(peaks, rel=0.002) for card, peaks in real.items()}


# -- without them ------------------------------------------------------------------------------------------------------


def test_the_first_card_keeps_room_for_the_largest_layer() -> None:
    """infer_auto_device_map by hand: 40 for the first card, less the 10 of a layer; the second takes 40."""
    layers = tuple(Module(f"m.{number}", 10) for number in range(8))
    found = spread((Module("m", 80, layers),), [40, 40, 100])
    assert list(found.values()) == [0, 0, 0, 1, 1, 1, 1, 2]


def test_a_tied_head_lies_with_the_embeddings() -> None:
    model = Module("m", 40, (Module("m.embed", 10), Module("m.a", 10), Module("m.b", 10), Module("m.c", 10)))
    found = spread((model, Module("head", 0)), [30, 100], ("m.embed", "head"))
    assert found == {"m.embed": 0, "head": 0, "m.a": 0, "m.b": 1, "m.c": 1}


def test_every_card_is_shown_and_the_fullest_counts() -> None:
    one = estimate("Qwen/Qwen2.5-14B-Instruct")
    assert [card.holds for card in one.cards] == ["embeddings, layers 0-23", "layers 24-47, norm, head"]
    assert one.device_total_bytes == max(card.device_total_bytes for card in one.cards)
    assert one.fits
    assert not vramplan.estimate("Qwen/Qwen2.5-14B-Instruct", "rtx4090", num_gpus=2).fits
    weights = vramplan.estimate("Qwen/Qwen2.5-14B-Instruct", "h100").by_category()["parameter"]
    assert sum(card.parameter_bytes for card in one.cards) == pytest.approx(weights, rel=1e-5)


def test_cards_do_not_multiply_the_batch() -> None:
    found: Search = vramplan.suggest("Qwen/Qwen2.5-7B-Instruct", "rtx4090", 8, **TOGETHER)
    assert found.recommended is not None
    best = found.recommended
    assert best.micro_batch_size * best.gradient_accumulation_steps == best.global_batch_size == 8
    alone = vramplan.estimate("Qwen/Qwen2.5-7B-Instruct", "rtx4090")
    assert best.estimate.compute is not None
    assert alone.compute is not None
    assert best.estimate.compute.micro_step_seconds >= alone.compute.micro_step_seconds  # GPUs wait for each other


def test_a_small_card_in_front_takes_what_it_has() -> None:
    """Weights beyond an even share go to the last card, which then does not fit."""
    one = estimate("meta-llama/Llama-3.1-70B", "rtx4090")
    first, last = one.cards
    assert not one.fits
    assert first.parameter_bytes < find_gpu("rtx4090").usable_bytes < last.parameter_bytes


@pytest.mark.parametrize(
    ("model", "given", "error", "said"),
    [
        ("Qwen/Qwen2.5-7B", {"num_gpus": 1}, ConfigError, "more than one GPU"),
        ("openai-community/gpt2", {}, UnsupportedError, "gpt2 is not modelled yet"),
        ("Qwen/Qwen2.5-VL-3B-Instruct", {}, UnsupportedError, "qwen2_5_vl is not modelled yet"),
        ("Qwen/Qwen2.5-7B", {"loss": "sections"}, UnsupportedError, "loss=sections"),
        ("Qwen/Qwen2.5-1.5B", {"loss": "liger"}, ConfigError, "GPUs 1 and 0"),
        ("Qwen/Qwen2.5-7B", {"by": "trace"}, UnsupportedError, "a trace divides neither"),
    ],
)
def test_what_is_refused(model: str, given: dict[str, Any], error: type[Exception], said: str) -> None:
    if given.get("by"):
        pytest.importorskip("torch")
    with pytest.raises(error, match=said):
        estimate(model, **given)


def test_a_model_that_stays_on_the_first_card() -> None:
    """An untied head is most of it: transformers leaves the model whole, and the Trainer takes another way."""
    spec = ModelSpec(name="wide", model_type="llama", config={**LLAMA, "num_hidden_layers": 1, "vocab_size": 200000})
    with pytest.raises(ConfigError, match="wide is so small"):
        prepare(spec, Job(**TOGETHER), card_of())
