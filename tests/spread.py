"""A traced run of a model that accelerate's own hooks spread over several cards, none of which is there.

The map is transformers' own, the hooks are accelerate's own; only what would copy a tensor to another card makes a copy
that is booked on that card. Whatever else an operation makes lies where its first argument does, as in torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import transformers
from accelerate import hooks
from torch.utils._pytree import tree_leaves
from transformers.integrations import accelerate as placing
from transformers.loss import loss_utils

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.torch_backend.model import build, losses
from vramplan.torch_backend.trace import trace
from vramplan.torch_backend.trace.fake_tensors import Fakes
from vramplan.torch_backend.trace.records import Record
from vramplan.torch_backend.trace.storage_tracker import StorageTracker


def bare_model(spec: ModelSpec, dtype: str) -> Any:
    """The model on meta, without adapters."""
    config = transformers.AutoConfig.for_model(spec.model_type, **spec.config)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config, dtype=build.DTYPES[dtype])


class Bitsandbytes:
    """What the map asks transformers' quantizer of bitsandbytes (quantizers/quantizer_bnb_4bit.py, _8bit.py)."""

    def __init__(self, size: float) -> None:
        self.size = size

    def param_element_size(self, model: Any, name: str, parameter: torch.Tensor) -> float:
        module = model.get_submodule(name.rpartition(".")[0])
        quantized = isinstance(module, torch.nn.Linear) and not name.startswith("lm_head") and not name.endswith("bias")
        return self.size if quantized else parameter.element_size()

    def adjust_max_memory(self, memory: dict[Any, float]) -> dict[Any, float]:
        return {key: value * 0.90 for key, value in memory.items()}

    def validate_environment(self, **_: Any) -> None: ...


def real_map(model: Any, cards: int, quantize: str = "none") -> dict[str, int]:
    """What transformers makes of ``device_map="auto"`` on so many cards without limit."""
    memory = {**dict.fromkeys(range(cards), 1 << 60), "cpu": 1 << 60}
    quantizer = None if quantize == "none" else Bitsandbytes({"nf4": 0.5, "int8": 1}[quantize])
    with patch.object(placing, "accelerate_max_memory", lambda given=None: dict(given or memory)):
        found: dict[str, int] = placing._get_device_map(model, "auto", None, quantizer)  # type: ignore[arg-type]
    return found


def card_in(device_map: Mapping[str, int], path: str) -> int:
    """The card of a module or parameter; the first, for what is in no module of the map."""
    path = path.removeprefix("base_model.model.").removeprefix(".")
    while path and path not in device_map:
        path = path.rpartition(".")[0]
    return device_map.get(path, 0)


