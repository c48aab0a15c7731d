"""transformers' Trainer with a batch that follows the run, beside the Trainer alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from tests.adaptive_runs import close, constant, growing, out_of_memory_above, out_of_memory_in_backward, rungs, same
from vramplan.adaptive.controller import Controller
from vramplan.adaptive.policies.noise_scale import NoiseScalePolicy
from vramplan.adaptive.trainer import AdaptiveBatches, AdaptiveTrainer
from vramplan.errors import ConfigError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")


def model_of(kind: str) -> Any:
    set_seed(0)
    ids = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "gpt2":  # with dropout
        return GPT2LMHeadModel(
            GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=16, loss_type="ForCausalLM", **ids)
        )
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(**ids, **sizes, pad_token_id=0))


def data(count: int = 40) -> list[dict[str, torch.Tensor]]:
    """Sentences of 2 to 8 labels; the first token is the sample's number."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for number in range(count):
        ids = torch.randint(3, 64, (8,), generator=generator)
        ids[0] = number
        labels = ids.clone()
        labels[2 + number % 7 :] = -100
        found.append({"input_ids": ids, "labels": labels})
    return found


class Seen(TrainerCallback):
    """The samples that a model has seen, and the optimizer's rates."""

    def __init__(self, model: nn.Module) -> None:
        self.batches: list[list[int]] = []
        self.rates: list[float] = []
        model.register_forward_pre_hook(
            lambda _, args, kwargs: self.batches.append(kwargs["input_ids"][:, 0].tolist()), with_kwargs=True
        )

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.rates.append(kwargs["optimizer"].param_groups[0]["lr"])

    @property
    def samples(self) -> list[int]:
        return [number for batch in self.batches for number in batch]


NOT_ARGUMENTS = ("count", "decisions", "measure_every", "eval_dataset")


def trainer(folder: Path, controller: Controller | None = None, kind: str = "gpt2", **given: Any) -> Any:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        **{name: value for name, value in given.items() if name not in NOT_ARGUMENTS},
    }
    args = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none", **settings)
    model = model_of(kind)
    seen = Seen(model)
    more = {name: given[name] for name in ("decisions", "measure_every") if name in given}
    kinds = {} if controller is None else {"controller": controller, **more}
    one = (Trainer if controller is None else AdaptiveTrainer)(
        model,
        args,
        train_dataset=data(given.get("count", 40)),
        callbacks=[seen],
        eval_dataset=given.get("eval_dataset"),
        **kinds,
    )
    one.seen = seen
    return one


def measuring() -> Controller:
    return Controller(rungs(), NoiseScalePolicy(half_life=10**9, most_spread=1e-9))


@pytest.mark.parametrize(
    ("kind", "controller", "settings"),
    [
        ("gpt2", constant, {}),
        ("gpt2", measuring, {"num_train_epochs": 1.6, "warmup_steps": 3, "lr_scheduler_type": "cosine"}),
        ("llama", measuring, {"max_steps": 13, "max_grad_norm": 0}),
        ("gpt2", constant, {"num_train_epochs": 1, "dataloader_num_workers": 1}),
        ("llama", constant, {"count": 38, "train_sampling_strategy": "sequential"}),  # a short last step
    ],
)
def test_without_a_switch_the_run_is_the_trainers_bit_for_bit(
    tmp_path: Path, kind: str, controller: Any, settings: dict[str, Any]
) -> None:
    plain = trainer(tmp_path, kind=kind, **settings)
    plain.train()
    adaptive = trainer(tmp_path, controller(), kind, **settings)  # sets the seed
    adaptive.train()
    assert same(plain.model, adaptive.model)
    assert adaptive.seen.batches == plain.seen.batches
    assert adaptive.seen.rates == plain.seen.rates
    assert adaptive.state.global_step == plain.state.global_step == adaptive.state.max_steps
    for name in ("loss", "learning_rate", "epoch", "grad_norm"):
        found, expected = ([log[name] for log in one.state.log_history if name in log] for one in (adaptive, plain))
        assert found == pytest.approx(expected, rel=1e-5)
    assert adaptive.state.total_flos == plain.state.total_flos


