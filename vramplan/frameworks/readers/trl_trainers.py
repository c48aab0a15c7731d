"""Which of TRL's trainers a configuration is for.

By what the command runs, by its keys, by the command in the comment at its top, or by the file's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from vramplan.errors import ConfigError, setting
from vramplan.frameworks.parsed_config import at_least
from vramplan.frameworks.settings import ConfigReader, ConfigValue
from vramplan.inputs.job_values import ROLLOUTS

PREFERENCES = ("dpo", "kto", "orpo", "cpo")
TASKS = (*PREFERENCES, "reward", *ROLLOUTS, "gkd", "ppo")
"""Those whose configurations are read, by the job's task."""
PROMPT_LENGTH = 512
"""Tokens that DPO keeps of a prompt up to 0.28 by default, and GRPO up to 0.25."""
TRAINER_KEY = "trainer"
"""The key under which a script's trainer, or ``check --task``, says the task; SFT for none of these."""
TOKENIZER_KEY = "tokenizer"
"""The key under which a script hands its trainer a tokenizer, as TRL's took up to :data:`LAST_WITH_TOKENIZER`."""
LAST_WITH_TOKENIZER: Mapping[str | None, str] = {
    **dict.fromkeys((None, "dpo"), "0.15.2"),
    **dict.fromkeys(("reward", "orpo"), "0.14.0"),
    **dict.fromkeys(("kto", "cpo", "rloo"), "0.13.0"),
    "gkd": "0.12.2",
}
"""By task, None for supervised fine-tuning (trl 0.12 to 0.16, trainer/*_trainer.py: deprecate_kwarg)."""
LABELS_KEY = "loaded_labels"
"""The key under which a script says with how many labels it loads a reward model; null if it does not say."""
WITHOUT_DTYPE = "without_dtype"
"""The key that says that a script loads its model by from_pretrained without a dtype."""
CLASSES: Mapping[str, str] = {
    f"{name}{end}": task
    for name, task in (
        ("DPO", "dpo"), ("KTO", "kto"), ("ORPO", "orpo"), ("CPO", "cpo"), ("Reward", "reward"), ("GRPO", "grpo"),
        ("RLOO", "rloo"), ("GKD", "gkd"), ("PPO", "ppo"),
    )
    for end in ("Trainer", "Config")
}  # fmt: skip
"""The trainers and their arguments in Python -> the task."""
SCRIPTS: Mapping[str, str] = {
    **{task: task for task in TASKS},
    "reward_modeling": "reward",
    **{f"{task}_vlm": task for task in ("dpo", *ROLLOUTS)},
    "ppo_tldr": "ppo",
}
"""Names of TRL's scripts (trl/scripts, examples/scripts, 0.9 to 1.16), some also with run_ before -> the task."""


def _of(tasks: tuple[str, ...], keys: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(keys.split(), tasks)


KEYS: Mapping[str, tuple[str, ...]] = {
    **_of(
        ("dpo",),
        "discopop_tau f_alpha_divergence_coef f_divergence_type force_use_ref_model ld_alpha loss_weights"
        " reference_free rpo_alpha use_logits_to_keep use_weighting precompute_ref_batch_size ref_adapter_name"
        " model_adapter_name",
    ),
    **_of(("kto",), "desirable_weight undesirable_weight"),
    **_of(("cpo",), "cpo_alpha simpo_gamma"),
    **_of(("reward",), "center_rewards_coefficient"),
    **_of(
        ROLLOUTS,
        "num_generations reward_funcs reward_weights use_vllm vllm_mode vllm_gpu_memory_utilization num_iterations"
        " steps_per_generation generation_batch_size epsilon epsilon_high mask_truncated_completions log_completions"
        " vllm_enable_sleep_mode vllm_tensor_parallel_size reward_model_name_or_path vllm_server_host",
    ),
    **_of(
        ("grpo",),
        "scale_rewards delta top_entropy_quantile importance_sampling_level vllm_importance_sampling_correction",
    ),
    **_of(("rloo",), "normalize_advantages reward_clip_range"),
    **_of(("dpo", "cpo"), "label_smoothing"),
    **_of(("dpo", "kto"), "precompute_ref_log_probs ref_model_init_kwargs"),
    **_of(("dpo", "kto", *ROLLOUTS), "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps"),
    **_of(("gkd",), "teacher_model_name_or_path teacher_model_init_kwargs lmbda seq_kd max_new_tokens"),
    **_of(
        ("ppo",),
        "num_ppo_epochs num_mini_batches local_rollout_forward_batch_size response_length missing_eos_penalty"
        " reward_model_path sft_model_path whiten_rewards vf_coef cliprange_value kl_estimator",
    ),
    **_of((*PREFERENCES, *ROLLOUTS), "max_prompt_length max_completion_length"),
    **_of((*PREFERENCES, *ROLLOUTS, "gkd"), "beta"),
}
"""Keys that supervised fine-tuning does not take -> the tasks that do (trl 0.15 to 1.16, trainer/*_config.py)."""
LOSS_TYPES: Mapping[str, tuple[str, ...]] = {
    **_of(("dpo", "cpo"), "sigmoid hinge ipo"),
    **_of(("cpo",), "simpo"),
    **_of(("kto",), "kto apo_zero_unpaired"),
    **_of(("dpo",), "robust bco_pair sppo_hard nca_pair aot aot_pair aot_unpaired exo_pair apo_zero apo_down discopop"),
    **_of(("dpo",), "sigmoid_norm"),
    **_of(("grpo",), "grpo bnpo dr_grpo dapo luspo cispo sapo vespo"),
}
"""Values of `loss_type` -> the tasks that take them."""
VALUES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "loss_type": LOSS_TYPES,
    "lora_task_type": {"seq_cls": ("reward",)},  # the model with a score that RewardTrainer loads
}
"""Keys of several trainers -> their values -> the tasks that take them."""
COMMAND = re.compile(r"\btrl[ /](?:scripts/)?(\w+)(?:\.py)?[ \t][^\n]*--config\b")
"""A command in a comment: ``trl dpo --config FILE``, ``accelerate launch trl/scripts/dpo.py --config FILE``."""