class CardTracker(StorageTracker):
    """A tracker that knows each storage's card."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.device_map: dict[str, int] = {}
        self.cards: dict[int, int] = {}
        self.counters: list[int] = []
        """Step counters, which lie where the states made next do."""
        self.now: int | None = None
        self.last = 0
        """Card of the operation before."""
        self.each: list[int] = []
        """Cards of an operation's results, where they differ (foreach)."""

    def allocate(self, record: Record) -> int:
        number = super().allocate(record)
        if self.now is None:
            backward = self.phase == "backward" and not self.in_forward
            self.cards[number] = self.last if backward else card_in(self.device_map, record.module)
            if self.phase == "optimizer":
                self.counters.append(number)
        else:
            self.cards |= dict.fromkeys([number, *self.counters], self.now)
            self.counters.clear()
        return number

    def take(self, tensor: torch.Tensor, op: str, module: str | None = None) -> int | None:
        with self.on(self.each.pop(0) if self.each else self.now):
            return super().take(tensor, op, module)

    def card_of(self, tensor: torch.Tensor) -> int:
        number = self.number_of(tensor)
        return 0 if number is None else self.cards[number]

    @contextmanager
    def on(self, card: int | None) -> Iterator[None]:
        before, self.now = self.now, card
        try:
            yield
        finally:
            self.now = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.now is not None or func.namespace == "prim":
            return super().__torch_dispatch__(func, types, args, kwargs)
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        first = next((one for one in given if one.dim()), given[0] if given else None)
        if "_foreach_" in str(func):
            self.each = [self.card_of(one) for one in args[0]]
        if first is not None:
            self.last = self.card_of(first)
        copies = []
        if func is torch.ops.aten.stack.default:  # of the norms, on the first one's card
            elsewhere = [one for one in args[0] if self.card_of(one) != self.card_of(args[0][0])]
            with self.on(self.card_of(args[0][0])):
                copies = [self.allocate(Record(4, "norm from elsewhere", "", (), "fp32")) for _ in elsewhere]
        with self.on(None if first is None else self.card_of(first)):
            out = super().__torch_dispatch__(func, types, args, kwargs)
        self.each = []
        for number in copies:
            self.free(number)
        return out

    def send(self, given: Any, card: int, **_: Any) -> Any:
        """accelerate's send_to_device."""
        if isinstance(given, torch.Tensor):
            return given if self.card_of(given) == card else Move.apply(given, card, self)
        if isinstance(given, (list, tuple)):
            return type(given)(self.send(one, card) for one in given)
        if isinstance(given, Mapping):
            return type(given)({name: self.send(one, card) for name, one in given.items()})
        return given

    def of_card(self, card: int, upto: int) -> list[int]:
        """Bytes alive on a card after each of its events, with the phase; tensors alone."""
        level, levels = 0, []
        for event in self.events[:upto]:
            number = event if event >= 0 else ~event
            record = self.records[number]
            if self.cards[number] == card and not record.in_kernel:
                size = -(-record.num_bytes // 512) * 512
                level += size if event >= 0 else -size
            levels.append(level)
        return levels


class Move(torch.autograd.Function):
    """``tensor.to(card)``."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, card: int, tracker: CardTracker) -> torch.Tensor:
        ctx.home, ctx.tracker = tracker.card_of(tensor), tracker
        with tracker.on(card):
            return tensor.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        with ctx.tracker.on(ctx.home):
            return grad.clone(), None, None


class SpreadRun(trace.Run):
    """A trace whose model is spread over cards."""

    def __init__(self, subject: build.Subject, device_map: dict[str, int], *given: Any) -> None:
        super().__init__(subject, *given)
        self.tracker = CardTracker(self.fakes, self.tracker.answer)
        self.tracker.device_map = device_map
        inner = getattr(subject.module, "get_base_model", lambda: subject.module)()
        tracker = self.tracker

        send, plain = tracker.send, loss_utils.fixed_cross_entropy

        def loss(source: torch.Tensor, target: torch.Tensor, *more: Any, **rest: Any) -> torch.Tensor:
            return plain(source, send(target, tracker.card_of(source)), *more, **rest)

        self.patches = [
            patch.object(hooks, "send_to_device", send),
            patch.object(hooks, "find_device", lambda given: 0),
            patch.object(hooks, "set_module_tensor_to_device", lambda *given, **more: None),
            patch.object(loss_utils, "fixed_cross_entropy", loss),
        ]
        with self.patches[2]:
            hooks.attach_align_device_hook_on_blocks(inner, {**device_map, "": 0}, dict.fromkeys(device_map, False))

    def go(self) -> None:
        with self.patches[0], self.patches[1], self.patches[3]:
            super().go()

    def peaks(self) -> dict[int, dict[str, int]]:
        """Of each card the peak of each phase."""
        tracker, found = self.tracker, {}
        ends = [mark.first_event for mark in tracker.marks[1:]] + [len(tracker.events)]
        for card in sorted(set(tracker.device_map.values())):
            levels, peaks = tracker.of_card(card, len(tracker.events)), {}
            for mark, end in zip(tracker.marks, ends, strict=True):
                first = max(0, mark.first_event - 1)
                peaks[mark.phase] = max(peaks.get(mark.phase, 0), *levels[first:end], 0)
            peaks["loaded"] = levels[ends[0] - 1]
            found[card] = peaks
        return found


def spread_run(spec: ModelSpec, job: Job, card: Gpu) -> SpreadRun:
    """Two steps and an evaluation, watched."""
    device_map = real_map(bare_model(spec, job.dtype), job.num_gpus)
    alone = job.model_copy(update={"num_gpus": 1, "strategy": "ddp"})
    run: SpreadRun | None = None

    def chunked(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        assert run is not None
        on = run.tracker.card_of(weight)
        rows, own = run.tracker.send(hidden[:, :-1], on), run.tracker.send(labels[:, 1:], on)
        with run.tracker.on(on):
            return losses.loss_of_rows(rows, weight, own)

    def liger(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        assert run is not None
        labels = torch.nn.functional.pad(labels, (0, 1), value=-100)
        shifted = labels[..., 1:].contiguous().view(-1)
        sent = run.tracker.send(shifted, run.tracker.card_of(hidden))
        return losses.Liger.apply(hidden.view(-1, hidden.shape[-1]), weight, sent)

    own_losses = patch.dict(losses.FUSED, chunked=chunked, liger=liger)
    with trace.quiet(), trace.as_cuda(card), own_losses:
        subject = build.build(spec, alone, "meta")
        run = SpreadRun(
            subject, device_map, trace.optimizers.recipe(alone), spec, alone, card, Fakes(), lambda *_: None
        )
        run.go()
    return run
