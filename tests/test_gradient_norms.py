"""The squared norms that a noise scale is estimated from, against gradients computed one by one."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from vramplan.adaptive.gradient_norms import GradientNorms, NormPair
from vramplan.errors import ConfigError, UnsupportedError


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))


INPUTS = torch.randn(12, 4, generator=torch.Generator().manual_seed(3))


def loss_of(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return model(rows).square().mean()


def squared(model: nn.Module, rows: torch.Tensor) -> float:
    """|gradient|^2 of the mean loss of these rows, on its own."""
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    gradients = torch.autograd.grad(loss_of(model, rows), weights)
    return sum(float(gradient.square().sum()) for gradient in gradients)


def measure(
    model: nn.Module, cuts: list[int], scale: float = 1.0, **settings: object
) -> tuple[GradientNorms, NormPair | None]:
    norms = GradientNorms(model, **settings)  # type: ignore[arg-type]
    for rows in INPUTS[: sum(cuts)].split(cuts):
        weight = len(rows) / sum(cuts)
        with norms.micro_batch(len(rows), weight):
            (loss_of(model, rows) * weight * scale).backward()
    return norms, norms.finish(loss_scale=scale)


@pytest.mark.parametrize("scale", [1.0, 65536.0])
def test_norms_of_equal_micro_batches(scale: float) -> None:
    model = network()
    _, pair = measure(model, [3, 3, 3, 3], scale)
    assert pair is not None
    assert (pair.small_batch, pair.large_batch) == pytest.approx((3, 12))
    assert pair.small_norm_squared == pytest.approx(sum(squared(model, rows) for rows in INPUTS.split(3)) / 4, rel=1e-5)
    assert pair.large_norm_squared == pytest.approx(squared(model, INPUTS), rel=1e-5)


def test_micro_batches_of_different_sizes_have_their_harmonic_mean() -> None:
    model = network()
    _, pair = measure(model, [6, 2, 4])
    assert pair is not None
    assert pair.small_batch == pytest.approx(3 / (1 / 6 + 1 / 2 + 1 / 4))
    assert pair.large_batch == pytest.approx(12)  # weighted by samples, the step is that of all of them
    assert pair.large_norm_squared == pytest.approx(squared(model, INPUTS), rel=1e-5)


def test_the_pair_gives_the_noise_of_gaussian_gradients() -> None:
    """Gradients are the samples themselves, N(mean, 1): tr S = 2,000, |E g|^2 = 2,000 x 0.3^2."""
    weights, generator = nn.Parameter(torch.zeros(2000)), torch.Generator().manual_seed(0)
    model = nn.Module()
    model.weight = weights
    norms, traces, squares = GradientNorms(model), [], []
    for _ in range(60):
        weights.grad = None
        for size in (2, 4, 8, 2):
            rows = torch.randn(size, 2000, generator=generator) + 0.3
            with norms.micro_batch(size, size / 16):
                ((rows @ weights).mean() * size / 16).backward()
        pair = norms.finish()
        assert pair is not None
        trace = (pair.small_norm_squared - pair.large_norm_squared) / (1 / pair.small_batch - 1 / pair.large_batch)
        traces.append(trace)
        squares.append(pair.large_norm_squared - trace / pair.large_batch)
    assert sum(traces) / 60 == pytest.approx(2000, rel=0.02)
    assert sum(squares) / 60 == pytest.approx(2000 * 0.09, rel=0.05)


def test_a_clipping_norm_is_reused() -> None:
    model = network()
    norms = GradientNorms(model)
    for rows in INPUTS.split(6):
        with norms.micro_batch(6, 0.5):
            (loss_of(model, rows) / 2).backward()
    pair = norms.finish(nn.utils.clip_grad_norm_(model.parameters(), 1e-3))
    assert pair is not None
    assert pair.large_norm_squared == pytest.approx(squared(model, INPUTS), rel=1e-5)


def test_gradients_are_not_changed() -> None:
    plain, measured = network(), network()
    for rows in INPUTS.split(3):
        (loss_of(plain, rows) * 0.25).backward()
    measure(measured, [3, 3, 3, 3])
    pairs = zip(plain.parameters(), measured.parameters(), strict=True)
    assert all(torch.equal(one.grad, two.grad) for one, two in pairs)
    assert not any(weight._backward_hooks for weight in measured.parameters())


def test_tied_weights_have_one_gradient() -> None:
    model = network()
    model[2].weight = model[0].weight
    _, pair = measure(model, [6, 6])
    assert pair is not None
    assert pair.small_norm_squared == pytest.approx(sum(squared(model, rows) for rows in INPUTS.split(6)) / 2, rel=1e-5)


def test_frozen_and_left_out_parameters_are_in_neither_norm() -> None:
    model = network()
    model[0].requires_grad_(False)
    _, pair = measure(model, [6, 6])
    assert pair is not None
    assert pair.large_norm_squared == pytest.approx(squared(model, INPUTS), rel=1e-5)
    _, pair = measure(network(), [6, 6], leave_out=["0.weight", "0.bias"])
    assert pair is not None
    assert pair.large_norm_squared == pytest.approx(squared(model, INPUTS), rel=1e-5)


def test_a_parameter_without_a_gradient_counts_as_zero() -> None:
    model = network()
    model.extra = nn.Linear(3, 3)
    model.extra.forward = None  # never called
    norms = GradientNorms(model)
    for rows in INPUTS.split(6):
        with norms.micro_batch(6, 0.5):
            (model[3](model[2](model[1](model[0](rows)))).square().mean() / 2).backward()
    pair = norms.finish()
    assert pair is not None
    assert model.extra.weight.grad is None
    assert pair.large_norm_squared == pytest.approx(squared(network(), INPUTS), rel=1e-5)


def test_zero_and_nan_gradients_are_reported_as_they_are() -> None:
    for factor, expected in ((0.0, 0.0), (math.nan, math.nan)):
        model = network()
        norms = GradientNorms(model)
        for rows in INPUTS.split(6):
            with norms.micro_batch(6, 0.5):
                (loss_of(model, rows) * factor).backward()
        pair = norms.finish()
        assert pair is not None
        assert (pair.small_norm_squared, pair.large_norm_squared) == pytest.approx((expected, expected), nan_ok=True)


def test_half_precision_is_summed_in_fp32() -> None:
    weight = nn.Parameter(torch.zeros(40_000, dtype=torch.bfloat16))
    model = nn.Module()
    model.weight = weight
    norms = GradientNorms(model)
    for _ in range(2):
        with norms.micro_batch(1, 0.5):
            (weight.sum() * 0.5).backward()
    pair = norms.finish()
    assert pair is not None
    assert (pair.small_norm_squared, pair.large_norm_squared) == pytest.approx((40_000, 40_000), rel=1e-3)


def test_one_micro_batch_gives_one_norm_unless_steps_are_compared() -> None:
    model = network()
    _, pair = measure(model, [12])
    assert pair is not None
    assert (pair.small_batch, pair.large_batch) == (12, 12)
    assert pair.small_norm_squared == pytest.approx(pair.large_norm_squared)
    assert GradientNorms(model).finish() is None  # no micro-batch at all
    model.zero_grad()
    norms = GradientNorms(model, consecutive=True)
    pairs = []
    for rows in INPUTS.split(4):
        model.zero_grad()
        with norms.micro_batch(4, 1.0):
            loss_of(model, rows).backward()
        pairs.append(norms.finish())
    first, second = pairs[:2]
    assert first is not None
    assert second is not None
    assert (first.biased, first.large_batch) == (False, 4)
    assert second.biased
    assert (second.small_batch, second.large_batch) == (4, 8)
    assert second.small_norm_squared == pytest.approx(sum(squared(model, rows) for rows in INPUTS[:8].split(4)) / 2)
    assert second.large_norm_squared == pytest.approx(squared(model, INPUTS[:8]), rel=1e-5)


def test_a_sparse_gradient_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 1))

    def backward(norms: GradientNorms) -> None:
        for _ in range(2):
            with norms.micro_batch(1, 0.5):
                (model(torch.tensor([1, 2])).sum() / 2).backward()

    with pytest.raises(UnsupportedError, match=r"0\.weight has a sparse gradient; name it in leave_out"):
        backward(GradientNorms(model))
    model.zero_grad()
    norms = GradientNorms(model, leave_out=["0.weight"])
    backward(norms)
    assert norms.finish() is not None


def test_gradients_in_parts_are_refused_by_name() -> None:
    model = network()

    def twice(rows: torch.Tensor) -> torch.Tensor:
        return checkpoint(model[0], checkpoint(model[0], rows, use_reentrant=True), use_reentrant=True).sum()

    with (
        pytest.raises(UnsupportedError, match=r"the gradient of 0\.\w+ came in parts"),
        GradientNorms(model).micro_batch(1, 1.0),
    ):
        twice(INPUTS[:1].clone().requires_grad_()).backward()
    with GradientNorms(model).micro_batch(1, 1.0):  # once is fine
        checkpoint(model[0], INPUTS[:1].clone().requires_grad_(), use_reentrant=True).sum().backward()


def test_what_cannot_be_measured() -> None:
    with pytest.raises(ConfigError, match=r"no parameter 9\.weight"):
        GradientNorms(network(), leave_out=["9.weight"])
    with pytest.raises(ConfigError, match="no parameter that trains"):
        GradientNorms(network().requires_grad_(False))
    model = network()
    model[0].weight.placements = ()  # as a DTensor has
    with pytest.raises(UnsupportedError, match=r"0\.weight is sharded"):
        GradientNorms(model)
