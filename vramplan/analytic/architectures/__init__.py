"""Architectures by transformers' ``model_type``."""

from __future__ import annotations

from vramplan.analytic.architectures import (
    bert,
    bloom,
    clip,
    cohere,
    deberta,
    deepseek,
    gemma,
    gpt,
    gpt_oss,
    llama,
    mllama,
    modernbert,
    moe,
    phi,
    phimoe,
    siglip,
    t5,
    vit,
    whisper,
)
from vramplan.analytic.architectures.architecture import Architecture, Shape
from vramplan.errors import UnsupportedError, setting

ARCHITECTURES: dict[str, Architecture] = {
    **llama.ARCHITECTURES,
    **gemma.ARCHITECTURES,
    **phi.ARCHITECTURES,
    **phimoe.ARCHITECTURES,
    **cohere.ARCHITECTURES,
    **gpt.ARCHITECTURES,
    **bloom.ARCHITECTURES,
    **moe.ARCHITECTURES,
    **deepseek.ARCHITECTURES,
    **gpt_oss.ARCHITECTURES,
    **mllama.ARCHITECTURES,
    **bert.ARCHITECTURES,
    **modernbert.ARCHITECTURES,
    **deberta.ARCHITECTURES,
    **vit.ARCHITECTURES,
    **clip.ARCHITECTURES,
    **siglip.ARCHITECTURES,
    **t5.ARCHITECTURES,
    **whisper.ARCHITECTURES,
}


def text_architecture_of(model_type: str, owner: str) -> Architecture:
    """The architecture of a model without a vision tower, or of the language model behind one.

    Raises:
        UnsupportedError: if the analytic estimator does not support it.
    """
    architecture = ARCHITECTURES.get(model_type)
    if architecture is None:
        raise UnsupportedError(
            f"{owner}: the analytic estimator does not support the architecture {model_type!r}; supported:"
            f" {', '.join(sorted(ARCHITECTURES))}; {setting('by', 'trace')} runs it"
        )
    return architecture


__all__ = ["ARCHITECTURES", "Architecture", "Shape", "text_architecture_of"]
