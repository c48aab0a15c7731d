"""A Trainer-based framework is one module: its reader, its writer and its record (see CONTRIBUTING.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers import card_of, spec_of
from vramplan import check as check_config
from vramplan.errors import UnsupportedError
from vramplan.frameworks import known_keys
from vramplan.frameworks.detect import from_path, from_words
from vramplan.frameworks.framework import ENGINES, Framework, Writer
from vramplan.frameworks.parsed_config import ParsedConfig, resolve_version
from vramplan.frameworks.readers.trainer_arguments import (
    NAMES,
    adapter_fields,
    autocast_dtype,
    eval_batch_size,
    num_launched_processes,
    read_checkpointing,
    trainer_fields,
)
from vramplan.frameworks.registry import FRAMEWORKS
from vramplan.frameworks.settings import ConfigReader
from vramplan.frameworks.writers.config_text import ConfigText, allocator_variables
from vramplan.frameworks.writers.trainer_based import adapter, batch_and_optimizer
from vramplan.frameworks.writers.zero_fsdp import sharding
from vramplan.inputs.job import Job
from vramplan.planner import check, export, fix
from vramplan.planner.job_defaults import complete_job
from vramplan.planner.read_config import complete_with_model

QWEN = "Qwen/Qwen2.5-0.5B"

# -- what would be vramplan/frameworks/readers/toytrain.py -------------------------------------------------------------


def read(config: ConfigReader, num_gpus: int, version: str | None) -> ParsedConfig:
    known, where = resolve_version("toytrain", version, "1.0")
    job = trainer_fields(config)
    peft = config.boolean("toy_lora", default=True)
    job |= {"method": "lora" if peft else "full", "dtype": "bf16", "autocast": autocast_dtype(config)}
    job |= adapter_fields(config, "toy_rank") if peft else {}
    job |= {"checkpointing": read_checkpointing(config), "sequence_length": config.integer("toy_length", default=1024)}
    job["num_gpus"] = num_launched_processes(config, num_gpus)
    names = NAMES | {"sequence_length": "toy_length"}
    parsed = ParsedConfig("toytrain", f"{known} ({where})", config.string("toy_model") or "", job, names, config.notes)
    parsed.eval_batch_size = eval_batch_size(config, 8, config.has("eval_strategy"))
    return parsed


def write(model: str, job: Job) -> ConfigText:
    pairs = {"toy_model": model, **batch_and_optimizer(job), "toy_length": job.sequence_length}
    pairs |= {"toy_lora": job.method != "full", job.autocast: True}
    pairs |= adapter(job, "toy_rank", "toy_targets", "all-linear", "use_dora", "modules_to_save")
    pairs |= {"gradient_checkpointing": job.checkpointing == "full"} | sharding(job)
    return ConfigText(pairs, allocator_variables(job), "toytrain fit train.yaml", file="train.yaml")


FRAMEWORK = Framework(
    name="toytrain",
    read=read,
    commands=(("toytrain", "fit"),),
    unread_commands={("toytrain", "dream"): "preference training"},
    marks=frozenset({"toy_model", "toy_length"}),
    inherits=("transformers",),
    variables=frozenset({"TOY_PIXELS"}),
    overrides="pairs",
    expands_all_linear=True,
    writers=(Writer("toytrain", write, ENGINES),),
)
KNOWN_KEYS = ["toy_model", "toy_length", "toy_lora", "toy_rank", "toy_targets", "toy_color"]

# -- end of it ---------------------------------------------------------------------------------------------------------

TEXT = f"""\
toy_model: {QWEN}
toy_length: 2048
toy_rank: 16
toy_color: blue
toy_colour: red
bf16: true
per_device_train_batch_size: 64
gradient_accumulation_steps: 1
logging_steps: 10
"""


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two other places: the registry's list, and the keys in known_keys.json."""
    monkeypatch.setitem(FRAMEWORKS, FRAMEWORK.name, FRAMEWORK)
    monkeypatch.setitem(known_keys._table("known_keys.json"), FRAMEWORK.name, KNOWN_KEYS)


def _file(folder: Path, text: str = TEXT) -> Path:
    path = folder / "train.yaml"
    path.write_text(text)
    return path


def test_check_reads_it(tmp_path: Path) -> None:
    verdict = check_config(_file(tmp_path), "rtx4090", num_gpus=1)
    job, notes = verdict.estimate.job, {note.key: note for note in verdict.reading.notes}
    assert (verdict.reading.framework, verdict.estimate.model) == ("toytrain", QWEN)
    assert (job.micro_batch_size, job.sequence_length, job.lora_rank) == (64, 2048, 16)
    assert (notes["toy_color"].kind, notes["logging_steps"].kind) == ("ignored", "ignored")
    assert notes["toy_colour"].text == "toytrain does not know this key; did you mean toy_color?"


def test_it_names_the_layers_of_a_mixture_to_peft(tmp_path: Path) -> None:
    """`expands_all_linear`, as ms-swift does; all-linear itself would adapt Mixtral's experts too."""
    spec = spec_of("mistralai/Mixtral-8x7B-v0.1")
    reading = check.read(from_path(_file(tmp_path), None, {}), 1)
    assert "q_proj" in complete_with_model(spec, reading, reading.job)["lora_targets"]


def test_commands(tmp_path: Path) -> None:
    config = from_words(["toytrain", "fit", str(_file(tmp_path)), "toy_rank=4"], None, {"TOY_PIXELS": "1"})
    assert check.read(config, 1).job["lora_rank"] == 4
    assert "TOY_PIXELS" in config.source.environment
    with pytest.raises(UnsupportedError, match="toytrain dream: preference training is not read yet"):
        from_words(["toytrain", "dream"], None, {})


def test_a_key_that_nothing_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TrainingArguments' come with `inherits`, its own with unsupported_keys.json."""
    monkeypatch.setitem(known_keys._table("unsupported_keys.json"), "toytrain", {"toy_dream": []})
    for key in ("torch_compile", "toy_dream"):
        with pytest.raises(UnsupportedError, match=key):
            check.read(from_path(_file(tmp_path, f"{TEXT}{key}: true\n"), None, {}), 1)


def test_fix_edits_it(tmp_path: Path) -> None:
    fixed = fix.fix(_file(tmp_path), "rtx4090", num_gpus=1)
    assert fixed.after.fits
    assert fixed.text != TEXT
    assert "toy_colour: red\n" in fixed.text


@pytest.mark.parametrize("given", [{"lora_rank": 4}, {"method": "full", "strategy": "zero2", "num_gpus": 2}])
def test_suggest_writes_it(given: dict[str, Any], tmp_path: Path) -> None:
    job = complete_job(spec_of(QWEN), card_of(), {"sequence_length": 512, **given})
    plan = export.export("toytrain", QWEN, job, card_of())
    assert plan.fits
    reading = check.read(from_path(_file(tmp_path, plan.text), None, {}), job.num_gpus)
    assert (reading.framework, reading.model) == ("toytrain", QWEN)
    assert reading.job["sequence_length"] == 512
    with pytest.raises(UnsupportedError, match="device_map is not written for it"):
        export.export("toytrain", QWEN, job.model_copy(update={"strategy": "device_map"}), card_of())
