"""That vLLM may not start stands beside a verdict that it can turn, and beside a change that leaves vLLM little."""

from __future__ import annotations

from io import StringIO

import pytest

from vramplan import check
from vramplan.planner.verdict import Verdict
from vramplan.render.check import answer
from vramplan.render.json_output import verdict as as_json
from vramplan.render.terminal import SafeConsole
from vramplan.render.web.checked import of_check

COMMAND = (
    "trl grpo --model_name_or_path Qwen/Qwen2.5-3B-Instruct --dtype bfloat16 --use_vllm true --vllm_mode colocate"
    " --per_device_train_batch_size {batch} --gradient_accumulation_steps {steps} --num_generations 8"
    " --max_completion_length 1024 --gradient_checkpointing true --vllm_gpu_memory_utilization {share}{more}"
)


def verdict(share: float, gpu: str, batch: int = 8, more: str = "") -> Verdict:
    command = COMMAND.format(share=share, batch=batch, steps=32 // batch, more=more)
    return check(command.split(), gpu, num_gpus=1, sequence_length=1536)


def text(found: Verdict) -> str:
    console = SafeConsole(file=StringIO(), width=200)
    console.print(answer(found))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(("share", "is_little"), [(0.045, True), (0.3, False)])
def test_beside_a_verdict_that_fits(share: float, is_little: bool) -> None:
    found = verdict(share, "h200-sxm", 4, " --vllm_max_model_length 1536")
    assert found.fits
    box = text(found).partition("╰")[0]
    assert ("vLLM may not start" in box) == is_little
    assert text(found).count("vLLM may not start") == is_little
    assert of_check(found).head.count("of its longest text, for activations") == is_little


def test_beside_a_change() -> None:
    found = verdict(0.9, "rtx4090")
    change = found.nearest_change
    assert change is not None
    assert "vllm_share" in change.update
    assert [doubt[:18] for doubt in change.doubts] == ["vLLM may not start"]
    assert text(found).count("But vLLM may not start") == 1
    assert as_json(found)["plan_warnings"] == [*change.doubts]
