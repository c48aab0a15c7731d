"""Python scripts around transformers' Trainer, TRL and unsloth: their calls in the frameworks' own keys."""

from __future__ import annotations

import re
from collections.abc import Mapping

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.parsed_config import at_least, resolve_version
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.python_ast import FREEZES, Call, Script
from vramplan.frameworks.syntax.shell import UNKNOWN

Settings = dict[str, ConfigValue]

CONFIGS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "UnslothTrainingArguments")
TRAINERS = ("Trainer", "Seq2SeqTrainer", "SFTTrainer", "UnslothTrainer")
OTHER_TRAINERS = (
    "DPOTrainer", "GRPOTrainer", "KTOTrainer", "ORPOTrainer", "CPOTrainer", "PPOTrainer", "RewardTrainer",
    "RLOOTrainer", "GKDTrainer", "BCOTrainer",
)  # fmt: skip
OTHER_TUNERS = (
    "LoHaConfig", "LoKrConfig", "AdaLoraConfig", "IA3Config", "PromptTuningConfig", "PrefixTuningConfig", "VeraConfig",
    "OFTConfig", "BOFTConfig", "TrainableTokensConfig", "LNTuningConfig", "FourierFTConfig", "RandLoraConfig",
)  # fmt: skip
READ = (
    "ForCausalLM", "ForConditionalGeneration", "ForImageTextToText", "ForVision2Seq", "ForMaskedLM", "ForSeq2SeqLM",
)  # fmt: skip
"""Ends of the names of classes that a model's name stands for."""
_HEAD = re.compile(r"For[A-Z]\w*$")
NO_MODELS = ("Tokenizer", "TokenizerFast", "Processor", "FeatureExtractor", "Config", "PeftModel", "Dataset")
"""Ends of the names of classes whose from_pretrained makes no model."""
MODEL: Mapping[str, str | None] = {
    "pretrained_model_name_or_path": "model_name_or_path",
    "model_name": "model_name_or_path",
    "dtype": "dtype",
    "torch_dtype": "dtype",
    "attn_implementation": "attn_implementation",
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "use_flash_attention_2": "use_flash_attention_2",
    "device_map": "device_map",
    **dict.fromkeys((
        "quantization_config", "trust_remote_code", "token", "use_auth_token", "cache_dir", "revision",
        "use_cache", "low_cpu_mem_usage", "local_files_only", "use_safetensors", "force_download", "config", "variant",
        "ignore_mismatched_sizes", "num_labels", "id2label", "label2id", "code_revision", "subfolder",
    )),
}  # fmt: skip
"""Arguments of from_pretrained in TRL's words; None: memory does not change."""
LORA: Mapping[str, str | None] = {
    "r": "lora_r",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "use_dora": "use_dora",
    "target_parameters": "lora_target_parameters",
    **dict.fromkeys(("lora_alpha", "bias", "task_type", "use_rslora", "inference_mode", "fan_in_fan_out", "revision")),
}
"""The same of peft.LoraConfig."""
QUANTIZED: Mapping[str, str | None] = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    "bnb_4bit_compute_dtype": "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_storage": "bnb_4bit_quant_storage",
    **dict.fromkeys(("bnb_4bit_quant_type", "llm_int8_threshold")),
}
"""The same of transformers' BitsAndBytesConfig."""


PROCESSORS = ("Processor", "ImageProcessor", "ImageProcessorFast")
"""Ends of the names of classes whose from_pretrained makes what sees to the images."""
RESIZES = ("max_image_size", "do_image_splitting", "crop_to_patches", "max_patches", "do_pan_and_scan", "num_crops")
"""Arguments of theirs that change what is made of an image, and are not read."""
AREA = 4096
"""Above this the edges in `size` are no sides: Qwen's processors count pixels in them (transformers 5.23)."""


def is_training(script: Script) -> bool:
    """Whether a trainer is set up in it."""
    return bool(script.named(*CONFIGS, *TRAINERS, *OTHER_TRAINERS))


