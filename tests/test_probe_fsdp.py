"""How a probe shards a model under FSDP: as accelerate does."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import card_of, spec_of
from vramplan.errors import UnsupportedError
from vramplan.inputs.job import Job
from vramplan.inputs.sharding import Fsdp
from vramplan.measurements.probe import ProbeDevice

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


@pytest.mark.filterwarnings("ignore::FutureWarning")  # PEFT asks transformers by an older name
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("peft", [False, True])
def test_embedding_and_head_are_groups_of_their_own(tied: bool, peft: bool) -> None:
    """accelerate 1.15, utils/fsdp_utils.py, fsdp2_prepare_model."""
    from vramplan.torch_backend.probe.distributed import _outside_the_layers

    config = transformers.LlamaConfig(
        hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, vocab_size=16,
        tie_word_embeddings=tied,
    )  # fmt: skip
    causal = transformers.LlamaForCausalLM(config)
    module: Any = causal
    if peft:
        library = pytest.importorskip("peft")
        module = library.get_peft_model(causal, library.LoraConfig(target_modules=["q_proj"]))
    embedding, tail = _outside_the_layers(module)
    assert embedding is (None if tied else causal.model.embed_tokens)
    norms = [] if peft else [causal.model.norm]
    assert tail == [*norms, *([causal.model.embed_tokens] if tied else []), causal.lm_head]


def test_version_1_is_refused() -> None:
    job = Job(num_gpus=2, strategy="fsdp", fsdp=Fsdp(version=1), lora_dtype="bf16", autocast="none")
    with pytest.raises(UnsupportedError, match="is not probed yet, version 2 is"):
        ProbeDevice(card_of("h100")).measure(spec_of("Qwen/Qwen2.5-0.5B"), job)
