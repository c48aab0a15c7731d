"""How configurations name a model, and which one it is; a name that says nothing certain is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vramplan.errors import ConfigError, HubError, UnknownNameError, UnsupportedError, VramplanError
from vramplan.inputs import model_names
from vramplan.inputs.model_names import named_model
from vramplan.planner import check

CACHE = "~/.cache/huggingface/hub/models--"
SCOPE = "/root/.cache/modelscope/hub"
MEANT = {
    # shipped names and aliases
    "Qwen/Qwen3-8B": "Qwen/Qwen3-8B",
    "qwen/qwen3-8b": "Qwen/Qwen3-8B",
    "Qwen3-8B": "Qwen/Qwen3-8B",
    " Qwen/Qwen3-8B ": "Qwen/Qwen3-8B",
    "Qwen/Qwen2.5-7B-Instruct": "Qwen/Qwen2.5-7B-Instruct",
    "meta-llama/Llama-2-7b-hf": "meta-llama/Llama-2-7b-hf",
    "meta-llama/Llama-2-7b-chat-hf": "meta-llama/Llama-2-7b-chat-hf",
    "meta-llama/Meta-Llama-3.1-8B": "meta-llama/Meta-Llama-3.1-8B",
    "NousResearch/Meta-Llama-3-8B": "NousResearch/Meta-Llama-3-8B",
    "lmsys/vicuna-7b-v1.5": "lmsys/vicuna-7b-v1.5",
    "unsloth/Llama-3.2-1B": "unsloth/Llama-3.2-1B",
    "gpt2": "openai-community/gpt2",
    "bert-base-uncased": "google-bert/bert-base-uncased",
    # folders that are elsewhere
    "/x/Qwen3-8B": "Qwen/Qwen3-8B",
    "./models/Qwen3-8B/": "Qwen/Qwen3-8B",
    "../Qwen3-8B": "Qwen/Qwen3-8B",
    "~/models/Qwen3-8B": "Qwen/Qwen3-8B",
    "models/Qwen3-8B": "Qwen/Qwen3-8B",
    "pretrained/InternVL2-8B": "OpenGVLab/InternVL2-8B",
    "./pretrained/InternVL2-2B": "OpenGVLab/InternVL2-2B",
    "./pretrained/Mini-InternVL-Chat-2B-V1-5": "OpenGVLab/Mini-InternVL-Chat-2B-V1-5",
    "/mnt/Meta-Llama-3-8B-Instruct": "meta-llama/Meta-Llama-3-8B-Instruct",
    "/mnt/meta-llama/Meta-Llama-3-8B": "meta-llama/Meta-Llama-3-8B",
    "/mnt/data/Qwen/Qwen2.5-7B-Instruct/": "Qwen/Qwen2.5-7B-Instruct",
    "/home/user/LLM/chatglm3-6b": "THUDM/chatglm3-6b",
    "/data/models/Mistral-7B-Instruct-v0.3": "mistralai/Mistral-7B-Instruct-v0.3",
    "/tmp/Qwen2.5-3B": "Qwen/Qwen2.5-3B",
    "/path/to/qwen3-8B": "Qwen/Qwen3-8B",
    "path/to/Qwen3-8B": "Qwen/Qwen3-8B",
    "model/gpt2": "openai-community/gpt2",
    "checkpoints/llava-1.5-7b-hf": "llava-hf/llava-1.5-7b-hf",
    "D:\\models\\Qwen2.5-7B": "Qwen/Qwen2.5-7B",
    "$MODEL_DIR/Qwen2.5-7B-Instruct": "Qwen/Qwen2.5-7B-Instruct",
    "${HF_HOME}/Qwen/Qwen3-8B": "Qwen/Qwen3-8B",
    "/weka/oe-training/OLMo-2-1124-7B": "allenai/OLMo-2-1124-7B",
    "s3://bucket/models/Qwen3-8B": "Qwen/Qwen3-8B",
    "https://huggingface.co/Qwen/Qwen3-8B": "Qwen/Qwen3-8B",
    "https://huggingface.co/Qwen/Qwen3-8B/tree/main": "Qwen/Qwen3-8B",
    # caches
    f"{CACHE}Qwen--Qwen3-8B/snapshots/b968826d9c46dd6066d109eabc6255188de91218": "Qwen/Qwen3-8B",
    f"{CACHE}meta-llama--Llama-2-7b-hf/snapshots/01c7f73d": "meta-llama/Llama-2-7b-hf",
    f"{CACHE}gpt2/snapshots/607a30d7": "openai-community/gpt2",
    f"{CACHE}Qwen--Qwen2.5-7B-Instruct": "Qwen/Qwen2.5-7B-Instruct",
    "/models/Qwen3-8B/snapshots/b968826d": "Qwen/Qwen3-8B",
    f"{SCOPE}/Qwen/Qwen2___5-7B-Instruct": "Qwen/Qwen2.5-7B-Instruct",
    f"{SCOPE}/models/Qwen/Qwen2___5-VL-7B-Instruct": "Qwen/Qwen2.5-VL-7B-Instruct",
    f"{SCOPE}/qwen/Qwen2-7B-Instruct": "Qwen/Qwen2-7B-Instruct",
    "Qwen/Qwen2___5-7B": "Qwen/Qwen2.5-7B",
    "/mnt/workspace/.cache/modelscope/LLM-Research/Meta-Llama-3___1-8B": "meta-llama/Meta-Llama-3.1-8B",
    # ModelScope's organisations
    "LLM-Research/Meta-Llama-3-8B-Instruct": "meta-llama/Meta-Llama-3-8B-Instruct",
    "LLM-Research/gemma-2-9b-it": "google/gemma-2-9b-it",
    "AI-ModelScope/Mistral-7B-Instruct-v0.1": "mistralai/Mistral-7B-Instruct-v0.1",
    "AI-ModelScope/gpt2": "openai-community/gpt2",
    "ZhipuAI/glm-4-9b-chat": "THUDM/glm-4-9b-chat",
    "Shanghai_AI_Laboratory/internlm2-chat-7b": "internlm/internlm2-chat-7b",
    "modelscope/Llama-2-7b-hf": "meta-llama/Llama-2-7b-hf",
    # mirrors, where the Hub does not answer
    "NousResearch/Llama-3.2-1B": "meta-llama/Llama-3.2-1B",
    "unsloth/Qwen3-8B": "Qwen/Qwen3-8B",
    "alpindale/Llama-3.1-8B": "meta-llama/Llama-3.1-8B",
}
"""Spellings, and the model that each means."""
QUANTIZED = {
    "Qwen/Qwen2.5-7B-Instruct-AWQ": "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": "Qwen/Qwen2.5-7B-Instruct",
    "Qwen/Qwen3-8B-FP8": "Qwen/Qwen3-8B",
    "TheBloke/Llama-2-7B-GPTQ": "",
    "TheBloke/Mistral-7B-v0.1-GGUF": "mistralai/Mistral-7B-v0.1",
    "unsloth/Meta-Llama-3.1-8B-bnb-4bit": "meta-llama/Meta-Llama-3.1-8B",
    "unsloth/llama-3-8b-bnb-4bit": "",
    "unsloth/Qwen3-14B-unsloth-bnb-4bit": "Qwen/Qwen3-14B",
    "/models/Qwen2.5-7B-Instruct-AWQ": "Qwen/Qwen2.5-7B-Instruct",
    "/models/Qwen2___5-7B-Instruct-GPTQ-Int8/": "Qwen/Qwen2.5-7B-Instruct",
    "mlx-community/Qwen3-8B-4bit": "Qwen/Qwen3-8B",
    "unsloth/B-GGUF:Q4_K_M": "",
    "TechxGenus/Meta-Llama-3-8B-Instruct-GPTQ": "meta-llama/Meta-Llama-3-8B-Instruct",
    "neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w8a8": "",
    "Qwen2.5-7B-Instruct-AWQ": "Qwen/Qwen2.5-7B-Instruct",
}
"""Quantized checkpoints, and the model that the refusal names; "" if the rest of the name is no model's exactly."""
REFUSED = (
    "$MODEL_PATH", "${MODEL}", "<model>", "path/to/model", "/path/to/your/model", "/path/to/base_model",
    "your-model-name",
    "/data/checkpoint-1000", "output/qwen2.5-7b-sft/checkpoint-500", "output/checkpoint-500", "./checkpoint-last",
    "output/vx-xxx/checkpoint-xxx", "saves/qwen3-4b/full/sft", "/mnt/run/epoch_3", "./final", "s3://bucket/run-17/",
    "megatron_output/Qwen2.5-7B-Instruct/vx-xxx/checkpoint-xxx-hf", "../hf_llama2_models/7B",
    "output_models/lora_merged",
    "/data/Qwen2.5-7B-Instruct-mine", "models/my-tuned-qwen", "./unsloth_out/merged_llama_text_model", "/", "~",
)  # fmt: skip
"""Names that do not say which model it is."""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The Hub does not answer; the ids that it was asked for."""
    asked: list[str] = []

    def refuse(repo: str) -> Any:
        asked.append(repo)
        raise HubError(f"{repo}: not shipped, and the Hub cannot be reached (no route); give a folder")

    monkeypatch.setattr("vramplan.inputs.hub.from_hub", refuse)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return asked


@pytest.mark.parametrize(("name", "expected"), MEANT.items())
def test_the_model_that_is_meant(name: str, expected: str) -> None:
    spec, note = named_model(name)
    assert spec.name == expected
    exact = name.strip().lower() in (expected.lower(), expected.rpartition("/")[2].lower())
    assert bool(note) is not exact
    assert exact or f"taken as {expected} by its name" in note


@pytest.mark.parametrize(("name", "base"), QUANTIZED.items())
def test_quantized_checkpoints_are_refused_by_name(name: str, base: str, offline: list[str]) -> None:
    with pytest.raises(UnsupportedError, match="quantized checkpoints are not modelled yet; name the model") as error:
        named_model(name)
    assert str(error.value).endswith(f"made from, {base}" if base else "made from")
    assert not offline


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_says_nothing_certain_is_asked_about(name: str, offline: list[str]) -> None:
    with pytest.raises(ConfigError, match="give model") as error:
        named_model(name)
    assert "\n" not in str(error.value)
    assert not offline, "the Hub knows nothing of it"


def test_the_nearest_name_is_in_the_error() -> None:
    with pytest.raises(ConfigError, match=r"nearest is Qwen/Qwen2\.5-7B-Instruct"):
        named_model("/data/Qwen2.5-7B-Instruct-mine")
    with pytest.raises(UnknownNameError, match=r"did you mean .*Qwen2\.5-7B-Instruct"):
        named_model("Qwen2.5-7B-Instruct-mine")


@pytest.mark.parametrize(
    "name", ["someone/Qwen2.5-7B-Instruct-mine", "meta-llama/Llama-2-7b", "HuggingFaceH4/zephyr-7b-beta"]
)
def test_an_id_that_only_the_hub_knows_is_asked_for_there(name: str, offline: list[str]) -> None:
    with pytest.raises(HubError):
        named_model(name)
    assert offline == [name]


def test_a_folder_that_is_here_comes_first(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "Qwen3-8B-FP8"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    spec, note = named_model("models/Qwen3-8B-FP8")
    assert (spec.model_type, note) == ("qwen2", "")
    (tmp_path / "models" / "Qwen3-8B").mkdir()  # an adapter's folder, without a config.json
    assert named_model("models/Qwen3-8B").spec.name == "Qwen/Qwen3-8B"


def test_the_error_says_where_the_name_stands(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("stage: sft\nmodel_name_or_path: output/checkpoint-500\nfinetuning_type: lora\nbf16: true\n")
    with pytest.raises(VramplanError, match=r"a\.yaml:2: model_name_or_path: output/checkpoint-500 does not say which"):
        check.check(path, "h100")


def test_no_folder_is_an_organisation_with_shipped_models() -> None:
    names = {name.partition("/")[0].lower() for name in model_names.known_model_names() if "/" in name}
    assert not names & (model_names.LOCAL_FOLDERS | model_names.MODELSCOPE)
    assert not [name for name in model_names.known_model_names() if model_names.QUANTIZED.search(name)]


@pytest.mark.parametrize("name", ["x" * 300, "org/" + "x" * 5000, "~nobody-of-this-name/x", "a\0b"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(VramplanError) as caught:
        named_model(name)
    assert "\n" not in str(caught.value)
