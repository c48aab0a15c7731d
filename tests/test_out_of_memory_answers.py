"""What `vramplan oom` answers: the GPU, the words of the framework, and what it admits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import vramplan
from tests.helpers import ROOT, cli, cli_json
from tests.test_out_of_memory import MODEL
from vramplan.errors import ConfigError
from vramplan.frameworks.registry import FRAMEWORKS
from vramplan.planner.out_of_memory.causes import causes
from vramplan.planner.out_of_memory.likely_gpu import likely_gpus
from vramplan.planner.out_of_memory.spelling import EXAMPLES, words_in_log
from vramplan.training_log import OutOfMemory, read_text
from vramplan.training_log.programs import FOLDERS

SIZES = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {capacity} of"
    " which 300.00 MiB is free. Including non-PyTorch memory, this process has {used} memory in use. Of the allocated"
    " memory {used} is allocated by PyTorch, and 90.00 MiB is reserved by PyTorch but unallocated. If reserved but"
    " unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
)


def message(capacity: str, asked: str = "1.00 GiB", used: str = "7.00 GiB") -> str:
    return SIZES.format(asked=asked, capacity=capacity, used=used)


def calls(*frames: tuple[str, str, str]) -> str:
    """A traceback of (file, function, code)."""
    lines = [
        f'  File "/lib/python3.11/site-packages/{file}", line 9, in {name}\n    {code}\n' for file, name, code in frames
    ]
    return "Traceback (most recent call last):\n" + "".join(lines)


def only(text: str) -> OutOfMemory:
    (record,) = read_text(text)
    return record


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model and configurations of it that train in bf16."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(MODEL))
    usual = {"model_name_or_path": str(folder / "model"), "output_dir": "o", "bf16": True}
    (folder / "train.json").write_text(json.dumps(usual))
    factory = {"stage": "sft", "finetuning_type": "full", "template": "default", "dataset": "d", "cutoff_len": 512}
    (folder / "factory.json").write_text(json.dumps({**usual, **factory, "do_train": True}))
    return folder


def log_of(folder: Path, text: str) -> Path:
    log = folder / "train.log"
    log.write_text(text, encoding="utf-8")
    return log


@pytest.mark.parametrize(
    ("capacity", "names"),
    [
        ("23.52 GiB", ["rtx4090"]),  # 24,081 MiB
        ("23.64 GiB", ["rtx4090", "titan-rtx"]),  # 24,210 and 24,212 MiB
        ("7.79 GiB", ["rtx2080-super"]),
        ("14.56 GiB", ["t4"]),
        ("39.59 GiB", []),
    ],
)
def test_gpus_by_the_memory_that_drivers_leave_them(capacity: str, names: list[str]) -> None:
    *listed, plain = likely_gpus(only(message(capacity)))
    assert [gpu.name for gpu in listed] == names
    assert plain.title == f"{capacity} GPU"
    assert plain.supports("bf16")
    shown = only(message(capacity)).figures.capacity
    assert shown is not None
    assert all(shown.allows(gpu.cuda_total_bytes) for gpu in (*listed, plain))


def test_amd_gpus_are_told_by_the_message() -> None:
    (gpu,) = likely_gpus(only(message("191.98 GiB").replace("CUDA out", "HIP out")))
    assert (gpu.name, gpu.vendor) == ("mi300x", "AMD")
    assert likely_gpus(only(message("77.77 GiB").replace("CUDA out", "HIP out"))) == []


@pytest.mark.parametrize(
    ("capacity", "title"), [("23.64 GiB", "RTX 4090"), ("7.79 GiB", "7.79 GiB GPU"), ("31.73 GiB", "31.73 GiB GPU")]
)
def test_a_run_in_bf16_was_on_a_gpu_with_bf16(folder: Path, capacity: str, title: str) -> None:
    found = vramplan.explain(log_of(folder, message(capacity)), folder / "train.json", sequence_length=256)
    assert found.gpu is not None
    assert found.gpu.title == title
    assert found.verdict is not None
    assert found.verdict.card.title == title


def test_lengths_that_an_image_does_not_leave_are_not_tried(tmp_path: Path) -> None:
    usual = "model_name_or_path: Qwen/Qwen2.5-VL-3B-Instruct\nstage: sft\ndo_train: true\nfinetuning_type: lora\n"
    more = "template: qwen2_vl\ndataset: d\ncutoff_len: 2048\nimage_max_pixels: 1003520\nbf16: true\noutput_dir: o\n"
    (tmp_path / "train.yaml").write_text(f"{usual}{more}per_device_train_batch_size: 2\n")
    log = log_of(tmp_path, message("23.64 GiB", "1.02 GiB", "20.14 GiB"))
    found = vramplan.explain(log, tmp_path / "train.yaml", num_gpus=1)
    assert found.verdict is not None


def test_states_that_deepspeed_creates_in_its_step() -> None:
    step = ("deepspeed/runtime/engine.py", "step", "self._take_model_step(lr_kwargs)")
    states = ("deepspeed/ops/adam/fused_adam.py", "step", "state['exp_avg'] = torch.zeros_like(p.data)")
    failure = only(calls(step, states) + message("39.59 GiB"))
    assert failure.phase == "optimizer states"
    (cause,) = causes(failure)
    assert cause.name == "optimizer states"
    assert "offload_optimizer" in cause.changes[0]
    assert not any("fused" in change for change in cause.changes)


def test_foreach_alone_is_made_better_by_fused() -> None:
    foreach = (
        "torch/optim/adamw.py",
        "_multi_tensor_adamw",
        "exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)",
    )
    step = ("torch/optim/adamw.py", "step", "adamw(")
    assert causes(only(calls(step, foreach) + message("79.15 GiB")))[0].changes == ("{optimizer=adamw_torch_fused}",)
    fused = ("deepspeed/ops/adam/fused_adam.py", "step", "multi_tensor_applier(")
    (cause,) = causes(only(calls(("deepspeed/runtime/engine.py", "step", "x"), fused) + message("79.15 GiB")))
    assert not any("fused" in change for change in cause.changes)


def test_a_configuration_that_fits_by_estimate_says_so_beside_any_cause(folder: Path) -> None:
    step = ("torch/optim/adamw.py", "_init_group", 'state["exp_avg"] = torch.zeros_like(')
    log = log_of(folder, calls(step) + message("79.15 GiB", used="78.00 GiB"))
    done = cli("oom", str(log), "--config", str(folder / "factory.json"), "--num-gpus", "1", COLUMNS="200")
    assert "The optimizer's states are made at the first optimizer step" in done.stdout
    assert "By estimate this configuration fits" in done.stdout
    assert "✓ FITS" in done.stdout


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("llamafactory/train/tuner.py", "enable_liger_kernel: true"),
        ("axolotl/cli/train.py", "liger_fused_linear_cross_entropy: true"),
        ("swift/cli/sft.py", "--use_liger_kernel true"),
        ("transformers/trainer.py", "use_liger_kernel=True"),
    ],
)
def test_changes_are_in_the_words_of_the_framework_in_the_log(folder: Path, file: str, line: str) -> None:
    loss = ("transformers/loss/loss_utils.py", "ForCausalLMLoss", "logits = logits.float()")
    log = log_of(folder, calls((file, "main", "run()"), loss) + message("23.52 GiB"))
    (cause,) = vramplan.explain(log).causes
    assert line in cause.changes
    assert not any("{" in change for change in cause.changes)


def test_changes_are_in_the_words_of_the_configuration(folder: Path) -> None:
    loss = ("transformers/loss/loss_utils.py", "ForCausalLMLoss", "logits = logits.float()")
    found = vramplan.explain(log_of(folder, calls(loss) + message("23.52 GiB")), folder / "factory.json", num_gpus=1)
    assert found.causes[0].changes[0] == "enable_liger_kernel: true"


@pytest.mark.parametrize("framework", [name for name, _ in FOLDERS])
def test_frameworks_of_logs_are_known(framework: str) -> None:
    assert framework in FRAMEWORKS
    if framework in EXAMPLES:
        assert words_in_log(framework)("micro_batch_size", "") in ("per_device_train_batch_size", "micro_batch_size")
    else:
        assert words_in_log(framework)("loss", "liger") is None


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "Cuda failure 2 'out of memory'",
        "Error out of memory at line 380 in file /x/csrc/pythonInterface.c",
    ],
)
def test_memory_that_pytorchs_allocator_did_not_ask_for(folder: Path, text: str) -> None:
    (cause,) = causes(only(text))
    assert cause.name == "outside PyTorch"
    done = cli("oom", str(log_of(folder, text)))
    assert "size of the job" not in done.stdout
    assert "nvidia-smi" in done.stdout


@pytest.mark.parametrize(
    ("text", "more", "words"),
    [
        ("RuntimeError: CUDA out of memory.", [], "tells neither sizes nor a reason"),
        (message("23.52 GiB"), [], "no other reason than the size of the job"),
        ("RuntimeError: CUDA out of memory.", ["--gpu", "gtx1650"], "By estimate this configuration does not fit"),
    ],
)
def test_the_box_is_never_empty(folder: Path, text: str, more: list[str], words: str) -> None:
    settings = {**json.loads((folder / "train.json").read_text()), "bf16": False, "fp16": True}
    config = folder / "large.json"
    config.write_text(json.dumps({**settings, "per_device_train_batch_size": 64}))
    done = cli("oom", str(log_of(folder, text)), *(["--config", str(config), *more] if more else []), COLUMNS="200")
    assert words in done.stdout


@pytest.mark.parametrize(
    "text",
    [
        "WARN: tip: if you see CUDA out of memory, lower the batch\ntraining done",
        "If you run into CUDA error: out of memory, restart the notebook",
        "CUDA out of memory? Try gradient checkpointing",
        "a process that is Killed   by the kernel",
    ],
)
def test_sentences_about_running_out_are_none(folder: Path, text: str) -> None:
    assert read_text(text) == []
    with pytest.raises(ConfigError, match="no message of running out of memory"):
        vramplan.explain(log_of(folder, text))


@pytest.mark.parametrize(
    "text",
    [
        "exitcode: -9 (pid: 223)",
        "subprocess.CalledProcessError: Command '['python', 't.py']' died with <Signals.SIGKILL: 9>.",
        "RuntimeError: DataLoader worker (pid 31) is killed by signal: Killed. ",
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
        "    Reason: OOMKilled",
        "./train.sh: line 12: 22133 Killed                  python train.py",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.31 GiB for an array with shape (2,)",
    ],
)
def test_the_hosts_memory(text: str) -> None:
    failure = only(text)
    assert failure.memory == "host"
    assert [cause.name for cause in causes(failure)] == ["host memory"]


def test_vllm_beside_the_training() -> None:
    start = (
        "ValueError: Free memory on device cuda:0 (12.18/23.56 GiB) on startup is less than desired GPU memory"
        " utilization (0.92, 21.67 GiB). Decrease GPU memory utilization"
    )
    (cause,) = causes(only(start))
    assert "smaller gpu_memory_utilization" in cause.changes[0]
    (cause,) = causes(only("ValueError: No available memory for the cache blocks. Try increasing"))
    assert "larger gpu_memory_utilization" in cause.changes[0]


def test_standard_input() -> None:
    command = [sys.executable, "-m", "vramplan", "oom", "-"]
    done = subprocess.run(command, cwd=ROOT, input=message("23.52 GiB"), capture_output=True, text=True, check=True)
    assert "GPU 0 out of memory" in done.stdout
    empty = subprocess.run(command, cwd=ROOT, input="", capture_output=True, text=True, check=False)
    assert (empty.returncode, empty.stderr) == (2, "vramplan: standard input: is empty\n")


def test_a_change_is_said_once_and_python_shows_sizes(folder: Path) -> None:
    text = " 12%|#   | 57/480 [06:11<45:55,  6.51s/it]\n" + message("23.52 GiB", used="15.00 GiB").replace(
        "90.00 MiB", "7.00 GiB"
    )
    found = vramplan.explain(log_of(folder, text))
    changes = [change for cause in found.causes for change in cause.changes]
    assert {cause.name for cause in found.causes} == {"fragmentation", "longest batch"}
    assert len(changes) == len({*changes})
    assert "asked for 1.00 GiB, free 0.29 GiB, of 23.52 GiB" in repr(found)


def test_tensors_that_the_estimate_does_not_have_are_named(folder: Path) -> None:
    log = log_of(folder, message("79.15 GiB", used="78.00 GiB"))
    done = cli("oom", str(log), "--config", str(folder / "factory.json"), "--num-gpus", "1", COLUMNS="300")
    assert "in tensors, where the log has 78.0" in " ".join(done.stdout.replace("│", " ").split())


@pytest.mark.parametrize(
    ("frames", "phase", "words"),
    [
        (
            [("liger_kernel/ops/fused_linear_cross_entropy.py", "forward", "logits_chunk = _input_chunk @ weight.t()")],
            "loss",
            "fused already",
        ),
        (
            [
                (
                    "transformers/models/qwen2/modeling_qwen2.py",
                    "forward",
                    "logits = self.lm_head(hidden_states[:, s, :])",
                )
            ],
            "forward",
            "the logits are of tokens x vocabulary",
        ),
        (
            [("transformers/trainer.py", "_load_optimizer_and_scheduler", "torch.load(path)")],
            "loading",
            "the checkpoint's optimizer states",
        ),
        (
            [("deepspeed/runtime/zero/stage_1_and_2.py", "initialize_optimizer_states", "torch.zeros(")],
            "optimizer states",
            "as it starts",
        ),
        (
            [
                ("transformers/trainer.py", "save_model", "x"),
                ("accelerate/utils/fsdp_utils.py", "save_fsdp_model", "x"),
            ],
            "saving",
            "gathers weights",
        ),
        ([("transformers/trainer.py", "save_model", "x")], "saving", "memory beside what the training holds"),
    ],
)
def test_causes_of_phases(frames: list[tuple[str, str, str]], phase: str, words: str) -> None:
    failure = only(calls(*frames) + message("79.15 GiB"))
    assert failure.phase == phase
    (cause,) = causes(failure)
    assert words in cause.text
    assert not any("stage3" in change for change in cause.changes)


def test_bitsandbytes_states_are_of_eight_bits_already() -> None:
    states = ("bitsandbytes/optim/optimizer.py", "init_state", 'state["state1"] = self.get_state_buffer(p)')
    assert causes(only(calls(states) + message("7.63 GiB")))[0].changes[0] == "{optimizer=paged_adamw_8bit}"


def test_a_run_that_went_on(folder: Path) -> None:
    bar = " {0}%|#   | {0}/100 [00:30<10:00, 6.0s/it]\n"
    lost = only(bar.format(3) + message("23.52 GiB") + bar.format(4))
    assert (lost.progress[0].done, lost.went_on) == (3, None)
    text = bar.format(3) + message("23.52 GiB") + bar.format(4) + bar.format(50)
    assert (only(text).progress[0].done, only(text).went_on) == (3, 50)
    assert "to step 50 at least" in cli("oom", str(log_of(folder, text)), COLUMNS="200").stdout


def test_vllm_that_wakes_up() -> None:
    (cause,) = causes(only("RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62"))
    assert cause.name == "vLLM"


def test_windows_puts_tensors_into_the_hosts_memory() -> None:
    (cause,) = causes(only(message("11.99 GiB", used="26.10 GiB")))
    assert cause.name == "host memory as GPU memory"


def test_expandable_segments_are_not_suggested_to_a_run_that_has_them(folder: Path) -> None:
    text = message("23.52 GiB", used="15.00 GiB").replace("90.00 MiB", "7.00 GiB")
    script = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True llamafactory-cli train factory.json\n"
    (folder / "train.sh").write_text(script)
    found = vramplan.explain(log_of(folder, text), folder / "train.sh", num_gpus=1)
    assert [cause.name for cause in found.causes] == ["fragmentation"]
    assert found.causes[0].changes == ()
    bare = vramplan.explain(log_of(folder, text), folder / "factory.json", num_gpus=1)
    assert bare.causes[0].changes == ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",)


def test_the_hosts_memory_by_estimate(folder: Path) -> None:
    log = log_of(folder, "exitcode: -9 (pid: 223)")
    line = ["oom", str(log), "--config", str(folder / "factory.json"), "--gpu", "rtx4090", "--num-gpus", "1"]
    done = cli(*line, COLUMNS="200")
    assert "Host memory of a node with 1 GPU" in done.stdout
    assert "No tensor of the simulated step" not in done.stdout
    assert "and yet the run ran out" not in done.stdout  # that was about the GPU
    assert cli_json(*line)["host_bytes"] > 0
