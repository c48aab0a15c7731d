"""The settings that hold a token budget in training projects whose whole configuration vramplan does not write.

Each as it is in the sources of the version named; the way of counting is that of the code that makes micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from vramplan.dataclass import dataclass

OTHER_STEP = (
    "the budget is for a training step of transformers' Trainer; {project}'s own step (its kernels, its loss, further"
    " models beside) may need more or less"
)
BALANCED = (
    "{project} balances micro-batches by their work, so that one may hold more tokens than the setting: leave some room"
)


@dataclass(frozen=True, slots=True)
class TokenKeys:
    """The settings of one project."""

    project: str
    version: str
    """Version or commit, and the files that say so."""
    lines: Mapping[str, Sequence[str]]
    """Lines to paste by what is counted; {tokens}, and {steps} for micro-batches of an optimizer step."""
    balanced: bool = False
    """Whether the setting only decides how many micro-batches there are."""

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
        ),
        "nemo-automodel": TokenKeys(
            "NeMo Automodel",
            "0.5.0: docs/guides/llm/dataset.mdx",
            {"packed": ("packed_sequence.packed_sequence_size={tokens}", "step_scheduler.local_batch_size=1")},
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
        ),
        "skyrl": TokenKeys(
            "SkyRL",
            "a9564572e: skyrl/train/config/sft_config.py",
            {"packed": ("use_sequence_packing=true", "max_tokens_per_microbatch={tokens}")},
        ),
        "areal": TokenKeys(
            "AReaL",
            "4aef98d8d: areal/api/cli_args.py",
            {"packed": ("actor.mb_spec.max_tokens_per_mb={tokens}",)},
        ),
        "slime": TokenKeys(
            "slime",
            "624b824a8: slime/utils/arguments.py",
            {"packed": ("--use-dynamic-batch-size", "--max-tokens-per-gpu {tokens}")},
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
        ),
        "fairseq": TokenKeys(
            "fairseq",
            "3d262bb2: fairseq/dataclass/configs.py, data/data_utils_fast.pyx",
            {"padded": ("--max-tokens {tokens}", "--update-freq {steps}")},
        ),
    }
)
"""By the name that `--for` takes."""
