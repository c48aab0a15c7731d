"""What commands have in common: arguments, the options of a job, how errors spell them, progress.

A default in round brackets, (8), is filled in later: it may depend on the method, the model or the GPU.
"""

from __future__ import annotations

import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TextIO

from vramplan.bounded_read import read_json
from vramplan.cli import completion
from vramplan.cli.panels import BATCH, DATA, METHOD, MODEL, OUTPUT, PRECISION, REAL, SAVERS, SEVERAL
from vramplan.cli.parameters import Argument, Option, declared
from vramplan.errors import ConfigError
from vramplan.visible import visible_lines

if TYPE_CHECKING:
    from vramplan.inputs.gpu import Gpu

Model = Annotated[
    str,
    Argument(
        metavar="MODEL",
        help="A shipped name, a Hub id, a folder, a config.json or package.module:function.",
        complete=completion.model_names,
    ),
]
GpuName = Annotated[
    str,
    Option(
        help="GPU by name or memory (24GB), or auto for the one in this machine; `vramplan gpus` lists them.",
        shows_default=False,
        panel=MODEL,
        complete=completion.gpu_names,
    ),
]
PlatformName = Annotated[
    str | None,
    Option(
        "--platform",
        help="linux, windows or wsl2: what the desktop and the driver leave of the GPU (linux).",
        panel=MODEL,
        complete=completion.one_of("linux", "windows", "wsl2"),
    ),
]
Trust = Annotated[
    bool,
    Option(
        "--trust-remote-code",
        help="Let traces and probes run code that comes with the model.",
        panel=MODEL,
    ),
]
Confidence = Annotated[
    float | None,
    Option(
        help="Share of runs that a verdict must hold for: it sets the safety margin; 0 for no margin (0.9).",
        panel=MODEL,
    ),
]
LinkName = Annotated[
    str | None,
    Option(
        "--link",
        help="Between the GPUs of a machine: nvlink, pcie, or pcie-p2p, from GPU to GPU without the host (what the GPU"
        " has).",
        panel=SEVERAL,
        complete=completion.one_of("nvlink", "pcie", "pcie-p2p"),
    ),
]
Network = Annotated[
    float | None,
    Option(help="Gbit/s of each machine's network, all adapters together; see --nodes.", panel=SEVERAL),
]
MicroBatch = Annotated[int | None, Option("--micro-batch", help="Samples of one forward on one GPU (1).", panel=BATCH)]
Accumulation = Annotated[
    int | None,
    Option("--accumulation", help="Micro-batches behind one optimizer step (1).", panel=BATCH),
]
Device = Annotated[
    str | None,
    Option(
        help="cuda; emulated: PyTorch's CUDA build without a GPU; cpu: real steps on the host (cuda).",
        panel=REAL,
        complete=completion.one_of("cuda", "emulated", "cpu"),
    ),
]
MaxRuns = Annotated[int | None, Option(help="Real runs that one answer may take (8).", panel=REAL)]
Timeout = Annotated[float | None, Option(help="Seconds that one run may take (600).", panel=REAL)]
Record = Annotated[Path | None, Option(help="Folder to keep each run in, as one JSON file.", panel=REAL)]
Verbose = Annotated[bool, Option("--verbose", "-v", help="List all assumptions and details.", panel=OUTPUT)]
NoCache = Annotated[bool, Option("--no-cache", help="Do not read or write kept results.", panel=OUTPUT)]
AsJson = Annotated[bool, Option("--json", help="Print JSON.", panel=OUTPUT)]
SECONDS_BETWEEN_LINES = 30
"""Of progress, if standard error is no terminal."""


class Flag(NamedTuple):
    """An option that sets a field of :class:`vramplan.Job`, in one group of the help page."""

    type: Any
    panel: str
    help: str
    field: str = ""
    """The field's name, if it is not the option's."""
    complete: completion.Completion | None = None


def _choice(field: str, panel: str, help: str, *more: str) -> Flag:
    """An option whose values are those of the job's field, and some more."""
    return Flag(str, panel, help, field, completion.job_values(field, *more))


