"""TRL's own trainers on fake tensors: the referee of tasks (needs trl; see `tests.trl_runs`)."""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from math import prod
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils._mode_utils import no_dispatch

from vramplan.inputs.gpu import Gpu
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import ModelSpec
from vramplan.inputs.task_rules import CONCATENATED
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.torch_backend.model import optimizers
from vramplan.torch_backend.model.build import from_config
from vramplan.torch_backend.model.materialize import place
from vramplan.torch_backend.suppress_output import quiet
from vramplan.torch_backend.trace.cuda_emulation import as_cuda
from vramplan.torch_backend.trace.fake_tensors import Fakes, tensors_in_lists
from vramplan.torch_backend.trace.host_reads import HostReads
from vramplan.torch_backend.trace.records import Record
from vramplan.torch_backend.trace.storage_tracker import StorageTracker

aten = torch.ops.aten
Batch = Mapping[str, torch.Tensor]
EAGER_STEPS = 2
"""Optimizer steps: states exist in the second."""


def num_scored(shape: Sequence[int], answer_tokens: int) -> int:
    """Elements that a mask of this shape selects: the tokens of each row's answer."""
    return prod(shape[:-1]) * min(answer_tokens, shape[-1]) if len(shape) > 1 else shape[0]


def of_one_kind() -> Callable[[Sequence[int], int], int]:
    """The same for KTO with desirable answers alone: of a mask of samples all, of the next none, by turns."""
    turns = itertools.cycle((1, 0))
    usual = num_scored

    def scored(shape: Sequence[int], answer_tokens: int) -> int:
        return usual(shape, answer_tokens) if len(shape) > 1 else shape[0] * next(turns)

    return scored


def in_one_row(rows: int) -> Callable[[Sequence[int], int], int]:
    """The same where `rows` answers share one row (padding_free): the mask of all rows selects what is no padding."""

    def scored(shape: Sequence[int], answer_tokens: int) -> int:
        if len(shape) == 1:  # of chosen answers, then of rejected ones
            return rows // 2 * answer_tokens
        return prod(shape) if shape[0] > 1 else rows * answer_tokens

    return scored


