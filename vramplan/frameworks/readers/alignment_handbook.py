"""alignment-handbook: ``scripts/run_sft.py RECIPE`` up to 0.3, ``scripts/sft.py --config RECIPE`` since; so dpo, orpo.

Both call TRL's SFTTrainer: the former TRL 0.9.6 with packed rows (setup.py, scripts/run_sft.py and
src/alignment/configs.py of 0.3.0), the latter 0.19.1 as TRL's own script does (of 925acdf).
"""

from __future__ import annotations

from dataclasses import replace

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.framework import Framework, Program
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers import trl, trl_trainers
from vramplan.frameworks.readers.trainer_arguments import eval_batch_size
from vramplan.frameworks.settings import ConfigReader

PACKAGE, TRL, FORMER_TRL = "alignment-handbook", "0.19.1", "0.9.6"
FORMER = frozenset({"dataset_mixer", "dataset_splits", "dataset_configs", "auto_insert_empty_system_msg"})
"""Fields of the data set up to 0.3."""
FORMER_SCRIPTS = ("run_sft.py", "run_cpt.py")
FORMER_PREFERENCES = ("run_dpo.py", "run_orpo.py")


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of a recipe; `framework_version` is TRL's.

    Raises:
        UnsupportedError: for preference training by TRL 0.9.6, as up to 0.3, and for tasks that it has no script of.
    """
    task = trl_trainers.task_of(config)
    if task not in (None, "dpo", "orpo"):
        raise UnsupportedError(
            f"{config.source.where}: alignment-handbook has no script of {task.upper()}; if TRL's trainer takes this"
            f" file, give {setting('framework', 'trl')} {setting('task', task)}"
        )
    is_former = config.source.program.endswith((*FORMER_SCRIPTS, *FORMER_PREFERENCES)) or bool(
        FORMER & config.source.settings.keys()
    )
    version = framework_version or (FORMER_TRL if is_former else TRL)
    parsed = trl.read(config, num_gpus, version)
    if parsed.job.get("task") == "dpo":
        _check_reference(config, parsed)
    if not config.has("optim"):
        parsed.job["optimizer"] = "adamw_torch"  # transformers' default up to 4.53
    if is_former and "task" not in parsed.job:
        _pack(config, parsed)
    evaluates = config.boolean("do_eval", default=False) or config.has("eval_strategy", "evaluation_strategy")
    parsed.eval_batch_size = eval_batch_size(config, 8, evaluates)
    trl.note_missing_launcher(config, parsed.job)
    return replace(parsed, framework=PACKAGE, version=f"with TRL {version}")


def _check_reference(config: ConfigReader, parsed: ParsedConfig) -> None:
    """It passes a reference of its own (scripts/dpo.py of 925acdf), which TRL 0.19.1 refuses beside new adapters.

    Raises:
        ConfigError: for adapters without force_use_ref_model.
    """
    if parsed.job["method"] == "full":
        return
    if not config.boolean("force_use_ref_model", default=False):
        raise ConfigError(
            f"{config.place('use_peft')}: use_peft in scripts/dpo.py: TRL 0.19.1 stops at its reference model beside"
            " adapters; write force_use_ref_model: true, or train with trl dpo"
        )
    parsed.job["reference"] = "model"


def _pack(config: ConfigReader, parsed: ParsedConfig) -> None:
    """Rows of texts joined and cut to max_seq_length, whatever ``packing`` says: none is padded."""
    if config.boolean("use_flash_attention_2", default=False):  # up to 0.2
        parsed.job["attention"] = "flash"
    parsed.job |= {"batches": "unpadded", "loss": "sliced"}  # run_sft.py's arguments are gone since TRL 0.16
    parsed.rows = "packed"
    config.read_keys.add("packing")


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    programs=(
        Program("run_sft.py", FORMER),
        Program("run_cpt.py", FORMER),
        *(Program(name, FORMER) for name in FORMER_PREFERENCES),
        *(Program(f"{name}.py", frozenset({"dataset_mixture", *FORMER})) for name in ("sft", "dpo", "orpo")),
    ),
    marks=frozenset({"dataset_mixture", *FORMER}),
    inherits=("trl", "transformers"),
    tells_tasks=True,
)
