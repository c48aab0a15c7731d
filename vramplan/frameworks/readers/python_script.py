"""Python scripts around transformers' Trainer, TRL and unsloth: arguments of their calls as the frameworks' keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError, setting
from vramplan.frameworks.parsed_config import at_least, resolve_version
from vramplan.frameworks.readers import (
    classifiers,
    python_model,
    python_other_models,
    python_ppo,
    python_sentence_transformers,
    python_trl,
    python_unused,
    saved_adapters,
    speech,
    xtuner,
)
from vramplan.frameworks.readers.python_adapters import (
    ADAPTED,
    ARGUMENTS,
    WITH_BASE,
    class_of,
    folder_of,
    named_by_adapters,
)
from vramplan.frameworks.readers.python_effects import refuse_effects
from vramplan.frameworks.readers.python_images import image_caps
from vramplan.frameworks.readers.python_model import Model, is_model
from vramplan.frameworks.readers.python_trainer import CONFIGS, MODEL_AT, OTHER_TRAINERS, TRAINERS, Run, find_run
from vramplan.frameworks.readers.trl_trainers import WITHOUT_DTYPE
from vramplan.frameworks.settings import ConfigValue, Note
from vramplan.frameworks.syntax.python_ast import Script, Thing
from vramplan.frameworks.syntax.shell import UNKNOWN
from vramplan.inputs.tasks import CLASSES

Settings = dict[str, ConfigValue]

OTHER_TUNERS = (
    "LoHaConfig", "LoKrConfig", "AdaLoraConfig", "IA3Config", "PromptTuningConfig", "PrefixTuningConfig", "VeraConfig",
    "OFTConfig", "BOFTConfig", "TrainableTokensConfig", "LNTuningConfig", "FourierFTConfig", "RandLoraConfig",
)  # fmt: skip
MODEL_CLASSES = (
    "ForCausalLM", "ForConditionalGeneration", "ForImageTextToText", "ForVision2Seq", "ForMaskedLM", "ForSeq2SeqLM",
    "ForCTC",
)  # fmt: skip
"""Ends of the names of model classes that are read."""
_HEAD = re.compile(r"For[A-Z]\w*$")
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
        "ignore_mismatched_sizes", "offload_folder", "num_labels", "id2label", "label2id", "code_revision", "subfolder",
        "pad_token_id",
    )),
}  # fmt: skip
"""Arguments of from_pretrained -> TRL's keys; None if memory does not change."""
SOUND: Mapping[str, str | None] = {"config": speech.OWN_CONFIG, **{name: name for name in speech.CONFIGURED}}
"""The same of a class for CTC or for classes of sounds, whose configuration scripts set."""
LORA: Mapping[str, str | None] = {
    "r": "lora_r",
    "lora_dropout": "lora_dropout",
    "target_modules": "lora_target_modules",
    "modules_to_save": "lora_modules_to_save",
    "use_dora": "use_dora",
    "target_parameters": "lora_target_parameters",
    "task_type": "lora_task_type",
    **dict.fromkeys(("lora_alpha", "bias", "use_rslora", "inference_mode", "fan_in_fan_out", "revision")),
}
"""Arguments of peft.LoraConfig."""
QUANTIZED: Mapping[str, str | None] = {
    "load_in_4bit": "load_in_4bit",
    "load_in_8bit": "load_in_8bit",
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    "bnb_4bit_compute_dtype": "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_storage": "bnb_4bit_quant_storage",
    **dict.fromkeys(("bnb_4bit_quant_type", "llm_int8_threshold")),
}
"""Arguments of transformers' BitsAndBytesConfig."""


STANDBY = "UNSLOTH_VLLM_STANDBY"
"""Environment variable with which unsloth's vLLM sleeps while the model trains (unsloth_zoo, vllm_utils.py)."""
LOADERS = ("FastLanguageModel", "FastModel", "FastVisionModel", "FastTextModel")
"""Unsloth's classes that are read."""


