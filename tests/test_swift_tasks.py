"""``swift rlhf`` read as ms-swift's own trainers run it (3.12, 4.6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import card_of
from tests.recorded_runs import errors_of
from tests.test_trl import GPU, RECORDED, name_of
from vramplan import check, estimate, suggest
from vramplan.errors import VramplanError
from vramplan.planner.export import export

COMMAND = (
    "swift rlhf --rlhf_type {} --model Qwen/Qwen2.5-0.5B --torch_dtype bfloat16 --dataset pairs.jsonl --max_length 512"
    " --per_device_train_batch_size 2 --gradient_accumulation_steps 4 {}\n"
)
SERVED = "--teacher_model_server http://127.0.0.1:8000"
TAUGHT = "--tuner_type lora --teacher_model Qwen/Qwen2.5-3B"
VLLM = "--use_vllm true --vllm_mode colocate --vllm_gpu_memory_utilization 0.3 --vllm_max_model_len 1024"
OF_SWIFT = [row for row in RECORDED if row["trl"].startswith("ms-swift")]


def job_of_command(folder: Path, kind: str, more: str = "--tuner_type lora") -> Any:
    path = folder / "train.sh"
    path.write_text(COMMAND.format(kind, more))
    return check(path, gpu="4090", look_further=False).estimate.job


@pytest.mark.parametrize("row", OF_SWIFT[::6], ids=name_of)
def test_peaks_agree_with_swifts_own_trainers(row: dict[str, Any]) -> None:
    assert max(errors_of(row, GPU).values()) <= 0.001


@pytest.mark.parametrize(
    ("kind", "task", "loss"),
    [
        ("dpo", "dpo", "logits_to_keep"),
        ("kto", "kto", "logits_to_keep"),
        ("orpo", "orpo", "standard"),
        ("cpo", "cpo", "standard"),
        ("simpo", "cpo", "standard"),
        ("simpo --cpo_alpha 0", "simpo", "standard"),
        ("rm", "reward", "standard"),
    ],
)
def test_types(tmp_path: Path, kind: str, task: str, loss: str) -> None:
    job = job_of_command(tmp_path, kind)
    assert (job.task, job.loss, job.batches, job.lora_dropout) == (task, loss, "padded", 0.0)


@pytest.mark.parametrize(
    ("more", "length", "prompt", "engine"),
    [
        ("--lmbda 1 --use_vllm true --vllm_mode server", 1024, 512, "vllm_server"),
        (f"--lmbda 1 {VLLM}", 1024, 512, "vllm"),
        (f"--lmbda 1 {VLLM} --sleep_level 1", 1024, 512, "vllm_sleep"),
        ("--lmbda 1 --max_completion_length 100", 612, 512, "transformers"),
        ("--max_completion_length 100", 612, 101, "transformers"),  # or a text of the data set: 511 scored tokens
    ],
)
def test_completions_of_the_student(tmp_path: Path, more: str, length: int, prompt: int, engine: str) -> None:
    job = job_of_command(tmp_path, "gkd", f"{TAUGHT} {more}")
    assert (job.generated_by, job.generate_with) == ("student", engine)
    assert (job.sequence_length, job.prompt_length) == (length, prompt)


def test_vllm_beside_a_teacher_takes_its_share() -> None:
    """The same training; a vLLM that sleeps takes its share only while it generates."""

    def phases(**settings: Any) -> dict[str, int]:
        base = {"task": "gkd", "teacher": "qwen2.5-3b", "loss": "logits_to_keep", "prompt_length": 256}
        return estimate("qwen2.5-0.5b", "h100", sequence_length=512, num_gpus=1, **base, **settings).phases

    alone = phases(generated_by="none")
    shared = phases(generated_by="student", generate_with="vllm", vllm_share=0.2)
    asleep = phases(generated_by="student", generate_with="vllm_sleep", vllm_share=0.2)
    added = [shared[one] - alone[one] for one in alone]
    assert max(added) - min(added) < 2**20  # beside it a batch that waits
    assert max(added) > 0.19 * card_of("h100").cuda_total_bytes
    assert asleep["backward"] < shared["backward"]
    assert asleep["generation"] > asleep["loaded"]


def test_a_teacher(tmp_path: Path) -> None:
    job = job_of_command(tmp_path, "gkd", f"{TAUGHT} --beta 1 --lmbda 0")
    assert (job.task, job.loss, job.teacher, job.dtype_of_teacher) == (
        "gkd",
        "logits_to_keep",
        "Qwen/Qwen2.5-3B",
        "bf16",
    )
    assert (job.divergence, job.generated_by, job.lora_dropout, job.batches) == ("reverse_kl", "none", 0.0, "padded")


def test_a_teacher_whose_own_deepspeed_changes_nothing(tmp_path: Path) -> None:
    for words in (
        "--teacher_deepspeed zero3",
        "--deepspeed zero3 --teacher_deepspeed zero3",
        "--deepspeed zero2 --teacher_deepspeed zero1",
        "--deepspeed zero3 --teacher_deepspeed zero3_offload",
    ):
        assert job_of_command(tmp_path, "gkd", f"{TAUGHT} --lmbda 0 {words}").teacher == "Qwen/Qwen2.5-3B"


def test_a_teacher_on_other_gpus(tmp_path: Path) -> None:
    job = job_of_command(tmp_path, "gkd", f"--tuner_type lora --lmbda 0 {SERVED} --gkd_logits_topk 8")
    assert (job.task, job.teacher, job.teacher_logits, job.loads_reference) == ("gkd", None, 8, False)


def test_distillation_in_one_row_and_with_a_cross_entropy(tmp_path: Path) -> None:
    for more in ("--padding_free true", "--packing true --packing_length 4096"):  # which makes no packs
        job = job_of_command(tmp_path, "gkd", f"{TAUGHT} --lmbda 0 --attn_impl flash_attn --sft_alpha 0.1 {more}")
        assert (job.batches, job.sequence_length, job.adds_cross_entropy) == ("packed", 512, True)
    assert not job_of_command(tmp_path, "gkd", f"{TAUGHT} --sft_alpha 0").adds_cross_entropy


@pytest.mark.parametrize(
    ("kind", "more", "length"),
    [
        ("dpo", "--padding_free true", 512),
        ("kto", "--padding_free true", 512),
        ("dpo", "--packing true", 512),  # a pack of one pair, longer than the pack
        ("dpo", "--packing true --packing_length 4096", 2048),  # half of the pack
        ("kto", "--packing true", 512),
    ],
)
def test_answers_in_one_row(tmp_path: Path, kind: str, more: str, length: int) -> None:
    job = job_of_command(tmp_path, kind, f"--tuner_type lora --attn_impl flash_attn {more}")
    assert (job.batches, job.sequence_length, job.loss) == ("packed", length, "logits_to_keep")


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        ("dpo", "", "3.0 to 3.4 holds logits of prompts"),
        ("kto", "", "3.0 to 3.8 holds logits of prompts"),
        ("orpo", "", ""),
        ("grpo", "--gradient_accumulation_steps 8 --max_completion_length 64", ""),
    ],
)
def test_what_versions_before_3_12_do(tmp_path: Path, kind: str, more: str, said: str) -> None:
    path = tmp_path / "train.sh"
    path.write_text(COMMAND.format(kind, f"--train_type lora {more}"))
    notes = check(path, gpu="4090", look_further=False).reading.notes
    assert not [note for note in notes if note.kind == "doubt"]
    texts = [note.text for note in notes if note.key == "train_type"]
    assert said in texts[0] if said else texts == []


def test_versions_that_compute_the_same_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(COMMAND.format("dpo", "--train_type lora"))
    peaks = {check(path, gpu="4090", framework_version=version).need_bytes for version in ("3.5.3", "3.12.6", "4.0.0")}
    assert len(peaks) == 1
    with pytest.raises(VramplanError, match="nearest"):
        check(path, gpu="4090", framework_version="3.4.1")


def test_an_advised_quantization_needs_as_much_as_the_applied_one(tmp_path: Path) -> None:
    """It leaves the tower as it is, and adapters in fp32."""
    path, model = tmp_path / "train.sh", "Qwen/Qwen2.5-VL-7B-Instruct"
    words = (
        f"swift rlhf --rlhf_type dpo --model {model} --tuner_type lora --torch_dtype bfloat16 --max_length 1536 {{}}\n"
    )
    path.write_text(words.format(""))
    advised = next(one for one in check(path, gpu="4090").advice if dict(one.update) == {"quantize": "nf4"})
    path.write_text(words.format(" ".join(advised.settings)))
    verdict = check(path, gpu="4090")
    assert verdict.need_bytes == advised.device_total_bytes
    assert (verdict.estimate.job.quantize_vision, verdict.estimate.job.lora_dtype) == (False, "fp32")


def test_a_full_run_loads_the_reference(tmp_path: Path) -> None:
    assert job_of_command(tmp_path, "dpo", "--tuner_type full").loads_reference


@pytest.mark.parametrize(
    ("kind", "more", "said"),
    [
        ("gkd", "--tuner_type lora", "self-distillation is not modelled yet"),
        (
            "gkd",
            "--sft_type lora --teacher_model Qwen/Qwen2.5-3B",
            "read from ms-swift 4.6 on; nearest, .* --teacher Qwen/Qwen2.5-3B",
        ),
        ("gkd", f"{TAUGHT} --lmbda 1 --use_vllm true", "without vllm_mode"),
        ("gkd", f"{TAUGHT} --lmbda 0 --use_vllm true --vllm_mode colocate", "use_vllm"),
        ("gkd", f"{TAUGHT} --seq_kd true", "seq_kd: ms-swift 4.6 stops"),
        ("gkd", f"{TAUGHT} --lmbda 1 {VLLM} --offload_model true", "where the teacher stays"),
        ("gkd", f"{TAUGHT} --offload_teacher_model true", "offload_teacher_model"),
        ("gkd", f"{TAUGHT} --gkd_logits_topk 20", "gkd_logits_topk"),
        (
            "gkd",
            f"{TAUGHT} --deepspeed zero2 --teacher_deepspeed zero3",
            "teacher_deepspeed=.* whole on each GPU, .* more",
        ),
        ("gkd", f"{TAUGHT} --deepspeed zero3 --teacher_deepspeed zero2", "deepspeed=zero2 .* both whole on each GPU"),
        ("gkd", f"--tuner_type lora {SERVED}", "stops at it without gkd_logits_topk"),
        ("gkd", f"{TAUGHT} {SERVED} --gkd_logits_topk 8", "stops at it with teacher_model"),
        ("dpo", "--tuner_type lora --sequence_parallel_size 4", "4 does not divide 1 GPUs"),
        ("kto", "--tuner_type lora --sequence_parallel_size 4", "estimates the run without it"),
        ("gkd", f"{TAUGHT} --fsdp fsdp2", "set=fsdp=.* estimates it with both models whole"),
        (
            "gkd",
            "--tuner_type lora --model Qwen/Qwen2.5-7B --teacher_model Qwen/Qwen2.5-1.5B --lmbda 0",
            "pads the teacher's logits, which is not modelled",
        ),
        ("dpo", "--tuner_type lora --ref_adapters a", "ref_adapters"),
        ("dpo", "--tuner_type lora --precompute_ref_log_probs true", "precompute_ref_log_probs"),
        ("orpo", "--tuner_type lora --padding_free true --attn_impl flash_attn", "stops at it with rlhf_type orpo"),
        ("kto", "--tuner_type lora --packing true --packing_length 2048 --attn_impl flash_attn", "packing_length=512"),
        ("dpo", "--tuner_type lora --loss_type other", "loss_type"),
        ("kto", "--tuner_type lora --loss_type apo_zero_unpaired", "loss_type"),
        ("dpo", "--tuner_type full --ref_model other", "ref_model"),
        ("dpo", "--tuner_type lora --ref_model other", "ref_model"),
        ("dpo", "--tuner_type full --fsdp fsdp2", "fsdp"),
        ("dpo", "--sft_type lora", "nearest"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(tmp_path: Path, kind: str, more: str, said: str) -> None:
    with pytest.raises(VramplanError, match=said):
        job_of_command(tmp_path, kind, more)


def test_prompts_have_no_logits() -> None:
    def peak(prompt: int) -> int:
        settings = {"task": "dpo", "loss": "logits_to_keep", "sequence_length": 1024, "prompt_length": prompt}
        return estimate("qwen2.5-0.5b", "h100", **settings).peak_allocated_bytes

    assert peak(900) < peak(100)


def test_one_answer_in_a_whole_batch_stops_kto() -> None:
    with pytest.raises(VramplanError, match="global batch of 1"):
        estimate("qwen2.5-0.5b", "h100", task="kto", loss="logits_to_keep", micro_batch_size=1)
    estimate("qwen2.5-0.5b", "h100", task="kto", loss="logits_to_keep", gradient_accumulation_steps=2)


@pytest.mark.parametrize("task", ["dpo", "kto", "orpo", "cpo", "simpo", "reward"])
def test_a_command_is_written_and_read_back(tmp_path: Path, task: str) -> None:
    found = suggest("qwen2.5-0.5b", "rtx4090", 16, task=task, sequence_length=512, advice=False).recommended
    assert found is not None
    written = export("swift", "qwen2.5-0.5b", found.estimate.job, "rtx4090")
    path = tmp_path / "train.sh"
    path.write_text(written.text)
    job = check(path, gpu="rtx4090", look_further=False).estimate.job
    assert (job.task, job.global_batch_size, job.sequence_length) == (task, 16, 512)
    with pytest.raises(VramplanError, match="written for trl"):
        export("swift", "qwen2.5-0.5b", job.model_copy(update={"task": "rloo"}), "rtx4090")
