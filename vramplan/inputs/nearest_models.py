"""Models that are not modelled, with the shipped model that is nearest to their language model."""

from __future__ import annotations

from vramplan.inputs.model_spec import ModelSpec

NO_CLASS = "transformers 5.23 has no class of it, and its own code is traced only from a folder with trust_remote_code"
NEAREST: dict[str, tuple[str, str]] = {
    "kimi_vl": (NO_CLASS, "moonshotai/Moonlight-16B-A3B"),
    "deepseek_vl_v2": (NO_CLASS, "deepseek-ai/DeepSeek-V2-Lite"),
    "minicpmv": (NO_CLASS, "Qwen/Qwen2.5-7B"),
    "minicpmo": (NO_CLASS, "Qwen/Qwen2.5-7B"),
    "exaone": (NO_CLASS, "meta-llama/Llama-3.1-8B"),
    "csm": ("its decoder of codebooks and its codec are not modelled", "meta-llama/Llama-3.2-1B"),
}
"""By model_type: why it is refused, and the model whose text part it has or comes close to (their model cards)."""
TEXT = {"exaone": "to its 7.8B, whose layers are a Llama's under other names,"}
"""Those that read text alone, and what of them the model is near to."""


def refusal(spec: ModelSpec, trust_remote_code: bool) -> str:
    """Why a model is refused before anything is traced, with a way forward; empty if it is not."""
    known = NEAREST.get(spec.model_type)
    if known is None or (trust_remote_code and spec.config.get("auto_map")):
        return ""
    why, nearest = known
    part = TEXT.get(spec.model_type, "of its language model alone, without its towers,")
    return f"{spec.name}: {spec.model_type} is not modelled: {why}; {part} {nearest} is the nearest"