def is_training(script: Script) -> bool:
    """Whether the script makes a trainer."""
    names = (*CONFIGS, *TRAINERS, *OTHER_TRAINERS)
    return bool(script.named(*names)) or any(call.last in names for call in script.unreached)


def settings_of(script: Script) -> tuple[str, Settings]:
    """(framework, settings) of a script.

    Raises:
        ConfigError: if it trains nothing, or trains twice with settings that differ, or what it trains is not known.
        UnsupportedError: for another trainer, or for what is not modelled.
    """
    try:
        return _settings_of(script)
    except ConfigError as error:
        way = way_of(script) if "not known" in str(error) else ""
        raise ConfigError(f"{error}{way}") from error


def notes_of(script: Script) -> tuple[Note, ...]:
    """Files that the settings come from, and models that are loaded beside those that train."""
    text = "is read for settings, as the script does"
    files = (Note("warning", "", f"{file} {text}", place) for file, place in script.read.items())
    run = find_run(script)
    return (*files, *python_other_models.notes(script, run), *python_unused.notes(run, _settings_of(script)[1]))


def way_of(script: Script) -> str:
    """What would make more of the script known: files that are not here, flags that its command has to have."""
    parts = [f"; {text}" for text in script.missing[:1]]
    if script.required:
        flags = " ".join(f"{flag} ..." for flag in dict.fromkeys(script.required))
        parts.append(f"; its command needs flags: vramplan check -- python {script.where} {flags}")
    return "".join(parts)


def _settings_of(script: Script) -> tuple[str, Settings]:
    if "xtuner" in script.imports and not is_training(script):
        raise UnsupportedError(f"{script.where}: {xtuner.INSTEAD}")
    for call in script.calls:
        python_ppo.refuse_former(call)
    run = find_run(script)
    refuse_effects(script)
    task = python_trl.task_of(run)
    if "unsloth" in script.imports:
        settings = run.settings | _unsloth(script, run) | image_caps(script)
        if task is None:
            return "unsloth", settings
        return "unsloth", python_trl.moved(run) | settings | python_trl.settings_of(
            task, run, None, refuses_moved=False
        )
    if python_sentence_transformers.is_run(run):
        settings, encoder = python_sentence_transformers.settings_of(script, run)
        if encoder.saved is not None:
            raise UnsupportedError(
                f"{encoder.saved.folder.place}: adapters of a folder are not read with sentence-transformers; give"
                " their rank and targets in a LoraConfig"
            )
        settings |= run.settings | _adapters(script, run, encoder)
        return python_sentence_transformers.FRAMEWORK, settings | _effects(encoder, settings)
    is_trl = task is not None or any(call.last in ("SFTTrainer", "SFTConfig") for call in run.calls)
    model = _trained_model(script, run)
    saved = None if model is None else model.saved
    settings = run.settings | named_by_adapters(script, saved, _model(model, run, is_trl, task))
    settings |= _quantized(script, run, model) | _adapters(script, run, model) | image_caps(script)
    settings.pop("model_init_kwargs", None)
    if classifiers.TASK_KEY not in settings:
        settings.pop("lora_task_type", None)
    settings |= python_trl.former_arguments(run, is_trl)
    if task is not None:
        settings |= python_trl.settings_of(task, run, model)
    if model is not None:
        settings |= _effects(model, settings)
    if not is_trl and "max_length" not in settings:
        settings |= _truncation(script)
    return ("trl" if is_trl else "transformers"), settings


def constructor_of(script: Script) -> ConfigValue | None:
    """The name and place of the call that makes the trainer's arguments; None if there are several or none."""
    calls = script.named(*CONFIGS)
    return ConfigValue(calls[0].last, calls[0].place) if len(calls) == 1 else None


