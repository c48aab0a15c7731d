"""Samples of CSM: a text and its sound, which the model's codec turns into frames of tokens.

transformers 5.23, processing_csm.py (_get_encoded_length, and labels with `output_labels=True`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from vramplan.errors import ConfigError, setting
from vramplan.inputs.batch_input import Input
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import Config
from vramplan.units import ceil_div

USUAL_SECONDS = 10.0
"""The longest sound in Unsloth's notebook for CSM (`max_length` 240,001 values)."""
TOKENS_PER_SECOND = 4
"""Tokens of the text, if their number is not given: English read aloud has 15 letters a second, four to a token."""
MARKS = 6
"""Tokens around the text: its beginning and end, the speaker's number in brackets, the end of the sound."""
RATIOS = (8, 6, 5, 4)
"""Mimi's strides from one convolution to the next, beside a last one of 2."""
IGNORED = -100


def seconds(job: Job) -> float:
    """Seconds of sound in each sample."""
    return job.audio_seconds or USUAL_SECONDS


def values(c: Config, job: Job) -> int:
    """Values of the waveform of a sample."""
    return round(seconds(job) * codec(c).count("sampling_rate", 24_000))


def codec(c: Config) -> Config:
    """The codec's configuration; transformers' Mimi if the model names none."""
    return c.part("codec_config") if c.get("codec_config") else Config({}, "codec_config")


def ratios(c: Config) -> tuple[int, ...]:
    """Strides of the codec's convolutions."""
    return tuple(codec(c).get("upsampling_ratios", RATIOS))


def frames(c: Config, job: Job) -> int:
    """Frames of tokens of a sample's sound: every convolution is padded to whole strides."""
    return ceil_div(values(c, job), 2 * prod(ratios(c)))


def complete(c: Config, given: Mapping[str, object], labels: bool) -> dict[str, object]:
    """A job's settings with the length of text and sound together.

    Raises:
        ConfigError: for a length that leaves no text.
    """
    job = Job.model_construct(None, audio_seconds=given.get("audio_seconds"))
    count = frames(c, job)
    usual = count + MARKS + round(TOKENS_PER_SECOND * seconds(job))
    length = given.get("sequence_length") or usual
    if isinstance(length, int) and length < count + 2:
        raise ConfigError(
            f"{setting('sequence_length', length)}: {seconds(job):g} seconds of sound alone are {count} frames and an"
            f" end; raise {setting('sequence_length')}, or lower {setting('audio_seconds')}"
        )
    return {**given, "sequence_length": length}


def inputs(c: Config, job: Job) -> list[Input]:
    """A text, its sound and where that ends; labels name the frames of sound, and the end behind them."""
    length, waveform = job.sequence_length, values(c, job)
    heard = [c.count("audio_token_id", 128_002)] * frames(c, job) + [c.count("audio_eos_token_id", 128_003)]
    text = length - len(heard)
    dtype = job.dtype if job.autocast == "none" else "fp32"  # a convolution without autocast takes no other
    return [
        Input("input_ids", (length,), values=(*[0] * text, *heard)),
        Input("labels", (length,), values=(*[IGNORED] * text, *heard)),
        Input("attention_mask", (length,)),
        Input("input_values", (1, waveform), dtype),
        Input("input_values_cutoffs", (1,), values=(waveform,)),
    ]


def describe(job: Job, labels: bool) -> str:
    """A sample in a few words."""
    given = "" if job.audio_seconds else " (not given)"
    return (
        f"{seconds(job):g} seconds of sound{given} at 24 kHz with their text, {job.sequence_length} tokens and frames"
        " in all; every frame trains the depth decoder (depth_decoder_labels_ratio)"
    )


__all__ = ["complete", "describe", "frames", "inputs", "ratios", "seconds", "values"]
