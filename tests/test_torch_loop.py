"""The loop for plain PyTorch and accelerate: equal to a plain loop, and the same after a restart."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, LambdaLR, OneCycleLR, ReduceLROnPlateau
from torch.utils.data import DataLoader

from tests.adaptive_runs import Network, constant, growing, rungs, same, samples
from tests.helpers import cli
from vramplan.adaptive.controller import Controller
from vramplan.adaptive.coupling import Coupling
from vramplan.adaptive.learning_rates import LearningRates
from vramplan.adaptive.policies.noise_scale import NoiseScalePolicy
from vramplan.adaptive.record import read_record
from vramplan.adaptive.rung import Rung
from vramplan.adaptive.step_loader import StepLoader
from vramplan.adaptive.torch_loop import AdaptiveLoop
from vramplan.errors import ConfigError, UnsupportedError


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def measuring() -> Controller:
    """Needs norms, and never has enough to decide."""
    return Controller(rungs(), NoiseScalePolicy(half_life=10**9, most_spread=1e-9))


def plain(clips: bool = True, epochs: int = 2) -> tuple[Network, list[float]]:
    """What people write: batches of 2, accumulated twice."""
    model = Network()
    optimizer = optimizer_of(model)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    losses = []
    generator = torch.Generator()
    for epoch in range(epochs):
        order = torch.randperm(40, generator=generator.manual_seed(epoch)).tolist()
        total = 0.0
        for number, batch in enumerate(DataLoader(samples(), batch_size=2, sampler=order)):  # type: ignore[arg-type]
            loss = model(batch) / 2
            loss.backward()
            total += loss.item()
            if number % 2:
                if clips:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                losses.append(total)
                total = 0.0
    return model, losses


def loop_of(controller: Controller, **settings: Any) -> AdaptiveLoop:
    settings = {"measure_every": 1, **settings}
    model = Network()
    optimizer = optimizer_of(model)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = StepLoader(samples(), controller, epochs=2, num_workers=settings.pop("num_workers", 0))
    return AdaptiveLoop(controller, model, optimizer, loader, scheduler=scheduler, **settings)


@pytest.mark.parametrize("controller", [constant, measuring])
@pytest.mark.parametrize("clips", [True, False])
def test_without_a_switch_the_run_is_the_plain_one_bit_for_bit(controller: Any, clips: bool) -> None:
    expected, losses = plain(clips)
    loop = loop_of(controller(), max_norm=0.5 if clips else None)
    steps = list(loop.steps(loop.model))
    assert same(loop.model, expected)
    assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-6)
    assert steps[-1].samples == 80


def test_switches_lose_no_sample_and_move_the_rate_by_samples(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    loop = loop_of(growing(coupling=Coupling("sqrt")), decisions=file)
    rates, betas, batches = [], [], []
    for step in loop.steps(loop.model):
        rates.append(loop.optimizer.param_groups[0]["lr"])
        betas.append(loop.optimizer.param_groups[0]["betas"])
        batches.append(step.global_batch_size)
    assert batches == [4, 4, 4, 8, 8, 16, 16, 16, 16]  # the sixth has the 12 samples left of the first epoch
    assert sorted(loop.model.samples) == sorted([*range(40)] * 2)
    # after k samples the schedule is where the plain one is after k samples
    seen = [4, 8, 12, 20, 28, 40, 56, 72, 80]
    factors = [1, 1, 2**0.5, 2**0.5, 2, 2, 2, 2, 2]
    assert rates == pytest.approx([0.01 / (1 + at / 4) * factor for at, factor in zip(seen, factors, strict=True)])
    assert betas[0] == (0.9, 0.999)
    assert betas[-1] == pytest.approx((0.9, 0.999**4))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["kind"], line["step"], line["after"]["global_batch_size"]) for line in lines] == [
        ("grow", 3, 8),
        ("grow", 5, 16),
    ]
    assert all(line["reason"] for line in lines)


def test_a_record_is_what_the_controller_was_told(tmp_path: Path) -> None:
    """It can be simulated: the same policy makes the same decisions of it."""
    file = tmp_path / "run.jsonl"
    loop = loop_of(measuring(), record=file)
    steps = list(loop.steps(loop.model))
    observations = read_record(file)
    assert [one.step for one in observations] == [step.number for step in steps]
    assert [one.loss for one in observations] == [step.loss for step in steps]
    assert observations[-1].samples == 80
    again = measuring()
    for observation in observations:
        again.observe(observation)
    assert again.state_dict() == loop.controller.state_dict()
    assert cli("adapt", "simulate", str(file)).returncode == 0


@pytest.mark.parametrize(("stop", "workers"), [(2, 0), (4, 0), (6, 0), (4, 2)])
def test_saved_in_the_middle_and_restored_it_is_the_uninterrupted_run(stop: int, workers: int) -> None:
    whole = loop_of(growing(), max_norm=0.5)
    list(whole.steps(whole.model))
    first = loop_of(growing(), max_norm=0.5, num_workers=workers)
    for step in first.steps(first.model):
        if step.number == stop:
            break
    saved = json.loads(json.dumps(first.state_dict()))
    others = copy.deepcopy([first.model.state_dict(), first.optimizer.state_dict(), torch.get_rng_state()])
    second = loop_of(growing(), max_norm=0.5, num_workers=workers)
    second.model.load_state_dict(others[0])
    second.optimizer.load_state_dict(others[1])
    second.load_state_dict(saved)
    torch.set_rng_state(others[2])
    list(second.steps(second.model))
    assert same(second.model, whole.model)
    assert first.model.samples + second.model.samples == whole.model.samples
    assert second.state_dict() == whole.state_dict()


def test_accelerate_is_the_plain_loop() -> None:
    expected, _ = plain()
    accelerator = Accelerator(cpu=True)
    model = Network()
    optimizer = optimizer_of(model)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    controller = measuring()
    loader = StepLoader(samples(), controller, epochs=2)
    loop = AdaptiveLoop(
        controller, model, optimizer, loader, scheduler=scheduler, max_norm=0.5, accelerator=accelerator
    )
    assert len(list(loop.steps(model))) == 20
    assert same(model, expected)


def test_accelerate_must_not_accumulate_by_itself() -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.gradient_accumulation_steps = 4
    model = Network()
    loader = StepLoader(samples(), constant())
    with pytest.raises(ConfigError, match="gradient_accumulation_steps=4: the controller chooses it"):
        AdaptiveLoop(constant(), model, optimizer_of(model), loader, accelerator=accelerator)
    accelerator.gradient_accumulation_steps = 1


class Scaler:
    """A GradScaler's interface on the CPU."""

    def __init__(self, scale: float) -> None:
        self.factor = scale
        self.is_unscaled = False

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.factor

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        self.is_unscaled = True
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad /= self.factor

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.is_unscaled:
            self.unscale_(optimizer)
        optimizer.step()

    def update(self) -> None:
        self.is_unscaled = False

    def get_scale(self) -> float:
        return self.factor