def _trained_model(script: Script, run: Run) -> Model | None:
    """The model that the trainer gets; None if the trainer loads it by its name.

    Raises:
        ConfigError: if which it is is not known.
    """
    if run.trainer is None:
        models = _outer(script.things)
        return python_model.follow(script, models[0]) if models else None
    key: str | int = MODEL_AT.get(run.trainer.call.last, 0)
    if "model" in run.trainer.call.keywords or "model" in run.trainer.parts:
        key = "model"
    models = _outer(run.trainer.parts.get(key, []))
    if len(models) == 1:
        model = python_model.follow(script, models[0])
        if model.saved is not None and not run.trainer.is_certain.get(key):
            folder = model.saved.folder
            raise ConfigError(
                f"{folder.place}: whether the adapters of {str(folder.value).replace(UNKNOWN, '')} are loaded is not"
                " known without running the script; without them every weight may train"
            )
        return model
    value = run.model_argument
    if len(models) > 1:
        lines = ", ".join(str(thing.call.line) for thing in models)
        raise ConfigError(
            f"{run.place}: which model is trained is not known without running the script (lines {lines})"
        )
    if value is not None and isinstance(value.value, str) and UNKNOWN not in value.value:
        return None
    if "model_init" in run.trainer.call.keywords:
        place = run.trainer.call.keywords["model_init"].place
        raise UnsupportedError(f"{place}: Trainer(model_init=...) is not modelled; give the model")
    loads = _outer(script.things)
    shown = "" if value is None else f" ({str(value.value).replace(UNKNOWN, '')})"
    if value is None and len(loads) == 1:  # a fragment
        return python_model.follow(script, loads[0])
    name = "" if value is None else str(value.value).replace(UNKNOWN, "").removeprefix("model=")
    if not loads and name.isidentifier() and name not in script.names:
        return None  # a fragment of a script, whose model is named elsewhere
    if not loads and name.isidentifier():
        raise ConfigError(
            f"{run.place}: {name} comes from code that is not read: which model, in which dtype and with which adapters"
            f" is not known; {setting('exec')} runs the script, `vramplan estimate` takes the settings"
        )
    raise ConfigError(f"{run.place}: the model that is trained{shown} is not known without running the script")


def _outer(things: list[Thing]) -> list[Thing]:
    """The models among objects, without those that adapters are loaded on."""
    models = [thing for thing in things if is_model(thing)]
    bases = {id(part) for thing in models for parts in thing.parts.values() for part in parts}
    return [thing for thing in models if id(thing) not in bases]


def _effects(model: Model, settings: Settings) -> Settings:
    """Preparation for quantized training, checkpointing, frozen weights.

    Raises:
        UnsupportedError: for weights that are frozen by hand.
    """
    effects: Settings = {}
    if model.second is not None and saved_adapters.SECOND_KEY not in settings:
        raise UnsupportedError(f"{model.second.call.place}: load_adapter() beside adapters that train is not modelled")
    if model.kbit is not None:
        effects["prepare_for_kbit_training"] = ConfigValue(True, model.kbit.place)
    switch = model.checkpointing
    if switch is not None and switch.value is not False:  # the trainer turns it on by its arguments, never off
        explicit = settings.get("gradient_checkpointing")
        if explicit is None or explicit.value in (None, False) or UNKNOWN in str(explicit.value):
            effects["gradient_checkpointing"] = switch
            if model.checkpointing_kwargs is not None:
                effects["gradient_checkpointing_kwargs"] = model.checkpointing_kwargs
    if model.frozen and "use_peft" not in settings:
        raise UnsupportedError(
            f"{model.frozen[0].place}: requires_grad set by hand is not modelled; `vramplan estimate` takes --vision,"
            " --projector and --modules-to-save"
        )
    return effects


