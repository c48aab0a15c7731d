"""What `use_liger_kernel` is in TRL's trainers of preferences and GRPO: a loss of Liger's, or its layers alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import ConfigError
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.settings import ConfigReader

LIGER_LOSS = ("1.0", "1.13")
"""The first version of TRL whose DPO and GRPO take Liger's loss as modelled, and the first with one of its own."""
LIGER_DPO_LOSSES = (
    "sigmoid", "hinge", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "apo_zero", "apo_down", "discopop",
)  # fmt: skip
"""Values of `loss_type` that Liger's DPO takes (liger-kernel 0.8.5, chunked_loss/dpo_loss.py)."""


def with_liger(config: ConfigReader, task: str, version: str, job: Mapping[str, Any], loss: str) -> str:
    """The job's `loss` under Liger; since 1.15, and for whole logits, only its layers are used.

    (dpo_trainer.py: add_fused_lm_head, _compute_loss_liger.)

    Raises:
        UnsupportedError: for a version whose loss of Liger's is not modelled.
        ConfigError: for settings that TRL stops at.
    """
    config.require_off("use_liger_loss", why="with TRL before 1.0 is not modelled")
    options = config.section("liger_kernel_config")
    if loss == "chunked" and options is not None and options.boolean("fused_linear_cross_entropy", default=False):
        raise config.unsupported("liger_kernel_config", "with fused_linear_cross_entropy: TRL stops at that")
    if task == "kto" and loss != "chunked" and config.boolean("use_liger_kernel", default=False):
        raise config.unsupported(
            "use_liger_kernel", f"with KTO of TRL {version}, whose loss is Liger's, is not modelled; TRL 1.15's is"
        )
    if loss == "chunked" or task not in ("dpo", "grpo") or not config.boolean("use_liger_kernel", default=False):
        return loss
    first, after = LIGER_LOSS
    if not at_least(version, first) or at_least(version, after):
        raise config.unsupported(
            "use_liger_kernel",
            f"with {task.upper()} of TRL {version}, whose loss is Liger's, is not modelled; modelled are those"
            " of TRL 1.0 to 1.12, and TRL 1.15 on",
        )
    if task == "dpo":
        _check_liger_dpo(config, version, job)
    elif config.number("top_entropy_quantile", default=1.0) < 1.0:
        raise ConfigError(f"{config.place('use_liger_kernel')}: GRPOTrainer stops at it with top_entropy_quantile")
    return "liger"


def _check_liger_dpo(config: ConfigReader, version: str, job: Mapping[str, Any]) -> None:
    """What TRL's DPOTrainer stops at with Liger's loss."""
    place = config.place("use_liger_kernel")
    if job["method"] != "full" and not at_least(version, "1.8"):
        raise ConfigError(f"{place}: DPOTrainer of TRL {version} stops at adapters with it; TRL 1.8 takes them")
    names = config.strings("loss_type") or ("sigmoid",)
    if len(names) > 1 or names[0] not in LIGER_DPO_LOSSES:
        raise ConfigError(f"{place}: Liger's DPO takes one loss_type of {', '.join(LIGER_DPO_LOSSES)}")
    if config.boolean("precompute_ref_log_probs", default=False):
        raise ConfigError(f"{place}: DPOTrainer stops at it with precompute_ref_log_probs; set one of them to false")
