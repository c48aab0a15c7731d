"""One rank of TRL's GRPOTrainer or RLOOTrainer under ZeRO or FSDP on an emulated GPU (see `tests.trl_sharing_grpo`).

vLLM is stood in for: what shares the GPU takes the bytes that the estimate gives it while it is awake, and a server
gets weights as vLLM's own client packs them (vllm/distributed/weight_transfer/packed_tensor.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from tests.helpers import card_of, spec_of
from tests.recorded_runs import job_of, model_of
from tests.trl_sharing_run import STEPS, Peaks, adapters, print_peaks, sharing, usual_arguments
from vramplan.inputs.job import Job
from vramplan.memory import vllm
from vramplan.torch_backend.dtypes import DTYPES
from vramplan.units import GiB

GPU = "a100-80gb"
PACKED_BYTES, PACKED_BUFFERS = GiB, 2
"""DEFAULT_PACKED_BUFFER_SIZE_BYTES and DEFAULT_PACKED_NUM_BUFFERS of vLLM."""


def completions(prompts: Iterable[Any], job: Job) -> list[list[int]]:
    """As many tokens for each prompt as the job's completions have."""
    return [[5] * (job.sequence_length - (job.prompt_length or 0)) for _ in prompts]


class Engine:
    """vLLM within the training process: the bytes of its weights, and the rest of its share, while it is awake."""

    job: Job
    weight_bytes: int

    def __init__(self, **_: Any) -> None:
        *weights, rest = vllm.awake(self.job, card_of(GPU), self.weight_bytes, is_shared=False)
        self.sizes = {"weights": sum(one.num_bytes for one in weights), "kv_cache": rest.num_bytes}
        self.held: dict[str, torch.Tensor] = {}
        self.stays = torch.empty(vllm.ASLEEP_BYTES if vllm.sleeps(self.job) else 0, dtype=torch.uint8, device="cuda")
        self.wake_up(tuple(self.sizes))
        self.load_weights = lambda _: None
        runner = SimpleNamespace(model=self)
        self.llm_engine = SimpleNamespace(
            model_executor=SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
        )

    def wake_up(self, tags: Iterable[str]) -> None:
        """Take these parts."""
        for tag in tags:
            self.held[tag] = torch.empty(self.sizes[tag], dtype=torch.uint8, device="cuda")

    def sleep(self, level: int) -> None:
        """Give all of it back."""
        self.held.clear()

    def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    def generate(self, prompts: list[Mapping[str, Any]], **_: Any) -> list[Any]:
        """Completions with their log-probabilities."""
        found = []
        for prompt, ids in zip(prompts, completions(prompts, self.job), strict=True):
            scores = [{one: SimpleNamespace(rank=1, logprob=-1.0)} for one in ids]
            output = SimpleNamespace(token_ids=ids, logprobs=scores)
            found.append(SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[output]))
        return found


