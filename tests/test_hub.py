"""Models from folders, files and the Hub: the real client against a server that speaks the Hub's API."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http, close_session, disable_progress_bars

import vramplan
from tests.helpers import spec_of
from tests.hub_server import Fault, HubServer, Repo, safetensors, sharded
from vramplan import Job
from vramplan.errors import HubError, SpecError, UnknownNameError, VramplanError
from vramplan.inputs import hub
from vramplan.inputs.catalog import find_model
from vramplan.inputs.images import processed_image
from vramplan.inputs.resolve import resolve_model

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
    "eos_token_id": [1, 2],
}
CONFIG = json.dumps(TINY).encode()
TENSORS = {"a.weight": ("BF16", (10, 20)), "b.weight": ("F32", (7,))}
SHARDS = {"model-1.safetensors": {"a": ("BF16", (10, 20))}, "model-2.safetensors": {"b": ("F32", (7,))}}


@pytest.fixture
def server() -> Iterator[HubServer]:
    repos = {
        "org/one": Repo({"config.json": CONFIG, "model.safetensors": safetensors(TENSORS)}),
        "org/cdn": Repo({"config.json": CONFIG, "model.safetensors": safetensors(TENSORS)}, cdn=True),
        "org/many": Repo({"config.json": CONFIG, **sharded(SHARDS)}),
        "org/no-weights": Repo({"config.json": CONFIG}),
        "org/no-config": Repo({"README.md": b"nothing"}),
        "org/gated": Repo({"config.json": CONFIG}, gated=True),
        "org/broken": Repo({"config.json": CONFIG[:40]}),
        "org/strange": Repo({"config.json": CONFIG, "model.safetensors": b"\x10" + b"\0" * 7 + b"[1, 2, 3]       "}),
    }
    with HubServer(repos) as running:
        yield running


@pytest.fixture(autouse=True)
def client(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The client reads its environment when it is imported, so a test sets its constants."""
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    if hasattr(constants, "AGENT_HARNESSES_PATH"):
        monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", str(tmp_path / "harnesses.json"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    disable_progress_bars()
    close_session()
    yield
    close_session()


@pytest.mark.parametrize("repo", ["org/one", "org/cdn", "org/many"])
def test_a_model_with_its_exact_count(repo: str, server: HubServer) -> None:
    spec = resolve_model(repo)
    assert (spec.name, spec.model_type, spec.config["hidden_size"]) == (repo, "llama", 64)
    assert (spec.stored_parameters, spec.published_dtype) == (207, "bf16")
    assert server.sent < 20_000  # headers, never weights
    found = vramplan.estimate(spec, "rtx3060")
    assert found.fits
    assert found.num_parameters == 2 * 1000 * 64 + 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64)
    assert any("207" in note for note in found.notes)


def test_a_model_without_safetensors(server: HubServer) -> None:
    assert resolve_model("org/no-weights").stored_parameters is None
    assert resolve_model("org/strange").stored_parameters is None


def test_the_cache_serves_when_the_hub_is_gone(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve_model("org/one")
    server.faults = [Fault(drop=True)]
    assert resolve_model("org/one").config == first.config
    server.faults = [Fault(status=503)]
    assert resolve_model("org/one").config == first.config
    server.faults = []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    requests = len(server.log)
    assert resolve_model("org/one").config == first.config
    assert len(server.log) == requests


@pytest.mark.parametrize(
    ("repo", "faults", "error", "said"),
    [
        ("org/nothing", [], HubError, "no such model on the Hub"),
        ("qwen/qwen2.5-7b-instruc", [], HubError, "did you mean Qwen/Qwen2.5-7B-Instruct"),
        ("org/gated", [], HubError, "gated on the Hub"),
        ("org/no-config", [], HubError, "has no config.json on the Hub"),
        ("org/broken", [], SpecError, "broken JSON"),
        ("org/one", [Fault(status=429, headers={"Retry-After": "3600"})], HubError, "limits the rate"),
        ("org/one", [Fault(status=500)], HubError, "HTTP 500"),
        ("org/one", [Fault(status=404)], HubError, "HTTP 404"),
        ("org/one", [Fault(drop=True)], HubError, "cannot be reached"),
        ("org/one", [Fault("GET", keep=10)], HubError, "cannot be reached"),
    ],
)
def test_one_clear_line_each(
    repo: str, faults: list[Fault], error: type[Exception], said: str, server: HubServer
) -> None:
    server.faults = faults
    started = time.monotonic()
    with pytest.raises(error) as raised:
        resolve_model(repo)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert repo in str(raised.value) or error is not HubError
    assert time.monotonic() - started < hub.TIMEOUT_SECONDS


def test_a_silent_hub_is_given_up(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "TIMEOUT_SECONDS", 0.5)
    server.faults = [Fault(delay=30)]
    started = time.monotonic()
    with pytest.raises(HubError, match="cannot be reached"):
        resolve_model("org/one")
    assert time.monotonic() - started < 5


def test_unreachable_and_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    with pytest.raises(HubError, match="cannot be reached"):
        resolve_model("org/one")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        resolve_model("org/one")


def test_the_client_is_left_as_it_was() -> None:
    before = _http._GLOBAL_CLIENT_FACTORY
    resolve_model("org/one")
    assert _http._GLOBAL_CLIENT_FACTORY is before


def test_a_folder_and_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    with pytest.raises(SpecError, match=r"no config\.json"):
        resolve_model(str(folder))
    (folder / "config.json").write_bytes(CONFIG)
    assert resolve_model(str(folder)).stored_parameters is None
    (folder / "model.safetensors").write_bytes(safetensors(TENSORS))
    stored = resolve_model(str(folder))
    assert (stored.stored_parameters, stored.stored_dtype) == (207, "bf16")
    assert resolve_model(str(folder / "config.json")).model_type == "llama"
    (folder / "model.safetensors").write_bytes(b"short")
    assert resolve_model(str(folder)).stored_parameters is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "broken JSON"),
        ('{"model_type": "llama", ', "config.json:1: broken JSON"),
        ("[1]", "expected a JSON object"),
        ("{}", "no 'model_type'"),
        ('{"model_type": 3}', "no 'model_type'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=said):
        resolve_model(str(path))


def test_names_that_are_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Hub id"):
        resolve_model("nosuchmodel")
    with pytest.raises(UnknownNameError, match="did you mean"):
        resolve_model("qwen2.5-7b-instrct")
    with pytest.raises(SpecError, match="no such file"):
        resolve_model(str(tmp_path / "missing.json"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "mamba9"}, "does not support the architecture|does not know model_type"),
        ({"hidden_size": None}, "has no 'hidden_size'"),
        ({"num_hidden_layers": -3}, "expected a positive whole number"),
        ({"num_hidden_layers": 10**7}, "expected at most 512"),
        ({"vocab_size": "many"}, "expected a positive whole number"),
        ({"attention_bias": "yes"}, "expected true or false"),
        ({"hidden_act": "mish"}, "unknown activation function"),
        ({"quantization_config": {"bits": 4}}, "quantized checkpoints"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "num_key_value_heads"),
    ],
)
def test_configurations_that_cannot_be(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**TINY, **change}))
    with pytest.raises(VramplanError, match=said):
        vramplan.estimate(str(path), "h100")


