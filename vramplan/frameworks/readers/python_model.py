"""What a script does to the model that it trains, between loading it and training: followed, harmless, or refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.readers.python_adapters import (
    ADAPTED,
    WITH_BASE,
    SavedCall,
    SecondCall,
    class_of,
    is_for_adapters,
    saved_call,
    second_call,
)
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.python_ast import Call, Script, Thing
from vramplan.frameworks.syntax.shell import UNKNOWN

Settings = dict[str, ConfigValue]

NO_MODELS = ("Tokenizer", "TokenizerFast", "Processor", "FeatureExtractor", "Config", "Dataset", "Template")
"""Ends of the names of classes whose from_pretrained does not return a model."""
MOST_TOKENS = 256
"""Tokens added to an embedding that change no estimate: 256 rows of 8,192 are 4 MiB."""
HARMLESS = frozenset(
    [
        "train",
        "freeze_feature_encoder",  # speech.py reads it
        "freeze_feature_extractor",
        "eval",
        "cuda",
        "cpu",
        "print_trainable_parameters",
        "parameters",
        "named_parameters",
        "modules",
        "named_modules",
        "children",
        "named_children",
        "get_input_embeddings",
        "get_output_embeddings",
        "num_parameters",
        "get_memory_footprint",
        "tie_weights",
        "save_pretrained",
        "push_to_hub",
        "generate",
        "fast_generate",
        "state_dict",
        "enable_input_require_grads",
        "get_nb_trainable_parameters",
        "save_pretrained_merged",
        "push_to_hub_merged",
        "save_pretrained_gguf",
        "push_to_hub_gguf",
        "add_model_tags",
        "get_base_model",
        "buffers",
        "named_buffers",
        "set_adapter",
        "active_adapters",
        "dummy_inputs",
        "can_generate",
        "get_submodule",
        "save_checkpoint",
        "get_parameter",
        "floating_point_ops",
        "estimate_tokens",
        "num_params",
        "named_children",
        "get_decoder",
        "hf_quantizer",
        "set_submodule_names",
        "get_model_status",
        "get_layer_status",
        "infer",
        "forward",
        "chat",
        "transcribe",
        "get_audio_features",
    ]
)
"""Methods of a model that change no memory in training; input gradients cost one layer's, as counted."""
HARMLESS_ATTRIBUTES = frozenset(
    [
        "_ddp_params_and_buffers_to_ignore",
        "is_parallelizable",
        "model_parallel",
        "state_dict",
        "warnings_issued",
        "hf_device_map",
        "name_or_path",
        "_name_or_path",
        "is_quantized",
    ]
)
EFFECTIVE_CONFIG = (
    "_attn_implementation",
    "attn_implementation",
    "output_hidden_states",
    "output_attentions",
    "output_router_logits",
    "gradient_checkpointing",
    "num_hidden_layers",
    "tie_word_embeddings",
)
"""Keys of a loaded model's configuration that change memory; the others do not, or are read only when it is loaded."""
RISKY = frozenset(
    [
        "to",
        "float",
        "half",
        "bfloat16",
        "double",
        "type",
        "cuda",
        "requires_grad_",
        "apply",
        "register_parameter",
        "add_module",
        "set_input_embeddings",
        "resize_",
        "dequantize",
    ]
)
"""Methods of a model's parts that change memory."""
FUNCTIONS = frozenset(
    [
        "print",
        "len",
        "type",
        "id",
        "isinstance",
        "hasattr",
        "getattr",
        "repr",
        "str",
        "dir",
        "bool",
        "vars",
        "pprint",
        "pipeline",
        "for_training",
        "for_inference",
        "train_on_responses_only",
        "unsloth_train",
        "set_seed",
        "summary",
        "evaluate",
        "get_peft_model_state_dict",
        "deepcopy",
        "copy",
        "list",
        "sum",
        "set_peft_model_state_dict",
        "create_reference_model",
        "is_peft_model",
        "unwrap_model",
        "device",
        "info",
        "debug",
        "warning",
        "log",
        "get_model_param_count",
        "print_trainable_parameters",
        "add_new_tokens_",
        "max",
        "min",
        "any",
        "all",
        "append",
    ]
)
"""Functions that leave a model as it is."""
ENDS = ("Trainer", "Collator", "Pipeline", "Callback", "Streamer", "Evaluator", "Generator", "Dataset", "Conversations",
        "Seq2Seq", "LanguageModeling", "Padding", "Metrics", "Processor")  # fmt: skip
