"""torch's ``FullyShardedDataParallel`` (FSDP1) as transformers and accelerate 1.15 set it up: flat weights, sharded.

A unit (a layer; around them the root, with all the rest) is one flat tensor, gathered for its forward and again for its
backward (torch 2.13, distributed/fsdp: _flat_param.py, _runtime_utils.py). Its gradient is one flat tensor as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from vramplan.analytic.architectures.vision_tower import TOWER
from vramplan.analytic.layer_folding import UnfoldedSection
from vramplan.analytic.strategies.fsdp import Sharded, stored
from vramplan.analytic.strategies.fsdp1_unit import Unit
from vramplan.analytic.strategies.stored_weights import divided
from vramplan.analytic.unfolded_step import buffers_of
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import Mark, Storage

if TYPE_CHECKING:
    from vramplan.analytic.unfolded_step import Placed, Step


class Fsdp1(Sharded):
    """One GPU's part of a run."""

    def __init__(self, step: Step, record: Recorder, gpu: int = 0) -> None:
        super().__init__(step, record, gpu)
        job = self.job
        cards = job.num_gpus // job.fsdp.replicas
        self.is_alone = cards == 1  # which torch makes NO_SHARD (_init_utils.py: _init_core_state)
        places: dict[tuple[int | None, bool], list[Placed]] = {}
        for one in self.own_weights():
            places.setdefault((one.layer, one.parameter.is_adapter), []).append(one)
        self.units: dict[int | None, list[Unit]] = {None: []}
        for (layer, is_adapter), members in places.items():
            name = "root" if layer is None else "layers.* adapters" if is_adapter else "layers.*"
            weights = [stored(one.parameter, job) for one in members]
            loaded = divided(members[0].parameter, job).dtype
            unit = Unit(name, members, weights, cards, loaded, job.fsdp.reduce_dtype)
            self.units.setdefault(layer, []).append(unit)
        # _runtime_utils.py, _get_handle_to_prefetch: a unit whose forward ran without gradients is not asked for
        around = job.reentrant and job.fsdp.checkpoint_wraps_fsdp
        self.prefetch = "none" if around else job.fsdp.backward_prefetch
        layers = [layer for layer in self.units if layer is not None and (layer < TOWER or step.setting.has_images)]
        self.before = {layer: self.units[one] for one, layer in pairwise(layers)}
        """For each layer the units of the one that runs before it."""
        self.whole: dict[Unit, int] = {}
        """Flat weights that are gathered."""
        self.as_loaded: dict[Unit, int] = {}
        """Own parts before they were cast, of which weights are views until the first gather (_use_sharded_views)."""
        self.copied: dict[Unit, int] = {}
        """Own parts from the host that live as long as the gathered weights."""
        self.flat: dict[Unit, int] = {}
        """Gradients that wait for the last micro-step."""
        self.own: set[Unit] = set()
        """Units with a reduced gradient, to which those of further micro-batches are added."""
        self.sent_gradients: list[int] = []
        """Reduced gradients whose copies the host has."""
        self.has_begun = False
        """Whether a forward has begun."""
        self.dropped: int | None = None
        """The event at which the last step's gradients were dropped."""
        self.late: list[int] = []
        """Gradients that wait for the others of their unit."""
        self.waiting: list[Unit] = []
        """Frozen units, dropped once the unit before is gathered."""

    @property
    def all_units(self) -> list[Unit]:
        """Root first."""
        return [unit for units in self.units.values() for unit in units]

    def load(self) -> None:
        """Load the own part of every unit, of the root last; accelerate casts them after that (1.15: prepare_model)."""
        super().load()
        record, (root, *layers) = self.record, self.units.values()
        units = [unit for several in (*layers, root) for unit in reversed(several)]  # a layer's adapters first
        parts = [self._load(unit) for unit in units]
        for number, unit in enumerate(units):
            if unit.loading.part.num_bytes != unit.part.num_bytes and not self.offloads:
                formula = f"{unit.part.num_elements} {unit.part.dtype}, own part"
                part = Storage(unit.part.num_bytes, "parameter", unit.part.name, formula)
                self.as_loaded[unit], parts[number] = parts[number], record.allocate(part)
                if not self.job.fsdp.use_orig_params:
                    record.free(self.as_loaded.pop(unit))
        self.own_parts["weights"] = parts

    def _load(self, unit: Unit) -> int:
        """Load a unit whole, and divide it; the number of the own part."""
        weights = [
            storage
            for one in unit.members
            if one not in self.loaded
            for storage in one.storages(self.loaded_dtype(one))[:1]
        ]
        numbers = self.record.allocate_all(weights)
        sent = [*weights]
        if unit.members[0].layer is None and unit.loading.dtype == "fp32":  # buffers share buckets with their dtype
            sent = buffers_of(self.step.setting) + sent
        part = unit.loading.divide(self.record, [one.num_bytes for one in sent])
        self.record.free_all(numbers)
        self.leave(unit.members)
        if self.offloads:
            self.record.free(part)
        return part

    def gathered_bytes(self) -> int:
        """Bytes of the root and the largest layer."""
        sizes = {layer: sum(unit.whole.num_bytes for unit in units) for layer, units in self.units.items()}
        return sizes.pop(None) + max(sizes.values(), default=0)

    def run_section(self, piece: UnfoldedSection, events: Sequence[int], offset: int) -> None:
        """Gather before, drop or reduce after; the root stays gathered from the beginning to the end."""
        if piece.phase != self.phase:
            self.phase = piece.phase
            self._begin()
            self._gather(self.units[None])
        backward = piece.phase.startswith("backward")
        if piece.layer is None:
            self._extend(events, offset)
            if backward and piece in self.step.unfolded.ends:
                self._finish(self.units[None], offset)
                self._drop(self.waiting)
            return
        units = self.units[piece.layer]
        self._gather(units)
        following = self.before.get(piece.layer, []) if backward else []
        if backward:
            self._drop(self.waiting)
        nested = len(units) > 1  # the turn of the layer's last adapter asks for the next layer
        if self.prefetch == "pre" and not nested:
            self._gather(following)
        self._extend(events, offset)
        if self.prefetch == "post" or (self.prefetch == "pre" and nested):
            self._gather(following)
        if backward:
            self._finish(units, offset)
        elif self.job.fsdp.reshard_after_forward:
            self._drop(units)

    def _begin(self) -> None:
        """Begin a forward or a backward: the very first makes what flat weights need (_runtime_utils.py: _lazy_init).

        A step's first forward has the gradients that the step before leaves, which flat weights hold until then
        (torch 2.13, _flat_param.py: _reset_flat_param_grad_info_if_needed).
        """
        record = self.record
        if not self.has_begun:
            self.has_begun = True
            for unit in self.all_units:
                for attribute in unit.loading.attributes:
                    record.free(record.allocate(attribute))
        *_, before, last = (Mark("", 0), *record.marks)
        if self.dropped is not None and (before.phase, last.phase) == ("optimizer", "forward"):
            record.marks[-1] = Mark(last.phase, self.dropped)
        self.dropped = None

    def _extend(self, events: Sequence[int], offset: int) -> None:
        """All but the end of each weight's gradient, which waits until those of its unit are put together."""
        added, source = self.step.record.transient_gradients, self.step.unfolded.source
        late = [event for event in events if event < 0 and source[~event] in added] if added else []
        if late:
            events = [event for event in events if event >= 0 or source[~event] not in added]
            self.late += [offset + ~event for event in late]
        self.record.extend(events, offset)

    def _gather(self, units: list[Unit]) -> None:
        for unit in units:
            if unit in self.as_loaded:
                self.record.free(self.as_loaded.pop(unit))
            if unit in self.whole or not unit.whole.num_bytes:
                continue
            # unless it is asked for ahead, a gather waits for the reduction of the layer before
            hidden = self.phase.startswith("forward") or self.prefetch != "none" or not self.is_last
            self.send("all_gather", unit.whole.num_bytes, hidden)
            passing = [self.record.allocate(unit.cast)] if unit.cast.num_bytes else []
            if self.offloads:  # _flat_param.py: _use_low_precision_shard, which casts a copy, or flat_param_to
                self.send("from_host", unit.from_host.num_bytes, hidden)
                copy = self.record.allocate(unit.from_host)
                if passing:
                    self.record.free(copy)
                elif self.job.fsdp.use_orig_params:  # whose weights are views of the copy: _use_sharded_views
                    self.copied[unit] = copy
                else:
                    passing = [copy]
            self.whole[unit] = self.record.allocate(unit.whole)
            self.record.free_all(passing)

    def _drop(self, units: list[Unit]) -> None:
        for unit in list(units):
            if unit in self.whole:
                self.record.free(self.whole.pop(unit))
            if unit in self.copied:
                self.record.free(self.copied.pop(unit))
        if units is self.waiting:
            units.clear()

    def _finish(self, units: list[Unit], offset: int) -> None:
        """One flat gradient from all; in the last micro-step it is reduced, before that it stays (``no_sync``)."""
        record = self.record
        for unit in units:
            if not unit.trains:
                self.waiting.append(unit)
                continue
            flat = record.allocate(unit.flat)
            if self.phase == "backward.0":
                record.free_all(offset + place for place in self.step.gradients_of(unit.members))
            record.free_all(self.late)
            self.late.clear()
            if unit in self.flat:
                record.free(flat)
            else:
                self.flat[unit] = flat
            if not self.is_last and not self.job.fsdp.sync_each_batch:
                if self.job.fsdp.reshard_after_forward:
                    self._drop([unit])
                continue
            self._drop([unit])
            # a cast in the stream that reduces, which the gradient outlives (_runtime_utils.py: _post_backward_hook)
            cast = [record.allocate(unit.to_reduce)] if unit.to_reduce.num_bytes else []
            self.send("reduce_scatter", (unit.to_reduce if cast else unit.flat).num_bytes, hidden=True)
            if self.job.fsdp.replicas > 1:
                self.send("all_reduce", unit.reduced.num_bytes, hidden=True, between_replicas=True)
            same = unit.gradient.num_bytes == unit.reduced.num_bytes
            if unit in self.own:
                # cast to the dtype of the first, and added (_runtime_utils.py: _accumulate_sharded_grad); of one GPU
                # autograd has added it already
                passing = () if same and self.is_alone else (unit.reduced,) if same else (unit.reduced, unit.gradient)
                record.free_all([record.allocate(one) for one in passing])
            elif same:
                self.keep(unit.reduced)
            else:
                reduced = record.allocate(unit.reduced)
                self.keep(unit.gradient)
                record.free(reduced)
            if self.job.fsdp.sync_each_batch:
                self.own.add(unit)
            record.free_all(cast)
            record.free(self.flat.pop(unit))

    def keep(self, gradient: Storage) -> None:
        """Keep a reduced gradient; one that the host gets, too, until backward ends (``_saved_grad_shard``)."""
        if not self.offloads:
            super().keep(gradient)
            return
        self.send("to_host", gradient.num_bytes, hidden=True)
        self.sent_gradients.append(self.record.allocate(gradient))

    def backward_ends(self) -> None:
        super().backward_ends()
        self.record.free_all(self.sent_gradients)
        self.sent_gradients.clear()

    def optimize(self, first: bool) -> None:
        """Update the own parts."""
        units = [unit for unit in self.all_units if unit.trains]
        parts = [unit.part for unit in units]
        if self.job.fsdp.use_orig_params and not self.is_alone and not self.offloads:
            views = {one: weight for unit in units for one, weight in unit.views(self.gpu).items()}
            parts = [views[one] for one in self.own_weights() if one in views]
        if self.offloads:
            self.sent.updated_on_host += sum(part.num_elements for part in parts)
            return
        self.update(parts, first)

    def scoring_ends(self) -> None:
        if self.job.runs_verl and not self.job.verl.keeps_root:
            self._drop(self.units[None])
        self.phase = ""

    def drop_gradients(self, offset: int) -> None:
        self.dropped = len(self.record.events) if self.job.fsdp.use_orig_params else None
        super().drop_gradients(offset)
        self.own.clear()