def settings_of(script: Script) -> tuple[str, Settings]:
    """(framework, its settings) of a script.

    Raises:
        ConfigError: where it trains nothing, or calls twice what would have to be told apart.
        UnsupportedError: for another trainer, or what nothing models.
    """
    other = script.named(*OTHER_TRAINERS)
    if other:
        raise ConfigError(f"{other[0].place}: {other[0].last}: preference and reinforcement training is not read yet")
    if not is_training(script):
        raise ConfigError(f"{script.where}: no Trainer and no TrainingArguments in it; nothing that trains is read")
    own = dict(_only(script, *CONFIGS).keywords) | _trainer(script)
    if "unsloth" in script.imports:
        return "unsloth", own | _unsloth(script) | _caps(script) | _by_hand(script)
    is_trl = bool(script.named("SFTTrainer", "SFTConfig"))
    found = own | _model(script, own, is_trl) | _quantized(script) | _adapters(script)
    found |= _caps(script) | _by_hand(script)
    found.pop("model_init_kwargs", None)
    for call in script.named("prepare_model_for_kbit_training"):
        found["prepare_for_kbit_training"] = ConfigValue(True, call.place)
        said = call.keywords.get("use_gradient_checkpointing", ConfigValue(True, call.place))
        found.setdefault("gradient_checkpointing", said)
    for switch in script.named("gradient_checkpointing_enable"):
        found.setdefault("gradient_checkpointing", ConfigValue(True, switch.place))
    if not is_trl and "max_length" not in found:
        found |= _truncated(script)
    return ("trl" if is_trl else "transformers"), found


def _by_hand(script: Script) -> Settings:
    """Where the script says itself which weights train."""
    calls = script.named(*FREEZES)
    return {"requires_grad": ConfigValue(True, calls[0].place)} if calls else {}


def _only(script: Script, *names: str) -> Call:
    """The one call of these; an empty one where there is none.

    Raises:
        ConfigError: where there are several.
    """
    calls = script.named(*names)
    if len(calls) > 1 and any(call.keywords != calls[0].keywords for call in calls):
        lines = ", ".join(str(call.line) for call in calls)
        raise ConfigError(f"{script.where}: {len(calls)} calls of {calls[0].last} (lines {lines}); keep one")
    if not calls:
        return Call("", 0, script.where)
    spread = calls[0].keywords.get("**")
    if spread is not None:
        said = str(spread.value).replace(UNKNOWN, "")
        raise ConfigError(f"{spread.place}: {calls[0].last}: {said} is not known without running the script")
    return calls[0]


def _trainer(script: Script) -> Settings:
    """What SFTTrainer itself was told, before TRL 0.16 moved it to SFTConfig."""
    keywords = _only(script, *TRAINERS).keywords
    return {name: keywords[name] for name in ("max_seq_length", "packing", "model_init_kwargs") if name in keywords}


def _translated(keywords: Mapping[str, ConfigValue], words: Mapping[str, str | None], where: str) -> Settings:
    """Arguments in TRL's words.

    Raises:
        UnsupportedError: for one that is not in the table, and is set.
    """
    found: Settings = {}
    for name, setting in keywords.items():
        word = words.get(name, "")
        if word:
            found[word] = setting
        elif word == "" and setting.value not in (None, False):
            raise UnsupportedError(f"{setting.place}: {where}({name}=...) is not modelled yet")
    return found


def _model(script: Script, own: Settings, is_trl: bool) -> Settings:
    """What is loaded: by the script, else by SFTTrainer from a name and model_init_kwargs."""
    loads = [
        call
        for call in script.named("from_pretrained")
        if call.name.count(".") and not call.name.split(".")[-2].endswith(NO_MODELS)
    ]
    if not loads:
        return _named_model(script, own)
    load = loads[0]  # a later one reloads what was trained
    kind = load.name.split(".")[-2]
    if kind == "AutoModel" or (_HEAD.search(kind) and not kind.endswith(READ)):
        raise UnsupportedError(f"{load.place}: {kind}: is not read yet; read: {', '.join(f'...{one}' for one in READ)}")
    found = _translated(load.keywords, MODEL, "from_pretrained")
    if load.positional:
        found["model_name_or_path"] = ConfigValue(load.positional[0], load.place)
    flash = found.pop("use_flash_attention_2", None)
    if flash is not None and flash.value is True:
        found["attn_implementation"] = ConfigValue("flash_attention_2", flash.place)
    if is_trl and "dtype" not in found:
        known, _ = resolve_version("transformers", None, "5.23.0")
        found["dtype"] = ConfigValue("auto" if at_least(known, "5.0") else "float32", f"{load.place}: no dtype")
    return found