"""Ends of the names of classes that take a model and leave it as it is."""
CASTS: Mapping[str, str] = {"float": "float32", "half": "float16", "bfloat16": "bfloat16", "double": "float64"}
DTYPES = ("float32", "float16", "bfloat16", "float64", "float", "half", "float8_e4m3fn")


@dataclass(slots=True)
class Model:
    """The model that is trained, as the script left it."""

    load: Call
    thing: Thing
    adapters: Call | None = None
    """PEFT's or unsloth's call that adds adapters."""
    adapter_configs: list[Thing] = field(default_factory=list)
    kbit: Call | None = None
    checkpointing: ConfigValue | None = None
    """Whether a call turned checkpointing on or off last."""
    checkpointing_kwargs: ConfigValue | None = None
    frozen: list[Call] = field(default_factory=list)
    """Where requires_grad was set and no adapters came after it."""
    casts: list[tuple[str, Call]] = field(default_factory=list)
    saved: SavedCall | None = None
    """Adapters that PEFT loads from a folder, and that train on."""
    second: SecondCall | None = None
    """Adapters that are loaded beside those that train."""


def is_model(thing: Thing) -> bool:
    """Whether an object is a model that was loaded."""
    if thing.call.last == "from_config":
        return True
    if thing.call.last != "from_pretrained":
        return False
    return not class_of(thing.call).endswith(NO_MODELS)


def follow(script: Script, thing: Thing) -> Model:
    """A model with what was done to it, in order.

    Raises:
        UnsupportedError: for what changes memory and is not modelled.
        ConfigError: for what is not known.
    """
    if class_of(thing.call) in ADAPTED:
        return _merged(script, thing) or _with_saved(script, thing)
    model = Model(thing.call, thing)
    _apply(script, model, thing.history)
    return model


def _base(script: Script, thing: Thing) -> Model | None:
    """The model that the adapters are put on; None if that is not known."""
    if class_of(thing.call) in WITH_BASE:
        return Model(thing.call, thing)
    bases = [part for part in (*thing.parts.get(0, []), *thing.parts.get("model", [])) if is_model(part)]
    return follow(script, bases[0]) if len(bases) == 1 else None


def _merged(script: Script, thing: Thing) -> Model | None:
    """The base model, if the adapters of a folder are merged into it before anything else; else None."""
    merged = next((number for number, event in enumerate(thing.history) if event[0] == ".merge_and_unload"), None)
    if merged is None:
        return None
    _, call, is_certain = thing.history[merged]
    with_load = not thing.call.certain and thing.call.condition == call.condition  # both under one condition
    if not is_certain and not with_load:
        return None
    model = _base(script, thing)
    if model is None:
        return None
    model.frozen = []
    _apply(script, model, thing.history[merged + 1 :])
    return model


def _with_saved(script: Script, thing: Thing) -> Model:
    """A model with adapters of a folder that train on.

    Raises:
        ConfigError: if they are frozen, or if that is not known.
        UnsupportedError: for what changes memory and is not modelled.
    """
    call, cls = thing.call, class_of(thing.call)
    model = _base(script, thing)
    if model is None:
        raise ConfigError(f"{call.place}: {cls}: the model that gets the adapters is not known")
    if model.adapters is not None:
        raise UnsupportedError(f"{call.place}: adapters are added twice, which is not modelled")
    model.adapters, model.frozen, model.saved = call, [], saved_call(thing)
    _apply(script, model, thing.history)
    by_hand = next((one for one in model.frozen if not is_for_adapters(one)), None)
    if by_hand is not None:
        raise UnsupportedError(f"{by_hand.place}: requires_grad set by hand beside adapters is not modelled")
    return model


