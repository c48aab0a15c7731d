"""The settings that hold a token budget in training projects whose whole configuration vramplan does not write.

Each as it is in the sources of the version named; the way of counting is that of the code that makes micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from vramplan.dataclass import dataclass

OTHER_STEP = (
    "the budget is for a training step of transformers' Trainer; {project}'s own step (its kernels, its loss, further"
    " models beside) may need more or less"
)
BALANCED = (
    "{project} balances micro-batches by their work, so that one may hold more tokens than the setting: leave some room"
)


@dataclass(frozen=True, slots=True)
class Product:
    """Samples and tokens of each whose product is a token budget, unless a switch is off."""

    samples: str
    tokens: str
    switch: str
    mark: str
    """A setting that only this project's files have beside them."""


@dataclass(frozen=True, slots=True)
class TokenKeys:
    """The settings of one project."""

    project: str
    version: str
    """Version or commit, and the files that say so."""
    lines: Mapping[str, Sequence[str]]
    """Lines to paste by what is counted; {tokens}, and {steps} for micro-batches of an optimizer step."""
    settings: tuple[str, ...]
    """The settings that hold the budget, by their path in a configuration."""
    balanced: bool = False
    """Whether the setting only decides how many micro-batches there are."""
    product: Product | None = None
    """Two settings whose product is the budget, if it has none of its own."""

    @property
    def ways(self) -> tuple[str, ...]:
        """What it can count."""
        return tuple(self.lines)

    def text(self, counting: str, tokens: int, steps: int | None) -> str:
        """Lines to paste; those about accumulation only if it is known."""
        lines = (line for line in self.lines[counting] if steps is not None or "{steps}" not in line)
        return "".join(f"{line.format(tokens=tokens, steps=steps)}\n" for line in lines)

    def notes(self, counting: str) -> list[str]:
        """What to know about it."""
        texts = [OTHER_STEP, *([BALANCED] if self.balanced and counting == "packed" else [])]
        return [text.format(project=self.project) for text in texts]


