"""How sizes, plans and categories of memory are written, for the terminal, the report and tables alike.

Sizes are rounded against the run: a need and a margin up, free space and capacity down. Differences are those of the
printed sizes, so that a reader who subtracts gets the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vramplan.inputs.embedding import columns
from vramplan.inputs.job_values import PPO_TRAINERS, ROLLOUTS
from vramplan.inputs.task_rules import OF_FRAMEWORKS, PAIRS, TRL_TASKS
from vramplan.inputs.tasks import RERANKERS
from vramplan.units import GiB

if TYPE_CHECKING:
    from vramplan.inputs.job import Job
    from vramplan.memory.estimate import Estimate

CATEGORIES = {
    "parameter": ("weights", "blue"),
    "gradient": ("gradients", "cyan"),
    "optimizer_state": ("optimizer states", "magenta"),
    "activation": ("activations", "green"),
    "logits": ("logits", "yellow"),
    "temporary": ("temporaries", "bright_black"),
    "communication": ("communication", "bright_blue"),
    "vllm_weights": ("vLLM's weights", "bright_red"),
    "vllm": ("vLLM's cache, graphs", "bright_magenta"),
    "sglang_weights": ("SGLang's weights", "bright_red"),
    "sglang": ("SGLang's cache, graphs", "bright_magenta"),
    "context": ("CUDA context, NCCL", "red"),
    "reserved_unused": ("cached by PyTorch", "white"),
}
"""The name and colour of each category of memory."""
CACHED = "reserved_unused"
STRATEGIES = {
    "ddp": "DDP",
    "zero0": "ZeRO-0",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "zero3": "ZeRO-3",
    "fsdp": "FSDP",
    "device_map": "device_map",
}
"""How GPUs share the work, as papers write it."""
NEED = "need of the GPU"
KEYS = ("per_device_train_batch_size", "gradient_accumulation_steps")
"""The two settings to paste, as transformers' Trainer and most frameworks call them."""


