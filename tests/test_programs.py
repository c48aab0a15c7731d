"""Training scripts by their path: which program they are, by its flags and the file that they are given, and which are
refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan.errors import UnsupportedError, VramplanError
from vramplan.frameworks.detect import from_path, from_words
from vramplan.planner.check import read

HF = "--model_name_or_path Qwen/Qwen2.5-0.5B --bf16 true"
GENERIC = f"finetune.py {HF} --per_device_train_batch_size 1 --model_max_length 512"


def program_of(command: str) -> str:
    return from_words(command.split(), None, {}).framework.name


@pytest.mark.parametrize(
    ("command", "framework"),
    [
        ("python src/open_r1/sft.py --dataset_name x", "open-r1"),
        ("python -m open_r1.sft --dataset_name x", "open-r1"),
        ("python scripts/sft.py --dataset_name x", "trl"),
        ("python scripts/sft.py --dataset_mixture x", "alignment-handbook"),
        (f"python examples/scripts/sft_vlm.py {HF} --dataset_name x", "trl"),
        (f"torchrun {GENERIC}", "transformers"),
        (f"torchrun {GENERIC} --lazy_preprocess True", "qwen"),
        (f"torchrun {GENERIC} --q_lora False --use_lora", "qwen"),
        ("torchrun train_qwen.py --tune_mm_llm True", "qwen-vl-finetune"),
        ("deepspeed /home/a/src/train/train_sft.py --model_id x --freeze_llm True", "qwen2-vl-finetune"),
        ("torchrun /a/internvl/train/internvl_chat_finetune.py --model_name_or_path x", "internvl"),
        ("unsloth train --model x", "unsloth-studio"),
        ("python src/train_bash.py --stage sft --lora_target all", "llamafactory"),
        ("accelerate launch --num_processes 2 swift/cli/sft.py --model x", "ms-swift"),
        ("litgpt finetune x", "litgpt"),
        ("xtuner train x", "xtuner"),
    ],
)
def test_programs(command: str, framework: str) -> None:
    assert program_of(command) == framework


@pytest.mark.parametrize(
    ("command", "what"),
    [
        (f"python bco.py {HF}", "bco.py: preference training of this kind is not read yet"),
        (f"accelerate launch scripts/run_orpo.py {HF}", "its name says preference training"),
        (f"python examples/scripts/ppo.py {HF}", "ppo.py: PPO .its estimate"),
        (f"python examples/scripts/prm.py {HF}", "prm.py: training of a process reward model"),
        ("litgpt pretrain pythia-14m", "litgpt pretrain: pretraining"),
    ],
)
def test_refused(command: str, what: str) -> None:
    with pytest.raises(VramplanError, match=what):
        program_of(command)


def test_a_file_tells_whose_script_it_is(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_mixture: {datasets: []}\n")
    (tmp_path / "plain.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_name: a\n")
    script = tmp_path / "run.sh"
    for file, framework in (("recipe", "alignment-handbook"), ("plain", "trl")):
        script.write_text(f"accelerate launch --num_processes 1 scripts/sft.py --config {file}.yaml\n")
        assert from_path(script, None, {}).framework.name == framework


def test_a_refused_script_may_be_read_as_another() -> None:
    command = f"python dpo.py {HF} --per_device_train_batch_size 1"
    assert from_words(command.split(), "transformers", {}).framework.name == "transformers"


def job(command: str, num_gpus: int = 1) -> dict[str, object]:
    return read(from_words(command.split(), None, {}), num_gpus).job


def test_train_bash_is_llamafactory_of_its_time() -> None:
    before = job("python src/train_bash.py --stage sft --model_name_or_path Qwen/Qwen1.5-0.5B --flash_attn --bf16")
    now = job("llamafactory-cli train --stage sft --model_name_or_path Qwen/Qwen1.5-0.5B --bf16")
    assert (before["sequence_length"], before["attention"], before["num_gpus"]) == (1024, "flash", 1)
    assert now["sequence_length"] == 2048
    assert job("python src/train_bash.py --stage sft --flash_attn off --bf16")["attention"] == "eager"


def test_sft_vlm_cuts_nothing() -> None:
    flags = f"{HF} --dataset_name x --max_length 512 --per_device_train_batch_size 1"
    assert "sequence_length" not in job(f"python sft_vlm.py {flags}")
    assert job(f"python sft.py {flags}")["sequence_length"] == 512


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        ("--nproc_per_node 4 knowledge_distillation_distributed --config llama3_2/8B_to_1B_KD", "is distillation"),
        ("recipes/qat_distributed.py --config x.yaml", "quantization-aware"),
    ],
)
def test_recipes_of_torchtune(recipe: str, what: str) -> None:
    with pytest.raises(UnsupportedError, match=what):
        job(f"tune run {recipe}", 4)


def test_torchtune_on_several_gpus_is_distributed() -> None:
    path = Path(__file__).parent / "configs/torchtune/lora.yaml"
    alone, sharded = (read(from_path(path, None, {}), count) for count in (1, 4))
    assert alone.job["num_gpus"] == 1
    assert (sharded.job["strategy"], sharded.job["num_gpus"]) == ("fsdp", 4)
    assert any("lora_finetune_distributed, 4 GPUs, is taken" in note.text for note in sharded.notes)


def test_unsloth_flags_go_before_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: x/y\ntraining: {batch_size: 4}\nlora: {lora_r: 8}\n")
    script = tmp_path / "run.sh"
    script.write_text("unsloth train --config a.yaml --batch-size 1\n")
    result = read(from_path(script, None, {}), 1).job
    assert (result["micro_batch_size"], result["lora_rank"]) == (1, 8)


def test_a_recipe_alone_does_not_say_how_gpus_share(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model_name_or_path: Qwen/Qwen2.5-0.5B\ndataset_mixer: {a: 1}\nbf16: true\n")
    notes = [note.text for note in read(from_path(tmp_path / "a.yaml", None, {}), 8).notes]
    assert any("does not say what launches it" in note for note in notes)
    (tmp_path / "a.sh").write_text("accelerate launch scripts/run_sft.py a.yaml\n")
    notes = [note.text for note in read(from_path(tmp_path / "a.sh", None, {}), 8).notes]
    assert not any("does not say what launches it" in note for note in notes)
