"""The memory of a training run in order: loading, optimizer steps, and, beside them, an evaluation."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from vramplan.analytic.autograd.tape import EMPTIES_CACHE
from vramplan.analytic.layer_folding import Unfolded
from vramplan.analytic.rollout.alike import storages_instead
from vramplan.analytic.rollout.colocated_vllm import VllmRollout, vllm_held
from vramplan.analytic.rollout.openrlhf_critic import Critic, critic_phases
from vramplan.analytic.rollout.phase import RolloutPhase
from vramplan.analytic.rollout.phases import Generated, generates_each_micro_step, later_images, rollout_phases
from vramplan.analytic.rollout.reward_model import frozen_adapters, reward_adapters, reward_weights
from vramplan.analytic.rollout.sharded_scoring import POLICY, REFERENCE, REWARD, ShardedScoring
from vramplan.analytic.rollout.trl_ppo import value_rollout
from vramplan.analytic.strategies import strategy_of
from vramplan.analytic.strategies.micro_steps import MicroSteps
from vramplan.analytic.tasks.reference import is_of_reference
from vramplan.analytic.unfolded_step import Step, buffers_of
from vramplan.inputs.job_values import ROLLOUTS
from vramplan.inputs.rollout_rules import is_colocated
from vramplan.memory import passes
from vramplan.memory.overheads import cublas_workspace
from vramplan.memory.recorder import Recorder
from vramplan.memory.timeline import EMPTY_CACHE, Kinds, Mark, Storage, Timeline, rounded_bytes
from vramplan.step_time.communication import Communication, Sent

if TYPE_CHECKING:
    from vramplan.analytic.strategies.ddp import Strategy

STEPS = 3
"""Optimizer states exist in the second step while gradients are built again, and DDP replaces its buckets; in the third
one all begins as it ended, so what memory the allocator has no use for has settled."""
LATER = Storage(0, "temporary", "a storage of the simulated step")
"""Stands for each storage of the simulated step, which is described when it is looked at: most never are."""


ALL_PARTS = ("weights", "optimizer")
"""What of a model may wait in host memory."""


class Layout(NamedTuple):
    """The timeline of one GPU, whatever the sizes of the simulated step's storages."""

    storages: Sequence[Storage]
    """The kinds; those of the simulated step are :data:`LATER`."""
    first: int
    """The kind of the simulated step's first storage; the others follow it."""
    workspace: int
    """The kind of cuBLAS's workspace, whose size depends on the GPU."""
    in_kernel: list[int]
    """The kinds that kernels allocate."""
    streams: list[int] | None
    """The stream of each kind; None if all are on stream 0."""
    kind_of: array[int]
    events: array[int]
    marks: Sequence[Mark]
    device: int
    """The number of the GPU in its process."""
    communication: Communication
    """What the GPU sends and receives in an optimizer step."""

    def timeline(self, sizes: array[int], describe: Callable[[int], Storage], workspace: Storage) -> Timeline:
        """The timeline.

        Args:
            sizes: rounded bytes of each storage of the simulated step.
            describe: gives the description of each by its number.
            workspace: cuBLAS's workspace.
        """
        storages = [*self.storages]
        storages[self.workspace] = workspace
        return Timeline(StepKinds(self, storages, sizes, describe), self.kind_of, self.events, self.marks)


class StepKinds(Kinds):
    """The kinds of a run's timeline, of which those of the simulated step are described when they are looked at."""

    def __init__(
        self, layout: Layout, storages: Sequence[Storage], sizes: array[int], describe: Callable[[int], Storage]
    ) -> None:
        super().__init__(storages)
        self.in_kernel, self.streams = layout.in_kernel, layout.streams
        self.first, self.describe = layout.first, describe
        self.sizes = rounded_bytes(storage.num_bytes for storage in storages)
        self.sizes[self.first : self.first + len(sizes)] = sizes

    def __getitem__(self, number: int) -> Storage:  # type: ignore[override]
        storage = self.storages[number]
        if storage is LATER:
            storage = self.storages[number] = self.describe(number - self.first)
        return storage

    def __iter__(self) -> Iterator[Storage]:
        return map(self.__getitem__, range(len(self.storages)))


