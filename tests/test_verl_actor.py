"""verl's actor and critic on the tape: against runs of its own code, and what FSDP, host memory and vLLM make of it."""

from __future__ import annotations

import re
from statistics import median
from typing import Any

import pytest

from tests.recorded_runs import estimated_peaks
from tests.trl_runs import GPU
from tests.verl_runs import recorded
from vramplan import estimate
from vramplan.errors import VramplanError
from vramplan.memory.vllm import ASLEEP_BYTES

RECORDED = recorded()
WORST, MEDIAN = 0.0005, 0.00001
MODEL, WEIGHTS = "qwen2.5-3b", 3_085_938_688
FSDP = {"version": 1, "backward_prefetch": "pre", "reduce_dtype": "fp32", "use_orig_params": False}
STEP: dict[str, Any] = {
    "task": "grpo", "loss": "log_probs", "loop": "plain", "method": "full", "dtype": "fp32", "autocast": "bf16",
    "optimizer": "adamw_torch", "attention": "flash", "batches": "unpadded", "strategy": "fsdp", "num_gpus": 8,
    "sequence_length": 1024, "prompt_length": 256, "micro_batch_size": 4, "gradient_accumulation_steps": 4,
    "generate_with": "vllm_sleep", "vllm_share": 0.4, "expandable_segments": True,
}  # fmt: skip


def errors_of(row: dict[str, Any]) -> dict[str, float]:
    """The relative error of each phase's peak; what goes to vLLM is no part of the runs."""
    peaks = estimated_peaks(row, GPU)
    return {phase: abs(peaks[phase] / size - 1) for phase, size in row["peaks"].items()}


def step(**changes: Any) -> Any:
    own = {"fsdp": FSDP | {"sync_each_batch": True}, "verl": {}}
    return estimate(MODEL, "h100", **{**STEP, **own, **changes})