def _translated(keywords: Mapping[str, ConfigValue], keys: Mapping[str, str | None], where: str) -> Settings:
    """Arguments as TRL's keys.

    Raises:
        UnsupportedError: for an argument that is set and not in `keys`.
    """
    settings: Settings = {}
    for name, value in keywords.items():
        key = keys.get(name, "")
        if name == "**":
            text = str(value.value).replace(UNKNOWN, "")
            raise ConfigError(f"{value.place}: {where}: {text} is not known without running the script")
        if key:
            settings[key] = value
        elif key == "" and value.value not in (None, False):
            raise UnsupportedError(f"{value.place}: {where}({name}=...) is not modelled yet")
    return settings


def _model(model: Model | None, run: Run, is_trl: bool, task: str | None = None) -> Settings:
    """The loaded model: by the script, else by SFTTrainer from a name and model_init_kwargs."""
    if model is None:
        return _named_model(run)
    load = model.load
    name = class_of(load)
    if load.last == "from_config":
        raise UnsupportedError(f"{load.place}: {name}.from_config is not read yet; read: from_pretrained")
    classifier = {} if is_trl else classifiers.settings_of(name, load.keywords, load.place)
    heads = (*MODEL_CLASSES, CLASSES["reward"]) if task == "reward" else MODEL_CLASSES
    if classifier:
        heads = (*heads, *classifiers.HEADS)
    if name == "AutoModel" or (_HEAD.search(name) and not name.endswith(heads)) or "Liger" in name:
        endings = ", ".join(f"...{ending}" for ending in MODEL_CLASSES)
        near = next((f"; nearest, {text}" for end, text in classifiers.NEAREST.items() if name.endswith(end)), "")
        raise UnsupportedError(f"{load.place}: {name}: is not read yet; read: {endings}{near}")
    changed = {event[0][1:-1] for event in model.thing.history if event[0].endswith("=")}
    loads_adapters = name in WITH_BASE  # whose own file names the model
    of_adapters = {*ARGUMENTS, "model_id", "pretrained_model_name_or_path"} if loads_adapters else ()
    keywords = {
        name: value for name, value in load.keywords.items() if name not in {*changed, *classifier, *of_adapters}
    }
    keys = {**MODEL, **SOUND} if speech.is_speech(name) else MODEL
    settings = classifier | _translated(keywords, keys, "from_pretrained")
    if loads_adapters:
        settings |= {saved_adapters.BASE_KEY: folder} if (folder := folder_of(load)) is not None else {}
    elif load.positional:
        settings["model_name_or_path"] = ConfigValue(load.positional[0], load.place)
    freezes = next((event for event in model.thing.history if event[0].lstrip(".") in speech.FREEZES), None)
    if freezes is not None:
        settings["freeze_feature_encoder"] = ConfigValue(True, freezes[1].place)
    flash = settings.pop("use_flash_attention_2", None)
    if flash is not None and flash.value is True:
        settings["attn_implementation"] = ConfigValue("flash_attention_2", flash.place)
    if "dtype" in settings and settings["dtype"].value is None:
        settings.pop("dtype")  # the same as none given (transformers 5.23: PreTrainedModel.from_pretrained)
    if is_trl and "dtype" not in settings:
        version, _ = resolve_version("transformers", None, "5.23.0")
        settings["dtype"] = ConfigValue("auto" if at_least(version, "5.0") else "float32", f"{load.place}: no dtype")
        settings[WITHOUT_DTYPE] = ConfigValue(True, load.place)
    return settings


def _named_model(run: Run) -> Settings:
    """``SFTTrainer(model="name", args=SFTConfig(model_init_kwargs={...}))``."""
    settings: Settings = {}
    model = run.model_argument
    if model is not None and isinstance(model.value, str) and UNKNOWN not in model.value:
        settings["model_name_or_path"] = model
    init_kwargs = run.settings.get("model_init_kwargs")
    if init_kwargs is not None and isinstance(init_kwargs.value, dict):
        arguments = {name: ConfigValue(value, init_kwargs.place) for name, value in init_kwargs.value.items()}
        settings |= _translated(arguments, MODEL, "model_init_kwargs")
    elif init_kwargs is not None and init_kwargs.value is not None:
        raise ConfigError(f"{init_kwargs.place}: model_init_kwargs is not known without running the script")
    return settings