class SimulatedRun:
    """The timelines of a simulated step, one per GPU that needs other memory."""

    def __init__(
        self,
        step: Step,
        generated: Generated | None = None,
        critic: Critic | None = None,
        similar: SimulatedRun | None = None,
    ) -> None:
        """Lay out nothing yet.

        Args:
            step: the step.
            generated: generations that were simulated, which batches share.
            critic: OpenRLHF's, beside the actor.
            similar: the run of another batch whose step has the same events; its layouts serve if rollouts differ in
                sizes alone.
        """
        self.step, self.critic, self.similar = step, critic, similar
        self.generated = Generated() if generated is None else generated
        self._layouts: dict[int, Layout] = {}
        self._rollouts: dict[int, tuple[list[Any], dict[int, int]]] = {}
        """Phases in front of a step, and the first kind of each that has kinds of its own, by GPU."""

    @property
    def timeline(self) -> Timeline:
        """The first GPU's timeline; that of every GPU if all do the same."""
        return self.timelines[0]

    @cached_property
    def timelines(self) -> dict[int, Timeline]:
        """Timeline by GPU; only one if all do the same."""
        sizes, workspace = rounded_bytes(self.step.sizes), cublas_workspace(self.step.card)
        return {card: layout.timeline(sizes, self.step.describe, workspace) for card, layout in self.layouts.items()}

    def _place(self, storage: int) -> int:
        """Number in the whole model of a simulated storage, of the first layer that allocates one."""
        unfolded = self.step.unfolded
        section = self.step.record.sections[unfolded.section_of[storage]]
        if section.layer is None or section.phase.startswith("forward"):
            return unfolded.place(storage, section.layer)
        return unfolded.place(storage, self.step.plan.of(section.layer).place(section.layer))

    @cached_property
    def _first(self) -> Strategy:
        return strategy_of(self.step, Recorder())

    @property
    def gpus(self) -> Sequence[int]:
        """The numbers of the GPUs that need different memory; only the first if all need the same."""
        return self._first.gpus

    @property
    def num_events(self) -> int:
        """Events that are in memory, those of the step included."""
        return len(self.step.unfolded.events) + sum(len(layout.events) for layout in self._layouts.values())

    @property
    def gathered_bytes(self) -> int:
        """Highest bytes of sharded weights that are gathered at a time in a forward without gradients."""
        return self._first.gathered_bytes()

    @property
    def layouts(self) -> dict[int, Layout]:
        """The timeline of each of them but for the sizes of the step's storages."""
        return {gpu: self.layout(gpu) for gpu in self.gpus}

    def layout(self, gpu: int) -> Layout:
        """The same of one of them, laid out when it is first asked for."""
        if gpu not in self._layouts:
            share = self._first if gpu == self._first.gpu else strategy_of(self.step, Recorder(), gpu)
            self._layouts[gpu] = self._layout_of_similar(gpu) or self._layout(share)
            if len(self._layouts) == len(self.gpus):
                self.similar = None  # which may be given up now
        return self._layouts[gpu]

    def _layout_of_similar(self, gpu: int) -> Layout | None:
        """The layout of another batch's run with this one's rollouts; None if they differ in more than sizes."""
        other = self.similar
        if other is None or gpu not in other._rollouts or self.critic is not None or other.critic is not None:
            return None
        if generates_each_micro_step(self.step.job) != generates_each_micro_step(other.step.job):
            return None
        if later_images(self.step) != later_images(other.step):
            return None
        (before, known), layout = other._rollouts[gpu], other._layouts[gpu]
        rollouts = rollout_phases(self.step, self.generated)
        changed = storages_instead(before, rollouts, known)
        if changed is None:
            return None
        storages = [*layout.storages]
        for first, kinds in changed.items():
            storages[first : first + len(kinds)] = kinds
        pairs = zip(before, rollouts, strict=True)
        self._rollouts[gpu] = rollouts, {id(new): known[id(old)] for old, new in pairs if id(old) in known}
        return layout._replace(storages=storages)

    def _layout(self, share: Strategy) -> Layout:
        """Loading and optimizer steps, each of at most two micro-steps: without gradients, and on top of them."""
        if self.step.job.openrlhf.trains == "nothing":
            return self._scores_alone(share)
        record = share.record
        record.enter("loaded")
        share.load()
        for buffer in buffers_of(self.step.setting) if share.device == self.step.setting.placement.rotary else ():
            record.allocate(buffer)
        reference = _loaded_beside(self.step, record) if self.step.job.loads_reference else None
        share.prepare()
        if self.step.job.reward_adapters:
            record.allocate_all(reward_adapters(self.step))
        if self.step.job.reference == "frozen_adapters" and self.step.job.task in ROLLOUTS:
            record.allocate_all(frozen_adapters(self.step))
        phases_of = rollout_phases if self.step.job.value_model is None else value_rollout
        rollouts, known = [*phases_of(self.step, self.generated)], dict[int, int]()
        if rollouts and self.step.job.value_model is None:
            self._rollouts[share.gpu] = rollouts, known
        scorers = {POLICY: share, REFERENCE: reference or share}
        if self.step.job.runs_verl and self.step.job.reference == "model":
            scorers[REFERENCE] = verl_reference(self.step, record)
        if self.step.job.reward_model is not None:
            sharded = [one for one in rollouts if isinstance(one, ShardedScoring) and one.phase == REWARD]
            scorers |= {one.phase: _loaded_beside(one.step, record) for one in sharded}
            if not sharded:
                record.allocate_all(reward_weights(self.step.job, self.step.card))
        critic = None if self.step.job.verl.critic is None else self.generated.critics[self.step.card.name]
        if critic is not None:
            record.allocate_all(critic.weights)
        if is_colocated(self.step.job):
            for storage in vllm_held(self.step):
                record.allocate(storage)
        beside, sleeps = None, self.step.job.openrlhf.sleeps
        if self.critic is not None:
            record.allocate_all(self.critic.held(sleeps))
            rollouts += critic_phases(self.critic, sleeps)
            beside = None if sleeps else self.critic.trained(sleeps)
        if (later := later_images(self.step)) is not None:
            record.allocate(later)
        share.hold(())
        record.enter("forward")
        simulated = self.step.record.storages
        first = record.add_kinds([EMPTY_CACHE if one.category == EMPTIES_CACHE else LATER for one in simulated])
        events, pieces = self.step.unfolded.events, self.step.unfolded.pieces
        kind_of = passes.shifted(self.step.unfolded.source, first)
        ends = [piece.first_event for piece in pieces[1:]] + [len(events)]
        grouped = groupby(zip(pieces, ends, strict=True), key=lambda section: section[0].phase.rpartition(".")[2])
        *micro_steps, (_, last) = ((number, list(sections)) for number, sections in grouped)
        end = last[0][0].first_event, last[0][1]
        offsets, begins = [], []
        again = bool(rollouts) and generates_each_micro_step(self.step.job)
        beside_step = any(is_of_reference(piece.phase) for piece in pieces)  # else it scores before the step
        recorded = MicroSteps(share, events, reference if beside_step else None)
        for step in range(STEPS):
            offset = 0
            for number, (_, sections) in enumerate(micro_steps):
                if number == 0 or again:
                    for one in rollouts:
                        record.enter(one.name)
                        share.hold(one.needs)
                        if isinstance(one, ShardedScoring):
                            one.score(scorers[one.phase], known)
                            continue
                        generates = one.name == "generation" and self.step.job.generate_with == "transformers"
                        if generates:
                            share.generation_begins()
                        one.record(record, known)
                        if generates:
                            share.generation_ends()
                        if isinstance(one, VllmRollout) and any(one.back):
                            for model in filter(None, (share, reference)):
                                model.shares_come_back()
                    if step == number == 0 and critic is not None:
                        record.allocate_all(critic.states)
                    if self.step.job.verl.in_host_memory:
                        record.enter("forward")
                    share.hold(ALL_PARTS)
                if number == 0:
                    trains_beside = [] if beside is None else [record.allocate(beside)]
                    offset = record.splice(kind_of)
                    begins.append(len(record.events))
                    share.sent = Sent()
                recorded.record(number, sections, offset)
            offsets.append(offset)
            record.enter("optimizer")
            share.phase = "optimizer"
            share.optimize(first=step == 0)
            for one in rollouts:
                if isinstance(one, VllmRollout):
                    one.drop_copies(record)
            share.drop_gradients(offset)
            record.extend(share.on_this_card(events[slice(*end)]), offset)  # the training loop's own part
            record.free_all(trains_beside)
            share.hold(())
        workspace = cublas_workspace(self.step.card)
        for (on, _), product in self.step.record.first_products.items():
            if on == share.device:
                record.allocate_after(offsets[0] + self._place(product), workspace, begins[0])
        return self._laid_out(share, first, workspace)

    def _scores_alone(self, share: Strategy) -> Layout:
        """Loading and forwards of a reference or a reward model, on GPUs where nothing trains."""
        record, job = share.record, self.step.job
        record.enter("loaded")
        if job.loads_reference:
            _loaded_beside(self.step, record)
        if job.reward_model is not None:
            record.allocate_all(reward_weights(job, self.step.card))
        first, known = record.add_kinds([LATER] * len(self.step.record.storages)), dict[int, int]()
        forwards = [one for one in rollout_phases(self.step, self.generated) if isinstance(one, RolloutPhase)]
        record.enter(forwards[0].name)
        workspace = cublas_workspace(self.step.card)
        record.allocate(workspace)
        for one in forwards * STEPS:
            one.record(record, known)
        return self._laid_out(share, first, workspace)

    def _laid_out(self, share: Strategy, first: int, workspace: Storage) -> Layout:
        """The layout; `workspace` is the very object that was allocated, by which its kind is found."""
        record, simulated = share.record, self.step.record.storages
        in_kernel = [number for number, storage in enumerate(record.kinds) if storage.in_kernel]
        in_kernel += [first + number for number, info in enumerate(simulated) if info.category == "workspace"]
        workspace_kind = record.kind(workspace)
        return Layout(
            record.kinds,
            first,
            workspace_kind,
            in_kernel,
            Kinds(record.kinds).streams,
            record.kind_of,
            record.events,
            record.marks,
            share.device,
            share.sent.communication(),
        )


def verl_reference(step: Step, record: Recorder) -> Strategy:
    """Verl's reference, whose weights are in host memory."""
    from vramplan.analytic.strategies.verl_reference import verl_reference

    return verl_reference(step, record)


def _loaded_beside(step: Step, record: Recorder) -> Strategy:
    """A second model, which does not train."""
    from vramplan.analytic.strategies.reference import second_model

    model = second_model(step, record)
    model.load()
    return model


def evaluation_bytes(unfolded: Unfolded, sizes: array[int], gpus: Iterable[int]) -> dict[int, int]:
    """Highest bytes of live tensors in a forward without gradients, without weights and states, by GPU.

    Args:
        unfolded: the evaluation.
        sizes: the rounded bytes of each of its simulated storages.
        gpus: numbers of the GPUs.
    """
    return {card: passes.peak_bytes(unfolded.on_card(card, unfolded.events), unfolded.source, sizes) for card in gpus}
