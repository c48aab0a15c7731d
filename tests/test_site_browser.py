"""The site in headless Chromium: random jobs equal to the command line's answers to the byte.

``VRAMPLAN_SITE_PARTS`` is the folder with the downloaded parts (vramplan/site/parts.json); without it, or without
Chromium, there is nothing to run.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import browser
from tests.helpers import cli
from vramplan.inputs.catalog import all_gpus, model_names
from vramplan.site import build

PARTS = os.environ.get("VRAMPLAN_SITE_PARTS", "")
pytestmark = [
    pytest.mark.skipif(browser.CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(not PARTS, reason="VRAMPLAN_SITE_PARTS names no folder of parts"),
]
NUM_JOBS = int(os.environ.get("VRAMPLAN_SITE_JOBS", "20"))


def random_line(choose: random.Random) -> list[str]:
    """A job as the page's controls make them; some of them cannot run, and are refused in one line."""
    words = [choose.choice(MODELS), "--gpu", choose.choice(GPUS)]
    words = ["suggest", *words, "--global-batch", choose.choice(("8", "16"))] if choose.random() < 0.3 else [
        "estimate", *words, "--micro-batch", choose.choice(("1", "2", "5"))
    ]  # fmt: skip
    for flag, values in CONTROLS.items():
        if choose.random() < 0.4:
            words += [flag, choose.choice(values)]
    return [*words, "--json"]


CONTROLS = {
    "--method": ("full", "lora", "qlora", "dora"),
    "--seq-len": ("512", "1000", "4096"),
    "--lora-rank": ("4", "64"),
    "--checkpointing": ("none", "full"),
    "--loss": ("standard", "liger", "cut"),
    "--attention": ("sdpa", "eager"),
    "--optimizer": ("adamw_torch_fused", "adamw_8bit", "sgd"),
    "--num-gpus": ("1", "4"),
    "--strategy": ("ddp", "fsdp", "zero2", "zero3"),
}
MODELS = [name for name in model_names() if "72B" not in name and "70B" not in name and "405B" not in name]
GPUS = [gpu.name for gpu in all_gpus()]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build.build(folder, Path(PARTS))
    return folder


def answers_of(
    site: Path, lines: Sequence[Sequence[str]], files: Sequence[dict[str, str]] = ()
) -> list[dict[str, object]]:
    """The worker's answers, in the order of the lines."""
    requests = [{"words": line, "files": dict(files[i]) if files else {}} for i, line in enumerate(lines)]
    answers: list[dict[str, object]] = []
    for told in browser.ask(site, requests):
        assert "failure" not in told.data, told.data["failure"]
        if "answer" in told.data:
            assert told.data["id"] == len(answers)
            answers.append(told.data["answer"])
    return answers


def test_random_jobs_are_equal_to_the_byte(site: Path) -> None:
    choose = random.Random(22)
    lines = [random_line(choose) for _ in range(NUM_JOBS)]
    answers = answers_of(site, lines)
    for line, answer in zip(lines, answers, strict=True):
        printed = cli(*line)
        expected = {"code": printed.returncode, "text": printed.stdout, "error": printed.stderr, "files": {}}
        assert answer == expected, " ".join(line)
    assert 0 < sum(answer["code"] == 2 for answer in answers) < NUM_JOBS


CONFIG = json.dumps({"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2})


def test_a_broken_configuration_is_one_line(site: Path) -> None:
    line = ["estimate", "config.json", "--gpu", "rtx4090", "--json"]
    broken, lacking = answers_of(site, [line, line], [{"config.json": "{"}, {"config.json": CONFIG}])
    for answer in (broken, lacking):
        assert (answer["code"], answer["text"]) == (2, "")
        assert str(answer["error"]).startswith("vramplan: config.json")
        assert str(answer["error"]).count("\n") == 1