class MaskFakes(Fakes):
    """Fake tensors of which masks select the tokens of the answers."""

    def __init__(self, answer_tokens: int) -> None:
        super().__init__()
        self.answer_tokens = answer_tokens
        self.tracker: StorageTracker | None = None

    def __call__(self, func: Any, types: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """The result of an operation on fake tensors."""
        if func is aten.index.Tensor and (mask := _mask(args[1])) is not None and not _has_values(args[0]):
            return self._selected(mask, args[0], (-1, *args[0].shape[mask.dim() :]))
        if func is aten.index.Tensor and (mask := _mask(args[1][1:])) is not None:  # of a row on its own, by ms-swift
            first = args[0].dim() > 2  # logits_to_keep selects the first answer's first token too
            return self._selected(mask, args[0], (1, self.answer_tokens + first, *args[0].shape[2:]))
        if func in (aten.index_put_.default, aten._index_put_impl_.default) and (mask := _mask(args[1])) is not None:
            self._positions(mask)
            return args[0]
        if func is aten.masked_select.default:
            return self._selected(args[1], args[0], (-1,))
        return super().__call__(func, types, args, kwargs)

    def _selected(self, mask: torch.Tensor, source: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        number = self._positions(mask, keep=True)
        if shape[0] == -1:
            shape = (self._number(mask), *shape[1:])
        with in_kernel_invocation_manager(self.mode):
            empty = torch.empty(shape, dtype=source.dtype, device="meta")
        self._free(number)
        return FakeTensor(self.mode, empty, torch.device("cpu"))

    def _positions(self, mask: torch.Tensor, keep: bool = False) -> int | None:
        """Memory of the positions that are selected, which torch finds first (native/IndexingUtils.h)."""
        if self.tracker is None:
            return None
        num_bytes = 8 * mask.dim() * self._number(mask)
        number = self.tracker.allocate(Record(num_bytes, "positions of a mask", "", (num_bytes,), "uint8"))
        if not keep:
            self.tracker.free(number)
        return number

    def _number(self, mask: torch.Tensor) -> int:
        """Elements that a mask selects."""
        if _has_values(mask):
            with no_dispatch():
                return int(mask.constant.sum())  # type: ignore[attr-defined]
        return num_scored(mask.shape, self.answer_tokens)

    def _free(self, number: int | None) -> None:
        if number is not None and self.tracker is not None:
            self.tracker.free(number)


def _has_values(tensor: torch.Tensor) -> bool:
    """Whether a fake tensor keeps its numbers, which a model of images reads."""
    return getattr(tensor, "constant", None) is not None


def _mask(indices: Any) -> torch.Tensor | None:
    """The only index, if it is a mask."""
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype is torch.bool:
        found: torch.Tensor = indices[0]
        return found
    return None


class Answers(HostReads):
    """What TRL reads back for its metrics: any number does, masks select every completion token."""

    def __init__(self, job: Job, owner: str, answer_tokens: int) -> None:
        super().__init__(job, owner)
        self.answer_tokens = answer_tokens

    def answer(self, func: Any, args: Any, module: Callable[[], str]) -> Any:
        """The result of an operation that needs data."""
        reads_mask = func is aten._local_scalar_dense.default and args[0].dtype is torch.bool
        if reads_mask and self.job.batches == "padded" and _called_by("masking_utils.py"):
            return "vision" in module()  # texts are padded, patches are not
        if _has_values(args[0]):
            return NotImplemented
        if func is aten.nonzero.default and _called_by_trl():
            rows = num_scored(args[0].shape, self.answer_tokens)
            return torch.empty((rows, args[0].dim()), dtype=torch.int64, device=args[0].device)
        if func is aten._local_scalar_dense.default and _called_by("fused_linear_preference.py", "fused_linear_ppo.py"):
            return self.job.gradient_accumulation_steps > 1  # whether the loss's gradient is not 1
        if func is aten._local_scalar_dense.default and _called_by_trl():
            if args[0].dtype is torch.bool:
                return not _called_by_trl("flush_left")  # no column is empty
            if self.job.joins_samples and _called_by_trl("concatenated_forward"):  # where rejected answers begin
                return self.job.micro_batch_size * self.job.sequence_length
            if _called_by_trl("prepare_logits_to_keep"):  # ms-swift's: the place of the first answer's first token
                return self.job.sequence_length - self.answer_tokens
            return 1.0 if args[0].is_floating_point() else 1
        return super().answer(func, args, module)


def _called_by_trl(function: str = "") -> bool:
    """Whether TRL's code runs, or this function of it, and none of transformers' that reads masks."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.endswith(("masking_utils.py", "modeling_flash_attention_utils.py")):
            return False
        if "/trl/" in name or name.endswith("/transformers/trainer.py"):
            return function in ("", frame.f_code.co_name)
        frame = frame.f_back
    return False


def _called_by(*files: str) -> bool:
    """Whether a function of these files called the operation."""
    frame: Any = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.endswith(files):
        frame = frame.f_back
    return frame is not None


class _Kernel:
    """A Triton kernel that writes into tensors it is given: nothing to do without data."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: None


@contextmanager
def triton_kernels() -> Iterator[None]:
    """Inside, TRL takes the branches of a GPU with Triton, whose kernels write in place."""
    try:
        import trl.kernels.chunked_logprob as kernels
        import trl.trainer.utils as utils
    except ImportError:  # before 1.15
        yield
        return
    stub = _Kernel()
    with ExitStack() as stack:
        for owner in (kernels, utils):
            stack.enter_context(patch.object(owner, "_use_triton", lambda device: True))
        stack.enter_context(patch.object(kernels, "_addmm_fp32", lambda acc, a, b: None))
        stack.enter_context(patch.object(kernels, "triton", SimpleNamespace(cdiv=lambda a, b: -(-a // b)), create=True))
        for name in ("_forward_kernel", "_backward_kernel"):
            stack.enter_context(patch.object(kernels, name, stub))
        yield


@contextmanager
def kernel_of_log_probs() -> Iterator[None]:
    """Inside, log-probabilities of whole logits are those of TRL's kernel (from 1.14 on, where Triton is there)."""
    import trl.kernels.logprob_entropy as kernels
    import trl.trainer.utils as utils

    stub = _Kernel()
    with (
        patch.object(utils, "_supports_trl_loss_kernel", lambda *_: True),
        patch.multiple(kernels, _forward_kernel=stub, _backward_kernel=stub),
    ):
        yield


@contextmanager
def compiles() -> Iterator[None]:
    """Inside, Liger's losses run what torch.compile makes of them for a GPU."""
    from tests.inductor_code import compiled

    nothing = {"mark_dynamic": lambda *_: None, "maybe_mark_dynamic": lambda *_: None}
    with patch("torch.compile", compiled), patch.multiple("torch._dynamo", **nothing):
        yield


def tokenizer(vocabulary: int) -> Any:
    """A tokenizer of so many words."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{n}": n for n in range(3, min(vocabulary, 64))}}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


@contextmanager
def on_meta() -> Iterator[None]:
    """Inside, trainers are made of models on the meta device: nothing is moved or computed."""
    from accelerate import Accelerator
    from trl import DPOTrainer, KTOTrainer, RewardTrainer

    prepare = Accelerator.prepare_model

    def prepared(self: Any, model: nn.Module, device_placement: Any = None, evaluation_mode: bool = False) -> Any:
        return prepare(self, model, device_placement=False, evaluation_mode=evaluation_mode)

    with (
        patch("transformers.Trainer._move_model_to_device", lambda *_: None),
        patch.object(Accelerator, "prepare_model", prepared),
        torch.device("meta"),
        ExitStack() as stack,
    ):
        for trainer in (DPOTrainer, KTOTrainer, RewardTrainer):
            for name in ("_prepare_dataset", "_precompute_ref_logps"):
                stack.enter_context(patch.object(trainer, name, lambda self, dataset, *_, **__: dataset, create=True))
            stack.enter_context(patch(f"{trainer.__module__}.hash_module", lambda _: "", create=True))
        yield


class Setup:
    """What a kind of trainer needs: its class and arguments, a row of its data, a batch."""

    def __init__(self, job: Job, prompt: int, options: Mapping[str, Any]) -> None:
        self.job, self.prompt, self.options = job, prompt, options

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any) -> Any:
        """The trainer."""
        raise NotImplementedError

    def batch(self) -> dict[str, torch.Tensor]:
        """A micro-batch, as TRL's collator makes it."""
        raise NotImplementedError

    def arguments(self, folder: str) -> dict[str, Any]:
        """The training arguments that all trainers have."""
        job = self.job
        return {
            "output_dir": folder,
            "per_device_train_batch_size": job.micro_batch_size,
            "gradient_accumulation_steps": job.gradient_accumulation_steps,
            "gradient_checkpointing": job.checkpointing == "full",
            "gradient_checkpointing_kwargs": {"use_reentrant": job.reentrant, "preserve_rng_state": False},
            "bf16": job.autocast == "bf16",
            "fp16": False,
            "use_cpu": True,
            "optim": job.optimizer,
            "report_to": "none",
            **({"use_liger_kernel": True} if job.loss == "liger" else {}),
            **self.options,
        }

    def with_adapters(self, model: nn.Module, peft: Any) -> tuple[Any, Any]:
        """A model that has adapters already, which TRL copies for the reference, and no others to add.

        Where `ref_adapter_name` is set, they have others beside them (up to 0.28).
        """
        from peft import get_peft_model

        adapted = get_peft_model(model, peft)  # type: ignore[arg-type]
        if "ref_adapter_name" in self.options:
            adapted.add_adapter(self.options["ref_adapter_name"], peft)
        return adapted, None


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64)


class Dpo(Setup):
    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        from datasets import Dataset
        from trl import DPOConfig, DPOTrainer

        row = {"prompt_ids": [3], "chosen_ids": [4, 1], "rejected_ids": [5, 1]}
        arguments = DPOConfig(**self.arguments(folder))
        return DPOTrainer(
            model,
            reference,
            args=arguments,
            train_dataset=Dataset.from_list([row]),
            processing_class=words,
            peft_config=peft,
        )

    def batch(self) -> dict[str, torch.Tensor]:
        pairs, length = self.job.micro_batch_size, self.job.sequence_length
        if self.job.loss in CONCATENATED:
            prompt = max(self.prompt, 1)
            sizes = {"prompt": prompt, "chosen": length - prompt, "rejected": length - prompt}
            kinds = ("input_ids", "attention_mask")
            return {f"{name}_{kind}": ones(pairs, size) for name, size in sizes.items() for kind in kinds}
        names = ("input_ids", "attention_mask", "completion_mask")
        made = {name: ones(2 * pairs, length) for name in names}
        if self.options.get("precompute_ref_log_probs"):
            made |= {f"ref_{name}_logps": torch.zeros(pairs) for name in ("chosen", "rejected")}
        return made


class Kto(Setup):
    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        from datasets import Dataset
        from trl import KTOConfig, KTOTrainer

        row = {"prompt_ids": [3], "completion_ids": [4, 1], "KL_completion_ids": [5, 1], "label": True}
        return KTOTrainer(
            model,
            reference,
            args=KTOConfig(**self.arguments(folder)),
            train_dataset=Dataset.from_list([row, {**row, "label": False}]),
            processing_class=words,
            peft_config=peft,
        )

    def batch(self) -> dict[str, torch.Tensor]:
        samples, length = self.job.micro_batch_size, self.job.sequence_length
        names = ("input_ids", "attention_mask", "completion_mask")
        made = {f"{kl}{name}": ones(samples, length) for kl in ("", "KL_") for name in names}
        if self.options.get("precompute_ref_log_probs"):
            made |= {name: torch.zeros(samples) for name in ("ref_logps", "ref_KL_logps")}
        return {**made, "label": torch.zeros(samples, dtype=torch.bool)}


class OlderKto(Kto):
    """KTO of TRL 0.28 to 1.5, whose collator makes labels."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any, reference: Any = None) -> Any:
        from datasets import Dataset
        from trl.experimental.kto import KTOConfig, KTOTrainer

        row = {"prompt": "w3", "completion": "w4"}
        with patch.object(KTOTrainer, "_prepare_dataset", lambda self, data, *_, **__: data, create=True):
            return KTOTrainer(
                model,
                reference,
                args=KTOConfig(**self.arguments(folder), remove_unused_columns=False),
                train_dataset=Dataset.from_list([{**row, "label": label} for label in (True, False)]),
                processing_class=words,
                peft_config=peft,
            )

    def batch(self) -> dict[str, Any]:
        samples, length = self.job.micro_batch_size, self.job.sequence_length
        kinds = ("input_ids", "attention_mask", "labels")
        made: dict[str, Any] = {f"{kl}completion_{kind}": ones(samples, length) for kl in ("", "KL_") for kind in kinds}
        if self.options.get("precompute_ref_log_probs"):
            made |= {name: torch.zeros(samples) for name in ("reference_logps", "reference_KL_logps")}
        return {**made, "label": [False] * samples}


class Reward(Setup):
    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any) -> Any:
        from datasets import Dataset
        from trl import RewardConfig, RewardTrainer

        return RewardTrainer(
            model,
            args=RewardConfig(**self.arguments(folder)),
            train_dataset=Dataset.from_list([{"chosen_ids": [4, 1], "rejected_ids": [5, 1]}]),
            processing_class=words,
            peft_config=peft,
        )

    def batch(self) -> dict[str, torch.Tensor]:
        rows = 2 * self.job.micro_batch_size, self.job.sequence_length
        return {name: ones(*rows) for name in ("input_ids", "attention_mask")}


class OlderReward(Reward):
    """RewardTrainer before 0.24, whose batch has chosen and rejected texts apart."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any) -> Any:
        from datasets import Dataset
        from trl import RewardConfig, RewardTrainer

        row = {f"{name}_{kind}": [4, 1] for name in ("input_ids", "attention_mask") for kind in ("chosen", "rejected")}
        model.warnings_issued = {}  # transformers 5 has none
        model.config.pad_token_id = 0  # the script sets it
        return RewardTrainer(
            model,
            args=RewardConfig(**self.arguments(folder), remove_unused_columns=False),
            train_dataset=Dataset.from_list([row]),
            processing_class=words,
            peft_config=peft,
        )

    def batch(self) -> dict[str, torch.Tensor]:
        rows = self.job.micro_batch_size, self.job.sequence_length
        names, kinds = ("input_ids", "attention_mask"), ("chosen", "rejected")
        return {f"{name}_{kind}": ones(*rows) for kind in kinds for name in names}


class Odds(Setup):
    """ORPO, CPO, SimPO."""

    def trainer(self, model: nn.Module, peft: Any, folder: str, words: Any) -> Any:
        from datasets import Dataset
        from trl.experimental.cpo import CPOConfig, CPOTrainer
        from trl.experimental.orpo import ORPOConfig, ORPOTrainer

        config, made = (ORPOConfig, ORPOTrainer) if self.job.task == "orpo" else (CPOConfig, CPOTrainer)
        simpo = {"loss_type": "simpo", "cpo_alpha": 0.0} if self.job.task == "simpo" else {}
        arguments = config(**self.arguments(folder), **simpo, remove_unused_columns=False)
        row = {"prompt": "w3", "chosen": "w4", "rejected": "w5"}
        data = Dataset.from_list([row])
        return made(model, args=arguments, train_dataset=data, processing_class=words, peft_config=peft)

    def batch(self) -> dict[str, torch.Tensor]:
        samples, length, kinds = self.job.micro_batch_size, self.job.sequence_length, ("input_ids", "attention_mask")
        prompt = max(self.prompt, 1)
        made = {f"prompt_{kind}": ones(samples, prompt) for kind in kinds}
        return made | {
            f"{name}_{kind}": ones(samples, length) for name in ("chosen", "rejected") for kind in (*kinds, "labels")
        }


SETUPS: dict[str, type[Setup]] = {
    "dpo": Dpo,
    "kto": Kto,
    "copied_logits": OlderKto,
    "two_forwards": OlderReward,
    "orpo": Odds,
    "cpo": Odds,
    "simpo": Odds,
    "reward": Reward,
}


class TrlRun:
    """One tracked run of a trainer: loading, then optimizer steps of one or two micro-steps."""

    without_gradients = "reference"
    """The phase of forwards without gradients."""
    setups: Mapping[str, type[Setup]] = SETUPS

    def __init__(self, spec: ModelSpec, job: Job, gpu: Gpu, task: str, prompt: int = 0, **options: Any) -> None:
        self.spec, self.job, self.gpu = spec, job, gpu
        self.setup = self.setups[job.loss if job.loss in self.setups else task](job, prompt, options)
        answer_tokens = job.sequence_length - max(prompt, 1)
        self.fakes = MaskFakes(answer_tokens)
        self.tracker = StorageTracker(self.fakes, Answers(job, spec.name, answer_tokens).answer, gpu)
        self.fakes.tracker = self.tracker
        self.outer: Any = self.fakes.mode
        """The mode around the tracker while steps run."""

    def go(self) -> dict[str, int]:
        """Peak of live tensors in each phase, in bytes."""
        with ExitStack() as stack:
            log_probs = kernel_of_log_probs() if self.job.loss == "fused_log_probs" else nullcontext()
            for one in (quiet(), as_cuda(self.gpu), triton_kernels(), log_probs, tensors_in_lists(), compiles()):
                stack.enter_context(one)
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            model = self._model()
            self._run(model, self._reference(), folder)
        return self.peaks()

    def _reference(self) -> nn.Module | None:
        """The second model, if the trainer is given one."""
        return self._model() if self.job.method == "full" and self._needs_reference() else None

    def _needs_reference(self) -> bool:
        return self.job.task in ("dpo", "kto") and not self.setup.options.get("precompute_ref_log_probs")

    def _model(self) -> nn.Module:
        return self._model_of(self.spec, self.job)

    def _model_of(self, spec: ModelSpec, job: Job) -> nn.Module:
        model = from_config(spec, job, "meta", False, nullcontext).module
        if self.job.task != "reward":
            return model
        from transformers import AutoModelForSequenceClassification

        model.config.num_labels = 1
        attention, dtype = model.config._attn_implementation, DTYPES[self.job.dtype]
        with torch.device("meta"):
            return AutoModelForSequenceClassification.from_config(
                model.config, attn_implementation=attention, dtype=dtype
            )

    def _adapters(self) -> Any:
        from peft import LoraConfig

        job = self.job
        if job.method == "full":
            return None
        targets: Any = "all-linear" if job.lora_targets is None else list(job.lora_targets)
        return LoraConfig(
            r=job.lora_rank,
            lora_alpha=2 * job.lora_rank,
            target_modules=targets,
            lora_dropout=job.lora_dropout,
            modules_to_save=list(job.modules_to_save or ()) or None,
            use_dora=job.method == "dora",
            task_type="SEQ_CLS" if job.task == "reward" else "CAUSAL_LM",
        )

    def _run(self, model: nn.Module, reference: nn.Module | None, folder: str) -> None:
        tracker, job = self.tracker, self.job
        words, recipe = tokenizer(64), optimizers.recipe(job)  # makes training arguments, which reset accelerate
        peft = self._adapters()
        extra = {"reference": reference} if reference is not None else {}
        with on_meta():
            if job.reference == "frozen_adapters":
                model, peft = self.setup.with_adapters(model, peft)
            trainer = self.setup.trainer(model, peft, folder, words, **extra)
        for name, parameter in trainer.model.named_parameters():  # on meta PEFT does not cast adapters
            if "lora_" in name:
                dtype = torch.float32 if ".ref" in name else DTYPES[job.lora_dtype]
                parameter.data = parameter.data.to(dtype)
        for module in (*trainer.model.modules(), *(reference.modules() if reference is not None else ())):
            for name, buffer in module._buffers.items():  # some are made of numbers, on the host
                if buffer is not None and not buffer.is_meta:
                    module._buffers[name] = torch.empty_like(buffer, device="meta")
        with self.fakes.mode:
            tracker.sums.calibrate(tracker)
            tracker.enter("loaded")
            place(trainer.model, tracker)
            if reference is not None:
                place(reference, tracker)
            self.trained = [p for p in trainer.model.parameters() if p.requires_grad]
            optimizer = optimizers.make(recipe, trainer.model, job)
            wrapped = trainer.accelerator.prepare_model(trainer.model, device_placement=False)
            if job.checkpointing == "full":
                trainer.model.gradient_checkpointing_enable(trainer.args.gradient_checkpointing_kwargs)
        self._observe(trainer, reference)
        trainer.current_gradient_accumulation_steps = job.gradient_accumulation_steps
        with tracker.modules(trainer.model), self.outer, tracker:
            for _ in range(EAGER_STEPS):
                self._step(trainer, wrapped, optimizer)
        self.trainer = trainer

    def _observe(self, trainer: Any, reference: nn.Module | None) -> None:
        """Enter the phases: a forward without gradients inside of a training step is the reference's."""
        tracker, accelerator = self.tracker, trainer.accelerator

        def before(module: nn.Module, inputs: Any, kwargs: Any) -> None:
            if not torch.is_grad_enabled():
                tracker.enter(self.without_gradients)

        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            if tracker.phase == self.without_gradients:
                tracker.enter("forward")

        for module in (trainer.model, reference):
            if module is not None:
                if self.job.loss == "liger":  # which calls the model below the head
                    module = getattr(module, "get_base_model", lambda module=module: module)().base_model
                module.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
                module.register_forward_hook(after)
        backward = accelerator.backward

        def entered(*args: Any, **kwargs: Any) -> Any:
            tracker.enter("backward")
            return backward(*args, **kwargs)

        accelerator.backward = entered

    def _step(self, trainer: Any, model: nn.Module, optimizer: Any) -> None:
        tracker, job = self.tracker, self.job
        tracker.enter("forward")
        waiting = job.gradient_accumulation_steps - 1
        batch = {
            name: self._on_device(x) if isinstance(x, torch.Tensor) else x for name, x in self.setup.batch().items()
        }
        others = [
            torch.empty((waiting * x.shape[0], *x.shape[1:]), dtype=x.dtype)
            for x in batch.values()
            if waiting and isinstance(x, torch.Tensor) and x.dim()
        ]
        self.references = [batch, others]
        if not hasattr(self, "total"):
            self.total = torch.zeros(())
        for _ in range(min(2, job.gradient_accumulation_steps)):
            tracker.enter("forward")
            loss = trainer.training_step(model, dict(batch), None)
            torch.isnan(loss)
            torch.isinf(loss)
            self.total += loss
        tracker.enter("optimizer")
        self.references.append(nn.utils.clip_grad_norm_(self.trained, 1.0))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def _on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    def peaks(self) -> dict[str, int]:
        """Peak of live tensors in each phase."""
        timeline = self.tracker.timeline(None)
        return timeline.phase_peaks(timeline.live_bytes())