@pytest.mark.parametrize("settings", [{}, {"max_steps": 20, "num_train_epochs": 3}])
def test_a_growing_batch_sees_each_sample_once_in_fewer_steps(tmp_path: Path, settings: dict[str, Any]) -> None:
    file = tmp_path / "decisions.jsonl"
    plain = trainer(tmp_path, **settings)
    plain.train()
    adaptive = trainer(tmp_path, growing(), decisions=file, **settings)
    adaptive.train()
    assert sorted(adaptive.seen.samples) == sorted(plain.seen.samples) == sorted([*range(40)] * 2)
    batches = [log["global_batch_size"] for log in adaptive.state.log_history if "global_batch_size" in log]
    # the batch after the step; 12 samples were left for the sixth
    assert batches == [4, 4, 8, 8, 16, 16, 16, 16, 16]
    assert adaptive.state.global_step == adaptive.state.max_steps == 9
    # linear to 0 over 20 steps of 4: where the samples are, times the square root
    starts = [0, 4, 8, 12, 20, 28, 40, 56, 72]
    factors = [1, 1, 1, 2**0.5, 2**0.5, 2, 2, 2, 2]
    rates = [0.01 * (1 - start / 80) * factor for start, factor in zip(starts, factors, strict=True)]
    assert adaptive.seen.rates == pytest.approx(rates)
    assert [json.loads(line)["after"]["global_batch_size"] for line in file.read_text().splitlines()] == [8, 16]
    assert adaptive.state.epoch == 2
    # the Trainer's log has the rate that was used
    assert [log["learning_rate"] for log in adaptive.state.log_history if "loss" in log] == pytest.approx(rates)


def test_the_loss_is_the_mean_over_the_steps_tokens(tmp_path: Path) -> None:
    """Cut in any way, a step of 8 samples with different numbers of labels has one gradient."""
    found = []
    for rung in (rungs()[1], *rungs()[1].alternatives):
        one = trainer(
            tmp_path,
            Controller([rung], constant().policy),
            "llama",
            per_device_train_batch_size=rung.micro_batch_size,
            gradient_accumulation_steps=rung.gradient_accumulation_steps,
            num_train_epochs=1,
        )
        one.train()
        found.append(one)
    assert [len(one.seen.batches) for one in found] == [10, 20, 40]
    assert all(close(one.model, found[0].model, 1e-4) for one in found)
    losses = [[log["loss"] for log in one.state.log_history if "loss" in log] for one in found]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert losses[2] == pytest.approx(losses[0], rel=1e-4)


def test_norms_are_those_of_the_tokens_mean(tmp_path: Path) -> None:
    """The Trainer's weights are undone: against gradients of each micro-batch alone."""
    controller = measuring()
    told: list[Any] = []
    controller.observe = told.append  # type: ignore[method-assign, assignment]
    one = trainer(tmp_path, controller, "llama", max_steps=2, measure_every=2, learning_rate=0.0)
    one.train()
    (seen,) = told
    assert (seen.step, seen.samples, seen.tokens) == (2, 8, 64)

    def squared(rows: list[int]) -> float:
        picked = [data()[row] for row in rows]
        batch = {name: torch.stack([sample[name] for sample in picked]) for name in picked[0]}
        gradients = torch.autograd.grad(one.model(**batch).loss, list(one.model.parameters()))
        return sum(float(gradient.square().sum()) for gradient in gradients)

    parts = one.seen.batches[2:4]
    assert seen.small_norm_squared == pytest.approx(sum(map(squared, parts)) / 2, rel=1e-4)
    assert seen.large_norm_squared == pytest.approx(squared([row for part in parts for row in part]), rel=1e-4)
    assert seen.small_batch == 2
    assert 3 < seen.large_batch <= 4  # samples that weigh differently are worth fewer


@pytest.mark.parametrize("stop", [2, 4, 6, 8])
def test_resumed_from_a_checkpoint_it_is_the_uninterrupted_run(tmp_path: Path, stop: int) -> None:
    whole = trainer(tmp_path / "whole", growing(), save_strategy="steps", save_steps=2)
    whole.train()
    checkpoint = tmp_path / "whole" / f"checkpoint-{stop}"
    rest = trainer(tmp_path / "rest", growing())
    rest.train(resume_from_checkpoint=str(checkpoint))
    assert same(rest.model, whole.model)
    assert rest.state.global_step == whole.state.global_step == 9
    assert rest.seen.batches == whole.seen.batches[-len(rest.seen.batches) :]
    assert rest.observer.state_dict() == whole.observer.state_dict()


