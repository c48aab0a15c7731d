"""Liger's kernels: held against what its own host code allocates in PyTorch's CUDA build, and what switches them on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vramplan
from tests.helpers import cli, setting_of, spec_of
from vramplan.analytic.layers.liger_models import LIGER_MODELS, LigerLayers, liger_layers, liger_model
from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.frameworks.detect import from_path
from vramplan.frameworks.liger import liger_fields, liger_pairs
from vramplan.frameworks.write import write
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import FUSED_KERNELS
from vramplan.inputs.model_spec import ModelSpec
from vramplan.planner.check import read

SMALL: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 2048,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
GELU = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768, "norm_topk_prob": True}
FULL, LORA = {"method": "full", "checkpointing": "none"}, {"method": "lora", "checkpointing": "full"}
ALL: dict[str, Any] = {"loss": "liger", "fused_kernels": FUSED_KERNELS}


def small(model_type: str, **more: Any) -> ModelSpec:
    """A model of three layers."""
    return ModelSpec(name=f"small {model_type}", model_type=model_type, config={**SMALL, **more})


@pytest.mark.parametrize(
    ("model_type", "more", "job", "measured_bytes"),
    [
        ("llama", {}, FULL, 582_830_592),
        ("llama", {}, LORA, 293_868_032),
        ("qwen2", {}, FULL, 582_862_848),
        ("qwen3", {}, FULL, 598_817_280),
        ("gemma", GELU, FULL, 570_247_680),
        ("gemma3_text", GELU | {"sliding_window": 512}, FULL, 636_645_888),
        ("olmo2", {}, FULL, 646_076_416),
        ("qwen3_moe", MOE, FULL, 643_566_592),
    ],
)
def test_like_pytorch(model_type: str, more: dict[str, Any], job: dict[str, Any], measured_bytes: int) -> None:
    """torch.cuda.max_memory_allocated of PyTorch 2.13, transformers 5.23 and liger-kernel 0.8.5, without the kernels.

    Their host code ran on the CUDA build, in transformers' Trainer for an A100, with launches of Triton's left out.
    """
    found = vramplan.estimate(
        small(model_type, **more), "a100-80gb-sxm", sequence_length=512, micro_batch_size=4, **ALL, **job
    )
    assert found.peak_allocated_bytes == pytest.approx(measured_bytes, rel=1e-4)


@pytest.mark.parametrize(
    ("loss", "kernels", "measured_bytes"),
    [
        ("standard", (), 20_928_062_976),
        ("standard", ("rms_norm",), 19_821_815_296),
        ("standard", ("swiglu",), 19_854_321_152),
        ("liger", (), 15_285_663_232),
        ("liger", FUSED_KERNELS, 13_054_293_504),
        ("liger_cross_entropy", FUSED_KERNELS, 17_697_399_296),
    ],
)
def test_each_kernel(loss: Any, kernels: tuple[str, ...], measured_bytes: int) -> None:
    """The same for Llama 3.2 1B whole, 4 x 1,024 tokens without checkpointing, with some of the kernels."""
    found = vramplan.estimate(
        "llama-3.2-1b",
        "a100-80gb-sxm",
        sequence_length=1024,
        micro_batch_size=4,
        loss=loss,
        fused_kernels=kernels,
        **FULL,
    )
    assert found.peak_allocated_bytes == pytest.approx(measured_bytes, rel=1e-5)


MEASURED_RESERVED_GIB = 37.5
"""stas00/ml-engineering, insights/when-to-upgrade-gpus: benchmark.py, 65,536 tokens on eight H200s."""


def test_long_text_under_zero() -> None:
    """Llama 3.1 8B by DeepSpeed's own defaults, FlashAttention, Liger's kernels, the optimizer on the host.

    A weight of 0.98 GiB that is released waits for the kernels that use it (free_param: record_stream), so a run may
    reserve memory for one more than an allocator for which kernels take no time: 36.1 GiB.
    """
    zero = {
        "reduce_bucket_size": 500_000_000,
        "prefetch_bucket_size": 50_000_000,
        "param_persistence_threshold": 100_000,
        "overlap_comm": True,
    }
    job: dict[str, Any] = {
        "method": "full",
        "autocast": "none",
        "num_gpus": 8,
        "strategy": "zero3",
        "zero": zero,
        "offload": "optimizer",
        "attention": "flash",
        "loop": "plain",
        **ALL,
    }
    model = "meta-llama/Llama-3.1-8B"
    found = vramplan.estimate(model, "h200-sxm", sequence_length=65_536, **job)
    assert found.peak_reserved_bytes / 2**30 == pytest.approx(MEASURED_RESERVED_GIB, abs=0.98 + 0.5)
    assert vramplan.estimate(model, "h200-sxm", sequence_length=262_144, **job).fits, "it ran"
    assert not vramplan.estimate(model, "h200-sxm", sequence_length=262_144, **job | {"fused_kernels": ()}).fits


# -- where Liger has kernels -------------------------------------------------------------------------------------------


def test_models_without_kernels() -> None:
    with pytest.raises(ConfigError, match="has nothing for cohere"):
        vramplan.estimate(small("cohere"), "a100-80gb-sxm", **ALL)
    with pytest.raises(ConfigError, match="does not fuse the head of granite"):
        vramplan.estimate(small("granite"), "a100-80gb-sxm", **ALL)
    found = vramplan.estimate(
        small("granite"), "a100-80gb-sxm", loss="liger_cross_entropy", fused_kernels=("rms_norm",)
    )
    assert found.fits
    alone = vramplan.estimate(small("cohere"), "a100-80gb-sxm", loss="liger")
    assert any("no fused head for cohere" in note for note in alone.notes)


def test_a_kernel_that_the_model_lacks_changes_nothing() -> None:
    """Qwen2-VL rotates by another function than Liger replaces; a text model has no GeGLU beside SwiGLU."""
    qwen = liger_model("qwen2_vl", "qwen2_vl_text")
    assert not liger_layers(qwen, FUSED_KERNELS, 108).rope
    assert liger_layers(liger_model("llama", "llama"), ("geglu", "layer_norm"), 108)[:4] == (
        False,
        frozenset(),
        True,
        False,
    )
    llava = liger_model("llava", "mistral")
    assert llava is not None
    assert llava.rope
    assert llava.mlp == "swiglu"
    assert all(model.mlp in ("swiglu", "geglu", "") for model in LIGER_MODELS.values())


def test_names_of_kernels() -> None:
    done = cli("estimate", "llama-3.2-1b", "--gpu", "a100-80gb-sxm", "--fused-kernels", "rmsnorm")
    assert done.returncode == 2
    assert "did you mean rms_norm" in done.stderr
    done = cli("estimate", "llama-3.2-1b", "--gpu", "a100-80gb-sxm", "--fused-kernels", "all", "-v")
    assert "Liger's kernels for rope, rms_norm" in " ".join(done.stdout.split())


def test_no_trace() -> None:
    pytest.importorskip("torch")
    with pytest.raises(UnsupportedError, match="run on a GPU alone"):
        vramplan.estimate("llama-3.2-1b", "a100-80gb-sxm", by="trace", **ALL)


def test_apple() -> None:
    with pytest.raises(VramplanError, match="Triton's"):
        vramplan.estimate(
            "llama-3.2-1b", "apple-m1-pro-16gb", fused_kernels=("rope",), attention="eager", autocast="none"
        )


# -- what switches them on ---------------------------------------------------------------------------------------------

TRAINER = "python run_clm.py --model_name_or_path meta-llama/Llama-3.2-1B --per_device_train_batch_size 1 --bf16 {}"


def fields(tmp_path: Path, name: str, text: str) -> dict[str, Any]:
    """The loss and kernels that a configuration comes to."""
    path = tmp_path / name
    path.write_text(text)
    job = read(from_path(path, None, {}), 1).job
    return {key: job[key] for key in ("loss", "fused_kernels") if key in job}


def test_transformers(tmp_path: Path) -> None:
    assert fields(tmp_path, "a.sh", TRAINER.format("--use_liger_kernel true")) == ALL
    options = '--use_liger_kernel true --liger_kernel_config \'{"rope":false,"fused_linear_cross_entropy":false}\''
    kernels = ("rms_norm", "layer_norm", "swiglu", "geglu")
    assert fields(tmp_path, "b.sh", TRAINER.format(options)) == {"loss": "standard", "fused_kernels": kernels}


def test_options_of_transformers_come_back() -> None:
    class Options:
        """A section of a configuration."""

        def __init__(self, settings: dict[str, bool]) -> None:
            self.settings = settings

        def boolean(self, name: str, default: bool) -> bool:
            return self.settings.get(name, default)

    for loss, kernels in (("liger", ()), ("standard", ("rope",)), ("liger_cross_entropy", FUSED_KERNELS)):
        job = Job(loss=loss, fused_kernels=kernels)
        found: Any = liger_pairs(job)["liger_kernel_config"]
        assert liger_fields(Options(found)) == {"loss": loss, "fused_kernels": kernels}  # type: ignore[arg-type]
    assert liger_pairs(Job(**ALL)) == {"use_liger_kernel": True}
    assert liger_pairs(Job()) == {}


AXOLOTL = """base_model: meta-llama/Llama-3.2-1B
adapter: lora
lora_r: 8
lora_target_linear: true
micro_batch_size: 1
sequence_len: 2048
{}
liger_rope: true
liger_glu_activation: true
liger_cross_entropy: true
"""


def test_axolotl(tmp_path: Path) -> None:
    plugin = "plugins:\n  - axolotl.integrations.liger.LigerPlugin"
    found = fields(tmp_path, "a.yml", AXOLOTL.format(plugin))
    assert found == {"loss": "liger_cross_entropy", "fused_kernels": ("rope", "swiglu", "geglu")}
    assert fields(tmp_path, "b.yml", AXOLOTL.format("")) == {}
    written = str(write("axolotl", "meta-llama/Llama-3.2-1B", Job(loss="liger", fused_kernels=("rms_norm",))))
    assert "liger_rms_norm: true" in written
    assert "liger_rope" not in written


def test_llama_factory_knows_fewer_models(tmp_path: Path) -> None:
    """LLaMA-Factory hands some types to Liger alone: others stay as they are."""
    text = "model_name_or_path: {}\nstage: sft\nfinetuning_type: lora\nbf16: true\nenable_liger_kernel: true\n"
    for model, uses in (("Qwen/Qwen2.5-0.5B", True), ("HuggingFaceTB/SmolLM3-3B", False)):
        path = tmp_path / "train.yaml"
        path.write_text(text.format(model))
        done = cli("check", str(path), "--gpu", "a100-80gb-sxm", "--json")
        assert ('"loss": "liger"' in done.stdout) is uses
        assert ("Liger is not used for smollm3" in done.stdout) is not uses


def test_a_second_model_keeps_its_own_layers() -> None:
    """The Trainer patches the instance that trains: of the other one the rotary embedding alone is Liger's."""
    kernels = ("rope", "rms_norm", "swiglu")

    def layers(**settings: Any) -> tuple[LigerLayers, LigerLayers]:
        job = Job(**{"task": "dpo", "loss": "chunked", "method": "full", "fused_kernels": kernels, **settings})
        setting, _ = setting_of(spec_of("llama-3.2-1b"), job)
        return setting.liger, setting.reference_liger

    own, other = layers()
    assert own.rms_norms
    assert other == LigerLayers(rope=True)
    assert layers(method="lora")[0] == layers(method="lora")[1]
    assert layers(loss="log_softmax")[0] == layers(loss="log_softmax")[1]
