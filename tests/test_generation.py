"""A model that is loaded to generate, against transformers' own ``generate`` with every storage followed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers import card_of, cli, spec_of
from vramplan.analytic.generation import generation, generation_job, simulate
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs.job import Job
from vramplan.memory.calibration import with_margin
from vramplan.memory.timeline import BLOCK_BYTES
from vramplan.planner.job_defaults import complete_job
from vramplan.units import GiB, round_up

SMALL = {"vocab_size": 512, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {**SMALL, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped heads": ("meta-llama/Llama-3.2-1B", {**LLAMA, "num_attention_heads": 8, "num_key_value_heads": 2}),
    "biases": ("Qwen/Qwen2.5-0.5B", {**LLAMA, "num_attention_heads": 8, "num_key_value_heads": 4}),
    "a window, shorter than the prompt": ("mistralai/Mistral-7B-v0.1", {**LLAMA, "sliding_window": 20}),
    "a window that generation reaches": ("mistralai/Mistral-7B-v0.1", {**LLAMA, "sliding_window": 52}),
    "some layers slide": (
        "google/gemma-3-1b-pt",
        {**LLAMA, "num_hidden_layers": 7, "sliding_window": 20, "num_attention_heads": 4, "head_dim": 64},
    ),
    "latent attention": (
        "deepseek-ai/DeepSeek-V2-Lite",
        {**LLAMA, "first_k_dense_replace": 6, "num_attention_heads": 4, "num_key_value_heads": 4},
    ),
    "fused projection": ("openai-community/gpt2", {**SMALL, "n_embd": 256, "n_layer": 6, "n_head": 4}),
    "fp32 scores": ("EleutherAI/gpt-j-6b", {**SMALL, "n_embd": 256, "n_layer": 5, "n_head": 4, "rotary_dim": 16}),
    "ALiBi": ("bigscience/bloom-560m", {**SMALL, "hidden_size": 256, "n_embed": 256, "n_layer": 6, "n_head": 4}),
    "capped scores": (
        "google/gemma-2-2b",
        {**LLAMA, "sliding_window": 20, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64},
    ),
    "a window and a fused projection": (
        "microsoft/Phi-3-mini-4k-instruct",
        {**LLAMA, "sliding_window": 20, "num_attention_heads": 4, "num_key_value_heads": 4},
    ),
    "one block for attention and feed-forward": (
        "CohereLabs/c4ai-command-r7b-12-2024",
        {**LLAMA, "num_hidden_layers": 8, "sliding_window": 20, "num_attention_heads": 4, "num_key_value_heads": 2},
    ),
    "latent attention, interleaved": (
        "deepseek-ai/DeepSeek-V3",
        {**LLAMA, "first_k_dense_replace": 6, "num_attention_heads": 4, "num_key_value_heads": 4},
    ),
    "learned positions": (
        "facebook/opt-125m",
        {
            **SMALL,
            "hidden_size": 256,
            "word_embed_proj_dim": 256,
            "ffn_dim": 512,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
        },
    ),
    "one key head": (
        "tiiuae/falcon-7b",
        {**SMALL, "hidden_size": 256, "num_hidden_layers": 5, "num_attention_heads": 4},
    ),
}
PROMPT, NEW, BATCH = 48, 12, 3


def job_of(name: str, **settings: Any) -> Job:
    spec = spec_of(name)
    return complete_job(spec, card_of(), {"method": "full", "dtype": "fp32", "attention": "eager", **settings})


def real_levels(name: str, config: dict[str, Any]) -> tuple[list[int], int]:
    """Bytes of tensors besides the weights while transformers generates on the CPU; bytes of the cache at the end."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from vramplan.torch_backend.trace.storage_tracker import StorageTracker

    spec = spec_of(name, **config)
    settings = transformers.AutoConfig.for_model(spec.model_type, **spec.config)
    model = transformers.AutoModelForCausalLM.from_config(settings, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    ids = torch.randint(1, 500, (BATCH, PROMPT))
    sampling = transformers.GenerationConfig(
        max_new_tokens=NEW,
        do_sample=True,
        top_k=20,
        top_p=0.8,
        temperature=0.7,
        pad_token_id=0,
        return_dict_in_generate=True,
    )
    tracker = StorageTracker()
    with tracker.host():  # what is there before does not count
        for tensor in (*model.parameters(), *model.buffers()):
            tracker.take(tensor, "weight")
    with torch.no_grad(), tracker:
        tracker.enter("generate")
        inputs = {"input_ids": ids.clone(), "attention_mask": torch.ones_like(ids)}
        out = model.generate(**inputs, generation_config=sampling)
    assert out.sequences.shape == (BATCH, PROMPT + NEW)
    cached = [tensor.untyped_storage() for layer in out.past_key_values.layers for tensor in (layer.keys, layer.values)]
    return tracker.timeline(None).live_bytes(), sum(round_up(storage.nbytes(), BLOCK_BYTES) for storage in cached)


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_every_tensor_of_real_generation(case: str) -> None:
    name, config = MODELS[case]
    levels, cache_bytes = real_levels(name, config)
    spec, job = spec_of(name, **config), generation_job(job_of(name), PROMPT, BATCH)
    run = simulate(spec, job, card_of(), NEW).run
    assert run.cache_bytes() == cache_bytes
    begin, live, peak, sizes = run.ends["loaded"], 0, 0, run.sizes
    for event in run.events[begin:]:
        size = sizes[run.kind_of[event if event >= 0 else ~event]]
        live += size if event >= 0 else -size
        peak = max(peak, live)
    assert peak == pytest.approx(max(levels), rel=0.005)


MEASURED = [
    ("Qwen/Qwen2.5-0.5B", {}, (512, 128, 8), "sdpa", 1205_246_566, 1226),
    ("Qwen/Qwen2.5-7B", {}, (2048, 128, 1), "sdpa", 15_701_166_489, 15118),
    ("Qwen/Qwen2.5-7B", {}, (256, 400, 16), "sdpa", 16_105_393_356, 15664),
    ("Qwen/Qwen1.5-MoE-A2.7B", {"num_hidden_layers": 5, "num_experts": 12, "vocab_size": 2048}, (600, 16, 4), "sdpa",
     1_959_683_686, 2172),
]  # fmt: skip
"""Model, prompt, tokens and batch; allocated bytes and reserved MiB at the peak, as torch 2.13's CUDA build reports
them for transformers 5.23 without a device's kernels (its allocator and all code of the host are real)."""


@pytest.mark.parametrize(("name", "config", "shape", "attention", "allocated_bytes", "reserved_mib"), MEASURED)
def test_what_the_real_allocator_reports(
    name: str,
    config: dict[str, Any],
    shape: tuple[int, int, int],
    attention: str,
    allocated_bytes: int,
    reserved_mib: int,
) -> None:
    prompt, new, batch = shape
    spec, gpu = spec_of(name, **config), card_of("rtx4090")
    job = complete_job(spec, gpu, {"method": "full", "attention": attention})
    found = generation(spec, job, gpu, new, prompt, batch)
    assert found.peak_allocated_bytes == pytest.approx(allocated_bytes, rel=0.002)
    assert found.peak_reserved_bytes == pytest.approx(reserved_mib << 20, rel=0.01)


def test_the_cache_has_every_token_but_the_last() -> None:
    spec, gpu = spec_of("Qwen/Qwen2.5-7B"), card_of("rtx4090")
    found = generation(spec, complete_job(spec, gpu, {}), gpu, 512, 2048)
    assert found.cache_text == "56 tensors of 1 x 2559 x 4 x 128 bf16"
    assert found.cache_bytes == 56 * 2559 * 4 * 128 * 2


def test_published_inference() -> None:
    """Qwen2.5-7B is reported to take about 14 GB loaded, and about 15 when it generates."""
    spec, gpu = spec_of("Qwen/Qwen2.5-7B"), card_of("a100-80gb")
    found = generation(spec, complete_job(spec, gpu, {"method": "full"}), gpu, 2048, 1)
    assert 14.1 < found.weight_bytes / GiB < 14.3
    assert 14.2 < found.peak_allocated_bytes / GiB < 15.5


def test_adapters_lie_beside_the_weights_or_in_them() -> None:
    spec, gpu = spec_of("Qwen/Qwen2.5-7B"), card_of("rtx4090")
    found = generation(spec, complete_job(spec, gpu, {"lora_rank": 16}), gpu, 16)
    full = generation(spec, complete_job(spec, gpu, {"method": "full"}), gpu, 16)
    assert found.merged_weight_bytes == full.weight_bytes
    assert full.merged_weight_bytes is None
    adapters = 28 * 16 * 4 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944))  # q, o; k, v; gate, up, down
    assert found.weight_bytes - full.weight_bytes == adapters


