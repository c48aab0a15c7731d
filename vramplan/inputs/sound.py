"""Samples of models that read a waveform: how many values and frames so many seconds of sound are.

transformers 5.23, modeling_wav2vec2.py (_get_feat_extract_output_lengths), feature_extraction_wav2vec2.py, and the
defaults of examples/pytorch/speech-recognition/run_speech_recognition_ctc.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from vramplan.errors import ConfigError, SpecError, setting
from vramplan.inputs.job import Job
from vramplan.inputs.model_spec import MAX_SIZE, Config

SAMPLING_RATE = 16_000
"""Values of a second."""
USUAL_SECONDS = 20.0
"""`max_duration_in_seconds` and `max_length_seconds` of transformers' example scripts."""
LETTERS_PER_SECOND = 15
"""Labels of a transcript, if their number is not given: English read aloud (LibriSpeech has 14 to 15)."""
CONVOLUTIONS = {"conv_dim": (512,) * 7, "conv_stride": (5, *[2] * 6), "conv_kernel": (10, *[3] * 4, 2, 2)}
"""transformers' defaults."""
MAX_CONVOLUTIONS = 64
"""More in a configuration are refused."""


def seconds(job: Job) -> float:
    """Seconds of sound in each sample."""
    return job.audio_seconds or USUAL_SECONDS


def values(job: Job) -> int:
    """Values of the waveform of a sample."""
    return round(seconds(job) * SAMPLING_RATE)


def convolutions(c: Config) -> list[tuple[int, int, int]]:
    """Channels, stride and kernel of each convolution over the waveform.

    Raises:
        SpecError: if the configuration lists something else.
    """
    lists = [c.get(name, usual) for name, usual in CONVOLUTIONS.items()]
    numbers = [number for one in lists if isinstance(one, (list, tuple)) for number in one]
    are_whole = all(isinstance(number, int) and 0 < number <= MAX_SIZE for number in numbers)
    if not are_whole or not 3 <= len(numbers) == 3 * len(lists[0]) <= 3 * MAX_CONVOLUTIONS:
        raise SpecError(f"{', '.join(CONVOLUTIONS)}: expected equally many whole numbers, at most {MAX_CONVOLUTIONS}")
    return list(zip(*lists, strict=True))


def frame_counts(c: Config, length: int) -> list[int]:
    """Frames behind each convolution, of a waveform of `length` values."""
    counts = []
    for _, stride, kernel in convolutions(c):
        length = (length - kernel) // stride + 1
        counts.append(length)
    return counts


def frames(c: Config, job: Job) -> int:
    """Frames of a sample that the layers see.

    Raises:
        ConfigError: if the sound is shorter than one frame.
    """
    count = frame_counts(c, values(job))[-1]
    if count < 1:
        raise ConfigError(f"{setting('audio_seconds', job.audio_seconds)}: shorter than one frame of the model")
    return count


def has_mask(c: Config) -> bool:
    """Whether the feature extractor makes a mask: models without a norm behind each convolution were trained without.

    (feature_extraction_wav2vec2.py: return_attention_mask, the published preprocessor_config.json files.)
    """
    return c.text("feat_extract_norm", "group") == "layer"


def complete(c: Config, given: Mapping[str, object], labels: bool) -> dict[str, object]:
    """A job's settings with the length that follows from the seconds: labels of a transcript, or else frames.

    Raises:
        ConfigError: for sound that is shorter than one frame, or its labels.
    """
    job = Job.model_construct(None, audio_seconds=given.get("audio_seconds"))
    count = frames(c, job)
    usual = min(count, round(LETTERS_PER_SECOND * seconds(job))) if labels else count
    length = given.get("sequence_length") or usual
    if not labels and length != usual:
        raise ConfigError(
            f"{setting('sequence_length', length)}: a sample is no text; its {usual} frames follow from"
            f" {setting('audio_seconds')}"
        )
    if isinstance(length, int) and length > count:
        raise ConfigError(
            f"{setting('sequence_length', length)}: {seconds(job):g} seconds of sound are {count} frames, which cannot"
            f" be told apart into more labels; use {setting('audio_seconds')} for the length of the sound"
        )
    return {**given, "sequence_length": length}


def describe(job: Job, labels: bool) -> str:
    """A sample in a few words."""
    given = "" if job.audio_seconds else " (not given)"
    front = "frozen" if job.freeze_feature_encoder else "trained, or differentiated if adapters train alone"
    transcript = f" with {job.sequence_length} letters" if labels else ""
    return (
        f"{seconds(job):g} seconds of sound{given} at 16 kHz{transcript} each, no layer dropped (layerdrop), the"
        f" feature encoder {front}"
    )


def masked_frames(c: Config, frames: int) -> int:
    """The most frames of a sample that SpecAugment replaces in training (_compute_mask_indices); 0 if it is off."""
    share, length = c.number("mask_time_prob", 0.05), c.count("mask_time_length", 10)
    if not c.flag("apply_spec_augment", True) or share <= 0:
        return 0
    least = int(c.number("mask_time_min_masks", 2))
    return min(frames, length * max(least, int(share * frames / length) + 1))


__all__ = [
    "complete",
    "convolutions",
    "describe",
    "frame_counts",
    "frames",
    "has_mask",
    "masked_frames",
    "seconds",
    "values",
]
