"""How TRL's configurations of preferences, rewards and GRPO are read, against TRL's own defaults and classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trl_defaults import recorded
from vramplan import check, suggest
from vramplan.errors import VramplanError
from vramplan.frameworks.parsed_config import ParsedConfig, at_least
from vramplan.frameworks.readers import trl_tasks
from vramplan.frameworks.readers.trl_grpo import CUT_UNTIL
from vramplan.frameworks.registry import FRAMEWORKS
from vramplan.frameworks.settings import ConfigReader, ConfigSource, ConfigValue
from vramplan.frameworks.writers.trl_tasks import WITHOUT
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import ROLLOUTS
from vramplan.planner.export import export

MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
UNSLOTH = Path(__file__).parent / "configs" / "unsloth" / "grpo_vllm.py"
DEFAULTS = recorded()
MODELLED = [
    (version, task)
    for version, tables in DEFAULTS.items()
    for task, trainer in trl_tasks.TRAINERS.items()
    if tables.get(task) and ["", *(loss for first, loss in trainer.losses if at_least(version, first))][-1]
]


def read_of(task: str, version: str, **settings: Any) -> ParsedConfig:
    """What ``trl TASK`` with these settings comes to."""
    values = {name: ConfigValue(value, name) for name, value in {"model_name_or_path": MODEL, **settings}.items()}
    source = ConfigSource(values, program=f"trl {task}", spelling="flags")
    return FRAMEWORKS["trl"].read(ConfigReader(source, "trl", ("transformers",)), 1, version)


@pytest.mark.parametrize(("version", "task"), MODELLED)
def test_defaults_are_trls(version: str, task: str) -> None:
    known = DEFAULTS[version][task]
    parsed = read_of(task, version, **({"teacher_model_name_or_path": "Qwen/Qwen2.5-3B"} if task == "gkd" else {}))
    job = parsed.job
    switched = known.get("gradient_checkpointing", False) and task != "ppo"  # whose trainer never switches it on
    assert job["checkpointing"] == ("full" if switched else "none")
    launched = task == "ppo" and at_least(version, "0.26")  # by accelerate's launcher alone
    assert job["autocast"] == ("bf16" if "bf16" in known and not launched else "none")  # None: bf16, unless fp16
    assert job["task"] == task
    if task == "gkd":
        assert (parsed.completion_length, known["beta"], known["lmbda"]) == (known["max_new_tokens"], 0.5, 0.5)
    if task == "ppo":
        assert (parsed.completion_length, known["num_mini_batches"]) == (known["response_length"], 1)
        assert job["rollout_batch_size"] == known["local_rollout_forward_batch_size"]
        return
    if task not in ROLLOUTS:
        assert job["sequence_length"] == known["max_length"]
        assert known["disable_dropout"]
        return
    prompt = known.get("max_prompt_length")
    if prompt is None or at_least(version, CUT_UNTIL[task]):
        assert parsed.completion_length == known["max_completion_length"]
    else:
        assert job["sequence_length"] == prompt + known["max_completion_length"]
    assert job["num_generations"] == known["num_generations"]
    assert (job.get("reference", WITHOUT[task]) == "none") == (known["beta"] == 0.0)
    generates = read_of(task, version, use_vllm=True).job
    assert generates["generate_with"] == {"server": "vllm_server", "colocate": "vllm"}[known["vllm_mode"]]
    if task == "grpo":
        assert generates["importance_sampling"] is known.get("vllm_importance_sampling_correction", False)
    here = read_of(task, version, use_vllm=True, vllm_mode="colocate").job
    assert here["vllm_share"] == known["vllm_gpu_memory_utilization"]
    assert here["vllm_tensor_parallel"] == known["vllm_tensor_parallel_size"]


def test_every_version_with_a_loss_is_in_the_table() -> None:
    firsts = {(task, first) for task, trainer in trl_tasks.TRAINERS.items() for first, loss in trainer.losses if loss}
    assert len(MODELLED) >= 50
    assert {task for task, _ in firsts} == {task for _, task in MODELLED}


def test_vllms_longest_text_is_by_the_version() -> None:
    def length(version: str, **settings: Any) -> int | None:
        job = read_of("grpo", version, use_vllm=True, vllm_mode="colocate", **settings).job
        return job.get("vllm_max_length")  # type: ignore[no-any-return]

    assert length("1.16.0") is None
    assert length("1.16.0", vllm_max_model_length=4096) == 4096
    assert length("0.25.1", max_prompt_length=300, max_completion_length=200) == 500


SETS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("dpo", {}),
    ("dpo", {"max_length": 700, "gradient_checkpointing": False, "precompute_ref_log_probs": True}),
    ("kto", {"per_device_train_batch_size": 4, "bf16": False}),
    ("reward", {"max_length": 2048, "gradient_accumulation_steps": 4}),
    ("grpo", {}),
    ("grpo", {"generation_batch_size": 64, "per_device_train_batch_size": 16, "num_generations": 4}),
    ("grpo", {"use_vllm": True, "vllm_gpu_memory_utilization": 0.5, "vllm_enable_sleep_mode": True}),
    ("grpo", {"beta": 0.04, "num_iterations": 2, "steps_per_generation": 8, "max_completion_length": 1024}),
    ("rloo", {}),
    ("rloo", {"beta": 0.0, "num_generations": 4, "use_vllm": True, "steps_per_generation": 2}),
    ("orpo", {"max_length": 512}),
    ("cpo", {"cpo_alpha": 0.0, "loss_type": "simpo"}),
)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("task", "settings"), SETS)
def test_trls_own_class_has_the_same_fields(task: str, settings: dict[str, Any], tmp_path: Any) -> None:
    trl = pytest.importorskip("trl")
    owner = trl
    if task in ("orpo", "cpo"):
        owner = pytest.importorskip(f"trl.experimental.{task}")
    name = {"reward": "RewardConfig"}.get(task, f"{task.upper()}Config")
    theirs = getattr(owner, name)(output_dir=str(tmp_path), use_cpu=True, report_to="none", **settings)
    parsed = read_of(task, trl.__version__, **settings)
    job = parsed.job
    assert job["micro_batch_size"] == theirs.per_device_train_batch_size
    assert job["gradient_accumulation_steps"] == theirs.gradient_accumulation_steps
    assert (job["checkpointing"] == "full") == theirs.gradient_checkpointing
    assert (job["autocast"] == "bf16") == bool(theirs.bf16)
    if task not in ROLLOUTS:
        assert job["sequence_length"] == theirs.max_length
        if task in ("dpo", "kto"):
            assert (job.get("reference") == "precomputed") == theirs.precompute_ref_log_probs
        return
    assert parsed.completion_length == theirs.max_completion_length
    assert job["num_generations"] == theirs.num_generations
    assert job["num_iterations"] == theirs.num_iterations
    steps = job.get("steps_per_generation", job["gradient_accumulation_steps"])
    assert steps == theirs.steps_per_generation
    assert (job.get("reference", WITHOUT[task]) != "none") == (theirs.beta != 0.0)
    if theirs.use_vllm:
        assert job["vllm_share"] == theirs.vllm_gpu_memory_utilization
        assert job["generate_with"] == ("vllm_sleep" if theirs.vllm_enable_sleep_mode else "vllm")


@pytest.mark.parametrize(
    ("task", "version", "settings", "said"),
    [
        ("dpo", "0.12.2", {}, "modelled are those of 0.15 to 1.13, 1.15 on"),
        ("dpo", "1.14.2", {}, "DPOTrainer of TRL 1.14.2"),
        ("grpo", "0.17.0", {}, "modelled are those of 0.18 to 1.13, 1.15 on"),
        ("rloo", "0.21.0", {}, "modelled are those of 0.22 to 1.13, 1.15 on"),
        ("reward", "0.13.0", {}, "modelled are those of 0.14 on"),
        ("kto", "0.17.0", {}, "modelled are those of 0.18 to 1.5, 1.9 to 1.13, 1.15 on"),
        ("kto", "1.7.0", {}, "KTOTrainer of TRL 1.7.0"),
        ("kto", "1.12.0", {"use_liger_kernel": True}, "whose loss is Liger's"),
        ("kto", "0.28.0", {"per_device_train_batch_size": 1}, "stops at a per_device_train_batch_size of 1"),
        ("dpo", "1.13.0", {"use_liger_kernel": True}, "of TRL 1.0 to 1.12, and TRL 1.15 on"),
        ("dpo", "0.28.0", {"use_liger_kernel": True}, "of TRL 1.0 to 1.12, and TRL 1.15 on"),
        ("dpo", "1.7.0", {"use_liger_kernel": True, "use_peft": True}, "TRL 1.8 takes them"),
        ("dpo", "1.12.0", {"use_liger_kernel": True, "loss_type": "ipo"}, "Liger's DPO takes one loss_type"),
        ("dpo", "1.12.0", {"use_liger_kernel": True, "precompute_ref_log_probs": True}, "set one of them to false"),
        ("dpo", "0.27.0", {"use_liger_loss": True}, "use_liger_loss"),
        ("grpo", "1.13.0", {"use_liger_kernel": True}, "of TRL 1.0 to 1.12, and TRL 1.15 on"),
        ("grpo", "1.12.0", {"use_liger_kernel": True, "top_entropy_quantile": 0.2}, "stops at it with top_entropy"),
        ("dpo", "1.12.0", {"loss_type": "sigmoid,sft"}, "cross-entropy"),
        ("dpo", "1.16.0", {"disable_dropout": False}, "disable_dropout"),
        ("orpo", "1.16.0", {"padding_free": True}, "padding_free"),
        ("grpo", "1.16.0", {"use_transformers_paged": True}, "another cache"),
        ("grpo", "1.16.0", {"generation_kwargs": {"num_beams": 4}}, "generation_kwargs"),
        ("grpo", "1.16.0", {"generation_batch_size": 12}, "a multiple of the 8"),
        ("grpo", "1.16.0", {"reward_funcs": ["org/reward-model"]}, "a reward model"),
    ],
)
def test_what_is_not_modelled_is_named(task: str, version: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(VramplanError) as caught:
        read_of(task, version, **settings)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("task", "version", "loss"),
    [
        ("kto", "0.18.2", "copied_logits"),
        ("kto", "1.5.0", "copied_logits"),
        ("kto", "1.13.0", "standard"),
        ("reward", "0.23.1", "two_forwards"),
        ("reward", "0.24.0", "standard"),
    ],
)
def test_the_version_says_how_the_loss_is_computed(task: str, version: str, loss: str) -> None:
    assert read_of(task, version).job["loss"] == loss


@pytest.mark.parametrize(
    ("task", "version", "loss"),
    [
        ("dpo", "1.12.0", "liger"),
        ("grpo", "1.12.0", "liger"),
        ("rloo", "1.12.0", "standard"),
        ("rloo", "1.9.0", "divided_in_place"),
        ("dpo", "1.16.0", "chunked"),
        ("kto", "1.16.0", "chunked"),
        ("orpo", "1.12.0", "standard"),
    ],
)
def test_liger_is_a_loss_or_layers_by_the_version(task: str, version: str, loss: str) -> None:
    job = read_of(task, version, use_liger_kernel=True).job
    assert (job["loss"], "swiglu" in job["fused_kernels"]) == (loss, True)


@pytest.mark.parametrize("task", ["dpo", "kto", "reward", "grpo", "rloo"])
def test_what_is_written_is_read_again(task: str) -> None:
    own = {"prompt_length": 128, "generate_with": "vllm", "vllm_share": 0.3} if task in ROLLOUTS else {}
    asked: dict[str, Any] = {"task": task, "sequence_length": 512, "method": "lora", "advice": False, **own}
    found = suggest(MODEL, "rtx4090", 16, **asked).recommended
    assert found is not None
    written = export("trl", MODEL, found.estimate.job, "rtx4090")
    assert written.text.startswith(f"# trl {task} --config train.yaml")
    assert written.fits
    assert all("takes" not in note for note in written.notes)


@pytest.mark.parametrize(("task", "method"), [("dpo", "lora"), ("dpo", "full"), ("kto", "qlora")])
def test_llamafactory_computes_another_loss(task: str, method: str) -> None:
    found = suggest(MODEL, "h100", 16, task=task, sequence_length=512, method=method, advice=False).recommended
    assert found is not None
    written = export("llamafactory", MODEL, found.estimate.job, "h100")
    assert f"stage: {task}" in written.text
    assert (written.settings["task"], written.settings["loss"]) == (task, "log_softmax")
    notes = [note for note in written.notes if " takes " in note]
    assert "llamafactory takes loss as log_softmax, not chunked" in notes
    assert not any("reference" in note for note in notes)
    with pytest.raises(VramplanError, match="written for swift, trl"):
        export("llamafactory", MODEL, found.estimate.job.model_copy(update={"task": "reward"}), "h100")


def test_a_length_that_is_open_has_a_case_for_each(tmp_path: Any) -> None:
    path = tmp_path / "grpo.yaml"
    path.write_text(f"model_name_or_path: {MODEL}\ndataset_name: d\nnum_generations: 8\nuse_vllm: true\n")
    verdict = check(path, "rtx4090", num_gpus=1, framework_version="1.16.0")
    assert len(verdict.cases) > 1
    at = check(path, "rtx4090", num_gpus=1, framework_version="1.16.0", sequence_length=1536)
    assert (at.estimate.job.prompt_length, at.estimate.job.sequence_length) == (1024, 1536)


def test_keys_of_grpo_and_rloo_are_taken_as_grpo_and_said(tmp_path: Any) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(f"model_name_or_path: {MODEL}\ndataset_name: d\nnum_generations: 4\n")
    notes = check(path, "rtx4090", sequence_length=1024, look_further=False).reading.notes
    assert any("--task rloo" in note.text for note in notes)
    settings = {"sequence_length": 1024, "framework_version": "1.16.0"}
    job = check(path, "rtx4090", task="rloo", look_further=False, **settings).estimate.job
    assert (job.task, job.num_generations, job.loads_reference) == ("rloo", 4, True)
    path.write_text(path.read_text() + "normalize_advantages: true\n")
    assert check(path, "rtx4090", look_further=False, **settings).estimate.job.task == "rloo"


def test_several_trainers_take_the_keys(tmp_path: Any) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(f"model_name_or_path: {MODEL}\ndataset_name: d\nbeta: 0.1\n")
    with pytest.raises(VramplanError, match="say which by"):
        check(path, "rtx4090")
    assert check(path, "rtx4090", task="orpo", num_gpus=1, look_further=False).estimate.job.task == "orpo"
    assert check(path, "rtx4090", task="sft", num_gpus=1, look_further=False).estimate.job.task is None
    with pytest.raises(VramplanError, match="sft, dpo"):
        check(path, "rtx4090", task="prm")


def test_unsloths_grpo_takes_whole_groups_and_shares_vllms_weights(tmp_path: Path) -> None:
    """The micro-batch becomes `num_generations` where an optimizer step has no whole group; beta is by the loss."""

    def job_of(old: str = "", new: str = "") -> Job:
        path = tmp_path / "train.py"
        path.write_text(UNSLOTH.read_text().replace(old, new))
        return check(path, gpu="rtx4090", look_further=False).estimate.job

    job = job_of()
    assert (job.micro_batch_size, job.reference, job.importance_sampling) == (6, None, False)
    assert (job.generate_with, job.vllm_share, job.vllm_weights) == ("vllm", 0.6, "shared")
    assert (job.sequence_length, job.prompt_length, job.lora_dtype) == (1024, 256, "fp32")
    assert job_of("optim=", 'loss_type="bnpo", optim=').reference == "adapters_off"
    assert job_of("num_generations=6", "num_generations=2").micro_batch_size == 1
    assert job_of("fast_inference=True,").vllm_weights == "own"
    assert job_of("fast_inference=True,").generate_with == "transformers"
    for old, new in (
        ("fast_inference=True", "fast_inference=True, unsloth_vllm_standby=True"),
        ("length, prompt", 'import os\n\nos.environ["UNSLOTH_VLLM_STANDBY"] = "1"\nlength, prompt'),
    ):
        asleep = job_of(old, new)
        assert (asleep.generate_with, asleep.vllm_weights) == ("vllm_sleep", "shared")


@pytest.mark.parametrize("trainer", ["ORPO", "CPO", "Reward"])
def test_unsloths_other_trainers_are_refused_with_trls(tmp_path: Path, trainer: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(UNSLOTH.read_text().replace("GRPO", trainer).replace("fast_inference=True,", ""))
    with pytest.raises(VramplanError, match=f"vramplan estimate .* --task {trainer.lower()}"):
        check(path, gpu="rtx4090")