def _apply(script: Script, model: Model, history: list[tuple[str, Call, bool]]) -> None:
    for name, call, certain in history:
        last = name.rpartition(".")[2]
        if name.endswith("requires_grad=") or last == "requires_grad_":
            model.frozen.append(call)
            continue
        if name.startswith("."):
            effect = _method(script, model, name, last, call)
        else:
            effect = _function(script, model, name, last, call)
        if effect and not certain and last.startswith("gradient_checkpointing_"):
            text = f"{UNKNOWN}gradient_checkpointing ({last} under a condition)"
            model.checkpointing = ConfigValue(text, call.place)
            continue
        if effect and not certain:
            raise ConfigError(
                f"{call.place}: whether {_spoken(name)} is called on the model is not known without running the script"
            )


def _method(script: Script, model: Model, name: str, last: str, call: Call) -> bool:
    """Follow a method of the model, or an attribute that is set; whether it has an effect."""
    depth = name.count(".")
    if last.endswith("="):
        return _attribute(name, last[:-1], call)
    if depth > 1 or "[" in name or "(" in name[1:]:
        if last in RISKY and not name.startswith((".config", ".generation_config")):
            raise UnsupportedError(f"{call.place}: {_spoken(name)} on parts of the model is not modelled")
        return False
    if last in HARMLESS:
        return False
    if last in CASTS or last == "to":
        return _cast(model, name, last, call)
    if last in ("gradient_checkpointing_enable", "gradient_checkpointing_disable"):
        model.checkpointing = ConfigValue(last.endswith("enable"), call.place)
        model.checkpointing_kwargs = call.keywords.get("gradient_checkpointing_kwargs")
        return True
    if last == "resize_token_embeddings":
        return _resize(script, call)
    if last in ("merge_and_unload", "merge_adapter", "unload") and model.adapters is None:
        return False
    if last in ("add_adapter", "get_peft_model"):
        return _adapt(script, model, call)
    if last == "load_adapter" and model.adapters is not None and model.second is None:
        model.second = second_call(call)
        return True
    if last == "merge_and_unload" and "quantization_config" not in model.load.keywords:
        model.adapters, model.adapter_configs = None, []
        return True
    instead = "; use PeftModel.from_pretrained(model, FOLDER, is_trainable=True)" if last == "load_adapter" else ""
    raise UnsupportedError(f"{call.place}: {_spoken(name)} on the model is not modelled{instead}")


def _attribute(name: str, key: str, call: Call) -> bool:
    value = call.positional[0] if call.positional else None
    if ".generation_config" in name or key in HARMLESS_ATTRIBUTES:
        return False
    if ".config." in name and (key not in EFFECTIVE_CONFIG or value is False):
        return False
    raise UnsupportedError(f"{call.place}: {name[1:-1]} of the model is set, which is not modelled")


def _cast(model: Model, name: str, last: str, call: Call) -> bool:
    """``.float()`` and the like; moving to a device is no cast."""
    target = CASTS.get(last)
    if target is None:
        words = [*call.positional, *(value.value for value in call.keywords.values())]
        dtypes = [word for word in words if word in DTYPES]
        unknown = [word for word in words if isinstance(word, str) and UNKNOWN in word]
        devices = re.compile(r"device|rank|cuda|gpu|accelerator|index", re.IGNORECASE)
        if not dtypes and all(devices.search(word) for word in unknown):
            return False
        target = dtypes[0] if dtypes else "a dtype that is not known"
    loaded = model.load.keywords.get("dtype") or model.load.keywords.get("torch_dtype")
    if loaded is not None and str(loaded.value).removeprefix("torch.") == target and model.kbit is None:
        return False
    raise UnsupportedError(
        f"{call.place}: model{name}() after loading ({target}) is not modelled; load the model with that dtype"
    )