JOB_FLAGS = {
    "num_gpus": Flag(int, SEVERAL, "GPUs (1); see --strategy."),
    "nodes": Flag(int, SEVERAL, "Machines that the GPUs are in, as many in each (1); see --network.", "num_nodes"),
    "method": _choice("method", METHOD, "full, lora, dora, or qlora: lora with --quantize nf4 (lora).", "qlora"),
    "task": _choice(
        "task",
        METHOD,
        "What is trained: sequence_classification, token_classification, image_classification, embedding, reranker;"
        " by ms-swift: generative_reranker; by TRL: reward, dpo, kto, orpo, cpo, simpo, grpo, rloo, gkd, ppo with"
        " --value-model; by LLaMA-Factory: ppo without it (the next token, or as the model's class).",
    ),
    "teacher": Flag(str, METHOD, "gkd: the model to learn from, on the same GPUs.", complete=completion.model_names),
    "divergence": _choice("divergence", METHOD, "gkd: jsd, forward_kl (TRL's beta 0), reverse_kl (beta 1) (jsd)."),
    "generated_by": _choice(
        "generated_by",
        METHOD,
        "gkd: who generates completions while training: student, teacher (seq_kd), both, none (student).",
    ),
    "num_labels": Flag(int, DATA, "Labels of a classification (as many as the model names)."),
    "reference": _choice(
        "reference",
        METHOD,
        "Reference of dpo, kto, grpo, rloo: adapters_off, frozen_adapters, model, precomputed, none (by method).",
    ),
    "lora_rank": Flag(int, METHOD, "Rank of the adapters (8)."),
    "lora_targets": Flag(str, METHOD, "all-linear, or names of layers: q_proj,v_proj (all-linear)."),
    "lora_dropout": Flag(float, METHOD, "Dropout before each adapter (0)."),
    "lora_dtype": _choice("lora_dtype", METHOD, "Stored dtype of adapters: fp32, bf16, fp16 (fp32, as PEFT)."),
    "dtype": _choice("dtype", PRECISION, "Stored dtype of the weights: bf16, fp16, fp32 (bf16)."),
    "autocast": _choice("autocast", PRECISION, "torch.autocast: none, bf16, fp16 (as the weights)."),
    "quantize": _choice(
        "quantize", PRECISION, "nf4, int8: frozen linear layers in four or eight bits, by bitsandbytes (none)."
    ),
    "optimizer": Flag(str, PRECISION, "transformers' optim name (adamw_torch_fused).", complete=completion.optimizers),
    "seq_len": Flag(int, DATA, "Tokens in each sample (2048).", "sequence_length"),
    "prompt_len": Flag(
        int, DATA, "dpo, kto, grpo, rloo, ppo, gkd: tokens of --seq-len that are the prompt's (1).", "prompt_length"
    ),
    "generate_with": _choice(
        "generate_with",
        METHOD,
        "What generates for grpo, rloo: transformers, vllm on the same GPUs, vllm_sleep (it gives memory back while the"
        " model trains), vllm_server (transformers).",
    ),
    "num_generations": Flag(int, DATA, "grpo, rloo: completions of each prompt (8)."),
    "steps_per_generation": Flag(
        int, DATA, "grpo, rloo: micro-batches whose completions are generated at a time (all of an optimizer step)."
    ),
    "reward_model": Flag(
        str,
        METHOD,
        "grpo, rloo, ppo: a model that scores completions on the same GPU (functions do).",
        complete=completion.model_names,
    ),
    "value_model": Flag(
        str,
        METHOD,
        "ppo: the model that TRL trains beside the policy to learn values (LLaMA-Factory's value head).",
        complete=completion.model_names,
    ),
    "ppo_trainer": Flag(
        str, METHOD, "ppo with --value-model: trl (all of it trains) or ms_swift (adapters may) (trl)."
    ),
    "rollout_batch_size": Flag(int, DATA, "ppo with --value-model: completions generated and scored at a time (64)."),
    "vllm_share": Flag(float, METHOD, "grpo, rloo: share of the GPU for vLLM, vllm_gpu_memory_utilization (0.3)."),
    "vllm_max_len": Flag(
        int,
        METHOD,
        "grpo, rloo: tokens of vLLM's longest text, max_model_len, which its share has to hold (the model's own).",
        "vllm_max_length",
    ),
    "vllm_tensor_parallel": Flag(int, METHOD, "grpo, rloo: GPUs that share one copy of the model in vLLM (1)."),
    "lengths": Flag(
        str,
        DATA,
        "If samples differ in length: tokens of the shortest to the longest, 128-2048, or of each, 300,1200,2048."
        " What PyTorch caches by the time the longest comes is counted (all as long as --seq-len).",
    ),
    "target_len": Flag(int, DATA, "Tokens of a T5 decoder's labels (128, or --seq-len if shorter).", "target_length"),
    "audio_seconds": Flag(
        float, DATA, "Seconds of sound in each sample, for wav2vec 2, HuBERT (20), CSM (10), Voxtral, Qwen2-Audio (30)."
    ),
    "images": Flag(
        int, DATA, "Images in each sample (1 for a vision-language model); their tokens are part of --seq-len."
    ),
    "videos": Flag(int, DATA, "Videos in each sample, instead of images (0)."),
    "frames": Flag(int, DATA, "Frames of each video that enter the processor, after sampling (16)."),
    "image_size": Flag(
        str, DATA, "Width and height in pixels of every image (1024x1024), or of every frame of a video (640x360)."
    ),
    "min_pixels": Flag(
        int, DATA, "Fewest pixels that the processor enlarges an image to; videos: see --max-pixels (the model's own)."
    ),
    "max_pixels": Flag(
        int,
        DATA,
        "Most pixels that the processor leaves of an image, of a frame (Qwen2-VL, 2.5), of all frames (the model's"
        " own).",
    ),
    "max_tiles": Flag(
        int,
        DATA,
        "Most tiles that the processor cuts an image into (the model's own); Gemma 3: pan and scan, with as many"
        " crops.",
    ),
    "vision": _choice("vision", METHOD, "The vision tower: frozen; train with --method full; lora (frozen)."),
    "projector": _choice(
        "projector", METHOD, "The layers from the vision tower to the language model, the same (frozen)."
    ),
    "batches": _choice("batches", DATA, "unpadded, padded, packed or flattened samples (unpadded)."),
    "checkpointing": _choice("checkpointing", SAVERS, "Activation checkpointing: full or none (full)."),
    "attention": _choice("attention", SAVERS, "sdpa, flash or eager (sdpa)."),
    "mixer_kernels": _choice(
        "mixer_kernels", SAVERS, "Layers without attention: torch, or packages with their kernels installed (torch)."
    ),
    "loss": _choice(
        "loss",
        SAVERS,
        "standard, sliced (transformers 4.46 to 4.48), sliced_fp32 (before), sections (torchtune), liger,"
        " liger_cross_entropy, cut, chunked, log_probs, kept_log_probs; with --task dpo by TRL's version: chunked,"
        " standard, sliced, concatenated_states, concatenated (kto: chunked, standard, copied_logits); log_softmax of"
        " LLaMA-Factory, logits_to_keep of ms-swift, scaled_log_softmax of torchtune; with --task orpo, cpo, simpo"
        " fused_log_probs (TRL 1.14 on) or standard; with --task grpo, rloo divided_in_place (TRL 1.0 to 1.9);"
        " axolotl_log_probs of axolotl's rl; with --task reward two_forwards (TRL 0.14 to 0.23), value_head of"
        " LLaMA-Factory (standard).",
    ),
    "fused_kernels": Flag(
        str,
        SAVERS,
        "Layers that Liger's kernels compute: all, or names: rope,rms_norm,layer_norm,swiglu,geglu (none).",
    ),
    "expandable_segments": Flag(
        bool, SAVERS, "As with PYTORCH_ALLOC_CONF=expandable_segments:True: cached blocks are joined (off)."
    ),
    "loop": _choice("loop", PRECISION, "trainer (transformers' Trainer) or plain (trainer)."),
    "strategy": _choice(
        "strategy", SEVERAL, "How GPUs share the work: ddp, fsdp, zero0, zero1, zero2, zero3, device_map (ddp)."
    ),
    "offload": _choice("offload", SEVERAL, "What the host keeps under ZeRO and FSDP: none, optimizer, all (none)."),
    "job": Flag(Path, MODEL, "A JSON file with more settings of the job."),
}
"""The options that `suggest`, `estimate` and others share; what is not given is completed by
:func:`vramplan.planner.job_defaults.complete_job`."""

