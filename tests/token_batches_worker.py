"""What one rank of tests/test_batching_torch.py does: ``python -m tests.token_batches_worker RANK RANKS FOLDER``."""

from __future__ import annotations

import os
import random
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

from vramplan.batching import TokenBudgetSampler
from vramplan.batching.gradients import accumulate_gradients
from vramplan.batching.torch_loader import StepLoader
from vramplan.batching.trainer import TokenBudgetTrainer

CONFIG = LlamaConfig(
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    vocab_size=64,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
    use_cache=False,
)
SAMPLES = 61


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(deepcopy(CONFIG)).double()


def data(samples: int = SAMPLES) -> list[dict[str, list[int]]]:
    """Lengths of 2 to 40 tokens; some labels are ignored, as those of a prompt are."""
    draw = random.Random(3)
    rows = []
    for _ in range(samples):
        ids = [draw.randrange(1, 64) for _ in range(draw.choice([2, 5, 9, 17, 40]))]
        prompt = draw.randrange(len(ids))
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:]})
    return rows


class Padded:
    """A collator that pads on the right."""

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)

        def padded(key: str, fill: int) -> torch.Tensor:
            return torch.tensor([row[key] + [fill] * (longest - len(row[key])) for row in rows])

        mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in rows])
        return {"input_ids": padded("input_ids", 0), "labels": padded("labels", -100), "attention_mask": mask}


def collator(padding_free: bool) -> Any:
    return DataCollatorWithFlattening() if padding_free else Padded()


def sampler(padding_free: bool = False, **options: Any) -> TokenBudgetSampler:
    lengths = [len(row["input_ids"]) for row in data()]
    options = {"max_tokens": 80, "global_tokens": 150, "divisible_by": 2, **options}
    return TokenBudgetSampler(lengths, padding_free=padding_free, **options)


def gradients(wrapped: Any, step: list[Any], **options: Any) -> tuple[float, torch.Tensor]:
    """The loss of a step and its gradients in one vector."""
    wrapped.zero_grad()
    loss = accumulate_gradients(wrapped, step, **options)
    return loss, torch.cat([parameter.grad.flatten() for parameter in wrapped.parameters()])


def epoch(wrapped: Any, padding_free: bool, num_replicas: int, rank: int, **options: Any) -> list[Any]:
    steps = sampler(padding_free, num_replicas=num_replicas, rank=rank, **options)
    return [gradients(wrapped, step) for step in StepLoader(data(), steps, collator(padding_free))]


def trained(folder: Path, padding_free: bool, sampler_options: Any = None, **arguments: Any) -> TokenBudgetTrainer:
    """Two epochs of plain gradient descent by Trainer."""
    from transformers import TrainingArguments

    arguments = {"save_strategy": "no", "num_train_epochs": 2, **arguments}
    args = TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        optim="sgd",
        learning_rate=0.5,
        max_grad_norm=0,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        logging_steps=1,
        **arguments,
    )
    options = {"max_tokens": 80, "global_tokens": 150, "padding_free": padding_free, "divisible_by": 2}
    options |= sampler_options or {}
    return TokenBudgetTrainer(
        model(), args, data_collator=collator(padding_free), train_dataset=data(), sampler_options=options
    )


def accelerated(padding_free: bool, num_replicas: int, rank: int) -> list[Any]:
    """Gradients of each step with what accelerate prepares."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    steps = sampler(padding_free, num_replicas=num_replicas, rank=rank)
    loader = StepLoader(data(), steps, collator(padding_free), device=accelerator.device)
    wrapped, loader = accelerator.prepare(model(), loader)
    return [gradients(wrapped, step, backward=accelerator.backward) for step in loader]


def weights(trained_model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trained_model.parameters()])


def main(rank: int, ranks: int, folder: Path) -> None:
    """Gradients of each step under DistributedDataParallel, and the weights after Trainer."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks)
    wrapped = DistributedDataParallel(model())
    results: dict[str, Any] = {}
    for padding_free in (False, True):
        results[f"gradients {padding_free}"] = epoch(wrapped, padding_free, ranks, rank)
        results[f"alone {padding_free}"] = epoch(
            wrapped, padding_free, ranks, rank, max_tokens=40, max_samples=1, global_tokens=10_000
        )
        results[f"accelerate {padding_free}"] = accelerated(padding_free, ranks, rank)
        trainer = trained(folder / "out", padding_free)
        trainer.train()
        results[f"weights {padding_free}"] = weights(trainer.model)
        results[f"steps {padding_free}"] = trainer.state.global_step
    torch.save(results, folder / f"{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort as the interpreter ends
