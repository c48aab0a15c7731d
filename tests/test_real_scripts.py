"""Scripts in shapes that people's repositories have: helpers that load the model, loops over arguments, switches."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.detect import from_path, from_words
from vramplan.planner.check import check, read

HELPER = """\
import argparse
from trl import GRPOConfig, GRPOTrainer

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--everything", action="store_true")
    options = parser.parse_args()
    if options.everything:
        from project.loading import load_whole
        policy, tokenizer = load_whole()
    else:
        from project.loading import load_with_adapters
        policy, tokenizer = load_with_adapters()
    GRPOTrainer(
        model=policy,
        reward_funcs=[len],
        args=GRPOConfig(output_dir="out", per_device_train_batch_size=8, max_completion_length=128),
    ).train()

main()
"""
FRAGMENT = """\
from trl import GRPOConfig, GRPOTrainer

GRPOTrainer(model=policy, reward_funcs=[len], args=GRPOConfig(output_dir="out", max_completion_length=128)).train()
"""
SWITCHES = """\
import trl.import_utils as utils
utils._vllm_available = False
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

def score(model):
    model.model.config.use_cache = True

policy = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
score(policy)
GRPOTrainer(
    model=policy,
    reward_funcs=[len],
    args=GRPOConfig(output_dir="out", per_device_train_batch_size=8, bf16=True, max_completion_length=128),
).train()
"""
LOOP = """\
while {condition}; do
  case "$1" in
    --rows) rows="$2"; shift 2 ;;
    *) exit 1 ;;
  esac
done
rows=${{rows:-6}}
llamafactory-cli train --stage dpo --do_train --model_name_or_path Qwen/Qwen2.5-0.5B --finetuning_type lora \\
  --dataset pairs --template qwen --cutoff_len 512 --per_device_train_batch_size "$rows" --bf16
