"""NeMo Automodel's step, NeMo RL's nearest job, and token budgets of projects that are not read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import ROOT, card_of, spec_of
from vramplan.analytic import estimator
from vramplan.errors import VramplanError
from vramplan.frameworks.nearest import estimate_command
from vramplan.frameworks.token_keys import budget_in, budget_in_words
from vramplan.inputs.job import Job
from vramplan.planner.check import check
from vramplan.planner.estimate import estimate
from vramplan.planner.verdict import Verdict

CONFIGS = ROOT / "tests" / "configs"
STEP = {
    "method": "full", "dtype": "bf16", "autocast": "none", "loop": "plain", "optimizer": "adamw_torch",
    "checkpointing": "none", "keeps_outputs": True,
}  # fmt: skip


def verdict_of(name: str, gpu: str = "h100", **settings: str) -> Verdict:
    """The verdict on one of the configurations, on one GPU."""
    return check(CONFIGS / "nemo-automodel" / name, gpu, num_gpus=1, settings=settings, sequence_length=1024)


def test_outputs_that_a_loop_keeps() -> None:
    """Logits in bf16 stay while their gradients are computed; keys and values of every layer beside them."""
    spec = spec_of("Qwen/Qwen3-0.6B", num_hidden_layers=8)
    peaks = {
        keeps: estimator.estimate(spec, Job(**{**STEP, "keeps_outputs": keeps}), card_of()).peak_allocated_bytes
        for keeps in (False, True)
    }
    logits = 2048 * 151936 * 2
    assert peaks[True] - peaks[False] == pytest.approx(logits, rel=0.01)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"batches": "padded", "micro_batch_size": 2, "gradient_accumulation_steps": 2},
        {"batches": "padded", "attention": "flash"},
        {"batches": "packed", "attention": "flash"},
        {"checkpointing": "full"},
        {"method": "lora", "lora_dtype": "bf16"},
    ],
)
def test_kept_outputs_as_they_are_traced(given: dict[str, Any]) -> None:
    pytest.importorskip("torch", reason="the trace needs the extra vramplan[probe]")
    from vramplan.torch_backend.trace import trace

    spec = spec_of("Qwen/Qwen3-0.6B", num_hidden_layers=3, vocab_size=4096)
    job = Job(**{**STEP, "sequence_length": 512, **given})
    ours, traced = estimator.estimate(spec, job, card_of()), trace.estimate(spec, job, card_of())
    assert ours.peak_allocated_bytes == pytest.approx(traced.peak_allocated_bytes, rel=1e-3)


@pytest.mark.parametrize("given", [{"loop": "trainer"}, {"loss": "liger"}, {"strategy": "fsdp", "num_gpus": 2}])
def test_kept_outputs_elsewhere_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(VramplanError, match="keeps_outputs is modelled for"):
        estimate("Qwen/Qwen3-0.6B", "h100", **{**STEP, **given})


def test_a_pack_is_one_row_of_the_budget() -> None:
    """The reader's job needs what the same settings need through `vramplan estimate`."""
    packed = check(CONFIGS / "nemo-automodel" / "packed.yaml", "h100", num_gpus=1)
    settings = {**STEP, "fused_kernels": ("rms_norm",), "batches": "packed", "attention": "flash"}
    same = estimate("meta-llama/Llama-3.2-1B", "h100", sequence_length=8192, gradient_accumulation_steps=8, **settings)
    assert packed.need_bytes == same.device_total_bytes
    assert (packed.reading.rows, packed.estimate.job.micro_batch_size) == ("packed", 1)


def test_a_longer_sample_does_not_shrink_a_pack() -> None:
    path = CONFIGS / "nemo-automodel" / "packed.yaml"
    assert check(path, "h100", num_gpus=1, sequence_length=512, look_further=False).estimate.job.sequence_length == 8192


def test_a_budget_that_does_not_fit_gets_a_smaller_one() -> None:
    verdict = check(
        CONFIGS / "nemo-automodel" / "packed.yaml",
        "rtx4090",
        num_gpus=1,
        settings={"packed_sequence.packed_sequence_size": "131072"},
    )
    assert not verdict.fits
    fitting = [effect for effect in verdict.advice if effect.fits]
    assert any("packed_sequence.packed_sequence_size" in " ".join(effect.settings) for effect in fitting)


def test_neat_packs_carry_a_mask() -> None:
    neat = verdict_of("packed.yaml", **{"packed_sequence.packing_strategy": "neat"}).estimate.job
    assert (neat.batches, neat.sequence_length) == ("padded", 8192)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"distributed.tp_size": "2"}, "distributed.tp_size: 2 is not modelled yet"),
        ({"distributed.activation_checkpointing": "selective"}, "checkpoints parts of each layer"),
        ({"packed_sequence.packed_sequence_size": "-4"}, "expected a whole number of at least 0"),
        (
            {"packed_sequence.packed_sequence_size": "8", "packed_sequence.packing_strategy": "x"},
            "expected thd or neat",
        ),
        ({"distributed.stratgy": "ddp"}, "nemo-automodel does not know this key; did you mean distributed.strategy"),
        ({"step_scheduler.local_batchsize": "4"}, "did you mean step_scheduler.local_batch_size"),
        ({"recipe": "KnowledgeDistillationRecipeForNextTokenPrediction"}, "is not read yet; read: TrainFinetuneRecipe"),
        ({"model.pretrained_model_name_or_path": "Qwen/Qwen3-30B-A3B"}, "layers of NeMo Automodel's own"),
        ({"model.output_hidden_states": "true"}, "changes the model or its layers"),
        ({"optimizer._target_": "torch.optim.Adam"}, "torch.optim.Adam with weight_decay 0.1 is not modelled"),
        ({"peft.dim": "8", "peft.dropout": "0.1"}, "behind the adapter is not modelled"),
        ({"peft.dim": "8", "peft.target_modules": "*.layers.0.*"}, r"is not read yet; read: '\*_proj'"),
    ],
)
def test_what_is_not_modelled_is_refused(settings: dict[str, str], text: str) -> None:
    with pytest.raises(VramplanError, match=text):
        verdict_of("full.yaml", **settings)


