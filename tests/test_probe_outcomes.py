"""What a probe reports when memory runs out while the model is built, and that it runs the job that was asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="probes need the extra vramplan[probe]")

import vramplan  # noqa: E402
from tests.helpers import card_of, measured_of, spec_of  # noqa: E402
from tests.test_trace import job_of, small  # noqa: E402
from vramplan.errors import ConfigError, MissingDependencyError, UnsupportedError  # noqa: E402
from vramplan.measurements import probe, probe_checks, subprocess_runner  # noqa: E402
from vramplan.measurements.measure import summary_line  # noqa: E402
from vramplan.measurements.probe import probe_device  # noqa: E402
from vramplan.measurements.probe_checks import check_method, check_packages  # noqa: E402
from vramplan.measurements.verify import ProbeRun  # noqa: E402
from vramplan.memory.measurement import Request  # noqa: E402
from vramplan.torch_backend.model import build, mapped, optimizers, trl_loss  # noqa: E402
from vramplan.torch_backend.probe import run  # noqa: E402

LLAMA = small("llama", num_key_value_heads=2)


def test_memory_that_runs_out_while_the_model_is_built_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def constructor(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 260.00 MiB.")

    monkeypatch.setattr(build, "_class_for", lambda *_: constructor)
    monkeypatch.setattr(subprocess_runner, "run", lambda request, timeout, tell, **_: run.run(request, tell))
    device = probe.probe_device(card_of("rtx4090"), device="cpu")
    result = probe.probe(LLAMA, on=device, sequence_length=32, attention="eager")
    assert not result.fits
    assert result.measured.failed_phase == "loaded"
    assert result.measured.message.startswith("CUDA out of memory")
    assert summary_line(result) == "out of memory while loading"


def test_a_phase_in_words() -> None:
    measured = measured_of(job_of(), outcome="oom", failed_phase="backward")
    assert summary_line(ProbeRun(measured.job, measured, None)) == "out of memory in backward"


@pytest.mark.parametrize(("loop", "bits", "overrides"), [("trainer", 8, 1), ("trainer", 32, 0), ("plain", 8, 0)])
def test_8_bit_optimizers_keep_embeddings_in_32_bits(
    loop: str, bits: int, overrides: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the Trainer does; a plain loop has nobody who would."""
    registered: list[Any] = []
    manager = SimpleNamespace(
        initialize=registered.clear, register_module_override=lambda *given: registered.append(given)
    )
    optim = SimpleNamespace(GlobalOptimManager=SimpleNamespace(get_instance=lambda: manager))
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace(optim=optim))

    class AdamW(torch.optim.AdamW):
        def __init__(self, groups: Any, optim_bits: int) -> None:
            super().__init__(groups)

    AdamW.__module__ = "bitsandbytes.optim.adamw"
    module = torch.nn.ModuleDict({"embed": torch.nn.Embedding(8, 4), "head": torch.nn.Linear(4, 8)})
    job = job_of(method="full", loop=loop, optimizer="adamw_8bit")
    optimizers.make((AdamW, {"optim_bits": bits}), module, job)
    assert registered == [(module["embed"], "weight", {"optim_bits": 32})] * overrides


def test_deepspeed_has_a_process_group_on_one_gpu() -> None:
    """Without one its probe would run the plain loop: no fp32 master weights, no flat gradients."""
    card = card_of("rtx4090")
    for strategy, meets in (("ddp", False), ("zero2", True)):
        request = Request(spec=LLAMA, job=job_of(strategy=strategy, autocast="none"), card=card)
        (alone,) = subprocess_runner._requests_of_ranks(request)
        assert (alone.meeting_point is not None) == meets


@pytest.mark.parametrize(("strategy", "num_gpus"), [("zero0", 1), ("zero3", 8), ("fsdp", 8), ("device_map", 2)])
def test_a_trace_refuses_what_it_does_not_divide(strategy: str, num_gpus: int) -> None:
    autocast = "none" if strategy.startswith("zero") else "bf16"
    job = {"strategy": strategy, "num_gpus": num_gpus, "autocast": autocast}
    with pytest.raises(UnsupportedError, match=rf"strategy={strategy}: .*use by=analytic"):
        vramplan.estimate(spec_of("Qwen/Qwen2.5-0.5B"), "rtx4090", by="trace", **job)


