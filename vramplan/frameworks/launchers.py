"""What starts a training program: srun, uv run and the like, then python, torchrun, accelerate launch or deepspeed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from vramplan.errors import ConfigError
from vramplan.frameworks import slurm
from vramplan.frameworks.readers import accelerate_launch
from vramplan.frameworks.settings import ConfigValue, Note
from vramplan.frameworks.syntax.config_files import read_text
from vramplan.frameworks.syntax.lookup import beside

LAUNCHERS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
}
WRAPPERS = (
    "srun", "uv", "uvx", "poetry", "sudo", "docker", "conda", "mpirun", "mpiexec", "pipenv", "hatch", "xvfb-run",
    "podman", "singularity", "apptainer", "mamba", "micromamba", "pixi", "pdm", "rye", "ray", "kubectl", "hf",
)  # fmt: skip
BEHIND_DASHES = ("ray", "kubectl")
"""Wrappers whose command stands behind ``--``: what is before it are settings of their own."""
SUBMITS = "mason.py"
"""open-instruct's program that submits what stands behind ``--``."""
UV_VALUED = (
    "--with", "--with-requirements", "--with-editable", "--extra", "--no-extra", "--group", "--only-group",
    "--no-group", "--package", "--project", "--directory", "--from", "--python", "-p", "--image",
)  # fmt: skip
"""Flags of ``uv run`` (0.9), ``uvx`` and ``hf jobs`` whose value, the next word, may look like a command."""
MPI = ("mpirun", "mpiexec")
PYTHON = re.compile(r"python[\d.]*")
MODULES: dict[str, str] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "deepspeed.launcher.runner": "deepspeed",
}
"""Launchers that ``python -m`` starts."""
VALUELESS: dict[str, frozenset[str]] = {
    "python": frozenset(),
    "torchrun": frozenset({"standalone", "no_python", "run_path", "use_env", "virtual_local_rank", "use_agent_store"}),
    "accelerate": frozenset(
        {
            "multi_gpu", "cpu", "tpu", "ipex", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_parallelism_config",
            "use_mps_device", "use_xpu", "use_cpu", "quiet", "debug", "no_python", "enable_cpu_affinity",
            "same_network", "tpu_cluster", "tpu_use_sudo", "downcast_bf16", "fp8_use_autocast_during_eval",
            "dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation",
        }
    ),
    "deepspeed": frozenset(
        {
            "no_python", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "bind_cores_to_rank",
            "elastic_training",
        }
    ),
}  # fmt: skip
"""Flags that take no value (torch 2.13: distributed/run.py; accelerate 1.15: commands/launch.py; DeepSpeed 0.19:
launcher/runner.py)."""
SHORT = {"i": "include", "e": "exclude", "H": "hostfile"}
"""DeepSpeed's short flags."""


class Launch(NamedTuple):
    """A program and what its launchers pass to it."""

    words: list[str]
    """The program and its own words."""
    settings: dict[str, ConfigValue]
    """Numbers of processes, and what accelerate's configuration sets."""
    environment: dict[str, ConfigValue]


def launch(
    words: list[str], folder: Path, environment: Mapping[str, str], starts: Iterable[str], notes: list[Note]
) -> Launch:
    """The program that a command starts; `starts` are first words of frameworks' own commands.

    Files that launchers name may lie in `folder`; `environment` is the command's. Adds to the `notes`.

    Raises:
        ConfigError: for a file that does not exist, or GPUs that are counted in a way that only the machine tells.
        UnsupportedError: for a launcher's engine that is not modelled.
    """
    program, tasks = _without_wrapper(words, environment, starts)
    if Path(next(iter(program[1:2]), "")).name == SUBMITS and "--" in program:
        return launch(_behind_dashes(program), folder, environment, starts, notes)
    settings, variables = dict[str, ConfigValue](), dict(tasks.environment)
    launcher = _launcher(program[0]) if program else ""
    by_launcher = False
    program = list(program)
    while launcher and program:
        program.pop(0)
        flags = _take_flags(program, launcher)
        if launcher == "accelerate":
            launched = accelerate_launch.launched(
                {"num_processes": ConfigValue("all", "accelerate launch")} | flags, folder, program, notes
            )
            settings |= launched[0]
            variables |= launched[1]
        elif launcher == "deepspeed":
            settings |= _deepspeed(flags, folder)
        elif launcher == "torchrun":
            counts = {name: flags[name] for name in ("nproc_per_node", "nnodes") if name in flags}
            settings |= {"nproc_per_node": ConfigValue(1, "torchrun")} | counts
        by_launcher |= launcher != "python"
        module = MODULES.get(program[0], "") if program and launcher == "python" else ""
        launcher = module or (_launcher(program[0]) if program else "")
    return Launch(program, settings if by_launcher else tasks.settings | settings, variables)


def _take_flags(words: list[str], launcher: str) -> dict[str, ConfigValue]:
    """The launcher's own flags, which are taken out of `words`."""
    flags: dict[str, ConfigValue] = {}
    if launcher == "accelerate" and words[:1] == ["launch"]:
        words.pop(0)
    while words and words[0].startswith("-"):
        word = words.pop(0)
        name, mark, value = word.lstrip("-").replace("-", "_").partition("=")
        value = word.partition("=")[2]
        if launcher == "deepspeed":
            name = SHORT.get(name, name)
        if name in ("m", "module"):
            continue
        if launcher == "python":
            if name in ("W", "X") and words:
                words.pop(0)
            continue
        if not mark and name not in VALUELESS[launcher] and words:
            value = words.pop(0)
        if len(name) > 1:
            flags[name] = ConfigValue(value, f"--{name}")
    return flags


