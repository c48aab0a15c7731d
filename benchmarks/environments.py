"""Where vramplan and its peers are installed for a measurement."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
MODEL = "Qwen/Qwen2.5-7B"


class Peer(NamedTuple):
    """Another program that says what fits, by formulas."""

    package: str
    command: tuple[str, ...]
    """Its line for a 7B with LoRA or QLoRA at 2,048 tokens on a GPU of 24 GiB; {folder} has the model's config.json."""


PEERS = (
    Peer(
        "fitcheck-llm",
        ("fitcheck", MODEL, "--gpu", "4090", "--lora-r", "8", "--grad-accum", "16", "--grad-checkpoint", "--no-color"),
    ),
    Peer("fitscout", ("fitscout", "{folder}", "--vram", "24", "--bf16", "--seq-len", "2048")),
)
OFFLINE = {"HF_HUB_OFFLINE": "1"}
"""The network is no part of what is measured."""


def install(folder: Path, package: str) -> Path:
    """A fresh environment with a package; returns the folder of its programs."""
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, package], check=True)
    return programs


def put_model(folder: Path) -> dict[str, str]:
    """Put the model's config.json into `folder` and a cache of the Hub there; the variables that name the cache."""
    spec = json.loads((ROOT / f"model_specs/{MODEL}.json").read_bytes())
    config = json.dumps({**spec["config"], "model_type": spec["model_type"], "torch_dtype": "bfloat16"})
    repository = folder / "hub" / f"models--{MODEL.replace('/', '--')}"
    revision = "0" * 40
    for path, text in (
        (folder / "config.json", config),
        (repository / "refs/main", revision),
        (repository / f"snapshots/{revision}/config.json", config),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {"HF_HUB_CACHE": str(folder / "hub"), **OFFLINE}