def _caps(script: Script) -> Settings:
    """Caps on images that a processor was loaded with.

    Raises:
        UnsupportedError: for what else changes its images.
    """
    found: Settings = {}
    for call in script.named("from_pretrained"):
        if not call.name.rpartition(".")[0].endswith(PROCESSORS):
            continue
        size = call.keywords.get("size")
        given = {name: one for name, one in call.keywords.items() if name in ("min_pixels", "max_pixels")}
        if size is not None and isinstance(size.value, dict) and size.value.get("longest_edge", 0) > AREA:
            edges = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
            given |= {name: ConfigValue(size.value[e], size.place) for name, e in edges.items() if e in size.value}
        elif size is not None:
            raise UnsupportedError(f"{size.place}: {call.name}(size=...) is not modelled yet; give max_pixels")
        for name in RESIZES:
            if name in call.keywords:
                raise UnsupportedError(f"{call.keywords[name].place}: {call.name}({name}=...) is not modelled yet")
        found |= given
    return found


def _named_model(script: Script, own: Settings) -> Settings:
    """``SFTTrainer(model="name", args=SFTConfig(model_init_kwargs={...}))``."""
    call = _only(script, *TRAINERS)
    named = call.keywords.get("model") or (ConfigValue(call.positional[0], call.place) if call.positional else None)
    found: Settings = {}
    if named is not None and isinstance(named.value, str) and UNKNOWN not in named.value:
        found["model_name_or_path"] = named
    extra = own.get("model_init_kwargs")
    if extra is not None and isinstance(extra.value, dict):
        inner = {name: ConfigValue(value, extra.place) for name, value in extra.value.items()}
        found |= _translated(inner, MODEL, "model_init_kwargs")
    return found


def _quantized(script: Script) -> Settings:
    """BitsAndBytesConfig, whose own default computes in fp32."""
    call = _only(script, "BitsAndBytesConfig")
    found = _translated(call.keywords, QUANTIZED, "BitsAndBytesConfig")
    four = found.get("load_in_4bit")
    if four is not None and four.value is True:
        found.setdefault("bnb_4bit_compute_dtype", ConfigValue("float32", f"{call.place}: BitsAndBytesConfig"))
    return found


def _adapters(script: Script) -> Settings:
    """LoraConfig with PEFT's own defaults; other tuners are refused."""
    for call in script.named(*OTHER_TUNERS):
        raise UnsupportedError(f"{call.place}: {call.last} is not modelled yet; modelled: LoraConfig")
    if not script.named("LoraConfig"):
        return {}
    call = _only(script, "LoraConfig")
    init = call.keywords.get("init_lora_weights")
    if init is not None and init.value not in (True, False, "gaussian", "orthogonal", None):
        raise UnsupportedError(f"{init.place}: LoraConfig(init_lora_weights={init.value!r}) is not modelled yet")
    keywords = {name: one for name, one in call.keywords.items() if name != "init_lora_weights"}
    peft = {"use_peft": True, "lora_r": 8, "lora_dropout": 0.0, "lora_target_modules": ["q_proj", "v_proj"]}
    return {name: ConfigValue(value, f"{call.place}: LoraConfig") for name, value in peft.items()} | _translated(
        keywords, LORA, "LoraConfig"
    )


def _truncated(script: Script) -> Settings:
    """The longest ``tokenizer(..., truncation=True, max_length=N)``."""
    found = [
        call.keywords["max_length"] for call in script.calls if {"truncation", "max_length"} <= call.keywords.keys()
    ]
    known = [one for one in found if isinstance(one.value, int)]
    return {"max_length": max(known, key=lambda one: one.value)} if known else {}


def _unsloth(script: Script) -> Settings:
    """Unsloth's own two calls, in its own words."""
    loads = [call for call in script.named("from_pretrained") if call.name.startswith("Fast")]
    if not loads:
        raise ConfigError(f"{script.where}: unsloth is imported, but no FastLanguageModel.from_pretrained is called")
    load = loads[0]
    found = dict(load.keywords)
    if load.positional:
        found["model_name"] = ConfigValue(load.positional[0], load.place)
    adapters = [call for call in script.named("get_peft_model") if call.name.startswith("Fast")]
    for call in adapters[:1]:
        found |= {name: one for name, one in call.keywords.items() if name not in ("max_seq_length", "model")}
        found["get_peft_model"] = ConfigValue(True, call.place)
    found["loader"] = ConfigValue(load.name.partition(".")[0], load.place)
    configs = script.named(*CONFIGS)
    if configs:
        found["arguments"] = ConfigValue(configs[0].last, configs[0].place)
    if "**" in found:
        said = str(found["**"].value).replace(UNKNOWN, "")
        raise ConfigError(f"{found['**'].place}: {said} is not known without running the script")
    return found