SAME_NAME = """
    gpu gpus link network as_card device
    model models methods seq_lens sizes
    global_batch samples epochs base_lr base_batch prefer solve
    framework framework_version dataset tokenizer minutes only on slurm ledger published
    show format by confidence min_headroom trust_remote_code timeout max_runs record steps history find_max
    plot snapshot out parts jobs fix max_gpus max_price prices tokens_total warmup_ratio
    generate_tokens prompt_tokens generate_batch platform
    largest_global_batch policy coupling dwell half_life unit share eta schedule"""
OTHER_FLAGS = {
    **{name: f"--{name.replace('_', '-')}" for name in SAME_NAME.split()},
    "for_framework": "--for",
    "set": "--set",
    "exec": "--exec",
    "settings": "--set",
    "deepspeed": "--deepspeed",
    "global_batch_size": "--global-batch",
    "gradient_accumulation_steps": "--accumulation",
    "micro_batch": "--micro-batch",
    "micro_batch_size": "--micro-batch",
    "sequence_lengths": "--seq-lens",
}
"""Options of single commands by the name of the parameter or field that they set."""


def spell_flag(field: str, value: str) -> str:
    """A setting in an error's message as the command line writes it; a field without an option keeps its name.

    >>> spell_flag("sequence_length", "0"), spell_flag("trust_remote_code", ""), spell_flag("experts", "linear")
    ('--seq-len 0', '--trust-remote-code', 'experts linear')
    """
    flags = {flag.field or name: f"--{name.replace('_', '-')}" for name, flag in JOB_FLAGS.items()}
    name = flags.get(field) or OTHER_FLAGS.get(field) or field
    switch = field == "trust_remote_code" and value.lower() == "true"
    return name if switch or not value else f"{name} {value}"


