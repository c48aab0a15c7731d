"""Which framework a file is for, which other kind of training, and which other kind of file."""

from __future__ import annotations

import pytest

from vramplan.errors import ConfigError, UnsupportedError, VramplanError
from vramplan.frameworks.recognize import recognize
from vramplan.frameworks.syntax.config_files import from_yaml

COMMON = "output_dir: out\nper_device_train_batch_size: 2\nlearning_rate: 1.0e-5\n"
BY_NAME = {
    "trl": (
        "model_name_or_path: a/b\ntorch_dtype: bfloat16\nmax_length: 2048\ndataset_name: c/d\n",
        "model_name_or_path: a/b\nuse_peft: true\nlora_r: 16\nmax_seq_length: 4096\npacking: true\n",
    ),
    "ms-swift": (
        "model: a/b\ntuner_type: lora\ntorch_dtype: bfloat16\ndataset: [c/d]\nmax_length: 2048\n",
        "model: a/b\ntrain_type: full\ntorch_dtype: bfloat16\ndataset: c/d\ndeepspeed: zero3\n",
    ),
    "llamafactory": (
        "model_name_or_path: a/b\nstage: sft\nfinetuning_type: lora\ntemplate: qwen\ncutoff_len: 2048\n",
        "model_name_or_path: a/b\nfinetuning_type: full\ndataset: c\ntemplate: llama3\n",
    ),
    "axolotl": ("base_model: a/b\nadapter: qlora\nsequence_len: 2048\nmicro_batch_size: 1\n",),
    "transformers": ("model_name_or_path: a/b\nbf16: true\ngradient_checkpointing: true\n",),
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in BY_NAME.items() for text in texts])
def test_by_all_of_its_keys(name: str, text: str) -> None:
    assert recognize(from_yaml(COMMON + text, "train.yaml"), "train.yaml") == name


@pytest.mark.parametrize(
    ("keys", "task"),
    [
        ("torch_dtype: bfloat16\nbeta: 2.0\ngamma_beta_ratio: 0.5\nmax_prompt_length: 1800\n", "preference training"),
        ("torch_dtype: bfloat16\nnum_generations: 8\nmax_completion_length: 1024\n", "reinforcement training"),
        ("center_rewards_coefficient: 0.01\n", "reward training"),
        ("torch_dtype: bfloat16\nlmbda: 0.5\nseq_kd: true\n", "distillation"),
    ],
)
def test_other_kinds_of_training_are_refused_by_name(keys: str, task: str) -> None:
    text = f"model_name_or_path: a/b\n{COMMON}{keys}"
    with pytest.raises(UnsupportedError, match=f"train.yaml:5: .*{task}|train.yaml:6: .*{task}"):
        recognize(from_yaml(text, "train.yaml"), "train.yaml")


@pytest.mark.parametrize("name", ["llama3_dpo.yaml", "grpo-config.yaml", "train_reward.yaml"])
def test_a_name_that_says_another_kind(name: str) -> None:
    with pytest.raises(UnsupportedError, match="its name says"):
        recognize(from_yaml(f"model_name_or_path: a/b\n{COMMON}", name), name)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("architectures: [LlamaForCausalLM]\nhidden_size: 4096\n", "a model's config.json"),
        ("peft_type: LORA\nbase_model_name_or_path: a/b\nr: 8\n", "an adapter's configuration"),
        ("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n", "an accelerate configuration"),
        ("services: {}\nversion: 3\n", "containers"),
        ("apiVersion: v1\nkind: Pod\n", "Kubernetes"),
        ("title: my blog\n", "give framework"),
        ("model_name_or_path: null\nfinetuning_args: {}\n", "give framework"),
    ],
)
def test_other_files_are_told_apart(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        recognize(from_yaml(text, "some.yaml"), "some.yaml")


def test_a_tie_is_asked_about() -> None:
    text = "sequence_len: 1024\ncutoff_len: 1024\n"
    with pytest.raises(VramplanError, match=r"may be for .*give framework"):
        recognize(from_yaml(text, "some.yaml"), "some.yaml")