@pytest.mark.parametrize("clips", [True, False])
def test_a_loss_scaler_changes_no_norm(clips: bool) -> None:
    seen = []
    for scaler in (None, Scaler(1024.0)):
        loop = loop_of(measuring(), max_norm=0.5 if clips else None, scaler=scaler)
        told = []
        observe = loop.controller.observe
        loop.controller.observe = lambda one, observe=observe, told=told: (told.append(one), observe(one))[1]  # type: ignore
        list(loop.steps(loop.model))
        seen.append([(one.small_norm_squared, one.large_norm_squared, one.loss) for one in told])
    for one, two in zip(*seen, strict=True):
        assert one == pytest.approx(two, rel=1e-4)


def test_norms_without_some_parameters_are_those_before_clipping() -> None:
    """Clipping's own norm has the left-out parameters: it is not reused."""
    seen = []
    for settings in ({"max_norm": None}, {"max_norm": 1e-9}, {"max_norm": 1e-9, "scaler": Scaler(1024.0)}):
        loop = loop_of(measuring(), leave_out=["first.weight"], **settings)
        told = []
        loop.controller.observe = lambda one, told=told: told.append(one)  # type: ignore
        next(loop.steps(loop.model))
        seen.append((told[0].small_norm_squared, told[0].large_norm_squared))
    assert seen[1] == pytest.approx(seen[0], rel=1e-4)
    assert seen[2] == pytest.approx(seen[0], rel=1e-4)


def test_norms_are_measured_in_every_other_step() -> None:
    loop = loop_of(measuring(), measure_every=2)
    told = []
    loop.controller.observe = lambda one: told.append(one)  # type: ignore[method-assign, assignment, return-value, func-returns-value]
    list(loop.steps(loop.model))
    assert [one.step for one in told] == list(range(2, 21, 2))
    assert all(one.has_norms and (one.small_batch, one.large_batch) == (2, 4) for one in told)


@pytest.mark.parametrize("consecutive", [False, True])
def test_one_micro_batch_on_one_gpu_is_told(consecutive: bool) -> None:
    """No noise scale without two batch sizes; a biased one if steps are compared."""
    controller = Controller([Rung(4, 1)], NoiseScalePolicy(half_life=10**9, most_spread=1e-9))
    loop = loop_of(controller, consecutive=consecutive)
    list(loop.steps(loop.model))
    reasons = controller.unused
    if consecutive:
        assert reasons["norms of consecutive steps: the noise scale is biased"] == 19
    else:
        assert reasons == {"one micro-batch on one GPU: the noise needs gradients of two batch sizes": 20}