@cache
def _job_parameters() -> dict[str, inspect.Parameter]:
    """The job's options as parameters of a command, made once for all commands."""
    return {
        name: inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                flag.type | None,
                Option(
                    *((f"--{name.replace('_', '-')}",) if flag.type is bool else ()),
                    help=flag.help,
                    shows_default=False,
                    panel=flag.panel,
                    complete=flag.complete,
                ),
            ],
        )
        for name, flag in JOB_FLAGS.items()
    }


def with_job_flags(command: Callable[..., int], without: tuple[str, ...] = ()) -> Callable[..., int]:
    """`command` with the job's options but those `without`; it gets them as one dictionary, `given`."""
    own = declared(command)
    shared = [parameter for name, parameter in _job_parameters().items() if name not in without]
    mine = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, p in own.items() if name != "given"]

    def run(**values: Any) -> int:
        flags = {name: values.pop(name) for name in JOB_FLAGS if name not in without}
        return command(**values, given=_given(flags))

    ends = 2 if "verbose" in own else 1
    parameters = [*mine[:-ends], *shared, *mine[-ends:]]  # --verbose and --json come last
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """The job as given: the file first, flags over it."""
    given = _job_file(flags.pop("job"))
    return given | {JOB_FLAGS[name].field or name: value for name, value in flags.items() if value is not None}


def _job_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    given = read_json(path)
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: expected a JSON object of job settings")
    from vramplan.inputs.validation import check_settings

    try:
        check_settings(given)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.text}") from error
    return given


def batch_of(micro_batch: int | None, accumulation: int | None) -> dict[str, int]:
    """What was given of the batch, as fields of the job."""
    batch = {"micro_batch_size": micro_batch, "gradient_accumulation_steps": accumulation}
    return {name: size for name, size in batch.items() if size is not None}


def keep_results(wanted: bool) -> None:
    """Turn off what is kept on disk, for this process, unless it is wanted."""
    if not wanted:
        from vramplan import disk_cache

        disk_cache.disable()


def sure(confidence: float | None) -> dict[str, Any]:
    """The confidence, where one was given."""
    return {} if confidence is None else {"confidence": confidence}


def connected(gpu: str | Gpu, link: str | None, network: float | None) -> str | Gpu:
    """The GPU with the links that were given, or its name if none were.

    Raises:
        VramplanError: for a GPU or a link that is unknown.
    """
    if link is None and network is None:
        return gpu
    from vramplan.inputs.links import with_links
    from vramplan.inputs.load import load_gpu

    return with_links(load_gpu(gpu), link, network)


def typed(**flags: Any) -> dict[str, Any]:
    """The flags that were typed; those that are None keep the default of the function they are passed to."""
    return {name: value for name, value in flags.items() if value is not None}


def between_commas(given: str) -> list[str]:
    """The words of a list."""
    return [one.strip() for one in given.split(",") if one.strip()]


def share_of(text: str, most: int) -> tuple[int, int]:
    """The numbers of ``--shard 3/16``: which share, of how many.

    Raises:
        ConfigError: if it names none.
    """
    number, of = (int(part) if part.isdecimal() and len(part) < 7 else 0 for part in (*text.split("/"), "")[:2])
    if text != f"{number}/{of}" or not 1 <= number <= of <= most:
        raise ConfigError(f"--shard {text}: expected K/N, from 1/N to N/N, such as 3/16, and N up to {most:,}")
    return number, of


def check_file(flag: str, path: Path | None, kinds: tuple[str, ...]) -> None:
    """Refuse a file that could not be written before anything is worked out.

    Raises:
        ConfigError: naming the flag and the file.
    """
    if path is None:
        return
    if path.suffix.lower() not in kinds:
        raise ConfigError(f"{flag} {path}: the name must end in {', '.join(kinds)}")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{flag} {path}: cannot be written there")


def say(text: str, end: str = "\n", file: TextIO | None = None) -> None:
    """Print text, without anything in it that a terminal would obey."""
    print(visible_lines(text), end=end, file=file or sys.stdout, flush=file is not None)


@contextmanager
def progress() -> Iterator[Callable[..., None]]:
    """Told what goes on, shows it on a terminal, in a log as a line now and then; what takes no time loads nothing.

    A third argument names the line of work that is done beside other work; "" is the log's.
    """
    bar: Any = None
    last = time.monotonic()

    def tell(what: str, share: float, line: str = "") -> None:
        nonlocal bar, last
        if bar is None and sys.stderr.isatty():
            from vramplan.render.progress_bar import Bar

            bar = Bar()
        if bar is not None:
            bar.tell(what, share, line)
        elif not line and time.monotonic() - last > SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(f"{share:4.0%}  {what}", file=sys.stderr)

    try:
        yield tell
    finally:
        if bar is not None:
            bar.close()