@pytest.mark.parametrize(
    "row", RECORDED[::8], ids=lambda row: f"{row['model']} {row['job'].get('method', 'lora')} {row['job']['verl']}"
)
def test_peaks_agree_with_verl(row: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model that is not sharded, which verl itself does not train."""
    monkeypatch.setattr("vramplan.analytic.prepare.check_job", lambda *_: None)
    assert {*row["peaks"]} >= {"scoring", "forward", "backward", "optimizer"}
    assert max(errors_of(row).values()) <= WORST


@pytest.mark.full
def test_all_runs_agree_with_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vramplan.analytic.prepare.check_job", lambda *_: None)
    assert len(RECORDED) >= 48
    errors = [errors_of(row) for row in RECORDED]
    assert max(max(each.values()) for each in errors) <= WORST
    assert median(error for each in errors for error in each.values()) <= MEDIAN


def test_logits_that_are_divided_in_place_are_there_four_times() -> None:
    """CopySlices makes a gradient of the whole, one of the view, and a quotient beside the overwritten logits.

    The backward of a division into a copy makes one gradient.
    """
    at_once = {"gradient_accumulation_steps": 1, "micro_batch_size": 16}
    whole, copied, in_place = (
        step(verl={"logits": logits}, **at_once).phases["backward"] for logits in ("undivided", "copied", "in_place")
    )
    logits = 16 * 1024 * 151_936 * 2
    assert in_place - copied == pytest.approx(2 * logits, rel=0.01)
    assert whole < copied < in_place


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_compiled_code_of_entropies_holds_no_logits() -> None:
    """Of ``entropy_from_logits`` Inductor makes a kernel that writes one number for each row (use_torch_compile)."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tests.inductor_code import code_of, h100

    def entropies(logits: Any) -> list[Any]:
        shares = torch.softmax(logits, dim=-1)
        return [torch.logsumexp(logits, dim=-1) - torch.sum(shares * logits, dim=-1)]

    with FakeTensorMode():
        logits = torch.empty(4096, 151_936, dtype=torch.bfloat16)
    with h100():
        code = code_of(entropies, [logits])
    assert set(re.findall(r"empty_strided_cuda\(\(([^)]*)\)", code)) == {"4096, "}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_compiled_gradient_of_entropies_is_one_tensor_of_logits() -> None:
    """Forward keeps the logits and three numbers of a row; backward writes one tensor (AOTAutograd's partition)."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from functorch.compile import aot_function, make_boxed_func, min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils import _triton

    from tests.inductor_code import code_of, h100

    rows, words, graphs = 4096, 2048, list[Any]()

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph)

    def entropies(logits: Any) -> Any:
        shares = torch.softmax(logits, dim=-1)
        return torch.logsumexp(logits, dim=-1) - torch.sum(shares * logits, dim=-1)

    traced = aot_function(
        entropies, keep, keep,
        partition_fn=min_cut_rematerialization_partition, decompositions=select_decomp_table(),
    )  # fmt: skip
    traced(torch.zeros(rows, words, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    for found in vars(_triton).values():
        if hasattr(found, "cache_clear"):  # it was asked without a GPU
            found.cache_clear()
    own = []
    for graph, shapes in ((graphs[0], [(rows, words)]), (graphs[1], [(rows, words), *[(rows, 1)] * 3, (rows,)])):
        with FakeTensorMode():
            dtypes = [torch.bfloat16, torch.float32, torch.float32, torch.bfloat16, torch.bfloat16]
            given = [torch.empty(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=False)]
        with h100():
            code = code_of(lambda *args, run=torch.fx.Interpreter(graph): list(run.run(*args)), given)
        own.append(re.findall(r"empty_strided_cuda\(\(([^)]*)\)", code))
    assert sorted(own[0]) == ["4096, ", "4096, ", "4096, 1", "4096, 1"]
    assert own[1] == ["4096, 2048"]


def test_a_gradient_of_entropies_stands_beside_that_of_log_probabilities() -> None:
    """Nor is the second written over the logits, which the first needs."""
    at_once = {"gradient_accumulation_steps": 1, "micro_batch_size": 16}
    without, with_it = (step(verl={"entropy": given}, **at_once).phases["backward"] for given in (False, True))
    assert 1.8 < (with_it - without) / (16 * 1024 * 151_936 * 2) < 2.01


CRITIC = {"sequence_length": 1024, "micro_batch_size": 4, "gradient_accumulation_steps": 4, "scored_tokens": 4096}


def test_a_critic_keeps_weights_and_states_beside_the_actors() -> None:
    """An eighth of fp32 weights without a head of their own, and twice as much of states from its first update on."""
    alone, both = step(verl={}).phases, step(verl={"critic": CRITIC}).phases
    own = 4 * WEIGHTS / 8
    assert both["loaded"] - alone["loaded"] == pytest.approx(own, rel=0.01)
    for phase in ("generation", "scoring", "forward", "backward", "optimizer"):
        assert both[phase] - alone[phase] == pytest.approx(3 * own, rel=0.01)
    assert both["values"] < both["critic"]


def test_a_critic_in_host_memory_is_there_while_it_runs() -> None:
    off = {"param_offload": True, "optimizer_offload": True}
    here, away, alone = (step(verl=verl).phases for verl in ({"critic": CRITIC}, {"critic": {**CRITIC, **off}}, {}))
    assert away["critic"] == pytest.approx(here["critic"], rel=0.001)
    assert {name: away[name] for name in alone} == alone


def test_a_critic_of_another_model() -> None:
    small = step(verl={"critic": {**CRITIC, "model": "qwen2.5-0.5b"}}).phases
    assert small["loaded"] < step(verl={"critic": CRITIC}).phases["loaded"]


def test_gradients_that_are_reduced_each_time_are_not_kept_whole() -> None:
    """Without it, 3 B gradients in bf16 wait for the last micro-batch, and not an eighth of them in fp32."""
    each, last = (
        step(fsdp=FSDP | {"sync_each_batch": given}, micro_batch_size=1).phases["backward"] for given in (True, False)
    )
    assert last - each > 0.9 * (2 - 4 / 8) * WEIGHTS - 2 * 151_936 * 2048


def test_what_waits_in_host_memory_leaves_room_for_vllm() -> None:
    """An eighth of fp32 weights, and twice as much of states."""
    here, without_states, without_both = (
        step(verl=verl).phases["generation"]
        for verl in ({}, {"optimizer_offload": True}, {"optimizer_offload": True, "param_offload": True})
    )
    own = 4 * WEIGHTS / 8
    assert here - without_states == pytest.approx(2 * own, rel=0.01)
    assert without_states - without_both == pytest.approx(own, rel=0.01)
    backward = {step(verl=verl).phases["backward"] for verl in ({}, {"optimizer_offload": True, "param_offload": True})}
    assert len(backward) == 1, "all of it is back while the actor is updated"


def test_adapters_are_taken_from_the_whole_model() -> None:
    """summon_full_params gathers all weights in their stored dtype, unless it does so a layer at a time."""
    lora = {"method": "lora", "lora_dtype": "fp32", "vllm_share": 0.11, "vllm_max_length": 2048}
    whole, layered = (step(verl={"layered_summon": given}, **lora).phases["generation"] for given in (False, True))
    assert whole > 4 * WEIGHTS + 2 * WEIGHTS + ASLEEP_BYTES
    assert whole - layered > 0.5 * 4 * WEIGHTS


def test_more_tokens_are_scored_than_trained_on() -> None:
    few, many = (step(verl={"scored_tokens": tokens}).phases["scoring"] for tokens in (4 * 1024, 32 * 1024))
    assert many - few > 28 * 1024 * 151_936 * 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"strategy": "zero3", "fsdp": {}}, "under FSDP alone"),
        ({"generate_with": "transformers", "vllm_share": 0.3}, "verl's actor with vLLM"),
        ({"lora_dropout": 0.1, "method": "lora"}, "without quantization and dropout"),
        ({"verl": {"critic": {**CRITIC, "model": "gemma-3-1b-pt"}}}, "gemma3_text with a value for each token"),
        ({"verl": {"critic": {**CRITIC, "model": "qwen2.5-vl-3b"}}}, "is not modelled"),
        ({"verl": {"scored_tokens": 1000}}, "whole samples of sequence_length=1024"),
        ({"task": None, "prompt_length": None, "generate_with": "transformers", "vllm_share": 0.3,
          "verl": {"param_offload": True}}, "verl has no meaning without"),
        ({"task": None, "prompt_length": None, "generate_with": "transformers", "vllm_share": 0.3, "loss": "standard",
          "fsdp": {"version": 2, "sync_each_batch": True}}, "sync_each_batch is modelled for FSDP version 1"),
    ],
)  # fmt: skip
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as caught:
        step(**changes)
    assert said in str(caught.value)
