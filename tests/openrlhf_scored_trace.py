"""OpenRLHF's reference and reward model on GPUs of their own, on fake tensors (see `tests.openrlhf_scored_runs`)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch import nn

from tests.openrlhf_actor_trace import OpenRlhfActorRun, Sent
from tests.openrlhf_trace import STEPS, OpenRlhfRun, Strategy
from vramplan.torch_backend.model.materialize import place
from vramplan.torch_backend.suppress_output import quiet
from vramplan.torch_backend.trace.cuda_emulation import as_cuda
from vramplan.torch_backend.trace.fake_tensors import tensors_in_lists


class OpenRlhfScoredRun(OpenRlhfActorRun):
    """One tracked run of a process that never trains: loading, and its forward several times."""

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        from openrlhf.trainer.ray import launcher

        tracker, job = self.tracker, self.job
        phase = "scoring" if job.reward_model is None else "reward"
        with quiet(), as_cuda(self.gpu), tensors_in_lists():
            model = self._scorer()
            model.packing_samples = job.batches == "unpadded"
            with self.fakes.mode:
                tracker.sums.calibrate(tracker)
                tracker.enter("loaded")
                place(model, tracker)
            model.eval()
            worker = SimpleNamespace(model=model, strategy=Strategy(tracker, job))
            process: Any = launcher.ReferenceModelActor if phase == "scoring" else launcher.RewardModelActor
            rows, length = job.openrlhf.scored_samples or job.micro_batch_size, job.sequence_length
            whole = Sent((rows, length))
            sent = (whole, Sent((rows, length - 1)), whole) if phase == "scoring" else (whole, whole)
            with (
                tracker.modules(model),
                mock.patch("torch.cuda.current_device", return_value=0),
                self.fakes.mode,
                tracker,
            ):
                for _ in range(STEPS):
                    tracker.enter(phase)
                    process.forward(worker, *sent)
        timeline = tracker.timeline(None)
        return timeline.phase_peaks(timeline.live_bytes())

    def _scorer(self) -> nn.Module:
        """The reference with its temperature, or the reward model."""
        if self.job.reward_model is None:
            reference = OpenRlhfRun._actor(self, False)
            reference.temperature = 0.7 if self.job.openrlhf.divides_logits else 1.0  # type: ignore[assignment]
            return reference
        job, self.job = self.job, self.job.model_copy(update={"task": "reward"})
        reward = OpenRlhfRun._actor(self, False)
        self.job = job
        return reward
