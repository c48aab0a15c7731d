"""open-r1: ``src/open_r1/sft.py`` and ``grpo.py`` with ``--config RECIPE``.

Its setup.py pins TRL 0.18.0 and transformers 4.52.3. They call TRL's SFTTrainer and GRPOTrainer with a model that they
load as TRL does (utils/model_utils.py: get_model); its rewards are functions (rewards.py).
"""

from __future__ import annotations

from dataclasses import replace

from vramplan.frameworks.framework import Framework, Program
from vramplan.frameworks.parsed_config import ParsedConfig
from vramplan.frameworks.readers import trl
from vramplan.frameworks.settings import ConfigReader

PACKAGE, TRL = "open-r1", "0.18.0"
MARKS = frozenset(
    {"benchmarks", "wandb_run_group", "hub_model_revision", "overwrite_hub_revision", "push_to_hub_revision"}
)
"""Fields that it adds to TRL's SFTConfig (configs.py)."""


def read(config: ConfigReader, num_gpus: int, framework_version: str | None) -> ParsedConfig:
    """The job of an open-r1 recipe; `framework_version` is TRL's."""
    parsed = trl.read(config, num_gpus, framework_version or TRL)
    if not config.has("optim"):
        parsed.job["optimizer"] = "adamw_torch"  # transformers 4.52's default
    trl.note_missing_launcher(config, parsed.job)
    return replace(parsed, framework=PACKAGE, version=f"with TRL {framework_version or TRL}")


FRAMEWORK = Framework(
    name=PACKAGE,
    read=read,
    programs=(
        Program("open_r1/sft.py"),
        Program("open_r1/grpo.py"),
        Program("open_r1/generate.py", unread="generation"),
    ),
    marks=MARKS,
    inherits=("trl", "transformers"),
    tells_tasks=True,
)
