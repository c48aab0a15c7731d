"""Which function of a traceback means which phase.

The first row counts that any call of the traceback fits: an evaluation's forward is evaluation, a recomputed forward
in a backward is backward, DeepSpeed's step in accelerate's backward is a step. Each function is in the installed
version's source of its file; tests look them up. `also` are functions of earlier versions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from vramplan.dataclass import dataclass
from vramplan.training_log.record import Frame, Phase


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """Functions of one file."""

    phase: Phase
    file: str
    """Its path's last parts; ends with a slash for all files of a folder."""
    functions: str
    """Names between spaces; empty for every function of the file."""
    also: str = ""


ROWS: tuple[PhaseRow, ...] = (
    PhaseRow("saving", "transformers/trainer.py", "_save_checkpoint save_model _save _save_optimizer_and_scheduler"),
    PhaseRow("saving", "transformers/modeling_utils.py", "save_pretrained"),
    PhaseRow("saving", "peft/peft_model.py", "save_pretrained"),
    PhaseRow("saving", "accelerate/accelerator.py", "save_state save_model get_state_dict"),
    PhaseRow("saving", "accelerate/utils/fsdp_utils.py", "save_fsdp_model save_fsdp_optimizer"),
    PhaseRow(
        "saving",
        "deepspeed/runtime/engine.py",
        "save_checkpoint save_16bit_model _consolidated_16bit_state_dict _zero3_consolidated_16bit_state_dict",
    ),
    PhaseRow("saving", "torch/serialization.py", "save"),
    PhaseRow("saving", "torch/distributed/checkpoint/state_dict_saver.py", "save"),
    PhaseRow("loading", "transformers/modeling_utils.py", "from_pretrained _load_pretrained_model"),
    PhaseRow("loading", "transformers/models/auto/auto_factory.py", "from_pretrained"),
    PhaseRow("loading", "peft/peft_model.py", "from_pretrained"),
    PhaseRow(
        "loading", "transformers/trainer.py", "_load_from_checkpoint _load_best_model _load_optimizer_and_scheduler"
    ),
    PhaseRow("loading", "accelerate/utils/fsdp_utils.py", "load_fsdp_model load_fsdp_optimizer"),
    PhaseRow("loading", "deepspeed/runtime/engine.py", "load_checkpoint"),
    PhaseRow(
        "evaluation", "transformers/trainer.py", "evaluate evaluation_loop prediction_step predict", "prediction_loop"
    ),
    PhaseRow("evaluation", "transformers/trainer_seq2seq.py", "evaluate prediction_step predict"),
    PhaseRow("generation", "transformers/generation/utils.py", "generate _sample _beam_search"),
    PhaseRow("generation", "vllm/entrypoints/llm.py", "generate chat"),
    PhaseRow("optimizer states", "torch/optim/", "_init_group"),
    PhaseRow("optimizer states", "bitsandbytes/optim/optimizer.py", "init_state get_state_buffer"),
    PhaseRow("optimizer states", "deepspeed/runtime/zero/stage3.py", "initialize_optimizer_states"),
    PhaseRow("optimizer states", "deepspeed/runtime/zero/stage_1_and_2.py", "initialize_optimizer_states"),
    PhaseRow("gradient clipping", "torch/nn/utils/clip_grad.py", "clip_grad_norm_ _get_total_norm"),
    PhaseRow("gradient clipping", "accelerate/accelerator.py", "clip_grad_norm_"),
    PhaseRow("optimizer step", "torch/optim/", "step"),
    PhaseRow("optimizer step", "torch/amp/grad_scaler.py", "step unscale_"),
    PhaseRow("optimizer step", "accelerate/optimizer.py", "step"),
    PhaseRow("optimizer step", "bitsandbytes/optim/optimizer.py", "step update_step"),
    PhaseRow("optimizer step", "deepspeed/runtime/engine.py", "step _take_model_step"),
    PhaseRow("optimizer step", "deepspeed/runtime/zero/stage3.py", "step"),
    PhaseRow("optimizer step", "deepspeed/runtime/zero/stage_1_and_2.py", "step"),
    PhaseRow("optimizer step", "deepspeed/runtime/bf16_optimizer.py", "step"),
    PhaseRow("backward", "torch/_tensor.py", "backward"),
    PhaseRow("backward", "torch/autograd/__init__.py", "backward grad"),
    PhaseRow("backward", "torch/autograd/graph.py", "_engine_run_backward"),
    PhaseRow("backward", "accelerate/accelerator.py", "backward"),
    PhaseRow("backward", "deepspeed/runtime/engine.py", "backward"),
    PhaseRow("loss", "transformers/loss/", ""),
    PhaseRow("loss", "torch/nn/functional.py", "cross_entropy"),
    PhaseRow("loss", "torch/nn/modules/loss.py", ""),
    PhaseRow("loss", "unsloth_zoo/fused_losses/", ""),
    PhaseRow("loss", "liger_kernel/ops/cross_entropy.py", ""),
    PhaseRow("loss", "liger_kernel/ops/fused_linear_cross_entropy.py", ""),
    PhaseRow("forward", "torch/nn/modules/module.py", "_call_impl _wrapped_call_impl"),
    PhaseRow("forward", "transformers/models/", "forward"),
    PhaseRow("forward", "transformers/trainer.py", "compute_loss"),
    PhaseRow("forward", "trl/trainer/grpo_trainer.py", "_get_per_token_logps_and_entropies", "_get_per_token_logps"),
    PhaseRow("preparation", "peft/utils/other.py", "prepare_model_for_kbit_training"),
    PhaseRow("preparation", "accelerate/accelerator.py", "prepare prepare_model"),
    PhaseRow("preparation", "deepspeed/__init__.py", "initialize"),
    PhaseRow("moving a batch", "transformers/trainer.py", "_prepare_inputs _prepare_input"),
    PhaseRow("moving a batch", "accelerate/utils/operations.py", "send_to_device"),
    PhaseRow("moving the model", "torch/nn/modules/module.py", "to cuda _apply"),
)


_STATE = re.compile(r"""\bstate\[(["'])\w+\1\] = """)
"""An optimizer's line that creates a state inside of its step: deepspeed/ops/adam/fused_adam.py, apex, and
torch/optim/adamw.py up to 1.13."""


def fits(row: PhaseRow, frame: Frame) -> bool:
    """Whether a call is one of the row's."""
    file = f"/{frame.file}"
    place = f"/{row.file}" in file if row.file.endswith("/") else file.endswith(f"/{row.file}")
    return place and (not row.functions or frame.function in f"{row.functions} {row.also}".split())


def phase_of(frames: Sequence[Frame], mixed: bool = False) -> Phase | None:
    """The phase; None if no row fits.

    Args:
        frames: calls of a traceback.
        mixed: whether they may be of several ranks' tracebacks. Then rows that contradict each other tell nothing.
    """
    phases = [row.phase for row in ROWS if any(fits(row, frame) for frame in frames)]
    inside = {"forward", "loss"}  # of any other phase
    if not phases or (mixed and len({*phases} - inside) > 1):
        return None
    if phases[0] == "optimizer step" and any(_STATE.search(frame.code) for frame in frames):
        return "optimizer states"
    return phases[0]
