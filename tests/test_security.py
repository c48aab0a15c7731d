"""Nothing that a file says runs code: import paths, remote code, folders that shadow modules."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.helpers import cli, measured_of, spec_of
from vramplan.errors import UnsupportedError
from vramplan.inputs.job import Job
from vramplan.inputs.load import load_model
from vramplan.measurements import ledger
from vramplan.planner.check import check

EVIL = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\ndef go(): pass\n"
CONFIGURATIONS = {
    "train.yaml": "model_name_or_path: evil:go\nfinetuning_type: lora\nstage: sft\ncutoff_len: 512\n",
    "axolotl.yaml": "base_model: evil:go\nadapter: lora\nsequence_len: 512\nlora_r: 8\nmicro_batch_size: 1\n",
    "args.json": '{"model": "evil:go", "tuner_type": "lora", "max_length": 512, "lora_rank": 8}\n',
    "run.sh": "swift sft --model evil:go --max_length 512\n",
    "trl.sh": "python sft.py --model_name_or_path evil:go --per_device_train_batch_size 1 --max_length 512\n",
    "train.py": (
        "from transformers import AutoModelForCausalLM, Trainer, TrainingArguments\n"
        "model = AutoModelForCausalLM.from_pretrained('evil:go')\n"
        "Trainer(model, TrainingArguments(output_dir='x', per_device_train_batch_size=1)).train()\n"
    ),
}


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module that leaves a file if it is imported."""
    (tmp_path / "evil.py").write_text(EVIL)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _refused(hostile: Path, *arguments: str, says: str = "evil:go") -> str:
    done = cli(*arguments, cwd=hostile)
    assert not (hostile / "ran").exists(), "code of the file ran"
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_configuration_names_no_code(hostile: Path, name: str) -> None:
    (hostile / name).write_text(CONFIGURATIONS[name])
    assert "--model evil:go" in _refused(hostile, "check", name, "--gpu", "h100", "--seq-len", "512")
    _refused(hostile, "check", "--fix", name, "--gpu", "h100", "--seq-len", "512", says="")
    _refused(hostile, "compare", name, "--gpu", "h100,a100-40gb")


def test_a_command_names_no_code(hostile: Path) -> None:
    for command in (["swift", "sft", "--model", "evil:go"], ["swift", "sft", "--model", "os:abort"]):
        _refused(hostile, "check", "--gpu", "h100", "--", *command, says=command[-1])


def test_the_users_own_argument_may_name_code(hostile: Path) -> None:
    """--model and the Python argument: the function runs, and what it returns is refused."""
    pytest.importorskip("torch")
    (hostile / "train.yaml").write_text(CONFIGURATIONS["train.yaml"])
    done = cli("check", "train.yaml", "--gpu", "h100", "--model", "evil:go", cwd=hostile)
    assert (hostile / "ran").exists()
    assert "expected (nn.Module" in done.stderr
    with pytest.raises(UnsupportedError, match="never run"):
        check(hostile / "train.yaml", "h100")
    assert load_model("evil:go").model_type == "import-path"


def test_tables_and_published_runs_name_no_code(hostile: Path) -> None:
    (hostile / "t.toml").write_text('[t]\nmodels = ["evil:go"]\ngpus = ["h100"]\n')
    _refused(hostile, "table", "--config", "t.toml")
    row = {"id": "1", "group": "g", "source": "s", "grade": "A", "gpu": "h100", "metric": "allocated"}
    row |= {"measured_bytes": 1, "model": "evil:go", "job": {}}
    (hostile / "p.jsonl").write_text(json.dumps(row))
    _refused(hostile, "accuracy", "--published", "p.jsonl", "--by", "trace")
    row |= {"model": "qwen2.5-0.5b", "job": {"trust_remote_code": True}}
    (hostile / "p.jsonl").write_text(json.dumps(row))
    _refused(hostile, "accuracy", "--published", "p.jsonl", "--by", "trace", says="trust_remote_code")


def test_a_ledger_names_no_code(hostile: Path) -> None:
    run = measured_of(Job(micro_batch_size=1, sequence_length=512, method="lora"))
    run = run.model_copy(update={"model": "evil:go", "model_type": "import-path", "config": {}})
    ledger.save(hostile / "runs", run)
    cli("accuracy", "--ledger", "runs", "--by", "trace", cwd=hostile)
    assert not (hostile / "ran").exists()


@pytest.mark.parametrize("key", ["trust_remote_code", "model", "progress", "confidence", "by"])
def test_a_job_file_sets_only_the_job(hostile: Path, key: str) -> None:
    (hostile / "job.json").write_text(json.dumps({key: "evil:go", "sequence_length": 512}))
    for command in (["estimate"], ["suggest", "--global-batch", "1"], ["report", "--out", "r.html"]):
        name, *rest = command
        _refused(hostile, name, "qwen2.5-0.5b", "--gpu", "h100", *rest, "--job", "job.json", says=f"job.json: {key}")


def test_a_folder_is_no_import_path(hostile: Path) -> None:
    """A folder called as a function, whose config.json claims to be the user's own model."""
    (hostile / "evil:x").mkdir()
    (hostile / "evil:x" / "config.json").write_text('{"model_type": "import-path"}')
    _refused(hostile, "estimate", "evil:x/config.json", "--gpu", "h100", "--by", "trace", says="model_type")


def test_remote_code_of_a_folder_never_runs(hostile: Path) -> None:
    folder = hostile / "model"
    folder.mkdir()
    auto_map = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM", "AutoModel"), "evil.Evil")
    (folder / "evil.py").write_text(EVIL.replace("__file__).with_name('ran')", f"{str(hostile / 'ran')!r})"))
    for model_type in ("evil", "qwen2", "detr"):
        (folder / "config.json").write_text(json.dumps({"model_type": model_type, "auto_map": auto_map}))
        (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
        (hostile / "train.yaml").write_text(CONFIGURATIONS["train.yaml"].replace("evil:go", "./model"))
        _refused(hostile, "estimate", "model", "--gpu", "h100", says="model")
        _refused(hostile, "estimate", "model", "--gpu", "h100", "--by", "trace", says="model")
        _refused(hostile, "check", "train.yaml", "--gpu", "h100", says="model")


@pytest.mark.parametrize("architectures", [["pipeline"], ["__version__"], [1], "Qwen2", {"a": 1}])
def test_architectures_name_only_models(hostile: Path, architectures: object) -> None:
    pytest.importorskip("torch")
    config = {"model_type": "detr", "architectures": architectures, "d_model": 8}
    (hostile / "config.json").write_text(json.dumps(config))
    _refused(hostile, "estimate", "config.json", "--gpu", "h100", "--by", "trace", says="config.json")


def test_a_configuration_chooses_no_kernel() -> None:
    """Of a name with a slash, transformers would fetch code from the Hub."""
    pytest.importorskip("torch")
    from vramplan.torch_backend.model.build import _transformers_config

    key = "attn_implementation"
    settings = {**spec_of("google/gemma-3-4b-it").config, key: "x/y", f"_{key}": "x/y", f"_{key}_internal": "x/y"}
    settings["text_config"] = {**settings["text_config"], f"_{key}": "x/y", "experts_implementation": "x/y"}
    spec = spec_of("google/gemma-3-4b-it", **settings)
    assert "x/y" not in json.dumps(_transformers_config(spec, Job(), False).to_dict(), default=str)
    text = _transformers_config(spec, Job(), False).text_config
    assert (text._attn_implementation, text._experts_implementation) == (None, None)