def _quantized(script: Script, run: Run, model: Model | None) -> Settings:
    """BitsAndBytesConfig, which computes in fp32 by default.

    Raises:
        UnsupportedError: for another quantization.
        ConfigError: if which it is is not known.
    """
    by_trainer = None if run.trainer is None else run.trainer.call.keywords.get("quantization_config")
    if by_trainer is not None and by_trainer.value is None:
        by_trainer = None
    if by_trainer is not None and model is not None:
        raise UnsupportedError(
            f"{by_trainer.place}: quantization_config of a trainer that gets a loaded model has no effect; leave it out"
        )
    if by_trainer is not None and run.trainer is not None:
        owner, key = run.trainer, "quantization_config"
    elif model is not None:
        owner, key = model.thing, "quantization_config"
        if class_of(owner.call) in ADAPTED and owner.call is not model.load:
            owner = next(part for parts in owner.parts.values() for part in parts if part.call is model.load)
    elif run.trainer is not None and run.config is not None:
        owner, key = run.config, "model_init_kwargs.quantization_config"
    else:
        return {}
    value = owner.call.keywords.get("quantization_config")
    configs = owner.parts.get(key, [])
    if not configs:
        if value is not None and isinstance(value.value, str) and UNKNOWN in value.value:
            text = value.value.replace(UNKNOWN, "")
            raise ConfigError(f"{value.place}: {text} is not known without running the script")
        return {}
    config = configs[0]
    if len(configs) > 1 or not owner.is_certain.get(key):
        raise ConfigError(f"{owner.call.place}: quantization_config is not known without running the script")
    if config.call.last != "BitsAndBytesConfig":
        raise UnsupportedError(
            f"{config.call.place}: {config.call.last} is not modelled yet; modelled: BitsAndBytesConfig"
        )
    settings = _translated(config.call.keywords, QUANTIZED, "BitsAndBytesConfig")
    in_4bit = settings.get("load_in_4bit")
    if in_4bit is not None and in_4bit.value is True:
        settings.setdefault(
            "bnb_4bit_compute_dtype", ConfigValue("float32", f"{config.call.place}: BitsAndBytesConfig")
        )
    return settings


def _adapters(script: Script, run: Run, model: Model | None) -> Settings:
    """LoraConfig with PEFT's own defaults; other tuners are refused."""
    configs = run.peft_configs + (model.adapter_configs if model is not None else [])
    configs = list({config.call.line: config for config in configs}.values())  # SFTTrainer leaves adapters there are
    if run.trainer is None and not configs:
        configs = [thing for thing in script.things if thing.call.last in ("LoraConfig", *OTHER_TUNERS)][:1]
    for config in configs:
        if config.call.last != "LoraConfig":
            raise UnsupportedError(f"{config.call.place}: {config.call.last} is not modelled yet; modelled: LoraConfig")
    if len(configs) > 1:
        lines = ", ".join(str(config.call.line) for config in configs)
        raise UnsupportedError(
            f"{configs[0].call.place}: adapters are added twice (lines {lines}), which is not modelled"
        )
    if model is not None and model.saved is not None:
        if not configs:
            return {"use_peft": ConfigValue(True, model.saved.folder.place), saved_adapters.KEY: model.saved.folder}
        return _lora(configs[0]) | {saved_adapters.MERGED_KEY: ConfigValue(True, model.saved.folder.place)}
    if not configs:
        if model is not None and model.adapters is not None:
            raise ConfigError(f"{model.adapters.place}: the adapters are not known without running the script")
        return {}
    return _lora(configs[0])