@pytest.mark.parametrize("tied", [True, False])
def test_a_mapped_model_is_loaded_by_transformers_with_random_weights(tied: bool) -> None:
    """Weights of one size are alike: the host holds the largest alone, whatever the model's size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(**sizes, vocab_size=256, tie_word_embeddings=tied)
    model = mapped.load(lambda: LlamaForCausalLM(config).to(torch.bfloat16), LLAMA, job_of(device_map=True), "cpu")
    weights = dict(model.named_parameters())
    assert {(weight.dtype, weight.device.type) for weight in weights.values()} == {(torch.bfloat16, "cpu")}
    assert len(weights) == 20 + (not tied)
    assert len({weight.data_ptr() for weight in weights.values()}) == 1
    assert all(0.005 < weight.float().std() < 0.05 for weight in weights.values())
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_quantized_layers_need_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingDependencyError, match=r"^quantize=nf4 needs bitsandbytes: pip install bitsandbytes$"):
        mapped.load(lambda: None, LLAMA, job_of(quantize="nf4"), "cuda:0")


@pytest.mark.parametrize(
    ("device", "settings", "message"),
    [
        ("cpu", {"quantize": "int8"}, "quantize=int8 device=cpu: bitsandbytes' kernels"),
        (
            "cuda",
            {"quantize": "nf4", "strategy": "fsdp", "num_gpus": 2},
            "sharded quantized weights .* strategy=ddp",
        ),
        ("cuda", {"strategy": "device_map", "num_gpus": 2}, "strategy=device_map is not probed yet"),
    ],
)
def test_what_is_not_probed_is_refused_by_name(device: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        check_method(LLAMA, job_of(**settings), device)


def test_quantized_layers_are_probed_on_gpus() -> None:
    check_method(LLAMA, job_of(quantize="nf4"), "cuda")
    check_method(LLAMA, job_of(quantize="nf4", strategy="zero2", num_gpus=2, autocast="none"), "cuda")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"strategy": "zero2", "num_gpus": 2, "autocast": "none"}, "strategy=zero2 needs deepspeed"),
        ({"attention": "flash"}, "attention=flash needs flash-attn: pip install flash-attn"),
        ({"quantize": "nf4"}, "quantize=nf4 needs bitsandbytes"),
    ],
)
def test_missing_packages_are_named_before_a_run(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(probe_checks, "find_spec", lambda _: None)
    check_packages(job_of())
    with pytest.raises(MissingDependencyError, match=message):
        check_packages(job_of(**settings))


def test_runs_are_saved_in_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    file.touch()
    with pytest.raises(ConfigError, match=r"runs are saved in a folder, and .*runs\.jsonl is a file"):
        probe_device("rtx4090", device="cpu", record=file)
    probe_device("rtx4090", device="cpu", record=tmp_path / "new" / "runs")
    assert not (tmp_path / "new").exists()


class Head(torch.nn.Module):
    """Has TRL's fused LM head once :func:`add_fused_lm_head` is called."""

    def forward(self, labels: Any) -> None:
        raise AssertionError("the model's own loss")


def add_fused_lm_head(model: Any, outputs: tuple[str, ...]) -> None:
    assert "log_probs" in outputs

    def forward(labels: Any, fused_lm_head: bool = False) -> Any:
        assert fused_lm_head
        mask = labels[:, 1:] != -100
        return SimpleNamespace(log_probs=-2.0 * mask, label_mask=mask)

    model.forward = forward


def test_the_loss_of_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """As SFTTrainer calls its fused LM head: the mean over the tokens that have labels, or over all of a step."""
    utils = SimpleNamespace(add_fused_lm_head=add_fused_lm_head)
    for name, module in {
        "trl": SimpleNamespace(),
        "trl.trainer": SimpleNamespace(),
        "trl.trainer.utils": utils,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("transformers.utils.is_triton_available", lambda: True)
    model, labels = Head(), torch.tensor([[1, 2, -100, 3]])
    trl_loss.use(model, "a model")
    assert float(model(labels=labels).loss) == 2.0
    assert float(model(labels=labels, num_items_in_batch=torch.tensor(8)).loss) == 0.5
    monkeypatch.setattr("transformers.utils.is_triton_available", lambda: False)
    with pytest.raises(MissingDependencyError, match="loss=chunked on a GPU needs Triton"):
        trl_loss.use(Head(), "a model")
    monkeypatch.setitem(sys.modules, "trl.trainer.utils", None)
    with pytest.raises(MissingDependencyError, match="loss=chunked on a GPU needs TRL"):
        trl_loss.use(Head(), "a model")


def test_lengths_are_run_as_they_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every micro-batch of a job whose samples differ in length, the longest last."""
    monkeypatch.setattr("vramplan.inputs.sample_lengths.MICRO_STEPS", 5)
    monkeypatch.setattr(subprocess_runner, "run", lambda request, timeout, tell, **_: run.run(request, tell))
    device = probe.probe_device(card_of("rtx4090"), device="cpu")
    settings = {"sequence_length": 64, "lengths": (16, 32, 64), "attention": "eager", "gradient_accumulation_steps": 2}
    result = probe.probe(LLAMA, on=device, **settings)
    assert result.predicted is not None
    measured = result.measured
    assert len(measured.step_seconds) == 4
    assert measured.micro_steps_run == 2
    assert measured.tokens_per_second is None
    assert measured.peak_allocated_bytes == pytest.approx(result.predicted.peak_allocated_bytes, rel=0.003)
    assert measured.peak_reserved_bytes == pytest.approx(result.predicted.peak_reserved_bytes, rel=0.03)
