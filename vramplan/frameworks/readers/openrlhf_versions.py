"""What the flags of an OpenRLHF command say about its version, where they have no dots (up to 0.9).

Before 0.7 what the model gave was cut by a token before log-probabilities were taken of it (v0.6.4: models/actor.py,
trainer/dpo_trainer.py, models/loss.py: GPTLMLoss): the cut, and its gradient, are whole fp32 logits once more. A reward
model has no logits, and its loop of padded samples is the same from 0.5 on (trainer/rm_trainer.py, models/model.py).
The flags are those of openrlhf/cli at the tags v0.2.0 to v0.9.10.
"""

from __future__ import annotations

from collections.abc import Mapping

from vramplan.errors import UnsupportedError
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.settings import ConfigReader

FIRST: Mapping[str, str] = {"train_rm": "0.5"}
"""The first version whose loop is the one that is modelled, by program."""
FIRST_OF_OTHERS = "0.7"
DROPPED = frozenset(
    """
    bos_token colocate_actor_critic colocate_ref_reward disable_trace_cache eos_token head_prefix pad_token
    universal_ckpt unk_token use_kl_estimator_k3
    """.split()  # noqa: SIM905
)
"""Flags that no program has from 0.7 on."""
DROPPED_BY: Mapping[str, frozenset[str]] = {"train_dpo": frozenset(("train_split",))}
"""Those that only this program has no more."""
ADDED: Mapping[str, frozenset[str]] = {
    "train_sft": frozenset(("dataset_split", "eval_dataset")),
    "train_dpo": frozenset(
        ("dataset_split", "eval_dataset", "lr_scheduler", "min_lr_ratio", "tokenizer_chat_template")
    ),
    "train_ppo_ray": frozenset(
        """
        agent_func_path async_queue_size async_train best_metric_key dual_clip dynamic_filtering
        dynamic_filtering_reward_range enable_vllm_is_correction entropy_loss_coef eps_clip_low_high eval_dataset
        eval_n_samples_per_prompt eval_split eval_temperature kl_horizon lr_scheduler max_new_tokens partial_rollout
        policy_loss_type rollout_max_tokens_per_gpu train_max_tokens_per_gpu use_dynamic_batch use_icepop
        vllm_generate_batch_size
        """.split()  # noqa: SIM905
    ),
}
"""Flags that a program has from 0.7 on alone, beside those of all programs."""
ADDED_TO_ALL = frozenset(("attn_implementation", "dataloader_num_workers", "deepcompile", "param_dtype"))


def check_version(config: ConfigReader, program: str, version: str, origin: str) -> None:
    """Refuse a version whose loop is another one, and note where the flags leave that open.

    Raises:
        UnsupportedError: naming the version, or a flag that only such a version has.
    """
    first, settings = FIRST.get(program, FIRST_OF_OTHERS), config.source.settings
    if not at_least(version, first):
        raise UnsupportedError(f"{config.source.where}: OpenRLHF {version}: its loops differ before {first}")
    has_dots = any("." in name for name in settings)
    if has_dots or origin != "newest known" or program in FIRST:
        return
    dropped = sorted((DROPPED | DROPPED_BY.get(program, frozenset())) & settings.keys())
    if dropped:
        raise UnsupportedError(
            f"{config.source.where}: {dropped[0]} is a flag of OpenRLHF before {first}, whose loops need more and are"
            " not modelled; --framework-version says which it is"
        )
    if not (ADDED_TO_ALL | ADDED.get(program, frozenset())) & settings.keys():
        config.note(
            "doubt",
            "framework_version",
            f"of these flags without dots: before {first}, OpenRLHF copies whole logits and needs more;"
            f" --framework-version {first} or later says that it does not",
        )
