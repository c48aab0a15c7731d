"""What a script changes for every model of its process, refused by name: default dtypes, patches, callbacks."""

from __future__ import annotations

import re

from vramplan.errors import UnsupportedError
from vramplan.frameworks.readers.python_model import CASTS, EFFECTIVE_CONFIG, RISKY
from vramplan.frameworks.readers.python_trainer import HARMLESS_OVERRIDES
from vramplan.frameworks.syntax.python_ast import Call, Script
from vramplan.frameworks.syntax.shell import UNKNOWN

PACKAGES = ("transformers", "trl", "peft", "torch", "unsloth", "unsloth_zoo", "accelerate", "bitsandbytes", "deepspeed")
"""Packages whose code runs in training steps."""
SAFE = (
    "torch.backends.", "torch.nn.init.", "torch._dynamo.config.", "torch._inductor.config.", "torch.load=",
    "torch.save=", "torch.multiprocessing.", "torch.cuda.is_available=", "transformers.logging", "transformers.utils.",
    "transformers.generation", "transformers.trainer_utils.", "transformers.tokenization", "transformers.modelcard",
    "transformers.trainer_pt_utils.",
)  # fmt: skip
"""Beginnings of attributes of those packages that may be set: switches of kernels, initial values, files, logging."""
WITHOUT_ENGINE = ("trl.import_utils._vllm_available=",)
"""Whether vLLM counts as installed: with use_vllm, TRL stops where it does not (GRPOTrainer.__init__, TRL 0.18 on)."""
SAFE_METHODS = HARMLESS_OVERRIDES | {"reset_parameters", "_init_weights", "warn_if_padding_and_no_attention_mask"}
_TARGETS = (
    "attn|attention|llama|model|forward|loss|rms|mlp|moe|qwen|mistral|gemma|rope|transformers|trainer|flash|unsloth"
)
PATCHES = re.compile(rf"apply_liger_kernel\w*|(replace|patch|monkey_?patch|hijack|inject)_\w*({_TARGETS})\w*")
"""Names of functions that replace code of a library."""
SDP = {"enable_flash_sdp": "flash", "enable_mem_efficient_sdp": "memory-efficient", "enable_cudnn_sdp": "cuDNN"}
"""Functions of torch.backends.cuda that switch a kernel of scaled_dot_product_attention (torch 2.13)."""
SETTABLE = (
    "logging", "eval", "save", "learning_rate", "output_dir", "num_train_epochs", "max_steps", "run_name", "report_to",
    "load_best", "metric", "greater", "push_to_hub", "hub", "warmup", "weight_decay", "seed",
)  # fmt: skip
"""Beginnings of training arguments that change no memory when a callback sets them."""


CHANGES = {
    *RISKY, *CASTS, "gradient_checkpointing_enable", "gradient_checkpointing_disable", "add_adapter",
    "resize_token_embeddings", "merge_and_unload", "unload", "merge_adapter",
} - {"cuda", "type", "apply"}  # fmt: skip
"""Methods of a model or of its parts that change memory when a callback calls them."""


def refuse_effects(script: Script) -> None:
    """Refuse what acts on every model of the process, and what the script's own callbacks do.

    Raises:
        UnsupportedError: naming it, with what to do instead.
    """
    off: set[str] = set()
    for call in script.calls:
        package = call.name.partition(".")[0]
        if call.last in ("set_default_dtype", "set_default_tensor_type") and package == "torch":
            _refuse_dtype(call)
        elif call.last in SDP and call.positional[:1] == [False]:
            off.add(call.last)
            if {"enable_flash_sdp", "enable_mem_efficient_sdp"} <= off:
                raise UnsupportedError(
                    f"{call.place}: {call.last}(False): attention without torch's flash and memory-efficient kernels is"
                    ' not modelled; keep one of them, or load with attn_implementation="eager"'
                )
        elif call.name.endswith("=") and package in PACKAGES and not call.name.startswith(SAFE):
            without = call.name in WITHOUT_ENGINE and call.positional[:1] == [False]
            if call.last[:-1] not in SAFE_METHODS and not without:
                raise UnsupportedError(
                    f"{call.place}: {call.name[:-1]} is set, so that the library computes something else; not modelled,"
                    " remove it if memory is as without it"
                )
        elif PATCHES.fullmatch(call.last):
            raise UnsupportedError(f"{call.place}: {call.last}() {_patched(call.last)}")
        elif package in ("callback_model", "callback_args"):
            _refuse_in_callback(call, package)


def _refuse_dtype(call: Call) -> None:
    value = str(next(iter([*call.positional, *(value.value for value in call.keywords.values())]), ""))
    if value not in ("float32", "float"):
        shown = value.replace(UNKNOWN, "")
        raise UnsupportedError(
            f"{call.place}: torch.{call.last}({shown}) is not modelled; give the dtype to from_pretrained instead"
        )


def _patched(last: str) -> str:
    if last.startswith("apply_liger"):
        return "replaces the library's layers, which is not read; give use_liger_kernel=True to the trainer's arguments"
    return "seems to replace code of a library, which is not modelled; load with attn_implementation=... instead"


def _refuse_in_callback(call: Call, package: str) -> None:
    """What a method of the script's own callback does with the model or the arguments that it gets."""
    spoken = call.name.removeprefix("callback_").rstrip("=")
    if package == "callback_args":
        if call.name.endswith("=") and not call.last.startswith(SETTABLE):
            raise UnsupportedError(f"{call.place}: {spoken} is set in a callback, which is not modelled; set it before")
        return
    is_set = call.name.endswith("=") and (
        call.last == "requires_grad=" or call.name.count(".") == 1 or call.last[:-1] in EFFECTIVE_CONFIG
    )
    is_data = re.search(r"state_dict|\.(grad|weight|bias)\b|generat", call.name) is not None
    if is_set or (call.last in CHANGES and not is_data):
        raise UnsupportedError(
            f"{call.place}: {spoken} in a callback changes the model in training, which is not modelled; do it before"
        )


__all__ = ["refuse_effects"]
