"""Models of one's own, and what a trace says where it cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the trace needs the extra vramplan[probe]")

from tests.helpers import card_of
from vramplan.errors import VramplanError
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.torch_backend.trace import trace

OWN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        self.head = nn.Linear(64, 100)
    def forward(self, x, labels):
        return {"loss": nn.functional.cross_entropy(self.head(self.body(x)), labels)}

class Asks(Net):
    def forward(self, x, labels):
        return super().forward(x if x.sum() > 0 else x + 1, labels)

class Counts(Net):
    def forward(self, x, labels):
        return super().forward(x[labels.nonzero()[:, 0]], labels)

def example(batch):
    return {"x": torch.zeros(batch, 64), "labels": torch.zeros(batch, dtype=torch.int64)}

def make(micro_batch_size): return Net(), example(micro_batch_size)
def fixed(): return Net(), example(3)
def asks(): return Asks(), example(1)
def counts(): return Counts(), example(1)
def nothing(): return None
def breaks(): raise RuntimeError("no such file")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_model.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def own_spec(function: str) -> ModelSpec:
    return ModelSpec(name=f"own_model:{function}", model_type="import-path", config={})


@pytest.mark.usefixtures("own")
def test_a_model_of_ones_own() -> None:
    job = Job(method="full", dtype="fp32", autocast="none", checkpointing="none", micro_batch_size=16)
    found = trace.estimate(own_spec("make"), job, card_of())
    assert found.num_parameters == 64 * 256 + 256 + 256 * 64 + 64 + 64 * 100 + 100
    assert found.by_category()["optimizer_state"] >= 8 * found.num_parameters
    adapted = trace.estimate(own_spec("make"), Job(checkpointing="none", micro_batch_size=16), card_of())
    assert adapted.num_trainable_parameters == 8 * (64 + 256 + 256 + 64 + 64 + 100)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        ("asks", {}, "reads a value of a torch.bool tensor"),
        ("counts", {}, "aten.nonzero.default"),
        ("nothing", {}, "expected (nn.Module, example inputs), got NoneType"),
        ("breaks", {}, "RuntimeError: no such file"),
        ("missing", {}, "cannot be imported"),
        ("fixed", {}, "let the function take micro_batch_size"),
        ("make", {"checkpointing": "full"}, "use checkpointing=none"),
        ("make", {"loss": "liger"}, "needs a causal language model"),
        ("make", {"optimizer": "adamw_torch_fusd"}, "did you mean adamw_torch_fused"),
        ("make", {"optimizer": "lomo"}, "cannot be constructed here"),
    ],
)
def test_one_line_says_what_is_wrong(function: str, given: dict[str, Any], said: str) -> None:
    job = Job(**{"method": "full", "dtype": "fp32", "autocast": "none", "checkpointing": "none", **given})
    with pytest.raises(VramplanError) as caught:
        trace.estimate(own_spec(function), job, card_of())
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "llama9", "transformers_version": "6.2.0"}, "written by transformers 6.2.0"),
        ({"model_type": "mine", "auto_map": {"AutoModel": "modeling_mine.Mine"}}, "add trust_remote_code"),
        ({"model_type": "beit", "hidden_size": 64, "num_hidden_layers": 2}, "no causal language model of type 'beit'"),
        ({"model_type": "llama", "hidden_size": "wide"}, "refuses the configuration"),
    ],
)
def test_models_that_cannot_be_built(config: dict[str, Any], said: str) -> None:
    spec = ModelSpec(name="some model", model_type=config["model_type"], config=config)
    with pytest.raises(VramplanError) as caught:
        trace.estimate(spec, Job(), card_of())
    assert said in str(caught.value)