def test_one_gpu_of_a_job_on_several_nodes() -> None:
    spec, gpu = spec_of("Qwen/Qwen2.5-7B"), card_of("a100-80gb")
    job = complete_job(spec, gpu, {"method": "full", "num_gpus": 16, "num_nodes": 2, "strategy": "zero3"})
    alone = complete_job(spec, gpu, {"method": "full"})
    assert generation(spec, job, gpu, 16) == generation(spec, alone, gpu, 16)


def test_quantized_weights_stay_quantized() -> None:
    spec, gpu = spec_of("Qwen/Qwen2.5-7B"), card_of("rtx4090")
    found = generation(spec, complete_job(spec, gpu, {"quantize": "nf4"}), gpu, 16)
    assert found.weight_bytes < 5.5 * GiB
    assert found.fits


def test_the_margin_counts() -> None:
    spec, card = spec_of("meta-llama/Llama-3.1-8B"), card_of("rtx4060ti-16gb")
    job = complete_job(spec, card, {"method": "full"})
    without, needed = generation(spec, job, card, 64, 256), generation(spec, job, with_margin(card, 0.9), 64, 256)
    assert without.device_total_bytes == needed.device_total_bytes
    assert needed.fits_without_margin == without.fits
    assert not needed.fits


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("google-bert/bert-base-uncased", "an encoder has no generate"),
        ("google-t5/t5-base", "cross attention"),
        ("openai/whisper-small", "cross attention"),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", "cross attention"),
    ],
)
def test_what_does_not_generate_is_refused_by_name(name: str, why: str) -> None:
    spec, gpu = spec_of(name), card_of()
    with pytest.raises(UnsupportedError, match=why):
        generation(spec, complete_job(spec, gpu, {"method": "full"}), gpu, 16)