def test_a_checkpoint_without_a_controller_is_refused(tmp_path: Path) -> None:
    plain = trainer(tmp_path, save_strategy="steps", save_steps=2, max_steps=2)
    plain.train()
    with pytest.raises(ConfigError, match=r"adaptive_state\.json: not a checkpoint of a run with a controller"):
        trainer(tmp_path, constant()).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_out_of_memory_beside_auto_find_batch_size(tmp_path: Path, where: str) -> None:
    """Both runs meet the same limit of 2 samples from the 12th sample on, with micro-batches of 4."""

    def start(controller: Controller | None, **settings: Any) -> Any:
        return trainer(
            tmp_path,
            controller,
            "llama",
            per_device_train_batch_size=4,
            num_train_epochs=1,
            max_grad_norm=0,
            decisions=tmp_path / "decisions.jsonl",
            **settings,
        )

    def limited(one: Any) -> Any:
        decoder = one.model.model
        if where == "forward":
            return out_of_memory_above(one.model, 2)
        return out_of_memory_in_backward(decoder.layers[0].mlp.down_proj, 2)

    smooth = start(Controller(rungs()[1:2], constant().policy))
    smooth.train()
    adaptive = start(Controller(rungs()[1:2], constant().policy))
    with limited(adaptive) as failed:
        adaptive.train()
    assert failed == [4]
    assert adaptive.state.global_step == smooth.state.global_step == 5  # the global batch stays 8
    assert close(adaptive.model, smooth.model, 1e-3)
    (line,) = map(json.loads, (tmp_path / "decisions.jsonl").read_text().splitlines())
    assert (line["kind"], line["before"]["micro_batch_size"], line["after"]["micro_batch_size"]) == (
        "out of memory",
        4,
        2,
    )
    assert line["after"]["global_batch_size"] == 8

    theirs = start(None, auto_find_batch_size=True)
    with limited(theirs) as failed:
        theirs.train()
    assert failed == [4, 3]  # times 0.9, rounded down, each time from the beginning
    assert theirs.state.global_step == 10  # the global batch has become 2 x 2 = 4
    assert not close(theirs.model, smooth.model, 1e-3)


@pytest.mark.full
def test_late_in_a_run_nothing_begins_again(tmp_path: Path) -> None:
    """Memory runs out after 20 samples: one run goes on, the other sees them again."""

    def start(controller: Controller | None, **settings: Any) -> Any:
        return trainer(tmp_path, controller, "llama", per_device_train_batch_size=4, num_train_epochs=1, **settings)

    counts = []
    for one in (
        start(Controller(rungs()[1:2], constant().policy)),
        start(None, auto_find_batch_size=True),
    ):

        def limit(_: Any, args: Any, kwargs: Any, one: Any = one) -> None:
            if len(one.seen.samples) > 20 and len(kwargs["input_ids"]) > 2:
                one.seen.batches.pop()  # this forward sees nothing
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

        one.model.register_forward_pre_hook(limit, with_kwargs=True)
        one.train()
        counts.append(len(one.seen.samples))
    assert counts[0] == 40
    assert counts[1] == 20 + 40


def test_it_mixes_into_other_trainers(tmp_path: Path) -> None:
    class Mine(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.asked = getattr(self, "asked", 0) + 1
            return super().compute_loss(model, inputs, *args, **kwargs)

    class Both(AdaptiveBatches, Mine):
        pass

    args = TrainingArguments(str(tmp_path), per_device_train_batch_size=2, gradient_accumulation_steps=2, use_cpu=True,
                             report_to="none", max_steps=3, save_strategy="no", disable_tqdm=True)  # fmt: skip
    one = Both(model_of("llama"), args, train_dataset=data(), controller=constant())
    one.train()
    assert one.asked == 6


def test_evaluation_is_the_trainers(tmp_path: Path) -> None:
    one = trainer(tmp_path, growing(), eval_strategy="epoch", eval_dataset=data(6))
    one.train()
    assert [log["epoch"] for log in one.state.log_history if "eval_loss" in log] == [1, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size: it begins the run again"),
        ({"ignore_data_skip": True}, "ignore_data_skip: a position is restored"),
        ({"per_device_train_batch_size": 3}, r"per_device_train_batch_size=3 x gradient_accumulation_steps=2 x 1 "),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps"}, "a schedule that follows a metric"),
        ({"train_sampling_strategy": "group_by_length"}, "LengthGroupedSampler: the order of an epoch"),
        ({"accelerator_config": {"use_seedable_sampler": False}}, "RandomSampler: the order of an epoch"),
    ],
)
def test_what_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, **settings}
    args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **arguments)
    more = {"eval_dataset": data(4)} if "eval_strategy" in settings else {}

    def start() -> None:
        AdaptiveTrainer(model_of("llama"), args, train_dataset=data(), controller=constant(), **more).train()

    with pytest.raises((ConfigError, UnsupportedError), match=message):
        start()
