"""Shape-only autograd: simulates a training step and records what PyTorch would allocate and free.

Layers (:mod:`vramplan.analytic.layers`) read like a model's forward and run on
:mod:`vramplan.analytic.autograd.graph`. The backward pass mirrors PyTorch 2.13's engine
(torch/csrc/autograd/engine.cpp): nodes run by descending sequence number, gradients of one tensor are summed in place
if nothing else holds them, parameters take over a gradient that nothing else holds, a node's saved tensors are freed
when it has run.

A local variable of a forward or backward function is a lifetime: its storage is freed when the variable is deleted,
assigned again or its function returns, as in PyTorch. Adding, removing or reordering locals changes the estimate.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import ref

from vramplan.analytic.autograd.graph import (
    Accumulate,
    Backward,
    CheckpointFrame,
    Grads,
    LiveStorage,
    Node,
    Parameter,
    Resident,
    StopRecompute,
    TakenGradient,
    Tensor,
    count_dependencies,
    leaf,
)
from vramplan.analytic.autograd.recording import Recording
from vramplan.analytic.autograd.reference_counts import base_holders, holders
from vramplan.analytic.autograd.saved_tensors import SavedTensors

Output = TypeVar("Output")

EMPTIES_CACHE = "empties the cache"
"""Category of what is no storage: where it is allocated, PyTorch's allocator gives back what is free."""


