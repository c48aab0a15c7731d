"""Model families by transformers' ``model_type``."""

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
    moe,
    phi,
    phimoe,
    siglip,
    t5,
    vit,
    whisper,
)
from vramplan.analytic.architectures.family import Family, Rotary, Shape
from vramplan.errors import UnsupportedError

FAMILIES: dict[str, Family] = {
    **llama.FAMILIES,
    **gemma.FAMILIES,
    **phi.FAMILIES,
    **phimoe.FAMILIES,
    **cohere.FAMILIES,
    **gpt.FAMILIES,
    **bloom.FAMILIES,
    **moe.FAMILIES,
    **deepseek.FAMILIES,
    **gpt_oss.FAMILIES,
    **mllama.FAMILIES,
    **bert.FAMILIES,
    **deberta.FAMILIES,
    **vit.FAMILIES,
    **clip.FAMILIES,
    **siglip.FAMILIES,
    **t5.FAMILIES,
    **whisper.FAMILIES,
}


def family_of(model_type: str, owner: str) -> Family:
    """The family that describes `model_type`.

    Raises:
        UnsupportedError: where no block describes it.
    """
    family = FAMILIES.get(model_type)
    if family is None:
        raise UnsupportedError(
            f"{owner}: architecture {model_type!r} is not described by any block; known: {', '.join(sorted(FAMILIES))};"
            " the real model can be traced"
        )
    return family


__all__ = ["FAMILIES", "Family", "Rotary", "Shape", "family_of"]