@pytest.mark.parametrize(
    ("factor", "reason"),
    [(float("nan"), "loss is not finite"), (float("inf"), "loss is not finite"), (0.0, "the gradient is zero")],
)
def test_a_step_that_tells_nothing_is_counted_and_decides_nothing(factor: float, reason: str) -> None:
    controller = Controller(rungs(), NoiseScalePolicy(half_life=8), dwell=0)
    loop = loop_of(controller)
    steps = list(loop.steps(lambda batch: loop.model(batch) * factor))
    assert controller.unused == {reason: 20}
    assert not any(step.decisions for step in steps)
    assert [step.global_batch_size for step in steps] == [4] * 20


def test_a_loss_that_is_a_mean_over_tokens() -> None:
    """With `count`, each label of the step has the same weight: the gradient is that of one large batch."""

    def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        each = (model.last(torch.tanh(model.first(batch["x"]))).squeeze(-1) - batch["y"]).square()
        counted = batch["number"] % 3 > 0  # samples without a label
        return (each * counted).sum() / counted.sum().clamp(min=1)

    gradients = []
    for size in (2, 4):
        controller = Controller([rung for rung in rungs() if rung.micro_batch_size == size][:1], constant().policy)
        model = Network(dropout=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        whole = 4 if size == 2 else 8
        loader = StepLoader(samples(whole), controller, shuffle=False)
        loop = AdaptiveLoop(
            controller, model, optimizer, loader, count=lambda batch: int((batch["number"] % 3 > 0).sum())
        )
        optimizer.zero_grad = lambda *args: None  # type: ignore[method-assign]
        list(loop.steps(lambda batch, model=model: loss_of(model, batch)))
        expected = torch.autograd.grad(
            loss_of(model, {name: torch.stack([one[name] for one in samples(whole)]) for name in ("x", "y", "number")}),
            list(loop.accumulation.parameters)[:4],
        )
        gradients.append((expected, [weight.grad for weight in loop.accumulation.parameters]))
    for expected, found in gradients:
        assert all(torch.allclose(one, two, atol=1e-6) for one, two in zip(expected, found, strict=True))


def test_a_micro_batch_without_labels_is_left_out() -> None:
    """The mean over no label is 0 / 0, and would make every weight NaN."""
    loop = loop_of(measuring(), count=lambda batch: int((batch["number"] >= 20).sum()))
    steps = list(loop.steps(lambda batch: loop.model(batch) / int((batch["number"] >= 20).any())))
    assert all(step.loss == step.loss for step in steps)
    assert all(weight.isfinite().all() for weight in loop.model.parameters())
    assert not {number for batch in loop.model.seen if max(batch) < 20 for number in batch}


def test_schedules_keep_their_own_course() -> None:
    """Recursive ones, closed forms, and one that changes betas: what is set is theirs times the factor."""
    kinds: list[Any] = [
        lambda optimizer: LambdaLR(optimizer, lambda step: 0.5**step),
        lambda optimizer: ExponentialLR(optimizer, 0.9),
        lambda optimizer: CosineAnnealingLR(optimizer, 10),
        lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=20),
    ]
    for kind in kinds:
        alone, scaled = (optimizer_of(nn.Linear(2, 2)) for _ in range(2))
        schedule, controller = kind(alone), growing()
        rates = LearningRates(scaled, kind(scaled))
        for number in range(10):
            if number == 3:
                controller.observe(_seen(1, 12))
            rates.apply(controller)
            factor = 2**0.5 if number >= 3 else 1
            (own,), (group,) = alone.param_groups, scaled.param_groups
            assert group["lr"] == pytest.approx(own["lr"] * factor)
            assert group["betas"][0] == own["betas"][0]
            assert rates.get_last_lr() == [group["lr"]]
            for optimizer in (alone, scaled):
                optimizer.step()
            schedule.step()
            rates.step()


def _seen(step: int, total: int) -> Any:
    from vramplan.adaptive.controller import Observation

    return Observation(step=step, samples=total, tokens=0)


def test_a_rate_in_a_tensor_is_changed_in_place() -> None:
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=torch.tensor(0.01))
    rate = optimizer.param_groups[0]["lr"]
    controller = growing()
    controller.observe(_seen(1, 12))
    rates = LearningRates(optimizer)
    rates.apply(controller)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(0.01 * 2**0.5)
    assert json.dumps(rates.state_dict())


def test_what_is_refused() -> None:
    model = Network()
    optimizer = optimizer_of(model)
    with pytest.raises(UnsupportedError, match="ReduceLROnPlateau: a schedule that follows a metric"):
        LearningRates(optimizer, ReduceLROnPlateau(optimizer))
    with pytest.raises(ConfigError, match="measure_every=0: expected 1 or more"):
        loop_of(constant(), measure_every=0)
    with pytest.raises(ConfigError, match="the loader is rank 1 of 2, this process 0 of 1"):
        AdaptiveLoop(constant(), model, optimizer, StepLoader(samples(), constant(2), rank=1, world_size=2))