def tenths_up(num_bytes: int) -> int:
    """Tenths of a GiB, rounded up."""
    return -(-num_bytes * 10 // GiB)


def tenths_down(num_bytes: int) -> int:
    """Tenths of a GiB, rounded down."""
    return num_bytes * 10 // GiB


def gib(num_bytes: int) -> str:
    """GiB of a need with one digit, rounded up.

    >>> gib(5 << 29), gib((5 << 29) + 1)
    ('2.5', '2.6')
    """
    return f"{tenths_up(num_bytes) / 10:.1f}"


def free_gib(num_bytes: int) -> str:
    """GiB of free space or a capacity with one digit, rounded down.

    >>> free_gib(5 << 29), free_gib((5 << 29) - 1)
    ('2.5', '2.4')
    """
    return f"{tenths_down(num_bytes) / 10:.1f}"


def room_gib(capacity_bytes: int, need_bytes: int) -> str:
    """GiB that the printed need leaves of the printed capacity; negative if it needs more."""
    tenths = tenths_down(capacity_bytes) - tenths_up(need_bytes)
    return f"{(tenths if need_bytes > capacity_bytes else max(0, tenths)) / 10:.1f}"


def product(micro_batch_size: int, accumulation_steps: int, data_parallel: int) -> str:
    """A batch plan as a product: micro-batch, accumulation, GPUs.

    >>> product(2, 4, 8)
    '2 × 4 × 8 = 64'
    """
    total = micro_batch_size * accumulation_steps * data_parallel
    return f"{micro_batch_size} × {accumulation_steps} × {data_parallel} = {total:,}"


def filled_by_tokens(job: Job) -> tuple[str, str] | None:
    """(The samples of a step, its micro-batches) where a budget of tokens fills these; None elsewhere."""
    if job.verl.samples is None:
        return None
    shared, steps = job.verl.sequence_parallel, job.gradient_accumulation_steps
    each = "GPU" if shared == 1 else f"group of {shared} GPUs"
    batches = "1 micro-batch" if steps == 1 else f"up to {steps:,} micro-batches"
    return f"{job.verl.samples:,} samples a step", f"in {batches} of {job.row_length:,} tokens on each {each}"


def replicas(job: Job) -> str:
    """What the last factor of a batch plan counts."""
    if job.strategy == "device_map":
        return "1 process"
    gpus = job.processes // job.data_parallel
    return "GPUs" if gpus == 1 else f"groups of {gpus} GPUs"


def parts(estimate: Estimate) -> tuple[list[tuple[str, int]], int]:
    """(category and hundredths of a GiB, largest first; their sum, the need of the GPU rounded up).

    Each part is rounded to the nearest hundredth. What rounding leaves goes to the memory that PyTorch caches, the
    least certain part, or to the largest part if that would be less than nothing. Parts that round to nothing are left
    out.
    """
    need = -(-estimate.device_total_bytes * 100 // GiB)
    totals = estimate.by_category()
    hundredths = {name: round(totals[name] * 100 / GiB) for name in CATEGORIES if totals.get(name)}
    rest = need - sum(hundredths.values())
    takes_rest = CACHED if hundredths.get(CACHED, 0) + rest > 0 else max(hundredths, key=lambda name: hundredths[name])
    hundredths[takes_rest] = hundredths.get(takes_rest, 0) + rest
    nonzero = [(name, size) for name, size in hundredths.items() if size]
    return sorted(nonzero, key=lambda part: -part[1]), need


def part_name(category: str, job: Job) -> str:
    """The name of a category; NCCL takes memory only if several processes train."""
    alone = job.num_gpus == 1 or job.strategy == "device_map"
    return "CUDA context" if category == "context" and alone else CATEGORIES[category][0]


def method(job: Job) -> str:
    """What trains, in two or three words.

    >>> from vramplan.inputs.job import Job
    >>> method(Job(method="full")), method(Job(quantize="nf4"))
    ('full fine-tuning', 'QLoRA rank 8')
    """
    if job.method == "full":
        return "full fine-tuning"
    name = "DoRA" if job.method == "dora" else "LoRA"
    quantized = {"nf4": "Q" if name == "LoRA" else "nf4 ", "int8": "int8 "}.get(job.quantize, "")
    return f"{quantized}{name} rank {job.lora_rank}"


def length(job: Job, texts: Sequence[str]) -> str:
    """The tokens of a sample; nothing if no assumption of the estimate names them, as for a model of images alone."""
    if not any(f"{form} token" in text for text in texts for form in (job.sequence_length, f"{job.sequence_length:,}")):
        return ""
    if job.lengths is not None:
        shortest = min(min(job.lengths), job.sequence_length)
        return f"{shortest:,} to {job.sequence_length:,} tokens"
    packed = {"packed": "packed to ", "padded": "padded to ", "flattened": "flattened, "}.get(job.batches, "")
    return f"{packed}{job.sequence_length:,} tokens"


def trainer(job: Job) -> str:
    """TRL's trainer of a job, and the versions that compute its loss like this; empty for others.

    >>> from vramplan import Job
    >>> trainer(Job(task="dpo", loss="chunked")), trainer(Job(task="grpo")), trainer(Job())
    ('DPO of TRL 1.15 on', "GRPO of TRL up to 1.13, transformers' generate", '')
    """
    if job.task not in TRL_TASKS:
        return ""
    name = "reward model" if job.task == "reward" else str(job.task).upper()
    if job.task == "gkd":
        package = {
            "sliced": "TRL 0.19 to 1.6",
            "logits_to_keep": "ms-swift",
            "chunked": "TRL's DistillationTrainer",
        }.get(job.loss, "TRL 1.7 on")
        teacher = "elsewhere" if job.teacher is None else job.teacher.rpartition("/")[2]
        return f"{name} of {package}, teacher {teacher}"
    if job.value_model is not None:
        return f"PPO of {PPO_TRAINERS[job.ppo_trainer]}, values by {job.value_model.rpartition('/')[2]}"
    if job.task == "ppo":
        return "PPO of LLaMA-Factory"
    rewards = "" if job.reward_model is None else f", rewards by {job.reward_model.rpartition('/')[2]}"
    generation = f", {engine(job)}{rewards}" if job.task in ROLLOUTS else ""
    if job.runs_verl:
        return f"{name if job.verl.critic is None else 'PPO'} of verl, {engine(job)}"
    if job.loss in OF_FRAMEWORKS:
        return f"{name} of {OF_FRAMEWORKS[job.loss]}{generation}"
    since = {
        **TRL_VERSIONS,
        "standard": "up to 1.13" if job.task in ROLLOUTS else "1.9 to 1.13" if job.task == "kto" else "1.6 to 1.13",
    }
    named = job.task in ("dpo", "kto", *ROLLOUTS) or job.loss == "two_forwards"
    versions = f" {since[job.loss]}" if named and job.loss in since else ""
    return f"{name} of TRL{versions}{generation}"


TRL_VERSIONS = {
    "chunked": "1.15 on",
    "liger": "1.0 to 1.12 with Liger's loss",
    "divided_in_place": "1.0 to 1.9",
    "axolotl_log_probs": "1.9 with axolotl's kernel",
    "sliced": "0.29 to 1.5",
    "concatenated_states": "0.19 to 0.28",
    "concatenated": "0.15 to 0.18",
    "copied_logits": "0.18 to 1.5",
    "two_forwards": "0.14 to 0.23",
}
"""Versions of TRL by the loss that they have."""
ENGINES = {
    "transformers": "transformers' generate",
    "vllm": "vLLM beside it",
    "vllm_sleep": "vLLM that sleeps",
    "vllm_server": "vLLM elsewhere",
}
"""What generates completions."""


def engine(job: Job) -> str:
    """What generates the completions that a job trains on; empty if nothing does."""
    if not job.generates_completions:
        return ""
    name = job.verl.engine_name if job.runs_verl else "vLLM"
    return ENGINES[job.generate_with].replace("vLLM", name)


def in_short(estimate: Estimate) -> list[str]:
    """What differs most between users and was perhaps not given: method, dtype, length, images, optimizer, strategy."""
    job = estimate.job
    kind = job.picture_kind + ("s" if job.pictures > 1 else "")
    size = f" of {job.image_size[0]}x{job.image_size[1]}" if job.image_size else ""
    usual = estimate.model_class.endswith(("ForCausalLM", "LMHeadModel", "language model"))
    facts = [
        trainer(job),
        "" if usual else estimate.model_class,
        method(job),
        job.dtype,
        length(job, estimate.assumptions),
        f"{job.pictures} {kind}{size}" if job.pictures else "",
        job.optimizer if job.method == "full" else "",
        "" if job.num_gpus == 1 else STRATEGIES[job.strategy],
        "expandable segments" if job.expandable_segments else "",
    ]
    return [fact for fact in facts if fact]


def signed(num_bytes: int) -> str:
    """GiB with a sign; nothing if there is no difference.

    >>> signed(0), signed(-(1 << 30)), signed(1 << 29)
    ('', '-1.00', '+0.50')
    """
    return f"{num_bytes / GiB:+.2f}" if num_bytes else ""


def duration(seconds: float) -> str:
    """A time with three digits, in the unit that suits it.

    >>> duration(0.0416), duration(78.73), duration(5400), duration(400_000)
    ('0.042 s', '78.7 s', '1.5 h', '4.6 days')
    """
    if seconds < 600:
        return f"{seconds:.2g} s" if seconds < 0.1 else f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def time_of_step(estimate: Estimate) -> str:
    """The time of an optimizer step with its band, and tokens or samples a second; nothing if it is not known."""
    time = estimate.step_time
    if time is None:
        return ""
    job = estimate.job
    text = f"about {banded(time.seconds, time.relative_error)} a step"
    if job.lengths is not None:
        return f"{text} of the longest samples"
    if length(job, estimate.assumptions):
        tokens = texts_of_sample(job) * job.global_batch_size * job.sequence_length
        return f"{text}, {significant(tokens / time.seconds)} tokens/s"
    return f"{text}, {significant(job.global_batch_size / time.seconds)} samples/s"


def texts_of_sample(job: Job) -> int:
    """Texts in each sample: an anchor, its match and others of an embedding, both answers of a pair."""
    if job.task in RERANKERS:
        return 1 + job.negatives
    return len(columns(job)) if job.task == "embedding" else 2 if job.task in PAIRS else 1


def banded(seconds: float, relative_error: float) -> str:
    """A time in two digits, and its band.

    >>> banded(9.473, 0.183), banded(540.0, 0.25), banded(40_000.0, 0.25)
    ('9.5 s (8 to 11)', '540 s (430 to 680)', '11 h (8.9 to 14)')
    """
    unit, size = ("s", 1) if seconds < 600 else ("min", 60) if seconds < 5400 else ("h", 3600)
    low, middle, high = (significant(seconds * by / size) for by in (1 / (1 + relative_error), 1, 1 + relative_error))
    return f"{middle} {unit} ({low} to {high})"


def significant(number: float) -> str:
    """A number in two significant digits.

    >>> significant(13_841.0), significant(0.337), significant(95.1)
    ('14,000', '0.34', '95')
    """
    rounded = float(f"{number:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"


def sentence(text: str) -> str:
    """A text with a capital letter in front.

    >>> sentence("about 4.2 s a step")
    'About 4.2 s a step'
    """
    return text[:1].upper() + text[1:]