def _resize(script: Script, call: Call) -> bool:
    """Embeddings that grow by a few tokens change nothing."""
    size = call.positional[0] if call.positional else getattr(call.keywords.get("new_num_tokens"), "value", None)
    added = sum(_num_added(other) for other in script.named("add_special_tokens", "add_tokens", "add_new_tokens"))
    multiple = call.keywords.get("pad_to_multiple_of")
    rounds = multiple is None or (isinstance(multiple.value, int) and multiple.value <= MOST_TOKENS)
    if isinstance(size, str) and "len(" in size and added <= MOST_TOKENS and rounds:
        return False
    raise UnsupportedError(
        f"{call.place}: resize_token_embeddings is modelled only for len(tokenizer) and at most {MOST_TOKENS} new"
        " tokens that the script names"
    )


def _num_added(call: Call) -> int:
    """Tokens that a call adds to a tokenizer; many if that is not known."""
    values = [*call.positional, *(value.value for value in call.keywords.values())]
    words: list[object] = []
    for value in values:
        inner = list(value.values()) if isinstance(value, dict) else [value]
        words += [word for item in inner for word in (item if isinstance(item, list) else [item])]
    if len(words) > MOST_TOKENS:
        return len(words)
    lists = [word for word in words if isinstance(word, str) and UNKNOWN in word and not _is_scalar(word)]
    return MOST_TOKENS + 1 if lists else len(words)


def _is_scalar(text: str) -> bool:
    """Whether an unknown word is one token: ``pad_token: DEFAULT_PAD``."""
    return bool(re.search(r"(pad|eos|bos|unk|sep|cls|mask)_token\b", text)) or "AddedToken" in text


def _function(script: Script, model: Model, name: str, last: str, call: Call) -> bool:
    """Follow a function that the model was passed to; whether it has an effect."""
    if last in ("get_peft_model", "get_peft_model_for_training"):
        return _adapt(script, model, call)
    if last in ("prepare_model_for_kbit_training", "prepare_model_for_int8_training"):
        model.kbit = call
        switch = call.keywords.get("use_gradient_checkpointing") or _second(call)
        model.checkpointing = switch or ConfigValue(True, call.place)
        model.checkpointing_kwargs = call.keywords.get("gradient_checkpointing_kwargs")
        return True
    if last == "setup_chat_format":  # two tokens (trl/extras, models/utils.py)
        return False
    if last == "prepare_model" and script.where.endswith(".ipynb") and not _is_mixed(script):
        return False  # one process, so that it moves the model to its GPU (accelerate 1.15, accelerator.py)
    if last in FUNCTIONS or last in HARMLESS or last.endswith(ENDS) or "Trainer" in name:
        return False
    if last == "from_pretrained" and class_of(call) in ADAPTED:
        return False
    raise UnsupportedError(f"{call.place}: {_spoken(name)} takes the model, which is not modelled")


def _is_mixed(script: Script) -> bool:
    """Whether an Accelerator computes in another dtype than the model's."""
    return any("mixed_precision" in call.keywords or "**" in call.keywords for call in script.named("Accelerator"))


def _second(call: Call) -> ConfigValue | None:
    return ConfigValue(call.positional[1], call.place) if len(call.positional) > 1 else None


def _adapt(script: Script, model: Model, call: Call) -> bool:
    if model.adapters is not None and model.adapters is not call:
        raise UnsupportedError(
            f"{call.place}: adapters are added twice, which is not modelled; keep one get_peft_model"
        )
    model.adapters, model.frozen = call, []
    for key, (ids, exact) in call.refs.items():
        things = [script.objects[id] for id in ids if id in script.objects]
        configs = [thing for thing in things if thing.call.last.endswith("Config")]
        is_model_argument = key in (0, "model") and model.load.last != "SentenceTransformer"
        if is_model_argument or not configs:
            continue
        if not exact or len(configs) > 1:
            raise ConfigError(f"{call.place}: the adapters' configuration is not known without running the script")
        model.adapter_configs += configs
    return True


def _spoken(name: str) -> str:
    return f"{name.lstrip('.')}()" if not name.endswith("=") else name.strip(".=")