"""


def test_a_model_from_code_that_is_not_read_is_not_guessed(tmp_path: Path) -> None:
    """Neither whole nor with adapters, even where the user names the model."""
    script = tmp_path / "train.py"
    script.write_text(HELPER)
    with pytest.raises(ConfigError, match=r"train.py:14: policy comes from code that is not read.*exec"):
        from_path(script, None, {})


def test_a_fragment_takes_the_users_model(tmp_path: Path) -> None:
    script = tmp_path / "fragment.py"
    script.write_text(FRAGMENT)
    assert from_path(script, None, {}).framework.name == "trl"


def test_switches_that_change_no_memory(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SWITCHES)
    assert read(from_path(script, None, {}), 1).job["micro_batch_size"] == 8


def test_a_patched_library_is_still_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SWITCHES.replace("_vllm_available = False", "_vllm_available = True"))
    with pytest.raises(Exception, match="_vllm_available is set"):
        read(from_path(script, None, {}), 1)


@pytest.mark.parametrize("condition", ['(( "$#" ))', "(( $# ))", '(( "$#" > 0 ))', "[[ $# -gt 0 ]]"])
def test_loops_over_arguments_that_are_none(condition: str, tmp_path: Path) -> None:
    """Bash removes double quotes in arithmetic (5.2, "Arithmetic Expansion")."""
    script = tmp_path / "train.sh"
    script.write_text(LOOP.format(condition=condition))
    assert read(from_path(script, None, {}), 1).job["micro_batch_size"] == 6


def test_arguments_of_a_shell_script_name_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.sh").write_text(LOOP.format(condition="(( $# ))"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"without arguments; .* set=KEY=VALUE: vramplan check train.sh"):
        from_words(["bash", "train.sh", "--rows", "2"], None)


def test_an_unknown_reward_model_is_not_asked_for_by_the_policys_option(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SWITCHES.replace("[len]", '"./scorer/last"').replace("score(policy)\n", ""))
    with pytest.raises(ConfigError, match="which model it is; give set=reward_model=MODEL"):
        check(script, gpu="24GB")


def test_a_recipe_of_grpo_is_not_the_alignment_handbooks(tmp_path: Path) -> None:
    """Forks keep its keys of data sets; it has no script of GRPO."""
    recipe = tmp_path / "grpo.yaml"
    recipe.write_text(
        "model_name_or_path: Qwen/Qwen2.5-1.5B\ndataset_configs: [train]\nnum_generations: 8\nuse_vllm: false\n"
        "max_prompt_length: 512\nmax_completion_length: 1024\nreward_funcs: [accuracy]\n"
    )
    with pytest.raises(UnsupportedError, match=r"no script of GRPO; .* give framework=trl task=grpo"):
        check(recipe, gpu="24GB")


REWARD = """\
from transformers import AutoModelForSequenceClassification
from trl import RewardConfig, RewardTrainer
model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct"{labels})
RewardTrainer(model=model, args=RewardConfig(output_dir="out", bf16=True), train_dataset=data).train()
"""


@pytest.mark.parametrize(("labels", "doubts"), [("", ["num_labels"]), (", num_labels=1", [])])
def test_a_reward_models_labels_are_config_jsons_unless_given(labels: str, doubts: list[str], tmp_path: Path) -> None:
    script = tmp_path / "reward.py"
    script.write_text(REWARD.format(labels=labels))
    verdict = check(script, gpu="24GB", framework_version="1.16.0")
    assert [note.key for note in verdict.reading.notes if note.kind == "doubt"] == doubts


def test_trl_stops_at_a_reward_model_of_two_labels(tmp_path: Path) -> None:
    script = tmp_path / "reward.py"
    script.write_text(REWARD.format(labels=", num_labels=2"))
    with pytest.raises(ConfigError, match=r"num_labels is 2: RewardTrainer of TRL 1\.16\.0 stops"):
        check(script, gpu="24GB", framework_version="1.16.0")
    assert check(script, gpu="24GB", framework_version="0.23.1").fits


TOKENIZER = """\
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import {name}Config, {name}Trainer
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
words = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B")
arguments = {name}Config(output_dir="out", bf16=True, max_length=512)
{name}Trainer(model=model, args=arguments, train_dataset=data, tokenizer=words).train()
"""


@pytest.mark.parametrize(("name", "loss"), [("SFT", None), ("DPO", "concatenated"), ("Reward", "two_forwards")])
def test_a_trainers_tokenizer_tells_the_version(name: str, loss: str | None, tmp_path: Path) -> None:
    """transformers 4, which such versions need, loads a model in fp32 if nothing says another dtype."""
    script = tmp_path / "train.py"
    script.write_text(TOKENIZER.format(name=name))
    parsed = read(from_path(script, None, {}), 1)
    assert "from its tokenizer" in parsed.version
    assert (parsed.job["dtype"], parsed.job.get("loss")) == ("fp32", loss)
    with pytest.raises(ConfigError, match=r"TRL 1\.16\.0 stops at tokenizer=; it takes processing_class="):
        read(from_path(script, None, {}), 1, "1.16.0")


def test_a_version_that_is_not_modelled_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TOKENIZER.format(name="KTO"))
    with pytest.raises(UnsupportedError, match=r"KTOTrainer of TRL 0\.13\.0 is not modelled"):
        read(from_path(script, None, {}), 1)


def test_transformers_trainer_with_a_tokenizer_is_that_of_version_4(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        TOKENIZER.format(name="")
        .replace("Config(", "TrainingArguments(")
        .replace(", max_length=512", "")
        .replace("import Config", "import TrainingArguments")
        .replace("from trl", "from transformers")
    )
    parsed = read(from_path(script, None, {}), 1)
    assert (parsed.version, parsed.job["dtype"]) == ("4.57.6 (from its tokenizer)", "fp32")
    with pytest.raises(ConfigError, match=r"transformers 5\.2\.0 stops at tokenizer="):
        read(from_path(script, None, {}), 1, "5.2.0")
