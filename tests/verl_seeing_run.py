"""One rank of verl's own FSDP engine of a model that sees, on an emulated GPU (see `tests.verl_seeing`)."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

from tests.verl_sharing_run import Run, main
from vramplan.inputs.images import processed_image
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.torch_backend.model.batches import image_batch
from vramplan.torch_backend.model.subject import ImageInputs
from vramplan.torch_backend.trace import flash_attn_stub

VISUAL = r".*visual.*"


def set_flash_attention(rows_of_one: bool) -> None:
    """Give verl's attention the stand-ins, and say what it would read off positions: whether a row is one sample."""
    from verl.models.transformers import qwen2_vl

    own = qwen2_vl._custom_flash_attention_forward

    def attend(*args: Any, position_ids: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
        return own(*args, position_ids=None if rows_of_one else position_ids, **kwargs)  # which then do not matter

    kernels = {name: getattr(flash_attn_stub, name) for name in ("flash_attn_func", "flash_attn_varlen_func")}
    flags = {"_flash_supports_window_size": True, "_flash_supports_deterministic": False}
    vars(qwen2_vl).update({**kernels, **flags, "_flash_use_top_left_mask": False})
    qwen2_vl._custom_flash_attention_forward = attend


class SeeingRun(Run):
    """The engines of a job whose samples have images."""

    def __init__(self, spec: ModelSpec, job: Job, options: dict[str, Any]) -> None:
        processed = processed_image(spec, job)
        assert processed is not None
        self.images = ImageInputs(processed, job.images, spec.config[processed.token], "mm_token_type_ids")
        if job.vision == "frozen" and job.method == "lora":
            self.excluded = VISUAL
        super().__init__(spec, job, options)

    def configuration(self, spec: ModelSpec) -> Any:
        """As the model's folder has it."""
        set_flash_attention(self.job.micro_batch_size == 1)
        return super().configuration(spec)

    def engine(self, trains: bool, model_type: str = "language_model") -> Any:
        """A tower that is frozen is so as in verl 0.7.1 (workers/fsdp_workers.py: freeze_vision_tower)."""
        from transformers import PreTrainedModel

        as_it_is = {name: lambda tensor, *_, **__: tensor for name in ("kaiming_uniform_", "normal_", "uniform_")}
        no_values = mock.patch.object(PreTrainedModel, "initialize_weights", return_value=None)
        with no_values, mock.patch.multiple(torch.nn.init, **as_it_is):
            return self._frozen_engine(trains) if self._freezes else super().engine(trains, model_type)

    @property
    def _freezes(self) -> bool:
        return self.job.method == "full" and self.job.vision == "frozen"

    def _frozen_engine(self, trains: bool) -> Any:
        build = self.module.FSDPEngine._build_module

        def frozen(engine: Any) -> Any:
            model = build(engine)
            model.model.visual.requires_grad_(False)
            model.disable_input_require_grads()  # which transformers 4 does not ask for with checkpointing
            return model

        self.options = {**self.options, "engine": {**self.options.get("engine", {}), "use_orig_params": True}}
        with mock.patch.object(self.module.FSDPEngine, "_build_module", frozen):
            return super().engine(trains)

    def inputs(self, samples: int) -> dict[str, Any]:
        """Texts with images, whose pixels stay in host memory until FSDP sends them to the GPU."""
        from verl.utils.tensordict_utils import nested_tensor_from_tensor_list

        batch = image_batch(self.images, (samples, self.length), "cpu")
        ids = torch.nested.as_nested_tensor([*batch.pop("input_ids")], layout=torch.jagged)
        positions = nested_tensor_from_tensor_list([torch.arange(self.length).repeat(4, 1)] * samples)
        batch.pop("attention_mask")
        each = [{name: one.chunk(samples)[number] for name, one in batch.items()} for number in range(samples)]
        return {"input_ids": ids, "position_ids": positions, "multi_modal_inputs": each}


if __name__ == "__main__":
    main(SeeingRun)
