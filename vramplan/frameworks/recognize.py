"""The framework that a configuration file is for, by its keys; and the kinds of training that are not modelled."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.known_keys import known_keys
from vramplan.frameworks.readers import trl, trl_trainers
from vramplan.frameworks.registry import DEFAULT, FRAMEWORKS
from vramplan.frameworks.settings import ConfigValue, is_unknown
from vramplan.frameworks.token_keys import budget_in, budget_in_words, describe_budget

TRAINER_KEYS = frozenset({"output_dir", "per_device_train_batch_size", "model_name_or_path"})
"""Keys of transformers' Trainer by which a file without any framework's marks is recognised."""
LEAD = 0.5
"""Weight by which a framework has to lead; a key that it alone knows weighs 1."""
OTHER_FILES: Mapping[str, frozenset[str]] = {
    "is a model's config.json; give its folder as the model": frozenset({"architectures", "hidden_size"}),
    "is an adapter's configuration, which holds no batch and no length; check the command that trained it": frozenset(
        {"peft_type", "base_model_name_or_path"}
    ),
    "is an accelerate configuration, which names no model; check the command that uses it": frozenset(
        {"compute_environment", "distributed_type"}
    ),
    "is a file for containers, not a training configuration": frozenset({"services", "version"}),
    "is a Kubernetes file, not a training configuration": frozenset({"apiVersion", "kind"}),
}
"""Files that people take for a training configuration, by keys that they all hold."""
OTHER_TASKS: Mapping[str, tuple[str, ...]] = {
    "reinforcement training": (
        "num_generations", "max_completion_length", "reward_funcs", "reward_weights", "reward_model_path", "use_vllm",
        "vllm_mode", "vllm_gpu_memory_utilization", "num_ppo_epochs", "cliprange", "kl_coef", "vf_coef",
        "response_length", "missing_eos_penalty", "epsilon_high", "scale_rewards", "num_mini_batches",
        "actor_model_name_or_path", "critic_model_name_or_path", "ppo_epochs",
    ),
    "reward training": ("center_rewards_coefficient",),
    "distillation": ("teacher_model_name_or_path", "teacher_model_init_kwargs", "lmbda", "seq_kd"),
    "preference training": (
        "beta", "max_prompt_length", "precompute_ref_log_probs", "ref_model_init_kwargs", "rpo_alpha", "simpo_gamma",
        "gamma_beta_ratio", "cpo_alpha", "desirable_weight", "undesirable_weight", "sync_ref_model", "dpo_alpha",
        "orpo_alpha", "ref_adapter_name", "model_adapter_name", "reference_free",
    ),
}  # fmt: skip
"""Kinds of training -> keys that supervised fine-tuning does not take; the first kind with a key that is set counts."""
USUAL_TASKS = {
    "reinforcement training": "grpo",
    "reward training": "reward",
    "distillation": "gkd",
    "preference training": "dpo",
}
"""Kinds of training -> the task of the TRL trainer that the most scripts use for it."""
TASK_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("dpo", "orpo", "kto", "simpo", "cpo", "ipo", "bco", "rlhf", "preference"), "preference training"),
    **dict.fromkeys(("grpo", "ppo", "rloo", "gspo", "dapo", "reinforce"), "reinforcement training"),
    **dict.fromkeys(("reward", "rm", "prm"), "reward training"),
    **dict.fromkeys(("gkd", "distill", "distillation"), "distillation"),
}
"""Words in the name of a file or a script -> the kind of training that it says."""
UNREAD_PROGRAMS: Mapping[str, str] = {
    "verl": "verl",
    "skyrl": "SkyRL",
    "areal": "AReaL",
    "slime": "slime",
    "fairseq": "fairseq",
    "sentence_transformers": "sentence-transformers",
    "lightning": "Lightning",
    "train_text_to_image": "diffusers' text-to-image training",
    "train_dreambooth": "diffusers' DreamBooth training",
    "train_controlnet": "diffusers' ControlNet training",
    "run_glue_no_trainer": "training of sequence classifiers by a loop",
    "run_ner_no_trainer": "training of token classifiers by a loop",
    "run_clm_no_trainer": "training of causal language models by a loop",
    "run_mlm_no_trainer": "training of masked language models by a loop",
    "run_qa": "training of question answering",
    "run_seq2seq_qa": "training of question answering",
    "run_squad": "training of question answering",
    "run_swag": "training of multiple choice",
    "run_plm": "permutation language modelling",
    "run_speech_recognition_seq2seq": "training of speech recognition",
    "run_speech_recognition_ctc_adapter": "training of adapters of MMS",
    "run_image_classification": "training of image classifiers",
}
"""First part of a module, or start of a script's name -> a program that is recognised and not read."""
ONE_JOB = "`vramplan estimate` takes the settings of one job"
NEAREST: Mapping[str, str] = {
    **dict.fromkeys(
        ("run_clm_no_trainer", "run_mlm_no_trainer"),
        "nearest: vramplan estimate MODEL --gpu GPU --method full --loop plain",
    ),
    "run_glue_no_trainer": "nearest: vramplan estimate MODEL --gpu GPU --task sequence_classification --loop plain",
    "run_ner_no_trainer": "nearest: vramplan estimate MODEL --gpu GPU --task token_classification --loop plain",
    **dict.fromkeys(
        ("run_qa", "run_squad"),
        "nearest, two numbers for each token: vramplan estimate MODEL --gpu GPU --task token_classification"
        " --seq-len 384",
    ),
    "run_swag": "nearest, each choice as a row of its own: vramplan estimate MODEL --gpu GPU"
    " --task sequence_classification --micro-batch N, which is choices times samples",
    "run_image_classification": "nearest: vramplan estimate vit-base-patch16-224-in21k --gpu GPU --method full",
    "run_speech_recognition_seq2seq": "nearest: vramplan estimate whisper-small --gpu GPU --method full"
    " --micro-batch N",
}
"""The estimate that comes nearest to a program."""
READ = (
    "read are supervised fine-tuning, pretraining and TRL's own trainers; `vramplan estimate --task dpo` takes settings"
)