def test_images_are_in_the_prompt_and_the_tower_in_prefill() -> None:
    spec, gpu = spec_of("Qwen/Qwen2.5-VL-3B-Instruct"), card_of()
    job = complete_job(spec, gpu, {"images": 1, "image_size": (1024, 1024), "method": "full"})
    seeing, blind = (
        generation(spec, job.model_copy(update={"images": images}), gpu, 8, job.sequence_length) for images in (1, 0)
    )
    assert seeing.weight_bytes == blind.weight_bytes
    assert seeing.prefill_bytes > blind.prefill_bytes
    assert seeing.cache_bytes == blind.cache_bytes
    lora = generation(spec, complete_job(spec, gpu, {"images": 1, "image_size": (1024, 1024)}), gpu, 8)
    assert lora.merged_weight_bytes == seeing.weight_bytes
    with pytest.raises(ConfigError, match="prompt_tokens=100"):
        generation(spec, job, gpu, 8, 100)


def test_the_command_line() -> None:
    question = ("estimate", "qwen2.5-7b", "--gpu", "rtx4090", "--generate-tokens", "512", "--generate-batch", "4")
    done = cli(*question)
    assert done.returncode == 0, done.stderr
    assert "4 prompts of 2,048 tokens" in " ".join(done.stdout.split())
    found = json.loads(cli(*question, "--json").stdout)["generation"]
    assert (found["new_tokens"], found["prompt_tokens"], found["batch"]) == (512, 2048, 4)
    assert cli(*question[:-2], "--prompt-tokens", "400000").returncode == 1
    wrong = cli("estimate", "qwen2.5-7b", "--gpu", "rtx4090", "--prompt-tokens", "5")
    assert wrong.returncode == 2
    assert "--generate-tokens" in wrong.stderr
    wrong = cli("estimate", "qwen2.5-7b", "--gpu", "rtx4090", "--generate-tokens", "0")
    assert wrong.returncode == 2
    assert wrong.stderr.strip() == "vramplan: --generate-tokens 0: expected 1 to 16777216"
