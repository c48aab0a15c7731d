"""Token budgets under torch, transformers' Trainer and accelerate: a step's gradient is that of its samples at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch.utils.data import DataLoader

from tests.helpers import ROOT
from tests.token_batches_worker import Padded, collator, data, epoch, gradients, model, sampler, trained, weights
from vramplan.batching import TokenBudgetSampler
from vramplan.batching.gradients import accumulate_gradients, predicted_tokens
from vramplan.batching.torch_loader import StepLoader
from vramplan.errors import ConfigError


def assert_same(vector: torch.Tensor, expected: torch.Tensor) -> None:
    """Within float32: transformers computes the loss in it (loss/loss_utils.py), whatever the model's dtype."""
    assert float((vector - expected).norm() / expected.norm()) < 1e-6


def at_once(samples: list[int]) -> tuple[float, torch.Tensor]:
    """The gradient of samples that are one batch: torch's own mean over all their tokens."""
    net, rows = model(), data()
    batch = Padded()([rows[sample] for sample in samples])
    logits = net(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
    loss.backward()
    return float(loss.detach()), torch.cat([parameter.grad.flatten() for parameter in net.parameters()])


def samples_of_steps(**options: Any) -> list[list[int]]:
    return [list(chain(*step)) for step in sampler(**options)]


@pytest.mark.parametrize("padding_free", [False, True], ids=["padded", "padding-free"])
@pytest.mark.parametrize(
    "options",
    [{}, {"max_tokens": 40}, {"max_tokens": 1000}, {"max_samples": 1}, {"window": 3}, {"divisible_by": 5}],
    ids=str,
)
def test_gradient_of_a_step_is_that_of_its_samples_at_once(padding_free: bool, options: dict[str, Any]) -> None:
    results = epoch(model(), padding_free, 1, 0, **options)
    for (loss, gradient), samples in zip(results, samples_of_steps(padding_free=padding_free, **options), strict=True):
        expected_loss, expected = at_once(samples)
        assert loss == pytest.approx(expected_loss, rel=1e-6)
        assert_same(gradient, expected)


def test_mean_of_means_is_another_gradient() -> None:
    """What ``loss / gradient_accumulation_steps`` computes, so that the test above can fail."""
    step = next(iter(StepLoader(data(), sampler(), Padded())))
    net = model()
    for batch in step:
        (net(**batch).loss / len(step)).backward()
    naive = torch.cat([parameter.grad.flatten() for parameter in net.parameters()])
    _, expected = gradients(model(), step)
    assert float((naive - expected).norm() / expected.norm()) > 0.01


def test_two_gloo_ranks_have_the_gradients_and_weights_of_one(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    ranks = []
    for rank in range(2):
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
        variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # asked for, not used: the ranks meet in a file
        command = [sys.executable, "-m", "tests.token_batches_worker", str(rank), "2", str(tmp_path)]
        ranks.append(
            subprocess.Popen(command, cwd=ROOT, env=environment | variables, stderr=subprocess.PIPE, text=True)
        )
    errors = [process.communicate(timeout=300)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for padding_free in (False, True):
        for name, options in {
            "gradients": {},
            "accelerate": {},
            "alone": {
                "max_tokens": 40,
                "max_samples": 1,
                "global_tokens": 10_000,
            },  # 61 samples: one rank has none last
        }.items():
            one = epoch(model(), padding_free, 1, 0, **options)
            pair = zip(first[f"{name} {padding_free}"], second[f"{name} {padding_free}"], one, strict=True)
            for (loss, gradient), (other_loss, other), (expected_loss, expected) in pair:
                assert torch.equal(gradient, other)
                assert_same(gradient, expected)
                assert (loss + other_loss) / 2 == pytest.approx(expected_loss, rel=1e-6)
        alone = trained(tmp_path / "one", padding_free)
        alone.train()
        assert first[f"steps {padding_free}"] == alone.state.global_step == 2 * len(sampler(padding_free))
        assert_same(first[f"weights {padding_free}"], weights(alone.model))


# -- Trainer -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding_free", [False, True], ids=["padded", "padding-free"])
def test_trainer_takes_the_steps_of_a_plain_loop(tmp_path: Path, padding_free: bool) -> None:
    trainer = trained(tmp_path, padding_free)
    trainer.train()
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    steps = sampler(padding_free, seed=42)  # Trainer's default
    total = 2 * len(steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / total)
    loader, losses, numbers = StepLoader(data(), steps, collator(padding_free)), [], set()
    for number in range(2):
        loader.set_epoch(number)
        for step in loader:
            optimizer.zero_grad()
            losses.append(accumulate_gradients(net, step))
            optimizer.step()
            schedule.step()
            numbers.add(len(step))
    assert_same(weights(trainer.model), weights(net))
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx(losses, abs=1e-4)
    assert len(numbers) > 1, "the accumulation changes from step to step"
    assert trainer.state.global_step == trainer.state.max_steps == total
    assert trainer.state.epoch == 2
    assert trainer.state.total_flos > 0


class Stop(Exception):
    """A run that is killed."""


def killed_after(step: int, folder: Path) -> str:
    """The checkpoint of a run that is killed after an optimizer step."""
    first = trained(folder, False, save_strategy="steps", save_steps=step)
    save = first._save_checkpoint

    def save_and_stop(*arguments: Any, **options: Any) -> None:
        save(*arguments, **options)
        raise Stop

    first._save_checkpoint = save_and_stop  # type: ignore[method-assign]
    with pytest.raises(Stop):
        first.train()
    return str(folder / f"checkpoint-{step}")


@pytest.mark.parametrize("step", [3, len(sampler())], ids=["in the middle", "after the first epoch"])
@pytest.mark.parametrize("options", [{}, {"divisible_by": None}], ids=["same", "as on another number of GPUs"])
def test_trainer_goes_on_from_a_checkpoint_as_if_never_stopped(
    tmp_path: Path, step: int, options: dict[str, Any]
) -> None:
    whole = trained(tmp_path / "whole", False)
    whole.train()
    later = trained(tmp_path / "cut", False, options, restore_callback_states_from_checkpoint=bool(options))
    later.train(resume_from_checkpoint=killed_after(step, tmp_path / "cut"))
    assert_same(weights(later.model), weights(whole.model))


def test_trainer_refuses_a_checkpoint_of_other_steps(tmp_path: Path) -> None:
    checkpoint = killed_after(2, tmp_path)
    with pytest.raises(ConfigError, match="saved state has max_tokens=80, this sampler max_tokens=100"):
        trained(tmp_path, False, {"max_tokens": 100}).train(resume_from_checkpoint=checkpoint)
    state = Path(checkpoint) / "trainer_state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"stateful_callbacks": {}}))
    with pytest.raises(ConfigError, match="the checkpoint was not saved with a budget of tokens"):
        trained(tmp_path, False).train(resume_from_checkpoint=checkpoint)


def test_trainer_evaluates_and_counts_tokens_as_always(tmp_path: Path) -> None:
    trainer = trained(tmp_path, False, include_num_input_tokens_seen="non_padding", num_train_epochs=1)
    trainer.train()
    assert trainer.state.num_input_tokens_seen == sum(len(row["input_ids"]) for row in data())
    assert trainer.evaluate(data()[:5])["eval_loss"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps=4: expected 1"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy=group_by_length: a budget of tokens"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size=True: has no effect"),
    ],
)
def test_trainer_refuses_what_contradicts(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trained(tmp_path, False, **arguments)


def test_trainer_refuses_a_loss_that_it_cannot_normalise(tmp_path: Path) -> None:
    trainer = trained(tmp_path, False)
    trainer.model_accepts_loss_kwargs = False
    with pytest.raises(ConfigError, match="LlamaForCausalLM takes no num_items_in_batch"):
        trainer.train()


def test_trainer_asks_for_lengths_that_it_cannot_see(tmp_path: Path) -> None:
    trainer = trained(tmp_path, False)
    trainer.train_dataset = [{"text": "a"}]
    with pytest.raises(ConfigError, match=r"lengths of the samples are not known \(KeyError: 'input_ids'\)"):
        trainer.train()


# -- the loader --------------------------------------------------------------------------------------------------------


def test_accelerate_leaves_the_loader_alone() -> None:
    from accelerate import Accelerator

    loader = StepLoader(data(), sampler(num_replicas=2, rank=1), Padded(), device="cpu")
    accelerator = Accelerator(cpu=True)
    accelerator.state.num_processes = 1
    assert accelerator.prepare(loader) is loader


def test_state_counts_steps_given_out_and_not_those_read_ahead() -> None:
    loader = StepLoader(data(), sampler(), Padded(), num_workers=1, prefetch_factor=4)
    iterator = iter(loader)
    given_out = [next(iterator) for _ in range(2)]
    state = loader.state_dict()
    assert state["steps_done"] == len(given_out) == 2
    later = StepLoader(data(), sampler(), Padded())
    later.load_state_dict(state)
    rest = list(later)
    assert later.state_dict()["steps_done"] == len(sampler()) == 2 + len(rest)
    for step, expected in zip(rest, list(iterator), strict=True):
        for batch, other in zip(step, expected, strict=True):
            assert torch.equal(batch["input_ids"], other["input_ids"])


def test_lengths_may_be_of_any_integer_type() -> None:
    sampler = TokenBudgetSampler(torch.tensor([5, 6]), 20, global_tokens=11)
    assert sampler.lengths == [5, 6]
    with pytest.raises(ConfigError, match="sample 0: its length is"):
        TokenBudgetSampler(torch.tensor([5.0]), 20, global_tokens=11)


def test_an_ordinary_dataloader_takes_the_micro_batches() -> None:
    loader = DataLoader(data(), batch_sampler=sampler().micro_batches(), collate_fn=Padded())
    batches = list(loader)
    assert sum(int(batch["attention_mask"].sum()) for batch in batches) == sum(len(row["input_ids"]) for row in data())
    assert max(batch["input_ids"].numel() for batch in batches) <= 80


def test_a_micro_batch_without_samples_adds_nothing() -> None:
    steps = TokenBudgetSampler([9, 9, 2], 9, global_tokens=20, num_replicas=2, rank=1)
    rows = [{"input_ids": [1] * length, "labels": [1] * length} for length in (9, 9, 2)]
    (step,) = StepLoader(rows, steps, Padded())
    assert step[-1]["input_ids"].shape == (1, 2)
    net = model()
    net(**step[-1], num_items_in_batch=predicted_tokens(step)).loss.backward()
    assert all(not parameter.grad.any() for parameter in net.parameters())


@pytest.mark.parametrize(("padding_free", "length"), [(False, 20), (True, 40)], ids=["not truncated", "padded"])
def test_a_collator_that_makes_more_tokens_than_counted_is_refused(padding_free: bool, length: int) -> None:
    steps = TokenBudgetSampler([40, 40, 9, 9], length, global_tokens=500, longer="truncate", padding_free=padding_free)
    if padding_free:
        steps = TokenBudgetSampler([40, 40, 9, 9], 100, global_tokens=500, padding_free=True)
    rows = [{"input_ids": [1] * count, "labels": [1] * count} for count in (40, 40, 9, 9)]
    with pytest.raises(ConfigError, match=r"^samples \d.*: \d+ tokens after collation, \d+ by their lengths"):
        list(StepLoader(rows, steps, Padded()))


def test_a_data_set_of_another_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="the data set has 60 samples, the sampler 61 lengths"):
        StepLoader(data()[1:], sampler(), Padded())


def test_padding_free_samples_that_would_attend_to_each_other_are_refused() -> None:
    net = model()
    net.config.use_cache = True
    with pytest.raises(ConfigError, match=r"attend to each other.*use_cache = False"):
        epoch(net, True, 1, 0)


def test_trainer_refuses_them_as_well(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="attend to each other"):
        trained(tmp_path, True, use_cache=True).train()


def test_a_step_without_labels_is_refused() -> None:
    step = [{"labels": torch.full((2, 4), -100)}]
    with pytest.raises(ConfigError, match="no token to predict"):
        predicted_tokens(step)


def test_any_loss_that_is_divided_by_the_tokens_will_do() -> None:
    step = next(iter(StepLoader(data(), sampler(), Padded())))

    def loss(net: Any, batch: Any, tokens: int) -> torch.Tensor:
        logits = net(batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].flatten(0, 1)
        labels = batch["labels"][:, 1:].flatten()
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / tokens

    one, other = model(), model()
    assert accumulate_gradients(one, step) == pytest.approx(accumulate_gradients(other, step, loss=loss))
    for left, right in zip(one.parameters(), other.parameters(), strict=True):
        assert_same(left.grad, right.grad)


# -- the guide ---------------------------------------------------------------------------------------------------------

GUIDE = ROOT / "docs" / "guides" / "token-budget.md"
SCRIPTS = dict(re.findall(r'^```python title="(\w+\.py)"\n(.*?)^```$', GUIDE.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator is found")
@pytest.mark.parametrize("name", ["train_trainer.py", "train_plain.py"])
def test_examples_of_the_guide_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    exec(compile(SCRIPTS[name], name, "exec"), {"__name__": "__main__"})
    assert "optimizer steps" in capsys.readouterr().out
