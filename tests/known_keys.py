"""Keys of vramplan/frameworks/known_keys.json from the frameworks' own sources.

    pip download --no-deps trl ms-swift llamafactory axolotl, and unpack the wheels into FOLDER
    python -m tests.known_keys [FOLDER]        keys that the sources have and the file lacks
    python -m tests.known_keys [FOLDER] --add  add them

Read are the annotated fields of the classes of arguments (dataclasses and pydantic models) and of their base
classes, from the syntax trees of the packages in FOLDER, or else of the installed ones; nothing is imported.
The file keeps the keys of all versions, so keys are only added. Keys of older versions, of command lines,
launchers and scripts were added by hand. unsloth, torchtune, torchtitan, DeepSpeed and Megatron declare their
keys in other ways (arguments of functions, recipes' YAML, nested sections, argparse) and are not read here.
"""

from __future__ import annotations

import argparse
import ast
import json
import textwrap
from importlib.util import find_spec
from pathlib import Path

from tests.helpers import ROOT
from vramplan.frameworks.known_keys import known_keys
from vramplan.frameworks.registry import FRAMEWORKS

FILE = ROOT / "vramplan/frameworks/known_keys.json"
TRL_CONFIGS = ("SFT", "DPO", "KTO", "ORPO", "CPO", "Reward", "GRPO", "RLOO", "GKD")
SOURCES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "transformers": (("transformers/training_args*.py",), ("TrainingArguments", "Seq2SeqTrainingArguments")),
    "trl": (
        ("trl/trainer/*_config.py", "trl/scripts/utils.py", "trl/experimental/*/*_config.py"),
        ("ScriptArguments", "ModelConfig", *(f"{name}Config" for name in TRL_CONFIGS)),
    ),
    "ms-swift": (("swift/**/*.py",), ("SftArguments", "PretrainArguments", "RLHFArguments")),
    "llamafactory": (
        ("llamafactory/hparams/*.py",),
        ("ModelArguments", "DataArguments", "TrainingArguments", "FinetuningArguments", "GeneratingArguments"),
    ),
    "axolotl": (
        ("axolotl/**/*.py",),
        ("AxolotlInputConfig", "LigerArgs", "CutCrossEntropyArgs", "SpectrumArgs", "KDArgs", "LMEvalArgs"),
    ),
}
"""Files, relative to the folder of packages, and the classes whose fields and inherited fields are keys."""


def fields_of(cls: ast.ClassDef) -> set[str]:
    """Annotated fields of a class that its constructor takes."""
    return {
        node.target.id
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        if not node.target.id.startswith("_") and "ClassVar" not in ast.unparse(node.annotation)
        if node.value is None or "init=False" not in ast.unparse(node.value)
    }


def keys_of(framework: str, folder: Path | None) -> set[str]:
    """Keys of a framework's arguments; empty if its package is neither in the folder nor installed."""
    patterns, waiting = SOURCES[framework][0], [*SOURCES[framework][1]]
    package = patterns[0].partition("/")[0]
    if folder is None or not (folder / package).is_dir():
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            return set()
        folder = Path(spec.origin).parents[1]
    classes: dict[str, list[ast.ClassDef]] = {}
    for path in (path for pattern in patterns for path in folder.glob(pattern)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)
    keys, done = set[str](), set[str]()
    while waiting:
        name = waiting.pop()
        for cls in classes.get(name, []) if name not in done else []:
            keys |= fields_of(cls)
            waiting += [ast.unparse(base).rpartition(".")[2] for base in cls.bases]
        done.add(name)
    return keys


def written(table: dict[str, list[str]]) -> str:
    """The file's text: a framework's keys sorted, in lines of at most 120 characters."""
    sections = []
    for name, keys in table.items():
        lines = textwrap.wrap(json.dumps(sorted(keys))[1:-1], 116, break_on_hyphens=False)
        sections.append(f' "{name}": [\n' + textwrap.indent("\n".join(lines), "  ") + "\n ]")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--add", action="store_true")
    options = parser.parse_args()
    table = json.loads(FILE.read_text())
    for framework in SOURCES:
        keys = keys_of(framework, options.folder)
        new = sorted(keys - known_keys(framework, FRAMEWORKS[framework].inherits))
        print(
            f"{framework}: {len(keys)} keys in its sources, {len(table[framework])} in the file, new: {new or 'none'}"
        )
        table[framework] += new
    if options.add:
        FILE.write_text(written(table))


if __name__ == "__main__":
    main()
