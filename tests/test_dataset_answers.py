"""`check --dataset` of preferences and of prompts: the columns that TRL, LLaMA-Factory, axolotl and ms-swift take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vramplan import check
from vramplan.errors import VramplanError
from vramplan.inputs.dataset.answers import pair_of, prompt_of

USER = {"role": "user", "content": "q"}
GOOD, BAD = {"role": "assistant", "content": "good"}, {"role": "assistant", "content": "bad"}
FROM_USER, FROM_GOOD = {"from": "human", "value": "q"}, {"from": "gpt", "value": "good"}
PREFERENCES: dict[str, dict[str, Any]] = {
    "TRL": {"prompt": "q", "chosen": "good", "rejected": "bad"},
    "TRL, conversations": {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    "TRL, the prompt in both": {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "the prompt in both and beside them": {"prompt": "q", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "LLaMA-Factory, alpaca": {"instruction": "q", "input": "", "chosen": "good", "rejected": "bad"},
    "LLaMA-Factory, sharegpt": {
        "conversations": [FROM_USER],
        "chosen": FROM_GOOD,
        "rejected": {"from": "gpt", "value": "bad"},
    },
    "axolotl": {"question": "q", "chosen_response": "good", "rejected_response": "bad", "system": ""},
    "axolotl, chat_template": {"messages": [USER], "chosen": GOOD, "rejected": BAD},
    "ms-swift": {"messages": [USER, GOOD], "rejected_response": "bad"},
    "ms-swift, messages": {"messages": [USER, GOOD], "rejected_messages": [USER, BAD]},
}
PROMPTS: dict[str, dict[str, Any]] = {
    "TRL": {"prompt": "q", "solution": "of no account"},
    "TRL, conversations": {"prompt": [USER], "ground_truth": "4"},
    "ms-swift": {"messages": [USER, GOOD]},
    "alpaca": {"instruction": "q", "output": "good"},
    "a problem": {"problem": "q", "answer": "good"},
}


@pytest.mark.parametrize("row", PREFERENCES.values(), ids=PREFERENCES)
def test_a_preference_is_a_prompt_with_two_answers(row: dict[str, Any]) -> None:
    assert [(one.text, one.messages) for one in pair_of(row, "x:1")] == [("q\ngood", 2), ("q\nbad", 2)]


def test_texts_that_hold_the_prompt() -> None:
    found = pair_of({"chosen": "Human: q Assistant: good", "rejected": "Human: q Assistant: bad"}, "x:1")
    assert [one.text for one in found] == ["Human: q Assistant: good", "Human: q Assistant: bad"]


@pytest.mark.parametrize("row", PROMPTS.values(), ids=PROMPTS)
def test_a_prompt_is_a_row_without_its_answer(row: dict[str, Any]) -> None:
    (found,) = prompt_of(row, "x:1")
    assert (found.text.strip(), found.messages) == ("q", 2)


@pytest.mark.parametrize(
    ("read", "row", "message"),
    [
        (pair_of, {"prompt": "q", "chosen": "good"}, "x:1: a preference has chosen and rejected"),
        (pair_of, {"messages": [USER], "rejected_response": "bad"}, "it has messages, rejected_response"),
        (pair_of, ["good", "bad"], "x:1: expected an object"),
        (prompt_of, {"solution": "4"}, "x:1: no prompt (prompt, messages, instruction, query, question)"),
        (prompt_of, 5, "x:1: expected an object"),
    ],
)
def test_rows_that_miss_something(read: Any, row: Any, message: str) -> None:
    with pytest.raises(VramplanError) as error:
        read(row, "x:1")
    assert message in str(error.value)


def data(folder: Path, *rows: dict[str, Any]) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_the_longer_answer_of_a_pair_decides(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(
        "model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct\nstage: dpo\nfinetuning_type: lora\nbf16: true\n"
        "cutoff_len: 512\n"
    )
    rows = {"prompt": "q" * 30, "chosen": "good", "rejected": "b" * 300}, PREFERENCES["TRL"]
    found = check(path, gpu="rtx4090", dataset=data(tmp_path, *rows))
    assert found.estimate.job.sequence_length == 111 + 2 * 5  # 331 characters with the line break between them
    assert any(note.key == "lengths" for note in found.reading.notes)


def test_a_completion_is_generated_behind_the_longest_prompt(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        "trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct --max_completion_length 256 --num_generations 4"
        " --per_device_train_batch_size 4 --bf16 --use_vllm --vllm_mode server\n"
    )
    found = check(path, gpu="a100-80gb", dataset=data(tmp_path, {"prompt": "q" * 300}, {"prompt": "q"}))
    job, limits = found.estimate.job, found.data
    assert (job.prompt_length, job.sequence_length) == (111, 367)  # 301 characters, and two messages
    assert limits is not None
    assert limits.steps_per_epoch == 2  # two prompts with four completions each, four of them a step
    assert limits.padding_share == 0
