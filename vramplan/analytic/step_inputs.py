"""What a step is simulated from: an architecture, its configuration and a job."""

from __future__ import annotations

from collections.abc import Hashable

from vramplan.analytic.architectures import Architecture
from vramplan.analytic.architectures.forward_pass import DevicePlacement
from vramplan.analytic.architectures.vision_tower import VisionInput
from vramplan.analytic.autograd.ops import TORCHAO_NF4
from vramplan.analytic.layers.liger_models import LigerLayers
from vramplan.analytic.layers.modules import WeightConfig
from vramplan.dataclass import dataclass
from vramplan.inputs.job import Job
from vramplan.inputs.model_inputs import Input, ModelInputs, text_inputs
from vramplan.inputs.model_spec import Config
from vramplan.inputs.task_inputs import ImageRows, task_inputs
from vramplan.inputs.task_rules import TRL_TASKS, drops_nothing, saved_head
from vramplan.memory.fused_attention import FusedAttention


@dataclass(frozen=True, slots=True)
class StepSpec:
    """What a step is simulated from: an architecture, its configuration and a job."""

    architecture: Architecture
    config: Config
    job: Job
    stacks: tuple[tuple[Hashable, ...], ...]
    """The layers to simulate of each stack, which may be fewer than the model has; a vision tower's come last."""
    fused: FusedAttention
    """The kernels that SDPA may choose on the GPU."""
    vision: VisionInput | None = None
    """The vision tower, if the model has one."""
    model_inputs: ModelInputs | None = None
    """The samples that the model is trained on, if it is no causal language model."""
    linear_experts: bool = False
    """Whether its experts are separate linear layers (:mod:`vramplan.analytic.layers.moe_linear_experts`)."""
    liger: LigerLayers = LigerLayers()
    """The layers that Liger's kernels compute."""
    device_map: DevicePlacement | None = None
    """The GPUs that the model is spread over, if these are several."""
    teacher: StepSpec | None = None
    """The second model that a distillation learns from."""
    values: StepSpec | None = None
    """The second model that PPO trains, which learns the value of each token."""

    @property
    def placement(self) -> DevicePlacement:
        """Where every module lies: on the first GPU, unless the model is spread over several."""
        return self.device_map or DevicePlacement(tuple((number, 0) for number in range(len(self.stacks[0]))))

    @property
    def has_images(self) -> bool:
        """Whether a vision tower gets an image or a video."""
        return self.vision is not None and self.job.pictures > 0

    @property
    def inputs(self) -> list[Input]:
        """The tensors of one sample, in the order that they come to the device."""
        if self.job.task in TRL_TASKS:
            images = (
                None if self.vision is None else ImageRows(self.vision.image.tensors, self.vision.tower.token_types)
            )
            return task_inputs(self.job, images)
        if self.model_inputs is not None:
            return self.model_inputs.inputs(self.config, self.job)
        if self.vision is None:
            return text_inputs(self.job)
        return text_inputs(self.job, self.vision.image.tensors, self.vision.tower.token_types)

    @property
    def peft_experts(self) -> str:
        """The pattern by which PEFT adapts stacked experts (:mod:`vramplan.analytic.layers.moe_peft`)."""
        return "" if self.linear_experts else self.architecture.peft_experts

    @property
    def reference_liger(self) -> LigerLayers:
        """The layers of the reference that Liger's kernels compute: of a second model the rotary embedding alone.

        The Trainer patches the instance that trains (transformers 5.23, trainer.py: train; integrations/liger.py), when
        the trainer has loaded the second one (trl 1.16, trainer/dpo_trainer.py: ref_model); Liger replaces functions of
        the module for both, and layers in that instance (liger-kernel 0.8.5, monkey_patch.py). LLaMA-Factory and
        OpenRLHF patch the classes before they load either.
        """
        is_instance = self.job.loop == "trainer" and self.job.loss != "log_softmax"
        return LigerLayers(rope=self.liger.rope) if self.job.loads_reference and is_instance else self.liger

    def training(self) -> WeightConfig:
        """The weights that exist, their dtypes, and those that train."""
        job = self.job
        lora = job.method != "full"
        used = job.dtype if job.engine_casts else job.computed_dtype
        # the dtype that all weights are computed in, however they are stored
        return WeightConfig(
            dtype=used or ("fp32" if job.prepare_for_kbit_training else job.dtype),
            fp32_norms=job.fp32_norms and used is None and job.strategy != "zero3",  # there it reaches no part of them
            full=not lora,
            lora_rank=job.lora_rank if lora else 0,
            lora_targets=job.lora_targets,
            lora_dropout=0.0 if drops_nothing(job) else job.lora_dropout,
            adapter_dtype=used or job.lora_dtype,
            reference_adapters=(used or "fp32") if job.reference == "frozen_adapters" else None,
            adapter_input=job.lora_dtype if job.computed_dtype and job.fsdp.version == 1 else None,
            head_dtype=job.dtype if job.reads_sharded_head else None,
            dora=job.method == "dora",
            modules_to_save=(*(job.modules_to_save or ()), *saved_head(job)),
            saved_dtype=used or job.saved_dtype,
            quantize=_stored_form(job),
            peft_expert_pattern=self.peft_experts,
            linear_experts=self.linear_experts,
            compute_dtype=job.dtype,
            # modeling_utils.py: activation_checkpointing_enable; torchtune does without, OpenRLHF and verl always ask
            input_needs_grad=(job.checkpointing == "full" and job.loss not in ("scaled_log_softmax", "sections"))
            or (lora and job.loss in ("kept_log_probs", "log_probs")),
        )


def _stored_form(job: Job) -> str:
    """How frozen linear layers are stored."""
    if job.quantize == "nf4" and job.layers_of == "torchtune":
        return TORCHAO_NF4
    return "nf4-double" if job.quantize == "nf4" and job.double_quant else job.quantize
