"""Models that are not modelled, with the shipped model that is nearest."""

from __future__ import annotations

from vramplan.errors import setting
from vramplan.inputs.model_spec import ModelSpec

NO_CLASS = "transformers 5.23 has no class of it, and its own code is traced only from a folder with trust_remote_code"
IMAGES = "its tower and processor are not described"
NEAREST: dict[str, tuple[str, str]] = {
    "kimi_vl": (NO_CLASS, "moonshotai/Moonlight-16B-A3B"),
    "deepseek_vl_v2": (NO_CLASS, "deepseek-ai/DeepSeek-V2-Lite"),
    "deepseek_ocr": (NO_CLASS, "deepseek-ai/DeepSeek-V2-Lite"),
    "deepseek_ocr2": (IMAGES, "deepseek-ai/DeepSeek-V2-Lite"),
    "minicpmv": (NO_CLASS, "Qwen/Qwen2.5-7B"),
    "minicpmo": (NO_CLASS, "Qwen/Qwen2.5-7B"),
    "minicpm_ocr": (
        "its processor may size each slice by the text in it, so that its tokens are not known; `--by trace` traces the"
        " class on text alone",
        "openbmb/MiniCPM-V-4.6",
    ),
    "phi3_v": (NO_CLASS, "microsoft/Phi-3-mini-4k-instruct"),
    "molmo": (NO_CLASS, "Qwen/Qwen2-7B"),
    "ovis2": ("each of its image tokens is a softmax over all words of its tower", "Qwen/Qwen2.5-7B"),
    "got_ocr2": (
        "its tower adds relative positions to scores over 4,096 patches, 384 MiB in bf16 in each global layer",
        "Qwen/Qwen2-0.5B",
    ),
    "florence2": ("its tower attends across channels and in windows", "google-t5/t5-base"),
    "paddleocr_vl": ("its tower resizes a table of positions for each image", "baidu/ERNIE-4.5-0.3B-PT"),
    "exaone": (NO_CLASS, "meta-llama/Llama-3.1-8B"),
    "granite_speech": (
        "its encoder of sound has convolutions between its attentions, and a Q-Former behind it",
        "ibm-granite/granite-3.3-8b-instruct",
    ),
}
"""By model_type: why it is refused, and the model whose text part it has or comes close to (their model cards)."""
TEXT = {
    "exaone": "to its 7.8B, whose layers are a Llama's under other names,",
    "minicpm_ocr": "with downsample_mode 4x in a copy of its config.json, if its language model is as small,",
}
"""What of a model the other is near to, where that is not its language model alone."""
WITHOUT_TEXT: dict[str, tuple[str, str]] = {
    "wavlm": ("the biases of its attention take more than", "facebook/wav2vec2-base"),
    "wav2vec2-bert": ("its layers with convolutions keep more than", "facebook/wav2vec2-large-lv60"),
    "parakeet_ctc": ("its layers with convolutions keep more than", "facebook/wav2vec2-large-lv60"),
    "moonshine": ("its convolutions and rotary layers differ from", "openai/whisper-tiny"),
}
"""The same of models of sound: what keeps them from being the nearest one, which is named behind it."""
UNLIKE: dict[str, str] = {
    "dia": "its decoder of codebooks is not modelled",
    "dbrx": "its experts take turns, which a trace cannot follow without data",
}
"""Why models that none comes near are refused."""
TOWERS = ("vision_config", "audio_config")
"""Parts of a configuration that are of a tower: a trace that nobody asked for would leave out what it takes."""
MEASURE = "measure a step of the longest sample with torch.cuda.max_memory_reserved()"


def refusal(spec: ModelSpec, trust_remote_code: bool) -> str:
    """Why a model is refused before anything is traced, with a way forward; empty if it is not."""
    kind, owner = spec.model_type, f"{spec.name}: {spec.model_type} is not modelled: "
    if trust_remote_code and spec.config.get("auto_map"):
        return ""
    if kind in NEAREST:
        why, nearest = NEAREST[kind]
        part = TEXT.get(kind, "of its language model alone, without its towers,")
        return f"{owner}{why}; {part} {nearest} is the nearest"
    if kind in WITHOUT_TEXT:
        why, nearest = WITHOUT_TEXT[kind]
        return f"{owner}{why} those of {nearest}, which is the nearest; {MEASURE}"
    if kind in UNLIKE:
        return f"{owner}{UNLIKE[kind]}; {MEASURE}"
    if any(isinstance(spec.config.get(part), dict) for part in TOWERS):
        only = f"`vramplan estimate` with {setting('by', 'trace')} traces it on text alone"
        return f"{owner}{IMAGES}; {only}, which needs less than images or sounds"
    return ""