def recognize(settings: Mapping[str, ConfigValue], where: str, comment: str = "") -> str:
    """The name of the framework that knows the most of these keys that others do not know.

    `comment` is that at the file's top: a command of TRL in it decides, unless a key is another framework's own.

    Raises:
        ConfigError: if none is recognised, or if several may be meant.
        UnsupportedError: for the keys of another kind of training.
    """
    keys = settings.keys()
    for text, signs in OTHER_FILES.items():
        if signs <= keys:
            raise ConfigError(f"{where}: {text}")
    marked = [name for name, framework in FRAMEWORKS.items() if framework.marks & keys]
    if {*marked} <= {trl.PACKAGE} and trl_trainers.task_of_comment(comment) is not None:
        return trl.PACKAGE
    weights = _weights({*marked, DEFAULT.name}, keys)
    if not weights or (not marked and not TRAINER_KEYS & keys):
        if budget := budget_in({key: one.value for key, one in settings.items()}):
            project, key, _ = budget
            if key in known_keys(project):
                return project
            raise UnsupportedError(f"{where}: {describe_budget(budget)}")
        names = ", ".join(FRAMEWORKS)
        raise ConfigError(f"{where}: no framework's configuration is recognised; give {setting('framework')} ({names})")
    ranked = sorted(weights, key=lambda name: (weights[name], _own_keys(name, keys)), reverse=True)
    best, *others = ranked
    rivals = [name for name in others if weights[best] - weights[name] < LEAD and not _is_base(name, best)]
    task_keys, told = FRAMEWORKS[best].task_keys, FRAMEWORKS[best].tells_tasks
    if not any(key in keys for key in task_keys):
        refuse_other_tasks(settings, where, read=trl_trainers.KEYS if told else ())
    if not task_keys:
        refuse_task_named(where, read=(*trl_trainers.SCRIPTS, "simpo", "rm", "preference") if told else ())
    if rivals and not _is_base(best, rivals[0]):
        names = " or ".join((best, *rivals))
        raise ConfigError(f"{where}: may be for {names}: its keys are known to each; give {setting('framework')}")
    return best