def _deepspeed(flags: dict[str, ConfigValue], folder: Path) -> dict[str, ConfigValue]:
    """The number of processes: every GPU of the machine, of the hosts in a file, or those that flags choose."""
    per_node = flags.get("num_gpus", ConfigValue("all", "deepspeed"))
    if "exclude" in flags:
        raise ConfigError(
            f"--exclude {flags['exclude'].value}: the GPUs that remain depend on the machine; write --include or"
            " --num_gpus instead"
        )
    if "include" in flags:
        return _included(flags["include"])
    hosts = flags.get("hostfile")
    if hosts is not None and not {"num_gpus", "num_nodes"} <= flags.keys():
        path = beside(str(hosts.value), folder)
        if path is None:
            raise ConfigError(
                f"--hostfile {hosts.value}: no such file, so the number of GPUs is not known; write --num_nodes and"
                " --num_gpus beside it"
            )
        slots = [int(number) for number in re.findall(r"^[^#\n]*\bslots=(\d+)", read_text(path), re.MULTILINE)]
        if not slots:
            raise ConfigError(f"{path}: no line such as: worker-1 slots=8")
        num_nodes = flags.get("num_nodes")
        count = int(num_nodes.value) if num_nodes and str(num_nodes.value).isdigit() else 0
        count = count or len(slots)
        if "num_gpus" in flags:
            return {"nproc_per_node": per_node, "nnodes": ConfigValue(count, str(path))}
        place, chosen = f"{path}: slots", slots[:count]
        if len(set(chosen)) > 1:  # only nodes with as many GPUs each are modelled
            return {"nproc_per_node": ConfigValue(sum(chosen), place)}
        return {"nproc_per_node": ConfigValue(chosen[0], place), "nnodes": ConfigValue(len(chosen), str(path))}
    nodes = {"nnodes": flags["num_nodes"]} if "num_nodes" in flags else {}
    return nodes | {"nproc_per_node": per_node}


def _included(include: ConfigValue) -> dict[str, ConfigValue]:
    """GPUs by ``NODE:0,1@NODE:2,3``; a node without numbers has all of its GPUs (runner.py: parse_node_config)."""
    nodes = str(include.value).split("@")
    slots = [node.partition(":")[2] for node in nodes]
    if all(text in ("", "all") for text in slots):
        return {"nproc_per_node": ConfigValue("all", include.place), "nnodes": ConfigValue(len(nodes), include.place)}
    if not all(re.fullmatch(r"\d+(,\d+)*", text) for text in slots):
        raise ConfigError(f"--include {include.value}: expected such as localhost:0,1,2,3")
    count = sum(len(set(text.split(","))) for text in slots)
    return {"nproc_per_node": ConfigValue(count, include.place)}


def _without_wrapper(
    words: list[str], environment: Mapping[str, str], starts: Iterable[str]
) -> tuple[list[str], slurm.Tasks]:
    """The command that srun, uv run and the like start, and the processes that srun starts of it."""
    if not words or Path(words[0]).name not in WRAPPERS:
        return words, slurm.Tasks({}, {})
    wrapper, known = Path(words[0]).name, set(starts)
    if wrapper in BEHIND_DASHES:
        return _without_wrapper(_behind_dashes(words), environment, starts)
    if wrapper == "hf" and words[1:2] != ["jobs"]:
        return words, slurm.Tasks({}, {})
    first = next(
        (
            number
            for number, word in enumerate(words)
            if number
            and not (wrapper in ("uv", "uvx", "hf") and words[number - 1] in UV_VALUED)
            and (Path(word).name in known or _launcher(word) or word.endswith(".py") or _is_module(words, number))
        ),
        0,
    )
    wrapper = wrapper if first > 0 else ""
    if wrapper and _is_module(words, first):
        return ["python", *words[first:]], slurm.Tasks({}, {})
    if wrapper == "srun":
        return words[first:], slurm.tasks(words[1:first], environment)
    count = re.search(r" (?:-n|-np|--np) (\d+) ", f" {' '.join(words[1:first])} ") if wrapper in MPI else None
    ranks = {} if count is None else {"nproc_per_node": ConfigValue(int(count[1]), wrapper)}
    return words[first:], slurm.Tasks(ranks, {})


def _behind_dashes(words: list[str]) -> list[str]:
    """What stands behind the first ``--``, and behind the last ``&&`` of it; nothing without one."""
    behind = words[words.index("--") + 1 :] if "--" in words else []
    last = max((number for number, word in enumerate(behind) if word == "&&"), default=-1)
    return behind[last + 1 :]


def _is_module(words: list[str], number: int) -> bool:
    """Whether ``uv run -m MODULE`` stands there."""
    return Path(words[0]).name == "uv" and words[number] in ("-m", "--module") and number + 1 < len(words)


def _launcher(word: str) -> str:
    name = Path(word).name
    return LAUNCHERS.get(name, "python" if PYTHON.fullmatch(name) else "")


__all__ = ["Launch", "launch"]
