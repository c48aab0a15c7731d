"""Models by names that leave out a version or a size."""

from __future__ import annotations

import pytest

from vramplan.errors import UnknownNameError
from vramplan.inputs.load import load_model, load_named_model


@pytest.mark.parametrize(
    ("typed", "name"),
    [("gemma-9b", "google/gemma-2-9b"), ("llama 405b", "meta-llama/Llama-3.1-405B"), ("gemma-7b", "google/gemma-7b")],
)
def test_a_name_without_a_version_is_the_only_one(typed: str, name: str) -> None:
    assert load_model(typed).name == name


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("mistral-7b", "Mistral-7B-v0.3, Mistral-7B-v0.1?"),
        ("llama-8b", "Llama-3.1-8B, Meta-Llama-3-8B?"),
        ("llama-70b", "Llama-3.3-70B-Instruct, Llama-3.1-70B, Meta-Llama-3-70B?"),
        ("qwen-7b", "Qwen2.5-7B, Qwen2-7B, Qwen1.5-7B?"),
        ("qwen-1.8b", "Qwen1.5-1.8B?"),  # Qwen-1.8B is another model
        ("baichuan-7b", "Baichuan2-7B-Base?"),  # and so is Baichuan-7B
        ("llama3", "Llama-3.3-70B-Instruct, "),
        ("mixtral", "Mixtral-8x7B-v0.1, Mixtral-8x22B-v0.1?"),
        ("bert-base", "bert-base-"),
        ("mistrall-7b", "Mistral-7B-v0."),
    ],
)
def test_else_an_error_names_the_right_ones_first(typed: str, names: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        load_model(typed)
    assert f"did you mean {names}" in str(error.value)


def test_a_file_has_to_name_the_version() -> None:
    with pytest.raises(UnknownNameError, match="did you mean gemma-2-9b"):
        load_named_model("gemma-9b")