def test_a_shipped_model_needs_no_hub(server: HubServer) -> None:
    assert resolve_model("qwen/QWEN2.5-7b") == spec_of("Qwen/Qwen2.5-7B")
    assert not server.log


QWEN = json.dumps(dict(find_model("Qwen/Qwen2.5-VL-3B-Instruct").config) | {"model_type": "qwen2_5_vl"}).encode()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("preprocessor_config.json", {"max_pixels": 401408}),
        ("processor_config.json", {"image_processor": {"size": {"shortest_edge": 3136, "longest_edge": 401408}}}),
    ],
)
def test_the_image_processor_is_read_too(server: HubServer, tmp_path: Path, name: str, text: dict[str, Any]) -> None:
    files = {"config.json": QWEN, name: json.dumps(text).encode()}
    server.repos["someone/sees"] = Repo(files)
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
    for spec in (resolve_model("someone/sees"), resolve_model(str(tmp_path)), resolve_model(f"{tmp_path}/config.json")):
        picture = processed_image(spec, Job(images=1, image_size=(2000, 2000), sequence_length=4096))
        assert picture is not None
        assert picture.tokens == 484, "22 x 22 tokens of 28 pixels: what 401,408 pixels allow"


@pytest.mark.parametrize(
    ("name", "text", "tokens"),
    [
        ("video_preprocessor_config.json", {"size": {"shortest_edge": 3136, "longest_edge": 50176}}, 64),
        ("preprocessor_config.json", {"min_pixels": 3136, "max_pixels": 100352}, 121),
        ("processor_config.json", {"video_processor": {"size": {"shortest_edge": 3136, "longest_edge": 50176}}}, 64),
    ],
)
def test_the_video_processor_is_read_too(
    server: HubServer, tmp_path: Path, name: str, text: dict[str, Any], tokens: int
) -> None:
    """From where transformers takes it: its own file, or the one of all processors, or that of images."""
    files = {"config.json": QWEN, name: json.dumps(text).encode()}
    server.repos["someone/watches"] = Repo(files)
    for file, data in files.items():
        (tmp_path / file).write_bytes(data)
    for spec in (resolve_model("someone/watches"), resolve_model(str(tmp_path))):
        film = processed_image(spec, Job(videos=1, frames=2, image_size=(2000, 2000), sequence_length=4096))
        assert film is not None
        assert film.tokens == tokens


def test_internvl_in_its_own_words(tmp_path: Path) -> None:
    """As OpenGVLab writes it; the shipped specification of the same model is the outside fact."""
    own = {
        "model_type": "internvl_chat",
        "architectures": ["InternVLChatModel"],
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "force_image_size": 448,
        "max_dynamic_patch": 12,
        "min_dynamic_patch": 1,
        "use_thumbnail": True,
        "llm_config": {
            "model_type": "internlm2",
            "bias": False,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 92553,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": False,
        },
        "vision_config": {
            "model_type": "intern_vit_6b",
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "image_size": 448,
            "patch_size": 14,
            "qkv_bias": True,
            "qk_normalization": False,
            "norm_type": "layer_norm",
            "hidden_act": "gelu",
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(own))
    shipped = find_model("OpenGVLab/InternVL2_5-8B")
    on = {"gpu": "h100", "images": 1, "image_size": "1344x896", "sequence_length": 4096}
    found, expected = (vramplan.estimate(one, **on) for one in (str(tmp_path), shipped))
    assert found.num_parameters == expected.num_parameters == shipped.num_parameters
    assert found.device_total_bytes == expected.device_total_bytes
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in own.items() if k != "llm_config"}))
    with pytest.raises(SpecError, match="no 'llm_config'"):
        resolve_model(str(tmp_path))