def _lora(config: Thing) -> Settings:
    """The arguments of a LoraConfig."""
    call = config.call
    if config.is_lost:
        raise ConfigError(f"{call.place}: LoraConfig may be changed by {config.is_lost}")
    init_weights = call.keywords.get("init_lora_weights")
    if init_weights is not None and init_weights.value not in (True, False, "gaussian", "orthogonal", None):
        raise UnsupportedError(
            f"{init_weights.place}: LoraConfig(init_lora_weights={init_weights.value!r}) is not modelled yet"
        )
    keywords = {name: argument for name, argument in call.keywords.items() if name != "init_lora_weights"}
    targets = keywords.get("target_modules")
    peft: dict[str, Any] = {"use_peft": True, "lora_r": 8, "lora_dropout": 0.0}
    if (targets is None or targets.value is None) and "target_parameters" not in keywords:
        keywords.pop("target_modules", None)
        peft["uses_peft_targets"] = True
    return {name: ConfigValue(value, f"{call.place}: LoraConfig") for name, value in peft.items()} | _translated(
        keywords, LORA, "LoraConfig"
    )


def _truncation(script: Script) -> Settings:
    """The largest N of ``tokenizer(..., truncation=True, max_length=N)``."""
    lengths = [
        call.keywords["max_length"]
        for call in (*script.calls, *script.unreached)
        if {"truncation", "max_length"} <= call.keywords.keys()
    ]
    numbers = [length for length in lengths if isinstance(length.value, int)]
    return {"max_length": max(numbers, key=lambda length: length.value)} if numbers else {}


def _unsloth(script: Script, run: Run) -> Settings:
    """Unsloth's two calls, in its own keys.

    Raises:
        ConfigError: if the model is not one of unsloth's, or an argument is not known.
        UnsupportedError: for other classes than those of language and vision models.
    """
    model = _trained_model(script, run)
    if model is None or not class_of(model.load).startswith("Fast"):
        raise ConfigError(f"{script.where}: unsloth is imported, but no FastLanguageModel.from_pretrained is called")
    load = model.load
    loader = class_of(load)
    if loader not in LOADERS:
        raise UnsupportedError(f"{load.place}: {loader} is not read yet; read: {', '.join(LOADERS)}")
    auto_model = load.keywords.get("auto_model")
    if auto_model is not None and auto_model.value is not None:
        shown = str(auto_model.value).replace(UNKNOWN, "").removeprefix("auto_model=")
        raise UnsupportedError(f"{auto_model.place}: auto_model={shown} is not read yet")
    settings = dict(load.keywords)
    settings.pop("auto_model", None)
    if load.positional:
        settings["model_name"] = ConfigValue(load.positional[0], load.place)
    if model.second is not None:
        raise UnsupportedError(f"{model.second.call.place}: load_adapter() on unsloth's model is not modelled")
    if model.adapters is not None:
        if class_of(model.adapters) not in LOADERS:
            raise UnsupportedError(
                f"{model.adapters.place}: PEFT's get_peft_model on unsloth's model is not read yet; use {loader}'s"
            )
        keywords = model.adapters.keywords
        settings |= {name: value for name, value in keywords.items() if name not in ("max_seq_length", "model")}
        settings["get_peft_model"] = ConfigValue(True, model.adapters.place)
    elif model.frozen:
        raise UnsupportedError(f"{model.frozen[0].place}: requires_grad set by hand is not modelled")
    if run.peft_configs:
        raise UnsupportedError(f"{run.place}: peft_config beside unsloth is not read yet; use {loader}.get_peft_model")
    settings["loader"] = ConfigValue(loader, load.place)
    if script.environment.get(STANDBY, "0") != "0":  # load_vllm takes either
        settings["unsloth_vllm_standby"] = ConfigValue(True, f"{script.where}: {STANDBY}")
    if run.config is not None:
        settings["arguments"] = ConfigValue(run.config.call.last, run.config.call.place)
    if "**" in settings:
        text = str(settings["**"].value).replace(UNKNOWN, "")
        raise ConfigError(f"{settings['**'].place}: {text} is not known without running the script")
    return settings
