"""What PEFT saves of adapters, and loads to go on with: as many parameters, in as many bytes, as are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import spec_of
from vramplan.analytic.estimator import estimate
from vramplan.frameworks.readers.saved_adapters import find
from vramplan.inputs.load import load_gpu
from vramplan.planner.job_defaults import complete_job

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "names": {"r": 8, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.05},
    "all-linear": {"r": 4, "target_modules": "all-linear"},
    "expression": {"r": 4, "target_modules": r".*\.mlp\.(up_proj|down_proj)"},
    "default": {"r": 16},
    "dora": {"r": 4, "target_modules": ["o_proj"], "use_dora": True},
    "modules": {"r": 4, "target_modules": ["o_proj"], "modules_to_save": ["lm_head"]},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_and_bytes_are_those_of_peft(tmp_path: Path, name: str) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    def base() -> Any:
        return Qwen2ForCausalLM(Qwen2Config(**SMALL)).to(torch.bfloat16)

    config = peft.LoraConfig(task_type="CAUSAL_LM", **CONFIGS[name])
    peft.get_peft_model(base(), config).save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(base(), str(tmp_path), is_trainable=True)
    trained = [one for one in loaded.parameters() if one.requires_grad]
    saved = find(str(tmp_path), tmp_path)
    assert saved is not None
    fields = {key: value for key, value in saved.fields.items() if key not in ("vision", "projector")}
    spec, gpu = spec_of("qwen2.5-0.5b", **SMALL), load_gpu("a100-80gb")
    job = complete_job(spec, gpu, {**fields, "sequence_length": 128, "dtype": "bf16", "autocast": "bf16"})
    assert estimate(spec, job, gpu).num_trainable_parameters == sum(one.numel() for one in trained)
    dtypes = {key: one.dtype for key, one in loaded.named_parameters() if one.requires_grad}
    assert {dtype for key, dtype in dtypes.items() if "lora_" in key} == {torch.float32}
    assert job.lora_dtype == "fp32"
    whole = {dtype for key, dtype in dtypes.items() if "lora_" not in key}  # modules to save keep the model's
    assert whole <= {torch.bfloat16}
    assert job.saved_dtype is None
