"""CSM: traces of transformers' class, its samples, and what is refused."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

import vramplan
from tests import csm_cases
from tests.helpers import card_of
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.inputs import spoken
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import MODEL_INPUTS
from vramplan.inputs.model_spec import Config
from vramplan.planner.job_defaults import complete_job

ROWS = csm_cases.TABLE.load()
JOBS = csm_cases.TABLE.jobs_of("csm")
SPEC = csm_cases.spec_for("csm")


@pytest.mark.one_of(3)
@pytest.mark.parametrize("job", JOBS, ids=str)
def test_estimates_agree_with_traces(job: Job) -> None:
    csm_cases.TABLE.check("csm", job, ROWS, tensors=3e-3, phase=0.005, flops=2e-3)


@pytest.mark.full
def test_most_estimates_agree_to_a_thousandth() -> None:
    assert median(csm_cases.TABLE.check("csm", job, ROWS, tensors=3e-3, flops=2e-3) for job in JOBS) <= 1e-3


@pytest.mark.full
def test_frames_are_those_of_its_processor() -> None:
    pytest.importorskip("transformers")
    from transformers.models.csm.processing_csm import CsmProcessor

    arguments = CsmProcessor.audio_kwargs["encoded_length_kwargs"]
    for seconds in (0.01, 0.5, 1.0, 3.33, 10.0, 29.999):
        job = Job(audio_seconds=seconds)
        counted = CsmProcessor._get_encoded_length(spoken.values(Config({}, ""), job), **arguments)
        assert spoken.frames(Config({}, ""), job) == counted


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_with_checkpointing_stop_in_pytorch() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("peft")
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, CsmForConditionalGeneration

    from vramplan.torch_backend.model.batches import _filled

    config = AutoConfig.for_model(**SPEC.config)
    model: Any = get_peft_model(CsmForConditionalGeneration(config).train(), LoraConfig(target_modules=["q_proj"]))
    job = JOBS[0].model_copy(update={"dtype": "fp32", "audio_seconds": 0.5, "sequence_length": 20})
    batch = {one.name: _filled(one, 1, "cpu") for one in MODEL_INPUTS["csm"].inputs(Config(SPEC.config, ""), job)}
    assert torch.isfinite(model(**batch).loss)
    model.get_base_model().enable_input_require_grads()  # as gradient_checkpointing_enable does for adapters
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        model(**batch)


def test_what_does_not_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"PyTorch stops where.*use checkpointing=none"):
        vramplan.estimate(SPEC, "h200", checkpointing="full")
    assert complete_job(SPEC, card_of(), {}).checkpointing == "none"
    assert complete_job(SPEC, card_of(), {"method": "full"}).checkpointing == "full"
    for setting in ({"quantize": "nf4"}, {"method": "dora"}, {"strategy": "zero2", "num_gpus": 2}):
        with pytest.raises(UnsupportedError, match="not modelled yet for csm"):
            vramplan.estimate(SPEC, "h200", **setting)
    with pytest.raises(ConfigError, match="75 frames and an end"):
        vramplan.estimate(SPEC, "h200", audio_seconds=6.0, sequence_length=60)