class Client:
    """The client of a vLLM server."""

    job: Job

    def __init__(self, **_: Any) -> None:
        pass

    def init_communicator(self, device: Any) -> None:
        """No server listens."""

    def reset_prefix_cache(self) -> None:
        """Nothing is cached."""

    def get_server_info(self) -> dict[str, Any]:
        """What the trainer asks for."""
        return {"model_config": {"logprobs_mode": "processed_logprobs"}}

    def update_named_params(self, metadata: list[Any], named: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Put weights into buffers, two of which may be on their way."""
        on_their_way: list[torch.Tensor | None] = [None] * PACKED_BUFFERS
        place, packed = 0, None
        while True:
            on_their_way[place] = None
            parts: list[torch.Tensor] = []
            size = 0
            for _, weight in named:
                parts.append(weight.contiguous().view(torch.uint8).view(-1))
                size += parts[-1].numel()
                if size > PACKED_BYTES:
                    break
            else:
                if not parts:
                    return
            packed = torch.cat(parts)
            on_their_way[place] = packed
            place = (place + 1) % PACKED_BUFFERS

    def generate(self, prompts: list[list[int]], n: int, **_: Any) -> dict[str, Any]:
        """Completions of all GPUs."""
        found = completions([one for one in prompts for _ in range(n)], self.job)
        scores = [[[-1.0] for _ in ids] for ids in found]
        return {"prompt_ids": prompts, "completion_ids": found, "logprobs": scores}


def reward_of(job: Job) -> Any:
    """A model that rewards, or a function."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    if job.reward_model is None:
        return lambda completions, **_: [0.0] * len(completions)
    spec = spec_of(job.reward_model)
    config = AutoConfig.for_model(**{**spec.config, "model_type": spec.model_type})
    config.pad_token_id, config.num_labels = 0, 1
    dtype = DTYPES[job.reward_dtype or job.dtype]
    return AutoModelForSequenceClassification.from_config(config, dtype=dtype, attn_implementation=job.attention)


def run(row: dict[str, Any]) -> dict[str, int]:
    """The peaks of a row's job on this rank."""
    import trl
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForCausalLM
    from trl.generation import vllm_generation

    from tests.trl_trace import tokenizer

    job, spec = job_of(row), model_of(row)
    made, arguments = (trl.RLOOTrainer, trl.RLOOConfig) if job.task == "rloo" else (trl.GRPOTrainer, trl.GRPOConfig)
    rows = job.micro_batch_size * job.gradient_accumulation_steps * job.num_gpus * STEPS
    prompt = job.prompt_length or 1
    beta = 0.0 if job.reference_source == "none" else 0.05
    settings = {
        **usual_arguments(job),
        "num_generations": job.num_generations,
        "max_completion_length": job.sequence_length - prompt,
        "beta": beta,
        "generation_kwargs": {"min_new_tokens": job.sequence_length - prompt} if _by_transformers(job) else None,
        **row.get("options", {}),
        **sharing(job, spec.model_type),
    }
    if not _by_transformers(job):
        settings |= {
            "use_vllm": True,
            "vllm_mode": "server" if job.generate_with == "vllm_server" else "colocate",
            "vllm_enable_sleep_mode": job.generate_with == "vllm_sleep",
            "vllm_gpu_memory_utilization": job.vllm_share,
        }
        if job.task == "grpo":
            settings["vllm_importance_sampling_correction"] = job.importance_sampling
    config = AutoConfig.for_model(**{**spec.config, "model_type": spec.model_type})
    config.pad_token_id, config.eos_token_id, config.bos_token_id = 0, 1, None

    def model(*_: Any, **__: Any) -> nn.Module:
        kind = {"dtype": DTYPES[job.dtype], "attn_implementation": job.attention}
        found: nn.Module = AutoModelForCausalLM.from_config(config, **kind)
        return found

    with torch.device("meta"):
        Engine.weight_bytes = 2 * AutoModelForCausalLM.from_config(config).num_parameters()
    args = arguments(**settings)
    data = Dataset.from_list([{"prompt": " ".join(["w3"] * prompt)}] * rows)
    Engine.job = Client.job = job
    peaks = Peaks()
    peaks.enter("loaded")
    words = tokenizer(64)
    words.backend_tokenizer.pre_tokenizer = _by_spaces()
    stands_in = {"is_vllm_available": lambda *_, **__: True, "LLM": Engine, "VLLMClient": Client}
    reward = reward_of(job)
    with (
        patch.multiple(vllm_generation, **stands_in, SamplingParams=lambda **_: None, create=True),
        patch(f"{made.__module__}.create_model_from_path", model),
    ):
        trainer = made(
            model(),
            reward,
            reward_processing_classes=words if isinstance(reward, nn.Module) else None,
            args=args,
            train_dataset=data,
            processing_class=words,
            peft_config=adapters(job),
        )
        observe(trainer, peaks)
        trainer.train()
    peaks.enter("over")
    return peaks.found


def _by_transformers(job: Job) -> bool:
    return job.generate_with == "transformers"


def _by_spaces() -> Any:
    from tokenizers import pre_tokenizers

    return pre_tokenizers.WhitespaceSplit()


def observe(trainer: Any, peaks: Peaks) -> None:
    """Enter phases: generation, scoring, rewards, then the forward, backward and the optimizer's step."""
    import deepspeed

    def entering(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def entered(*args: Any, **kwargs: Any) -> Any:
            peaks.enter(phase)
            return function(*args, **kwargs)

        return entered

    def scoring(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            peaks.enter("scoring")
        return scores(*args, **kwargs)

    scores = trainer._get_per_token_logps_and_entropies
    trainer._get_per_token_logps_and_entropies = scoring
    trainer._generate_single_turn = entering("generation", trainer._generate_single_turn)
    if any(isinstance(one, nn.Module) for one in trainer.reward_funcs):
        trainer._calculate_rewards = entering("reward", trainer._calculate_rewards)
    trainer.compute_loss = entering("forward", trainer.compute_loss)
    trainer.accelerator.backward = entering("backward", trainer.accelerator.backward)
    trainer.accelerator.clip_grad_norm_ = entering("optimizer", trainer.accelerator.clip_grad_norm_)
    engine = deepspeed.runtime.engine.DeepSpeedEngine
    engine._take_model_step = entering("optimizer", engine._take_model_step)


if __name__ == "__main__":
    print_peaks(run)