def refuse_other_tasks(settings: Mapping[str, ConfigValue], where: str, read: Collection[str] = ()) -> None:
    """Refuse settings that only other kinds of training take, but those of `read`.

    Raises:
        UnsupportedError: naming the first of them.
    """
    for task, keys in OTHER_TASKS.items():
        others = [key for key in keys if key in settings and key not in read]
        values = {key: settings[key] for key in others if settings[key].value not in (None, False)}
        if values:
            first, value = next(iter(values.items()))
            place = where if value.place.lstrip("-").replace("-", "_") == first else value.place
            names = ", ".join(values)
            trainer = f"{setting('framework', 'trl')} {setting('task', USUAL_TASKS[task])}"
            raise UnsupportedError(
                f"{place}: {names}: settings of {task}, which is not read here; if TRL's trainer takes them, give"
                f" {trainer}; `vramplan estimate --task {USUAL_TASKS[task]}` takes settings"
            )


def refuse_unread_program(words: Sequence[str], where: str) -> None:
    """Refuse a program that is known and not read, by its module or its script.

    Raises:
        UnsupportedError: naming it.
    """
    for word in words[:2]:
        if word.startswith("-"):
            continue
        module = word.replace("/", ".").lstrip(".").partition(".")[0]
        for start, title in UNREAD_PROGRAMS.items():
            if (
                module == start
                or (word.endswith(".py") and Path(word).name.startswith(f"{start}_"))
                or (Path(word).name == f"{start}.py")
            ):
                if budget := budget_in_words(words):
                    raise UnsupportedError(f"{where}: {word}: {describe_budget(budget)}")
                nearest = NEAREST.get(start, ONE_JOB).replace("MODEL", _model_in(words))
                raise UnsupportedError(f"{where}: {word}: {title} is not read yet; {nearest}")


def nearest_task(kind: str, words: Sequence[str]) -> str:
    """A clause with the estimate of TRL's trainer for a kind of training that a program is known for."""
    kind = "reward training" if "reward" in kind else kind
    if kind not in USUAL_TASKS:
        return ""
    return f"; nearest, TRL's trainer: vramplan estimate {_model_in(words)} --gpu GPU --task {USUAL_TASKS[kind]}"


def _model_in(words: Sequence[str]) -> str:
    """The model that a command's flag names; MODEL if none does, or only a run would tell."""
    for number, word in enumerate(words):
        flag, mark, value = word.partition("=")
        if flag == "--model_name_or_path":
            named = value if mark else next(iter(words[number + 1 :]), "")
            return "MODEL" if not named or named.startswith("-") or is_unknown(named) else shlex.quote(named)
    return "MODEL"


def refuse_unread_budget(words: Sequence[str], where: str) -> None:
    """Refuse a program that says nothing by its name, and has the token budget of a project that is not read.

    Raises:
        UnsupportedError: naming the budget.
    """
    if budget := budget_in_words(words):
        raise UnsupportedError(f"{where}: {describe_budget(budget)}")


def refuse_task_named(where: str, read: Collection[str] = ()) -> None:
    """Refuse a file whose name, or its folder's (dpo/config.yaml), says another kind of training than its keys.

    Words of `read` are no reason.

    Raises:
        UnsupportedError: naming the kind.
    """
    path = Path(where)
    folder = path.parent.name if path.parent.name or not path.is_file() else path.absolute().parent.name
    words = dict.fromkeys(re.split(r"[^a-z]+", path.stem.lower()), "name")
    for word, whose in ({folder.lower(): "folder"} | words).items():
        if word in TASK_NAMES and word not in read:
            raise UnsupportedError(
                f"{where}: its {whose} says {TASK_NAMES[word]} ({word}), which is not read yet; {READ}; if it"
                " is one of those, check the command that uses it, after --"
            )


def _knows(name: str) -> frozenset[str]:
    """Every key of a framework; of sections, their names."""
    framework = FRAMEWORKS[name]
    keys = known_keys(name, framework.inherits) | framework.marks
    return keys | {key.partition(".")[0] for key in keys} if framework.in_sections else keys


def _weights(names: Collection[str], keys: Collection[str]) -> dict[str, float]:
    """What speaks for each framework: each key that it knows, the more the fewer of the others know it."""
    known = {name: _knows(name).intersection(keys) for name in names}
    popularity = Counter(key for some in known.values() for key in some)
    return {name: sum(1 / popularity[key] for key in some) for name, some in known.items() if some}


def _own_keys(name: str, keys: Collection[str]) -> int:
    """Number of keys that are the framework's own, not inherited."""
    return len((known_keys(name) | FRAMEWORKS[name].marks).intersection(keys))


def _is_base(name: str, other: str) -> bool:
    """Whether one framework's keys are part of another's."""
    return name in FRAMEWORKS[other].inherits