class Tape(Recording):
    """The recorder and the autograd engine.

    `autocast` is the dtype that matmul-like ops run in, or None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kept: set[int] = set()
        """Ids of storages that are saved for backward."""
        self.taken: list[TakenGradient] = []
        """The gradients that weights took over, or copied, in order."""
        self.gives_gradients = False
        """Whether a hook consumes each weight's gradient as soon as it is produced."""
        self.keeps_inputs = False
        """Whether linear layers save their input for a frozen weight too (DeepSpeed 0.19, runtime/zero/linear.py)."""
        self.parameters: dict[tuple[int | None, str], Parameter] = {}
        self.second_parameters: dict[tuple[int | None, str], Parameter] = {}
        """Those of a second model."""
        self.sequence = 0
        self.run_times: dict[int, int] = {}
        """How often a forward runs that is simulated once, by its number."""
        self.grad_enabled = self.training = True
        self.drops = True
        """Whether dropout modules drop anything in training."""
        self.reentrant = False
        self.holds_leaves = False
        """Whether the inputs of a reentrant recomputation, and their gradients, are held until backward ends."""
        self.leaves: list[Tensor] = []
        self.autocast: str | None = None
        self.autocast_cache: dict[int, Tensor] = {}
        self.in_inference_mode = False
        """Whether ``torch.inference_mode`` is on, in which autocast of torch 2.13 keeps no cast weights."""
        self.frame: CheckpointFrame | None = None
        self.recomputing: CheckpointFrame | None = None
        self.alone = holders([Tensor(self, Resident(), (), "fp32")], 0)
        """Reference counts of a tensor that only one list holds."""
        self.alone_view = base_holders([Tensor(self, Resident(), (), "fp32").view()], 0)
        """Reference counts of a tensor of which only one list holds a view."""
        self.unpacked: Node | None = None
        self.saves = SavedTensors()

    def empty(self, shape: tuple[int, ...], dtype: str, what: str, category: str = "") -> Tensor:
        """A new tensor without autograd history."""
        return Tensor(self, self.allocate(shape, dtype, what, category), shape, dtype)

    def empty_cache(self) -> None:
        """``torch.cuda.empty_cache()``."""
        self.empty((0,), "bool", "", EMPTIES_CACHE)

    def node(self, inputs: tuple[Tensor, ...], backward: Backward, num_grads: int = 1) -> Node | None:
        """A node for an op on `inputs`, or None if no input needs a gradient."""
        if not self.grad_enabled:
            return None
        for tensor in inputs:
            if tensor.node is not None:
                return Node(self, inputs, backward, num_grads)
        return None

    def keep(self, *tensors: Tensor) -> None:
        """Count these as saved for backward, whichever object holds them."""
        for tensor in tensors:
            if isinstance(tensor.storage, LiveStorage):
                self.kept.update(tensor.storage.ids)

    def save(self, node: Node | None, *tensors: Tensor) -> None:
        """Save `tensors` for `node`'s backward; under checkpointing only the frame's slots are counted."""
        if node is None:
            return
        frame = self.frame
        for tensor in tensors:
            if frame is None:
                self.saves.save(node, tensor)
                if isinstance(tensor.storage, LiveStorage):
                    self.kept.update(tensor.storage.ids)
            elif self.recomputing is frame:
                slots = frame.slots
                assert slots is not None
                node.saved.append(tensor.storage)
                slots.append(None if frame.waiting[len(slots)]() is None else tensor.storage)
                if isinstance(tensor.storage, LiveStorage):
                    self.kept.update(tensor.storage.ids)
                if len(slots) == len(frame.waiting):
                    raise StopRecompute
            else:
                node.frame = frame
                node.slots.append(len(frame.waiting))
                frame.waiting.append(ref(node))

    def attach(self, node: Node | None, *tensors: Tensor) -> None:
        """Save `tensors` on a Python function's ctx: until the node is freed, also under checkpointing."""
        if node is not None:
            node.attributes += [tensor.storage for tensor in tensors]
            self.keep(*tensors)

    def checkpoint(self, function: Callable[..., Output], *inputs: Tensor) -> Output:
        """``function(*inputs)`` that keeps only its inputs; backward runs it again."""
        if not self.grad_enabled:
            return function(*inputs)
        if self.reentrant:
            return self._checkpoint_reentrant(function, inputs)
        frame = CheckpointFrame(function, tuple(map(self.saves.pack, inputs)), self.autocast)
        self.keep(*inputs)
        outer, self.frame = self.frame, frame
        try:
            return function(*inputs)
        finally:
            self.frame = outer

    def _checkpoint_reentrant(self, function: Callable[..., Output], inputs: tuple[Tensor, ...]) -> Output:
        """Torch's CheckpointFunction: a forward without a graph; backward builds the graph and runs it."""
        with self.no_grad():
            outputs = function(*inputs)
        input_tensors, autocast = [(tensor.detach(), tensor.node is not None) for tensor in inputs], self.autocast
        results: tuple[Any, ...] = outputs if isinstance(outputs, tuple) else (outputs,)
        phase, likes = self.phase.replace("forward", "backward"), [result.like for result in results]

        def backward(*grads: Tensor | None) -> Grads:
            incoming = [  # a Python function gets zeros for outputs that were not used (set_materialize_grads)
                self.empty(like.shape, like.dtype, "zeros for an output") if grad is None else grad
                for like, grad in zip(likes, grads, strict=True)
            ]
            leaves = [leaf(tensor) if needs else tensor for tensor, needs in input_tensors]
            input_tensors.clear()  # only the node holds the inputs
            self.leaves += leaves if self.holds_leaves else []
            self.in_backward = False
            with self.autocasting(autocast):
                recomputed = function(*leaves)
            self.in_backward = True
            ends: Iterable[tuple[Any, Tensor]] = zip(
                recomputed if isinstance(recomputed, tuple) else (recomputed,), incoming, strict=True
            )
            self._walk(phase, [(end.node, end.index, grad) for end, grad in ends if end.node is not None])
            return [start.node.grad if isinstance(start.node, Accumulate) else None for start in leaves]

        node = self.node(inputs, backward, len(results))
        self.save(node, *inputs)
        for index, result in enumerate(results):
            result.node, result.index = node, index
        return outputs

    def _recompute(self, frame: CheckpointFrame, node: Node) -> None:
        frame.slots = []
        outer_recomputing, self.recomputing = self.recomputing, frame
        outer_frame, self.frame = self.frame, frame
        outer_backward, self.in_backward = self.in_backward, False
        chunk = self.chunk
        try:
            with self.autocasting(frame.autocast):
                frame.function(*(self.saves.again(tensor, node) for tensor in frame.inputs))
        except StopRecompute:
            self.enter(self.phase, self.layer, chunk)
        finally:
            self.recomputing, self.frame, self.in_backward = outer_recomputing, outer_frame, outer_backward

    def backward(self, phase: str, loss: Tensor) -> None:
        """Run the backward pass from `loss`, section by section."""
        if loss.node is None:  # nothing trains, as if adapters match no layer: the caller reports that
            return
        self.in_backward = True
        seed = self.empty((), "fp32", "gradient of the loss")  # held until Tensor.backward returns
        self._walk(phase, [(loss.node, 0, seed)])
        self.run = 0
        self.enter(phase, None)
        self.leaves.clear()
        self.saves.end()
        del seed
        self.in_backward, self.card = False, 0

    def replay(self, forward: Callable[[], Tensor]) -> None:
        """``forward().backward()`` within backward: a graph that exists for as long as it runs."""
        phase, run = self.phase, self.run
        self.in_backward, self.replays = False, True
        end = forward()
        self.in_backward, self.replays = True, False
        if end.node is not None:
            seed = self.empty((), "fp32", "gradient of the loss")
            node, index = end.node, end.index
            del end
            self._walk(phase, [(node, index, seed)])
        self.run = run
        self.enter(phase, None)

    def _walk(self, phase: str, roots: list[tuple[Node, int, Tensor]]) -> None:
        """Run `roots`, each with the gradient of an output, and all nodes that they lead to (Engine::execute)."""
        waiting = count_dependencies({node for node, _, _ in roots})
        buffers: dict[Node, Grads] = {}
        for root, index, seed in roots:
            buffers.setdefault(root, [None] * root.num_grads)[index] = seed
        ready: list[tuple[int, int, Node]] = [(-node.sequence, 0, node) for node in buffers if not waiting[node]]
        heapq.heapify(ready)
        roots.clear()
        del root, seed
        tie = 0
        while ready:
            node = heapq.heappop(ready)[2]
            grads = buffers.pop(node)
            if isinstance(node, Accumulate):
                self._accumulate(node, grads)
                continue
            self.run = node.run
            self.enter(phase, node.layer, node.chunk)
            self.repeated.stand_for(node.copies)
            edges = node.edges
            outputs = self._run(node, grads)
            outputs.reverse()
            for edge in edges:
                grad = outputs.pop()
                if edge is None:
                    continue
                assert grad is not None
                target, index = edge
                buffer = buffers.get(target)
                if buffer is None:
                    buffer = buffers[target] = [None] * target.num_grads
                self._add(buffer, index, grad)
                del grad
                waiting[target] -= 1
                if waiting[target] == 0:
                    tie += 1
                    heapq.heappush(ready, (-target.sequence, tie, target))
            del node, edges, outputs
        self.repeated.stand_for(1)

    def _run(self, node: Node, grads: Grads) -> Grads:
        """Engine::call_function: incoming gradients and saved tensors are freed after the outputs exist."""
        self._module, self.card = node.module, node.card
        self.saves.bring_back(node)
        frame = node.frame
        if frame is not None and node.slots:
            if frame.slots is None:
                self._recompute(frame, node)
                self._module = node.module
            slots = frame.slots
            assert slots is not None
            for slot in node.slots:
                storage = slots[slot]
                assert storage is not None
                node.saved.append(storage)
                slots[slot] = None
                del storage
            self.unpacked = node
        del frame
        outputs = node.backward(*grads)
        self.applied()
        self.unpacked = None
        self.saves.has_run(node)
        grads.clear()
        node.saved.clear()
        node.frame = None
        return outputs

    def applied(self) -> None:
        """The formula is done, its outputs are not fitted yet: recomputed tensors were its locals and are freed now.

        C++ frees locals in the reverse of their order, in which a node without checkpointing frees what it saved.
        """
        if self.unpacked is not None:
            self.unpacked.saved.reverse()
            self.unpacked.saved.clear()

    def _add(self, buffer: Grads, index: int, grad: Tensor) -> None:
        """InputBuffer::accumulate: in place if only this buffer holds the old gradient."""
        old = buffer[index]
        if old is None:
            buffer[index] = grad
            return
        self.work(0, 3 * old.num_bytes, old.dtype)
        like = old.like
        del old
        if holders(buffer, index) != self.alone:
            buffer[index] = self.empty(like.shape, like.dtype, "sum of gradients")

    def _accumulate(self, node: Accumulate, grads: Grads) -> None:
        """AccumulateGrad: add in place, take over a gradient that nothing else holds, or copy it."""
        alone = holders(grads, 0)[0] == self.alone[0]  # other holders of the storage do not matter here
        is_used = not self._only(grads, 0)
        grad = grads.pop()
        assert grad is not None
        node.reached = True
        if node.grad is not None:
            self.work(0, 3 * grad.num_bytes, grad.dtype)
            if node.name and isinstance(grad.storage, LiveStorage):
                self.transient_gradients.update(grad.storage.ids)
                if self.gives_gradients:  # the hook takes the sum
                    self.storages[grad.storage.id] = self.storages[grad.storage.id]._replace(module=node.name)
            return
        copies = not alone or node.reorders
        if node.name:
            self._module = node.name
            id = grad.storage.id if isinstance(grad.storage, LiveStorage) else None
            info = None if id is None else self.storages[id]
            self.taken.append(
                TakenGradient(
                    len(self.sections) - 1,
                    len(self.events),
                    len(self.kernels),
                    id,
                    info,
                    copies,
                    3 * grad.num_bytes,
                    grad.dtype,
                    alone and is_used,
                )
            )
        if copies:
            grad = self.empty(grad.shape, grad.dtype, "gradient")
        if node.name and isinstance(grad.storage, LiveStorage):
            id = grad.storage.id
            self.storages[id] = self.storages[id]._replace(category="gradient", module=node.name, what="gradient")
        if node.name and self.gives_gradients and isinstance(grad.storage, LiveStorage):
            self.transient_gradients.update(grad.storage.ids)
        else:
            node.grad = grad

    def _only(self, grads: Grads, index: int) -> bool:
        """Whether nothing but this gradient, or the tensor that it is a view of, holds its storage."""
        grad = grads[index]
        assert grad is not None
        if grad.base is not None:
            return base_holders(grads, index) == self.alone_view
        del grad
        return holders(grads, index) == self.alone

    # -- modes -------------------------------------------------------------------------------------------------------

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """Context in which ops save nothing."""
        outer, self.grad_enabled = self.grad_enabled, False
        try:
            yield
        finally:
            self.grad_enabled = outer

    @contextmanager
    def second_model(self, owner: str = "") -> Iterator[None]:
        """Context in which another model runs, in evaluation mode unless it trains too: then it has an `owner`."""
        outer, self.training = self.training, self.training and bool(owner)
        self.owner = owner
        self.parameters, self.second_parameters = self.second_parameters, self.parameters
        try:
            yield
        finally:
            self.training, self.owner = outer, ""
            self.parameters, self.second_parameters = self.second_parameters, self.parameters

    @contextmanager
    def on(self, card: int) -> Iterator[None]:
        """Context in which ops run on the GPU with index `card`."""
        outer, self.card = self.card, card
        try:
            yield
        finally:
            self.card = outer

    def card_of(self, tensor: Tensor) -> int:
        """Index of the GPU that a tensor is on; a weight is on the one that uses it."""
        return self.storages[tensor.storage.id].card if isinstance(tensor.storage, LiveStorage) else self.card

    @contextmanager
    def autocasting(self, dtype: str | None) -> Iterator[None]:
        """torch.autocast: the cast weights are cached until the outermost context ends."""
        outer, self.autocast = self.autocast, dtype
        try:
            yield
        finally:
            self.autocast = outer
            if outer is None:
                self.autocast_cache.clear()
