"""The check inside a training script: real Trainers, stopped before their first step or let through."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, Trainer, TrainingArguments

import vramplan
from tests.helpers import spec_of
from vramplan import trainer_callback
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.trainer_callback import _of_adapters

SMALL = LlamaConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=256, pad_token_id=0
)


def data(length: int = 24) -> list[dict[str, torch.Tensor]]:
    ids = torch.arange(length)
    return [{"input_ids": ids, "labels": ids} for _ in range(4)]


def trainer(folder: Path, callbacks: list[Any] | None = None, adapters: bool = False, **given: Any) -> Trainer:
    model = LlamaForCausalLM(SMALL)
    if adapters:
        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    args = TrainingArguments(
        output_dir=str(folder), max_steps=1, use_cpu=True, report_to="none", save_strategy="no", **given
    )
    return Trainer(model, args, train_dataset=data(), callbacks=callbacks)


def test_a_run_that_fits_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = trainer(
        tmp_path, [vramplan.Preflight("rtx3060")], per_device_train_batch_size=2, gradient_accumulation_steps=2
    )
    one.train()
    assert one.state.global_step == 1
    said = capsys.readouterr().out
    assert "FITS" in said
    assert "2 × 2 × 1 = 4" in said
    assert "24 tokens" in " ".join(said.split())


def test_a_run_that_does_not_fit_takes_no_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = trainer(tmp_path, [vramplan.Preflight("rtx3060", sequence_length=1 << 20)], per_device_train_batch_size=64)
    with pytest.raises(vramplan.DoesNotFit, match="RTX 3060") as stopped:
        one.train()
    assert one.state.global_step == 0
    assert not stopped.value.verdict.fits
    assert isinstance(stopped.value, VramplanError)
    assert "DOES NOT FIT" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_what_it_sees(tmp_path: Path) -> None:
    one = trainer(
        tmp_path, adapters=True, bf16=True, gradient_checkpointing=True, optim="adafactor", eval_strategy="no"
    )
    found = vramplan.preflight(one, gpu="h100")
    job = found.estimate.job
    assert (job.method, job.lora_rank, job.lora_dtype) == ("lora", 4, "fp32")
    assert (job.dtype, job.autocast, job.optimizer) == ("fp32", "bf16", "adafactor")
    assert (job.checkpointing, job.sequence_length, job.micro_batch_size) == ("full", 24, 8)
    assert found.estimate.num_trainable_parameters == sum(p.numel() for p in one.model.parameters() if p.requires_grad)


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_what_trains_beside_adapters(tmp_path: Path) -> None:
    model = LlamaForCausalLM(SMALL)
    config = LoraConfig(r=4, target_modules="all-linear", use_dora=True, modules_to_save=["lm_head"])
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    found = vramplan.preflight(args, get_peft_model(model, config), "h100", sequence_length=16)
    job = found.estimate.job
    assert (job.method, job.modules_to_save, job.saved_dtype) == ("dora", ("lm_head",), "fp32")
    assert not [note for note in found.reading.notes if "parameters of this model train" in note.text]


class Linear8bitLt(torch.nn.Linear):
    """What bitsandbytes' layer looks like from outside."""

    state = SimpleNamespace(threshold=6.0)


class Linear4bit(torch.nn.Linear):
    """The same in four bits."""

    compute_dtype = torch.bfloat16


@pytest.mark.parametrize(
    ("kind", "upcast", "job"),
    [
        (Linear8bitLt, "", {"quantize": "int8", "dtype": "bf16"}),
        (Linear8bitLt, "model lm_head", {"quantize": "int8", "dtype": "fp32", "prepare_for_kbit_training": True}),
        (Linear4bit, "", {"quantize": "nf4", "double_quant": True, "dtype": "bf16"}),
        (
            Linear4bit,
            "model lm_head",
            {"quantize": "nf4", "double_quant": True, "dtype": "bf16", "prepare_for_kbit_training": True},
        ),
        (Linear4bit, "norm", {"quantize": "nf4", "double_quant": True, "dtype": "bf16", "fp32_norms": True}),
    ],
)
def test_quantized_models(tmp_path: Path, kind: type, upcast: str, job: dict[str, Any]) -> None:
    """Layers are recognised by their class, PEFT's preparation by what it made fp32."""
    model = LlamaForCausalLM(SMALL).to(torch.bfloat16)
    for path, one in model.named_modules():
        if any(word in path for word in upcast.split()):
            one.float()
    for path, one in model.named_modules():
        if isinstance(one, torch.nn.Linear) and "lm_head" not in path:
            one.__class__ = kind
            one.weight = torch.nn.Parameter(one.weight.to(torch.int8), requires_grad=False)
            one.weight.compress_statistics = True  # type: ignore[attr-defined]
    found = trainer_callback.read(TrainingArguments(output_dir=str(tmp_path), use_cpu=True), model).job
    assert {
        key: found[key] for key in found if key in {*job, "quantize", "prepare_for_kbit_training", "fp32_norms"}
    } == job


def test_the_same_as_by_hand(tmp_path: Path) -> None:
    """A model of the catalogue, on meta, against `estimate` with the same words."""
    spec = spec_of("Qwen/Qwen2.5-0.5B")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(spec.model_type, **spec.config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=True, per_device_train_batch_size=2)
    found = vramplan.preflight(args, model, "rtx4090", sequence_length=1024)
    by_hand = vramplan.estimate(
        spec, "rtx4090", method="full", micro_batch_size=2, sequence_length=1024, checkpointing="none", batches="padded"
    )
    assert found.estimate.device_total_bytes == by_hand.device_total_bytes


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a Trainer, or TrainingArguments and a model"):
        vramplan.preflight(object())
    args = TrainingArguments(output_dir=str(tmp_path), use_cpu=True)
    with pytest.raises(ConfigError, match="give sequence_length"):
        vramplan.preflight(args, LlamaForCausalLM(SMALL), "h100")
    smooth = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, label_smoothing_factor=0.1)
    with pytest.raises(UnsupportedError, match="label_smoothing_factor"):
        vramplan.preflight(smooth, LlamaForCausalLM(SMALL), "h100", sequence_length=16)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"target_modules": "all-linear"}, {"gate", "gate_proj", "up_proj", "down_proj", "q_proj"}),
        ({"target_modules": ["q_proj"]}, {"q_proj"}),
        ({"target_modules": ["q_proj"], "target_parameters": ["gate_up_proj"]}, None),
    ],
)
def test_adapters_on_experts(given: dict[str, Any], names: set[str] | None) -> None:
    """PEFT has turned names into parameters by the time anyone looks; other parameters are refused by name."""
    sizes = {"hidden_size": 32, "moe_intermediate_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3MoeConfig(**sizes, num_hidden_layers=1, num_experts=4, vocab_size=64, head_dim=8)
    adapted = get_peft_model(Qwen3MoeForCausalLM(config), LoraConfig(r=4, task_type="CAUSAL_LM", **given))
    if names is None:
        with pytest.raises(UnsupportedError, match="target_parameters gate_up_proj"):
            _of_adapters(adapted, "fp32")
    else:
        assert names <= set(_of_adapters(adapted, "fp32")["lora_targets"])
