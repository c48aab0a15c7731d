"""The trace: real models, PEFT and optimizers on fake tensors, held against the same steps run for real on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trace needs the extra vramplan[probe]")

from tests import matrix  # noqa: E402
from tests.helpers import card_of, spec_of  # noqa: E402
from tests.matrix_cases import all_cases, spec_for  # noqa: E402
from vramplan.analytic import estimator  # noqa: E402
from vramplan.inputs.job import Job  # noqa: E402
from vramplan.inputs.model_spec import ModelSpec  # noqa: E402
from vramplan.memory.summarize import summarize  # noqa: E402
from vramplan.torch_backend.trace import trace  # noqa: E402
from vramplan.torch_backend.trace.fake_tensors import Fakes  # noqa: E402
from vramplan.torch_backend.trace.storage_tracker import StorageTracker  # noqa: E402
from vramplan.units import GiB  # noqa: E402

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "pad_token_id": 0,
}


def small(model_type: str, **config: Any) -> ModelSpec:
    return ModelSpec(name=f"small {model_type}", model_type=model_type, config={**SMALL, **config})


def job_of(**given: Any) -> Job:
    return Job(**{"sequence_length": 32, "micro_batch_size": 2, "attention": "eager", **given})


def sequence(
    run: trace.Run, phases: tuple[str, ...] = ("loaded", "forward", "backward", "optimizer", "eval")
) -> list[int]:
    """Bytes allocated (+) and freed (-), in order, tensors only; numbers of a few bytes are bookkeeping."""
    tracker = run.tracker
    ends = [mark.first_event for mark in tracker.marks[1:]] + [len(tracker.events)]
    found = []
    for mark, end in zip(tracker.marks, ends, strict=True):
        for event in tracker.events[mark.first_event : end]:
            record = tracker.records[event if event >= 0 else ~event]
            if record.num_bytes > 16 and not record.in_kernel:
                found.append(record.num_bytes if event >= 0 else -record.num_bytes)
    return found


# -- the trace is true -------------------------------------------------------------------------------------------------

GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
REAL = [
    ("llama", {"num_key_value_heads": 2}, {}),
    ("llama", {"num_key_value_heads": 2}, {"checkpointing": "none", "loop": "plain"}),
    ("llama", {"num_key_value_heads": 2}, {"gradient_accumulation_steps": 3, "lora_dropout": 0.1}),
    ("llama", {"num_key_value_heads": 2}, {"method": "full", "dtype": "fp32", "optimizer": "adamw_torch"}),
    ("llama", {}, {"method": "dora"}),
    (
        "qwen2",
        {"num_key_value_heads": 2},
        {"method": "full", "autocast": "none", "optimizer": "adafactor", "checkpointing": "none"},
    ),
    (
        "qwen3",
        {"head_dim": 16, "num_key_value_heads": 2},
        {"batches": "packed", "lora_dtype": "bf16", "autocast": "none"},
    ),
    ("gpt2", GPT2, {"method": "full", "dtype": "fp32"}),
    (
        "gpt2",
        GPT2,
        {"attention": "sdpa", "autocast": "none", "dtype": "fp32"},
    ),
    ("gemma2", {"head_dim": 16, "num_key_value_heads": 2}, {"method": "full", "dtype": "fp32", "autocast": "none"}),
    ("mixtral", {"num_local_experts": 4, "num_key_value_heads": 2}, {"method": "full", "autocast": "none"}),
    (
        "qwen3_moe",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_key_value_heads": 2},
        {"dtype": "fp32", "autocast": "none"},
    ),
    ("llama", {}, {"loss": "liger", "method": "full", "dtype": "fp32"}),
    ("llama", {}, {"loss": "chunked"}),
    ("llama", {}, {"loss": "log_probs", "method": "full", "dtype": "fp32", "loop": "plain"}),
    ("llama", {"num_key_value_heads": 2}, {"loss": "sections", "autocast": "none", "micro_batch_size": 2}),
    ("llama", {}, {"loss": "sliced", "method": "full", "autocast": "none", "optimizer": "sgd_momentum"}),
]


@pytest.mark.parametrize(("model_type", "config", "given"), REAL)
def test_the_same_step_for_real(model_type: str, config: dict[str, Any], given: dict[str, Any]) -> None:
    """On real CPU tensors, watched by the same tracker: the same sizes come and go in the same order.

    Cards before compute capability 8.0 run SDPA's fallback in this case, which a CPU can run too.
    """
    spec, job = small(model_type, **config), job_of(**given)
    card = card_of("h100" if job.attention == "eager" else "v100-16gb").model_copy(
        update={"compute_capability": "4.0"} if job.attention == "sdpa" else {}
    )
    fake, real = trace.run(spec, job, card, Fakes()), trace.run(spec, job, card, None)
    assert sequence(fake) == sequence(real)
    assert len(sequence(fake)) > 200


TEXT = {**SMALL, "model_type": "qwen2", "num_key_value_heads": 2}
TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 8}
SEEING = [
    ("internvl", {"text_config": TEXT, "vision_config": {**TOWER, "image_size": [32, 32], "patch_size": [8, 8]}}, {}),
    (
        "llava",
        {
            "text_config": {**TEXT, "model_type": "llama"},
            "vision_config": {**TOWER, "model_type": "clip_vision_model", "image_size": 32},
        },
        {"method": "full", "vision": "train", "projector": "train", "dtype": "fp32", "autocast": "none"},
    ),
    (
        "gemma3",
        {
            "text_config": {**SMALL, "model_type": "gemma3_text", "head_dim": 16},
            "vision_config": {**TOWER, "model_type": "siglip_vision_model", "image_size": 32, "vision_use_head": False},
            "mm_tokens_per_image": 4,
        },
        {"vision": "lora"},
    ),
    (
        "qwen2_vl",
        {
            **SMALL,
            "num_key_value_heads": 2,
            "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
            "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 4, "patch_size": 8},
        },
        {"method": "full", "projector": "train", "dtype": "fp32"},
    ),
]


@pytest.mark.parametrize(("model_type", "config", "given"), SEEING)
def test_the_same_step_with_images_for_real(model_type: str, config: dict[str, Any], given: dict[str, Any]) -> None:
    """A trace knows where images stand; what it makes of that is what a real run does."""
    spec = ModelSpec(name=f"small {model_type}", model_type=model_type, config={**config, "image_token_id": 7})
    job = job_of(sequence_length=64, images=2, image_size=(32, 32), **given)
    if model_type == "qwen2_vl":
        job = job.model_copy(update={"min_pixels": 1024})
    fake, real = trace.run(spec, job, card_of(), Fakes(values=True)), trace.run(spec, job, card_of(), None)
    assert sequence(fake) == sequence(real)
    assert len(sequence(fake)) > 200


def test_an_unwatched_run_sums_gradients_as_the_watch_says() -> None:
    """torch.profiler sees an ordinary run, without any dispatch mode: in-place sums and all."""
    from torch.profiler import ProfilerActivity, profile

    def forward(x: Any, weights: list[Any]) -> Any:
        h = torch.nn.functional.silu(x @ weights[0])
        h = h + torch.nn.functional.linear(h, weights[1]) * h
        return (h * torch.cos(h) + h.sin()).sum()

    for shape in ((64, 32), (2, 32, 32)):
        weights = [torch.randn(32, 32, requires_grad=True) for _ in range(2)]
        loss = forward(torch.randn(shape, requires_grad=True), weights)
        torch.ones(1).mul(2)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            loss.backward()
        ordinary = [e.nbytes() for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
        tracker = StorageTracker()
        tracker.sums.calibrate(tracker)
        with tracker:
            x = torch.randn(shape, requires_grad=True)
            weights = [torch.randn(32, 32, requires_grad=True) for _ in range(2)]
            loss = forward(x, weights)
            tracker.enter("backward")
            first = len(tracker.events)
            loss.backward()
        made = [tracker.records[event].num_bytes for event in tracker.events[first:] if event >= 0]
        assert sorted(n for n in ordinary if n > 1024) == sorted(n for n in made if n > 1024)


@pytest.mark.parametrize(
    ("optimizer", "method", "autocast", "steps", "checkpointing"),
    [
        ("adamw_torch_fused", "lora", "bf16", 1, "full"),
        ("adamw_torch", "full", "bf16", 2, "none"),
        ("sgd", "full", "none", 1, "full"),
        ("adafactor", "lora", "none", 2, "none"),
    ],
)
def test_the_real_trainer(
    tmp_path: Path, optimizer: str, method: str, autocast: str, steps: int, checkpointing: str
) -> None:
    """transformers' Trainer itself, run on the CPU, allocates and frees what the loop here does, phase by phase."""
    import transformers
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from vramplan.torch_backend.model.build import build
    from vramplan.torch_backend.model.materialize import place
    from vramplan.torch_backend.trace.cuda_emulation import as_cuda

    job = job_of(
        method=method,
        autocast=autocast,
        gradient_accumulation_steps=steps,
        checkpointing=checkpointing,
        optimizer=optimizer,
    )
    spec, card = small("llama", num_key_value_heads=2), card_of("h100")
    mine = trace.run(spec, job, card, None)

    transformers.logging.set_verbosity_error()
    tracker = StorageTracker()
    with trace.quiet(), as_cuda(card):
        module = build(spec, job, "cpu").module
        ids = torch.zeros(32, dtype=torch.int64)
        rows = [{"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)} for _ in range(64)]
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=steps,
            max_steps=2,
            bf16=autocast == "bf16",
            optim=optimizer,
            use_cpu=True,
            gradient_checkpointing=checkpointing == "full",
            gradient_checkpointing_kwargs={"use_reentrant": False, "preserve_rng_state": False},
            dataloader_pin_memory=False,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            lr_scheduler_type="constant",
        )
        trainer = Trainer(model=module, args=arguments, train_dataset=rows)

        def entering(owner: Any, name: str, phase: str, after: str = "") -> None:
            inner = getattr(owner, name)

            def outer(*args: Any, **kwargs: Any) -> Any:
                tracker.enter(phase)
                result = inner(*args, **kwargs)
                if after:
                    tracker.enter(after)
                return result

            setattr(owner, name, outer)

        entering(trainer, "get_batch_samples", "fetch")
        entering(trainer, "training_step", "forward")
        entering(trainer.accelerator, "backward", "backward")
        entering(trainer, "_clip_grad_norm", "optimizer")

        class Ends(TrainerCallback):
            def on_step_end(self, *args: Any, **kwargs: Any) -> None:
                tracker.enter("end")

        trainer.add_callback(Ends())
        tracker.sums.calibrate(tracker)
        tracker.enter("loaded")
        place(module, tracker)
        with tracker, tracker.modules(module):
            trainer.train()

    def second_step(of: StorageTracker) -> dict[str, list[int]]:
        """Sizes by phase from the second step's forward on; batches and bookkeeping left out."""
        found: dict[str, list[int]] = {"forward": [], "backward": [], "optimizer": []}
        first = next(mark.first_event for mark in of.marks if mark.phase == "optimizer")
        ends = [mark.first_event for mark in of.marks[1:]] + [len(of.events)]
        fetching = ("full", "batches to come", "stack", "ne")  # the Trainer's batches come in a phase of their own
        for mark, end in zip(of.marks, ends, strict=True):
            for event in of.events[mark.first_event : end] if mark.first_event > first else ():
                record = of.records[event if event >= 0 else ~event]
                own = record.num_bytes > 16 and record.op not in fetching and not record.in_kernel
                if mark.phase in found and own:
                    found[mark.phase].append(record.num_bytes if event >= 0 else -record.num_bytes)
        return found

    theirs, ours = second_step(tracker), second_step(mine.tracker)
    for phase in theirs:
        # autocast drops its cast weights in the order of a hash map
        assert sorted(theirs[phase]) == sorted(ours[phase]), phase
        assert [n for n in theirs[phase] if n > 0] == [n for n in ours[phase] if n > 0], phase


# -- against the analytic estimate -------------------------------------------------------------------------------------


@pytest.mark.one_of(8)
@pytest.mark.parametrize("part", range(8))
def test_committed_traces_are_what_a_trace_finds(part: int) -> None:
    rows = matrix.rows_by_name()
    names = [case.name for case in all_cases()][::61]
    assert len(names) > 40
    reserved = matrix.COLUMNS.index("reserved")
    for name in names[part::8]:
        found, kept = matrix.traced(name), rows[name]
        # by what ran before, a block of 2 MiB may or may not find a place; not understood yet
        assert found[reserved] == pytest.approx(kept[reserved], rel=1e-3)
        assert [*found[:reserved], *found[reserved + 1 :]] == [*kept[:reserved], *kept[reserved + 1 :]]


def test_terms_agree_with_the_analytic_estimate() -> None:
    """Every category of memory at the peak, not only the sum."""
    for given in ({}, {"method": "full", "autocast": "none"}, {"checkpointing": "none", "attention": "sdpa"}):
        job, card = Job(micro_batch_size=2, sequence_length=512, **given), card_of("h100")
        spec = spec_for("qwen2")
        ours, theirs = estimator.estimate(spec, job, card), trace.estimate(spec, job, card)
        assert ours.peak_phase == theirs.peak_phase
        mine, found = ours.by_category(), theirs.by_category()
        for one in (mine, found):  # a tied head's gradient becomes part of the embedding's
            one["gradient"] = one.get("gradient", 0) + one.pop("temporary", 0)
        for category in {*mine, *found} - {"reserved_unused"}:
            assert mine.get(category, 0) == pytest.approx(found.get(category, 0), rel=0.001, abs=1 << 15), category


def test_flops_are_those_of_torch() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    spec, job, card = small("llama"), job_of(checkpointing="none", loop="plain"), card_of("h100")
    counted = trace.run(spec, job, card, None).simulated_step("").flops_per_micro_step
    from vramplan.torch_backend.model.build import build
    from vramplan.torch_backend.trace.cuda_emulation import as_cuda

    with trace.quiet(), as_cuda(card):
        module = build(spec, job, "cpu").module
        ids = torch.zeros((2, 32), dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = module(input_ids=ids, labels=ids).loss
            loss.backward()
    assert counted == counter.get_total_flops()


# -- published runs ----------------------------------------------------------------------------------------------------

MISTRAL = {
    "autocast": "none",
    "optimizer": "adamw_torch",
    "sequence_length": 4096,
    "attention": "flash",
    "loss": "sliced",
}
MISTRAL_LORA = {"lora_rank": 16, "lora_dropout": 0.1, "lora_targets": ("q_proj", "k_proj", "v_proj", "o_proj")}


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    ("given", "measured_gib"),
    [
        ({"method": "full", "micro_batch_size": 4}, 67.460),
        ({"micro_batch_size": 4, **MISTRAL_LORA}, 24.871),
        ({"micro_batch_size": 8, **MISTRAL_LORA}, 36.082),
    ],
)
def test_mistral_under_the_trainer_on_an_a100(given: dict[str, Any], measured_gib: float) -> None:
    """max_memory_allocated of fms-acceleration's a100_80gb.csv, rows 10, 34 and 36 (transformers 4.48, torch 2.4).

    The loss before transformers 4.49 copies the shifted logits; with it the runs are met within 0.01 %.
    """
    found = trace.estimate(spec_of("mistralai/Mistral-7B-v0.1"), Job(**{**MISTRAL, **given}), card_of("a100-80gb"))
    assert found.peak_allocated_bytes / GiB == pytest.approx(measured_gib, rel=1e-4)


# -- many batches from a few traces ------------------------------------------------------------------------------------


@pytest.mark.one_of(2)
@pytest.mark.parametrize("model_type", ["llama", "mixtral"])
def test_the_law_gives_what_a_trace_would(model_type: str) -> None:
    more = {"num_local_experts": 4} if model_type == "mixtral" else {}
    spec, card = small(model_type, num_key_value_heads=2, **more), card_of("h100")
    law = trace.TracedModel()
    for batch, steps in ((1, 3), (5, 1), (7, 2)):
        job = job_of(micro_batch_size=batch, gradient_accumulation_steps=steps, attention="sdpa")
        by_law, traced = (
            summarize(law.simulated_step(spec, job, card), spec.name, job, card),
            trace.estimate(spec, job, card),
        )
        assert by_law.peak_allocated_bytes == traced.peak_allocated_bytes
        assert by_law.peak_reserved_bytes == traced.peak_reserved_bytes
        assert by_law.phases == pytest.approx(traced.phases, rel=5e-3)  # an evaluation's peak is the higher of lines
    assert len(law.traced) <= 5