TOKEN_KEYS: Mapping[str, TokenKeys] = MappingProxyType(
    {
        "verl": TokenKeys(
            "verl",
            "1dda039b9: verl/trainer/config/sft_trainer_engine.yaml, utils/seqlen_balancing.py",
            {"packed": ("data.use_dynamic_bsz=True", "data.max_token_len_per_gpu={tokens}")},
            ("data.max_token_len_per_gpu", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"),
            balanced=True,
        ),
        "nemo-rl": TokenKeys(
            "NeMo RL",
            "7ea279abf: examples/configs/sft.yaml, nemo_rl/data/packing, nemo_rl/distributed/batched_data_dict.py",
            {
                "packed": (
                    "policy.sequence_packing.enabled=true",
                    "policy.dynamic_batching.enabled=false",
                    "policy.sequence_packing.train_mb_tokens={tokens}",
                ),
                "padded": (
                    "policy.sequence_packing.enabled=false",
                    "policy.dynamic_batching.enabled=true",
                    "policy.dynamic_batching.train_mb_tokens={tokens}",
                ),
            },
            ("policy.sequence_packing.train_mb_tokens", "policy.dynamic_batching.train_mb_tokens"),
        ),
        "nemo-automodel": TokenKeys(
            "NeMo Automodel",
            "0.5.0: docs/guides/llm/dataset.mdx",
            {"packed": ("packed_sequence.packed_sequence_size={tokens}", "step_scheduler.local_batch_size=1")},
            ("packed_sequence.packed_sequence_size", "dataloader.dynamic_batching.max_tokens_per_batch"),
        ),
        "veomni": TokenKeys(
            "VeOmni",
            "d9774494: veomni/arguments/arguments_types.py, veomni/data/dynamic_batching.py",
            {
                "packed": (
                    "train.dyn_bsz=true",
                    "train.micro_batch_size=1",
                    "data.max_seq_len={tokens}",
                )
            },
            (),
            product=Product("train.micro_batch_size", "data.max_seq_len", "train.dyn_bsz", "model.model_path"),
        ),
        "skyrl": TokenKeys(
            "SkyRL",
            "a9564572e: skyrl/train/config/sft_config.py",
            {"packed": ("use_sequence_packing=true", "max_tokens_per_microbatch={tokens}")},
            ("max_tokens_per_microbatch", "trainer.max_tokens_per_microbatch"),
        ),
        "areal": TokenKeys(
            "AReaL",
            "4aef98d8d: areal/api/cli_args.py",
            {"packed": ("actor.mb_spec.max_tokens_per_mb={tokens}",)},
            ("actor.mb_spec.max_tokens_per_mb",),
        ),
        "slime": TokenKeys(
            "slime",
            "624b824a8: slime/utils/arguments.py",
            {"packed": ("--use-dynamic-batch-size", "--max-tokens-per-gpu {tokens}")},
            ("max_tokens_per_gpu",),
        ),
        "cosmos-rl": TokenKeys(
            "cosmos-rl",
            "89f2e5b5: cosmos_rl/policy/config/__init__.py, dispatcher/data/load_balanced_dataset.py",
            {
                "padded": (
                    "[train.train_policy]",
                    "enable_dp_load_balancing = true",
                    "load_balanced_max_tokens_for_batch = {tokens}",
                    "load_balanced_batches_per_optimizer_step = {steps}",
                )
            },
            (
                "train.train_policy.load_balanced_max_tokens_for_batch",
                "train.train_policy.max_token_len_per_mini_batch",
            ),
        ),
        "fairseq": TokenKeys(
            "fairseq",
            "3d262bb2: fairseq/dataclass/configs.py, data/data_utils_fast.pyx",
            {"padded": ("--max-tokens {tokens}", "--update-freq {steps}")},
            ("dataset.max_tokens",),
        ),
    }
)
"""By the name that `--for` takes."""


def budget_in(settings: Mapping[str, Any]) -> tuple[str, str, int] | None:
    """(name of the project, setting, tokens) of the first token budget in a configuration; None if there is none."""

    def value_of(path: str) -> Any:
        value: Any = settings
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return settings.get(path) if value is None else value

    for name, keys in TOKEN_KEYS.items():
        for path in keys.settings:
            if type(value_of(path)) is int:
                return name, path, value_of(path)
        if keys.product is not None and (tokens := _product(keys.product, value_of)):
            return name, f"{keys.product.samples} x {keys.product.tokens}", tokens
    return None


def _product(product: Product, value_of: Callable[[str], Any]) -> int:
    """The tokens of a budget that is a product of settings; 0 if there is none. One sample by default."""
    if value_of(product.mark) is None or value_of(product.switch) is False:
        return 0
    samples, tokens = value_of(product.samples), value_of(product.tokens)
    samples = 1 if samples is None else samples
    return samples * tokens if type(samples) is type(tokens) is int else 0


def budget_in_words(words: Sequence[str]) -> tuple[str, str, int] | None:
    """The same of a command line: ``data.max_token_len_per_gpu=8192``, ``--max-tokens-per-gpu 9216``."""
    pairs: dict[str, Any] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, has_value, value = word.lstrip("+-").partition("=")
        text = value if has_value else following
        pairs[name.replace("-", "_")] = int(text[:18]) if text.isdecimal() else text
    return budget_in({name: False if value in ("false", "False") else value for name, value in pairs.items()})


def describe_budget(budget: tuple[str, str, int]) -> str:
    """What `check` says of a token budget in a project's file that it does not read."""
    name, path, tokens = budget
    return (
        f"{TOKEN_KEYS[name].project} is not read yet; {path} {tokens:,} is its token budget, and"
        f" `vramplan suggest MODEL --gpu GPU --tokens --for {name}` says the largest that fits"
    )
