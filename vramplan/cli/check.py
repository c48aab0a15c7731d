"""`vramplan check`: the configuration that the user already has."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vramplan.bounded_read import is_file, read_bytes
from vramplan.cli import completion
from vramplan.cli.options import (
    AsJson,
    Confidence,
    LinkName,
    Network,
    Verbose,
    connected,
    progress,
    say,
    spell_flag,
    sure,
)
from vramplan.cli.panels import DATA, METHOD, MODEL, OUTPUT, SAVERS, SEVERAL
from vramplan.cli.parameters import Argument, Option
from vramplan.errors import ConfigError, VramplanError
from vramplan.frameworks.readers import trl_trainers
from vramplan.visible import visible_lines

if TYPE_CHECKING:
    from vramplan.inputs.gpu import Gpu
    from vramplan.planner.verdict import Verdict


SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".py", ".ipynb")
"""Words that end so are files, also where they are missing."""


def check(
    target: Annotated[
        list[str],
        Argument(
            metavar="FILE | -- COMMAND...",
            help="A configuration file, a training script, or a training command after --.",
            shows_default=False,
        ),
    ],
    gpu: Annotated[
        str,
        Option(
            help="GPU by name or memory (24GB), or auto for the one in this machine; `vramplan gpus` lists them.",
            panel=MODEL,
            complete=completion.gpu_names,
        ),
    ] = "auto",
    num_gpus: Annotated[
        int | None,
        Option(
            help="GPUs of the machine, if the configuration does not say; several are tried without it.",
            min=1,
            panel=SEVERAL,
        ),
    ] = None,
    model: Annotated[
        str | None,
        Option(
            help="The model, in place of the one that the configuration names.",
            panel=MODEL,
            complete=completion.model_names,
        ),
    ] = None,
    framework: Annotated[
        str | None,
        Option(
            help="Whose configuration it is, if it is not recognised.",
            panel=MODEL,
            complete=completion.frameworks,
        ),
    ] = None,
    framework_version: Annotated[
        str | None,
        Option(help="Version whose defaults count (the installed one, else the newest known).", panel=MODEL),
    ] = None,
    task: Annotated[
        str | None,
        Option(
            help="TRL's trainer, if nothing else says it: sft, dpo, kto, orpo, cpo, reward, grpo, rloo, gkd or ppo.",
            panel=METHOD,
            complete=completion.one_of("sft", *trl_trainers.TASKS),
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of the configuration with another value, or one that it does not hold; KEY= removes it.",
            panel=METHOD,
        ),
    ] = None,
    deepspeed: Annotated[
        Path | None,
        Option(help="DeepSpeed's JSON, if the file that the configuration names is not here.", panel=SEVERAL),
    ] = None,
    execute: Annotated[
        bool,
        Option(
            "--exec",
            help="Run a shell or Python script that you trust, with stand-ins for what trains; all else in it runs.",
            panel=METHOD,
        ),
    ] = False,
    seq_len: Annotated[
        int | None,
        Option(help="Tokens of the longest sample, if fewer than the limit.", min=1, panel=DATA),
    ] = None,
    method: Annotated[
        str | None,
        Option(
            help="full, lora or qlora, if the configuration does not say (DeepSpeed's JSON).",
            panel=METHOD,
            complete=completion.one_of("full", "lora", "qlora"),
        ),
    ] = None,
    checkpointing: Annotated[
        str | None,
        Option(
            help="none or full, if the configuration does not say.",
            panel=SAVERS,
            complete=completion.job_values("checkpointing"),
        ),
    ] = None,
    images: Annotated[int | None, Option(help="Images in each sample.", min=0, panel=DATA)] = None,
    videos: Annotated[int | None, Option(help="Videos in each sample, instead of images.", min=0, panel=DATA)] = None,
    frames: Annotated[
        int | None,
        Option(help="Frames sampled of each, if fewer than the configuration allows.", min=1, panel=DATA),
    ] = None,
    audio_seconds: Annotated[
        float | None,
        Option(
            help="Seconds of the longest sound, for wav2vec 2, HuBERT (20), CSM (10), Voxtral, Qwen2-Audio (30).",
            panel=DATA,
        ),
    ] = None,
    image_size: Annotated[
        str | None,
        Option(help="Width and height in pixels of the largest image, or of a video's frames.", panel=DATA),
    ] = None,
    dataset: Annotated[
        Path | None,
        Option(help="The samples (.jsonl, .json, .csv, .tsv, .txt): their lengths decide.", panel=DATA),
    ] = None,
    tokenizer: Annotated[
        str | None,
        Option(
            help="Folder with the tokenizer.json that counts them (the model's, if it is on this machine).",
            panel=DATA,
        ),
    ] = None,
    min_headroom: Annotated[str | None, Option(help="Share of the GPU that has to stay free: 5%.", panel=MODEL)] = None,
    confidence: Confidence = None,
    link: LinkName = None,
    network: Network = None,
    fix: Annotated[
        bool,
        Option("--fix", help="Print it with the changes that make it fit.", panel=OUTPUT),
    ] = False,
    write: Annotated[bool, Option("--write", help="With --fix: change the file itself.", panel=OUTPUT)] = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> int:
    """Check whether a training configuration fits before you start it, and what to change."""
    several = len(target) > 1 and all(Path(word).suffix in SUFFIXES or is_file(Path(word)) for word in target)
    targets: list[str | list[str]] = [*target] if several or len(target) == 1 else [target]
    if tokenizer is not None and dataset is None:
        raise ConfigError("--tokenizer goes with --dataset")
    if write and not fix:
        raise ConfigError("--write goes with --fix")
    given = {
        "num_gpus": num_gpus,
        "model": model,
        "framework": framework,
        "framework_version": framework_version,
        "task": task,
        "settings": _settings(settings or [], deepspeed),
        "min_headroom": _share(min_headroom),
        "sequence_length": seq_len,
        "method": method,
        "checkpointing": checkpointing,
        "images": images,
        "videos": videos,
        "frames": frames,
        "audio_seconds": audio_seconds,
        "image_size": image_size,
        "dataset": dataset,
        "tokenizer": tokenizer,
        **sure(confidence),
    }
    chosen_gpu = connected(gpu, link, network)
    if execute and (fix or any(not isinstance(target, str) for target in targets)):
        raise ConfigError("--exec runs a script given as a file, and goes without --fix")
    given["execute"] = execute
    if fix:
        given.pop("execute")
        return _fixed(targets, chosen_gpu, write, as_json, given)
    codes, answers = [], []
    for title, verdict in _verdicts(targets, chosen_gpu, framework, given):
        if isinstance(verdict, VramplanError):
            say(f"vramplan: {verdict.spelled(spell_flag)}", file=sys.stderr)
            codes.append(2)
            continue
        if as_json:
            from vramplan.render import json_output

            answers.append(json_output.verdict(verdict))
        else:
            from vramplan.render import check as check_output
            from vramplan.render import terminal

            terminal.print_all(*([title] if title else []), check_output.answer(verdict, verbose))
        codes.append(0 if verdict.fits else 1)
    if answers:
        from vramplan.render import json_output

        say(json_output.dumps(answers if len(codes) > 1 or several else answers[0]))
    return max(codes)


def _verdicts(
    targets: list[str | list[str]], gpu: str | Gpu, framework: str | None, given: dict[str, Any]
) -> Iterator[tuple[str, Verdict | VramplanError]]:
    """(title, verdict or why there is none) of each target, and of each training command of a script with several.

    Raises:
        VramplanError: if there is one target with one command, and it cannot be checked.
    """
    from vramplan.frameworks.detect import training_lines
    from vramplan.planner import check as planner

    for target in targets:
        lines = [0]
        try:
            if isinstance(target, str):
                lines = training_lines(Path(target), framework, execute=bool(given["execute"])) or [0]
        except VramplanError as error:
            if len(targets) == 1:
                raise
            yield "", error
            continue
        for number, line in enumerate(lines, 1):
            is_one_of_several = len(lines) > 1
            title = f"{target}:{line} ({number} of {len(lines)})" if is_one_of_several else ""
            title = title or (str(target) if len(targets) > 1 else "")
            try:
                with progress() as report_progress:
                    verdict = planner.check(
                        target, gpu, progress=report_progress, number=number if is_one_of_several else None, **given
                    )
            except VramplanError as error:
                if len(targets) == 1 and not is_one_of_several:
                    raise
                yield title, error
            else:
                yield title, verdict


def _settings(pairs: list[str], deepspeed: Path | None) -> dict[str, str]:
    settings = {"deepspeed": str(deepspeed.absolute())} if deepspeed is not None else {}
    for pair in pairs:
        key, mark, value = pair.partition("=")
        if not mark or not key.strip():
            raise ConfigError(f"--set {pair}: expected KEY=VALUE")
        settings[key.strip()] = value.strip()
    return settings


def _fixed(targets: list[str | list[str]], gpu: str | Gpu, write: bool, as_json: bool, given: dict[str, Any]) -> int:
    """Fix them, and say on standard error what was changed; the exit code."""
    from vramplan import atomic_write
    from vramplan.planner import fix as fixing
    from vramplan.render import fix as shown
    from vramplan.render import json_output as as_text

    if len(targets) > 1 and not write:
        raise ConfigError("--fix prints one file; give one, or add --write")
    codes = []
    for target in targets:
        if write and not isinstance(target, str):
            raise ConfigError("--write changes a file; without it, the command is printed")
        before = read_bytes(Path(str(target))) if write else b""
        with progress() as tell:
            found = fixing.fix(target, gpu, progress=tell, **given)
        if as_json:
            say(as_text.dumps(as_text.fix(found)))
        elif found.after.fits and not write:
            sys.stdout.flush()
            text = visible_lines(found.text) if sys.stdout.isatty() else found.text
            sys.stdout.buffer.write(text.encode())
        if write and found.changes:
            atomic_write.write(Path(str(target)), found.text.encode(), before)
        say(shown.summary(str(target) if isinstance(target, str) else "the command", found), file=sys.stderr)
        codes.append(0 if found.after.fits else 1)
    return max(codes)


def _share(given: str | None) -> float:
    if given is None:
        return 0.0
    try:
        share = float(given.rstrip("%")) / 100
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ConfigError(f"--min-headroom {given}: expected a percentage such as 5%")
    return share
