"""Sounds in a text: the spectrograms and tokens that the processors of models which hear make of so many seconds.

transformers 5.23, processing_voxtral.py, processing_qwen2_audio.py, feature_extraction_whisper.py.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

from vramplan.errors import ConfigError, setting
from vramplan.inputs.images.types import ProcessedImage, Tensor
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import Config

PIECE = 30.0
"""Seconds of a spectrogram; shorter sounds are padded to it."""
FRAMES_PER_SECOND = 100
USUAL_SECONDS = 30.0


def seconds(job: Job) -> float:
    """Seconds of each sound."""
    return job.audio_seconds or USUAL_SECONDS


def voxtral(c: Config, job: Job) -> ProcessedImage:
    """Voxtral: pieces of 30 seconds, of each as many tokens, behind a mark."""
    audio = c.part("audio_config")
    pieces, positions = ceil(seconds(job) / PIECE), audio.count("max_source_positions", 1500)
    width = audio.count("hidden_size", 1280)
    each = positions * width // audio.count("intermediate_size", 5120)
    features = Tensor("input_features", (pieces, audio.count("num_mel_bins", 128), 2 * positions))
    return ProcessedImage(
        pieces * each, 1, pieces, 1, positions, (features,), f"{pieces} x 30 seconds", token="audio_token_id"
    )


def qwen2_audio(c: Config, job: Job) -> ProcessedImage:
    """Qwen2-Audio: one spectrogram of 30 seconds, a token for each 40 milliseconds of sound, between two marks.

    Raises:
        ConfigError: for longer sounds, which the processor cuts off.
    """
    audio = c.part("audio_config")
    positions = audio.count("max_source_positions", 1500)
    frames = round(job.audio_seconds * FRAMES_PER_SECOND) if job.audio_seconds else 2 * positions
    if frames > 2 * positions:
        raise ConfigError(
            f"{setting('audio_seconds', job.audio_seconds)}: qwen2_audio hears {2 * positions / FRAMES_PER_SECOND:g}"
            " seconds, and its processor cuts off the rest"
        )
    tokens = ((frames - 1) // 2 + 1 - 2) // 2 + 1
    tensors = (
        Tensor("input_features", (1, audio.count("num_mel_bins", 128), 2 * positions)),
        Tensor("feature_attention_mask", (1, 2 * positions), "int64", (1,) * frames + (0,) * (2 * positions - frames)),
    )
    description = f"{frames / FRAMES_PER_SECOND:g} of {2 * positions / FRAMES_PER_SECOND:g} seconds"
    return ProcessedImage(tokens, 2, 1, 1, positions, tensors, description, token="audio_token_id")


HEARD: dict[str, Callable[[Config, Job], ProcessedImage]] = {"voxtral": voxtral, "qwen2_audio": qwen2_audio}
"""By transformers' model_type."""


def heard(model_type: str, c: Config, job: Job) -> ProcessedImage:
    """Spectrograms and tokens of one of the job's sounds.

    Raises:
        ConfigError: for sounds that leave no room in the sequence.
    """
    sound = HEARD[model_type](c, job)
    if job.sounds * sound.all_tokens > job.sequence_length:
        raise ConfigError(
            f"{setting('sequence_length', job.sequence_length)}: sound of {seconds(job):g} seconds makes"
            f" {job.sounds * sound.all_tokens:,} tokens alone; raise {setting('sequence_length')}, or lower"
            f" {setting('audio_seconds')}"
        )
    return sound


__all__ = ["HEARD", "heard", "seconds"]