def task_of(config: ConfigReader) -> str | None:
    """The task of a configuration; None for supervised fine-tuning.

    Raises:
        ConfigError: if its keys are those of several trainers, and nothing else says which.
    """
    source = config.source
    if config.has(TRAINER_KEY):
        named = config.lowercase(TRAINER_KEY, default="").replace("simpo", "cpo")
        if named not in (*TASKS, "sft"):
            raise config.invalid((TRAINER_KEY,), f"sft, {', '.join(TASKS)}")
        return None if named == "sft" else named
    stem = Path(source.program.rpartition(" ")[2]).stem.removeprefix("run_")
    if stem in SCRIPTS:
        return SCRIPTS[stem]
    if stem.startswith("sft"):
        return None
    return task_of_keys(source.settings, source.where, config)


def task_of_keys(settings: Mapping[str, ConfigValue], where: str, config: ConfigReader | None = None) -> str | None:
    """The same of a file by itself: by its keys, by the command in its comment, by its name or its folder's."""
    tasks, telling = _candidates(settings)
    commented = None if config is None else task_of_comment(config.source.comment)
    if commented == "sft" and not telling:
        return None
    if commented in tasks:
        return commented
    named = _named(where)
    if named is not None and (not telling or named in tasks):
        if len(tasks) != 1 and config is not None:
            config.note("warning", "", f"taken as {named.upper()} by the file's name")
        return named
    if not telling:
        alone = config is not None and config.framework == "trl" and not config.source.program
        if config is not None and alone and config.source.spelling == "yaml":
            config.note(
                "default", "", "no key of another trainer: taken as SFT; `vramplan check --task dpo` takes another"
            )
        return None
    if tasks == ROLLOUTS and config is not None:
        config.note(
            "warning", "", "keys of GRPO and of RLOO: taken as GRPO; `vramplan check --task rloo` takes the other"
        )
    if len(tasks) == 1 or tasks == ROLLOUTS:
        return tasks[0]
    shown = ", ".join(tasks or TASKS).upper()
    raise ConfigError(
        f"{where}: {', '.join(telling)}: keys of several trainers ({shown}); say which by {setting('task', 'dpo')}"
    )


def _candidates(settings: Mapping[str, ConfigValue]) -> tuple[tuple[str, ...], list[str]]:
    """(tasks that take all of the keys that tell, those keys)."""
    tasks: tuple[str, ...] = TASKS
    telling: list[str] = []
    for key, value in settings.items():
        takers = KEYS.get(key)
        if key in VALUES:
            names = value.value if isinstance(value.value, list) else [value.value]
            takers = VALUES[key].get(str(names[0]).lower()) if names else None
        if takers is not None and value.value is not None:
            tasks = tuple(task for task in tasks if task in takers)
            telling.append(key)
    return tasks, telling


def task_of_comment(comment: str) -> str | None:
    """The task of the one command that a comment names; "sft" for supervised fine-tuning."""
    names = {"sft": "sft", **SCRIPTS}
    tasks = {names[name] for name in COMMAND.findall(comment) if name in names}
    return tasks.pop() if len(tasks) == 1 else None


def _named(where: str) -> str | None:
    """The task that a file's name, or its folder's, says."""
    path = Path(where)
    if path.suffix not in (".yaml", ".yml", ".json"):
        return None
    words = {path.parent.name.lower(), *re.split(r"[^a-z]+", path.stem.lower())}
    found = [task for name, task in {**SCRIPTS, "simpo": "cpo", "rm": "reward"}.items() if name in words]
    return found[0] if len(set(found)) == 1 else None


def dtype_of_scripts(version: str) -> str:
    """What from_pretrained loads without a dtype: fp32 by transformers 4, before TRL 0.27; the checkpoint's by 5."""
    return "auto" if at_least(version, "0.27") else "fp32"


def stops_at_tokenizer(config: ConfigReader, release: str) -> ConfigError:
    """The error for a trainer's `tokenizer` in a release that has another argument in its place."""
    return ConfigError(f"{config.place(TOKENIZER_KEY)}: {release} stops at tokenizer=; it takes processing_class=")