@pytest.mark.parametrize(
    ("line", "other", "text"),
    [
        ("  weight_decay: 0.1\n", "", "adam with weight_decay 0.01 is not modelled"),
        ("  _target_: torch.optim.AdamW\n", "", "optimizer._target_ is not set"),
        (
            "  _target_: nemo_automodel.components.loss.masked_ce.MaskedCrossEntropy",
            "  {}",
            "loss_fn._target_ is not set",
        ),
    ],
)
def test_what_it_stops_without(line: str, other: str, text: str, tmp_path: Path) -> None:
    """Its own "adam" decays weights by 0.01 unless a decay is set; torch's does not (components/optim/optimizer.py)."""
    config = (CONFIGS / "nemo-automodel" / "full.yaml").read_text()
    assert line in config
    settings = {"optimizer._target_": "adam"} if "decay" in line else {}
    path = tmp_path / "full.yaml"
    path.write_text(config.replace(line, other))
    with pytest.raises(VramplanError, match=text):
        check(path, "h100", num_gpus=1, settings=settings)


def test_adapters_have_the_dtype_of_the_weights() -> None:
    job = verdict_of("full.yaml", **{"peft.dim": "16", "peft.target_modules": "*.q_proj"}).estimate.job
    assert (job.method, job.lora_rank, job.lora_targets, job.lora_dtype) == ("lora", 16, ("q_proj",), "bf16")


@pytest.mark.parametrize(
    ("model", "force_hf", "kernels"),
    [
        ("Qwen/Qwen2.5-0.5B", "false", ("rms_norm",)),
        ("Qwen/Qwen2.5-0.5B", "true", ()),
        ("Qwen/Qwen3-0.6B", "false", ()),
        ("mistralai/Mistral-7B-v0.1", "false", ()),
    ],
)
def test_only_its_own_llama_and_qwen2_have_compiled_norms(model: str, force_hf: str, kernels: tuple[str, ...]) -> None:
    settings = {"model.pretrained_model_name_or_path": model, "model.force_hf": force_hf}
    assert verdict_of("full.yaml", **settings).estimate.job.fused_kernels == kernels


def test_ddps_own_buckets_are_refused() -> None:
    settings = {"distributed.strategy": "ddp", "distributed.bucket_cap_mb": "100"}
    path = CONFIGS / "nemo-automodel" / "full.yaml"
    with pytest.raises(VramplanError, match=r"distributed\.bucket_cap_mb: 100 is not modelled yet"):
        check(path, "h100", num_gpus=2, settings=settings, sequence_length=512)


def test_nothing_is_sharded_on_one_gpu() -> None:
    assert verdict_of("full.yaml", **{"distributed.strategy": "fsdp2"}).estimate.job.strategy == "ddp"


def test_the_nearest_command_leaves_out_what_is_the_default() -> None:
    command = estimate_command("", {"method": "lora", "lora_rank": 16, "lora_targets": ("q_proj", "v_proj")})
    assert command == "vramplan estimate MODEL --gpu GPU --lora-rank 16 --lora-targets q_proj,v_proj"


SLIME = """
PERF_ARGS=(
   # --micro-batch-size 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 10240
)
ray job submit --address=http://127.0.0.1:8265 -- python3 train.py --actor-num-nodes 1 ${MODEL_ARGS[@]} ${PERF_ARGS[@]}
"""


def test_slimes_budget_in_an_array(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(SLIME)
    with pytest.raises(VramplanError, match=r"run.sh:7: slime is not read yet; max_tokens_per_gpu 10,240 is its"):
        check(script, "h100")


VEOMNI = {"model": {"model_path": "m"}, "data": {"max_seq_len": 4096}, "train": {"micro_batch_size": 2}}


def test_veomnis_budget_is_a_product() -> None:
    name = "train.micro_batch_size x data.max_seq_len"
    assert budget_in(VEOMNI) == ("veomni", name, 8192)
    assert budget_in({**VEOMNI, "train": {}}) == ("veomni", name, 4096)
    assert budget_in({**VEOMNI, "train": {"dyn_bsz": False}}) is None
    assert budget_in({**VEOMNI, "model": {}}) is None
    assert budget_in({**VEOMNI, "data": {"max_seq_len": "many"}}) is None
    words = ["--model.model_path", "m", "--data.max_seq_len=2048", "--train.micro_batch_size", "3"]
    assert budget_in_words(["tasks/train_text.py", *words]) == ("veomni", name, 6144)
    assert budget_in_words(["tasks/train_text.py", *words, "--train.dyn_bsz", "false"]) is None
