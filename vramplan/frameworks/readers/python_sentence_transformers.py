"""sentence-transformers in a script: the model, the loss and the data's columns as settings (version 6.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vramplan.errors import ConfigError, UnsupportedError
from vramplan.frameworks.readers import python_model
from vramplan.frameworks.readers.python_model import Model
from vramplan.frameworks.readers.python_trainer import Run, argument
from vramplan.frameworks.readers.sentence_transformers import DEFAULT_LOSS, LOSSES
from vramplan.frameworks.settings import ConfigValue
from vramplan.frameworks.syntax.python_ast import Call, Script, Thing
from vramplan.frameworks.syntax.shell import UNKNOWN
from vramplan.inputs.embedding import SCORED

Settings = dict[str, ConfigValue]

FRAMEWORK = "sentence-transformers"
MODELS: Mapping[str, str] = {"SentenceTransformerTrainer": "SentenceTransformer", "CrossEncoderTrainer": "CrossEncoder"}
"""Trainers -> the class of their model."""
LOSS_AT = 4
"""The place of the loss among a trainer's arguments."""
MODEL_ARGUMENTS: Mapping[str, str | None] = {
    "model_name_or_path": "model_name_or_path",
    "model_name": "model_name_or_path",
    "max_length": "max_length",
    "max_seq_length": "max_seq_length",
    **dict.fromkeys((
        "device", "prompts", "default_prompt_name", "cache_folder", "trust_remote_code", "revision",
        "similarity_fn_name", "local_files_only", "token", "use_auth_token", "model_card_data", "activation_fn",
        "default_activation_function", "truncate_dim",  # the last cuts the vectors of encode() alone
    )),
}  # fmt: skip
"""Arguments of both classes -> settings; None if memory does not change."""
LOADING: Mapping[str, str | None] = {
    "dtype": "dtype",
    "torch_dtype": "dtype",
    "attn_implementation": "attn_implementation",
    **dict.fromkeys(("trust_remote_code", "revision", "use_safetensors", "low_cpu_mem_usage", "token", "cache_dir")),
}
"""Keys of ``model_kwargs`` -> settings."""
LOSS_ARGUMENTS: Mapping[str, Mapping[str, str | None]] = {
    "MultipleNegativesRankingLoss": {"scale": None},
    "CachedMultipleNegativesRankingLoss": {
        "scale": None, "mini_batch_size": "mini_batch_size", "show_progress_bar": None,
    },
    "MultipleNegativesSymmetricRankingLoss": {"scale": None},
    "CoSENTLoss": {"scale": None},
    "AnglELoss": {"scale": None},
    "ContrastiveLoss": {"margin": None, "size_average": None},
    "OnlineContrastiveLoss": {"margin": None},
    "MarginMSELoss": {},
    "CosineSimilarityLoss": {},
    "TripletLoss": {"triplet_margin": None},
    "BinaryCrossEntropyLoss": {"pos_weight": None, "activation_fn": None},
    "MSELoss": {"activation_fn": None},
    "CrossEntropyLoss": {"activation_fn": None, "weight": None, "label_smoothing": None},
}  # fmt: skip
"""Losses that are read, and their arguments that are: to settings, or None if memory does not change."""
POSITIONS: Mapping[str, tuple[str, ...]] = {
    "CachedMultipleNegativesRankingLoss": ("model", "scale", "similarity_fct", "mini_batch_size"),
    "MatryoshkaLoss": ("model", "loss", "matryoshka_dims", "matryoshka_weights", "n_dims_per_step"),
    "CosineSimilarityLoss": ("model", "loss_fct", "cos_score_transformation"),
    "TripletLoss": ("model", "distance_metric", "triplet_margin"),
    "AnglELoss": ("model", "scale"),
    "ContrastiveLoss": ("model", "distance_metric", "margin", "size_average"),
    "OnlineContrastiveLoss": ("model", "distance_metric", "margin"),
    "BinaryCrossEntropyLoss": ("model", "activation_fn", "pos_weight"),
    "MSELoss": ("model", "activation_fn"),
    "CrossEntropyLoss": ("model", "activation_fn"),
}
"""Names of positional arguments, where they are not those of MultipleNegativesRankingLoss and CoSENTLoss."""
OF_PAIRS = ("BinaryCrossEntropyLoss", "MSELoss", "CrossEntropyLoss")
"""The losses of them that are a CrossEncoder's."""
LISTWISE = ("LambdaLoss", "ListNetLoss", "ListMLELoss", "PListMLELoss", "RankNetLoss", "ADRMSELoss")
"""Its losses of all documents of a query."""
METRICS: Mapping[str, str] = {
    "TripletLoss": "EUCLIDEAN", "ContrastiveLoss": "COSINE_DISTANCE", "OnlineContrastiveLoss": "COSINE_DISTANCE",
}  # fmt: skip
"""The distance that a loss takes by default (sentence-transformers 6.2, losses/triplet.py, contrastive.py)."""
COSINE = ("cos_sim", "pairwise_cos_sim")
"""Similarities that the losses take by default."""
LABELS = ("label", "labels", "score", "scores")
"""Columns that hold no text (base/data_collator.py: valid_label_columns)."""
SUBSETS: Mapping[str, int] = {"pair": 0, "triplet": 1, "triplet-hard": 1}
"""Subsets of the project's own data sets on the Hub -> the negatives in each sample."""
OWN_DATASETS = "sentence-transformers/"
HARMLESS = (".encode", ".similarity", ".get_", ".evaluate", ".save", ".push_to_hub", ".tokenize", ".preprocess",
            ".rank", ".predict", ".set_pooling_include_prompt", ".model_card_data", ".prompts", ".default_prompt_name",
            ".similarity_fn_name", ".tokenizer.", ".smart_batching", ".max_seq_length=", ".max_length=",
            "mine_hard_negatives", "sentence_transformers.util.mine_hard_negatives")  # fmt: skip
"""Beginnings of what may be done with a model without changing its training."""


def is_run(run: Run) -> bool:
    """Whether one of the library's trainers trains."""
    return run.trainer is not None and run.trainer.call.last in MODELS


def settings_of(script: Script, run: Run) -> tuple[Settings, Model]:
    """(settings, the model) of a script with one of the library's trainers; adapters are the caller's.

    Raises:
        UnsupportedError: for what changes memory and is not modelled.
        ConfigError: for what is not known without running the script.
    """
    trainer = run.trainer
    assert trainer is not None
    is_reranker = trainer.call.last == "CrossEncoderTrainer"
    thing = _part(trainer, "model", 0, MODELS[trainer.call.last])
    settings, model = _model(script, thing)
    if is_reranker and model.adapters is not None:
        raise UnsupportedError(
            f"{model.adapters.place}: add_adapter() on a CrossEncoder freezes its new head too, which is not modelled"
        )
    settings["trainer"] = ConfigValue(trainer.call.last, trainer.call.place)
    settings |= _loss(trainer)
    has_negatives = not is_reranker and LOSSES.get(_loss_name(settings)) not in (*SCORED, "triplet")
    negatives = _negatives(script) if has_negatives else None
    return settings | ({} if negatives is None else {"negatives": negatives}), model


def _loss_name(settings: Settings) -> str:
    return str(settings["loss_class"].value) if "loss_class" in settings else DEFAULT_LOSS


def _part(owner: Thing, name: str, position: int, last: str) -> Thing:
    """The object of the class `last` that `owner` gets as an argument.

    Raises:
        ConfigError: if it is not known.
    """
    key, value = argument(owner.call, name, position)
    things = [thing for thing in owner.parts.get(key, []) if thing.call.last == last]
    if len(things) != 1 or not owner.is_certain.get(key):
        shown = "" if value is None else f" ({str(value.value).replace(UNKNOWN, '')})"
        raise ConfigError(
            f"{owner.call.place}: {name} of {owner.call.last}{shown}: no {last} that is known without running it"
        )
    return things[0]


def _known(call: Call, names: tuple[str, ...] = ("model_name_or_path",)) -> dict[str, ConfigValue]:
    """A call's arguments by name."""
    placed = {name: ConfigValue(value, call.place) for name, value in zip(names, call.positional, strict=False)}
    return placed | call.keywords


def _translated(arguments: Mapping[str, ConfigValue], keys: Mapping[str, str | None], where: str) -> Settings:
    """Arguments as settings.

    Raises:
        UnsupportedError: for one that is set and not in `keys`.
    """
    settings: Settings = {}
    for name, value in arguments.items():
        key = keys.get(name, "")
        if key == "" and value.value not in (None, False, {}, []):
            raise UnsupportedError(f"{value.place}: {where}({name}=...) is not modelled yet")
        if key and value.value is not None:
            settings[key] = value
    return settings


def _inner(value: ConfigValue | None, where: str) -> dict[str, ConfigValue]:
    """A dictionary of keyword arguments.

    Raises:
        ConfigError: if it is not known.
    """
    if value is None or value.value is None:
        return {}
    if not isinstance(value.value, dict):
        raise ConfigError(f"{value.place}: {where} is not known without running the script")
    return {name: ConfigValue(one, value.place) for name, one in value.value.items()}


def _model(script: Script, thing: Thing) -> tuple[Settings, Model]:
    """The settings that load a model, and what the script does with it."""
    arguments = _known(thing.call)
    settings: Settings = {}
    if thing.parts.get("modules"):
        arguments.pop("modules")
        settings |= _modules(thing)
    settings |= _loaded(arguments, thing.call.last)
    history = []
    for name, call, certain in thing.history:
        if not name.startswith(HARMLESS) and not name.removesuffix(".__call__").endswith(("Loss", "Evaluator")):
            history.append((name, call, certain))
    followed = Thing(thing.call, history, thing.parts, thing.is_certain, thing.is_lost)
    return settings, python_model.follow(script, followed)


def _loaded(arguments: Mapping[str, ConfigValue], where: str) -> Settings:
    """The settings of the arguments that load a model or its Transformer module."""
    rest = dict(arguments)
    model = rest.pop("model_kwargs", None) or rest.pop("automodel_args", None) or rest.pop("model_args", None)
    names = ("processor_kwargs", "tokenizer_kwargs", "tokenizer_args")
    processor = next((rest.pop(name) for name in names if name in rest), None)
    limit = _inner(processor, f"{names[0]} of {where}").get("model_max_length")
    backend, labels = rest.pop("backend", None), rest.pop("num_labels", None)
    if backend is not None and backend.value != "torch":
        raise UnsupportedError(f"{backend.place}: {where}(backend=...): only torch trains")
    settings = _translated(rest, MODEL_ARGUMENTS, where)
    settings |= _translated(_inner(model, f"model_kwargs of {where}"), LOADING, "model_kwargs")
    if labels is not None and labels.value not in (None, 1):
        settings["num_labels"] = labels
    if limit is not None:
        settings.setdefault("max_length", limit)
    if "max_length" in settings:
        settings.setdefault("max_seq_length", settings.pop("max_length"))
    return settings


def _modules(thing: Thing) -> Settings:
    """``SentenceTransformer(modules=[Transformer(...), Pooling(...)])``.

    Raises:
        UnsupportedError: for other modules.
    """
    settings: Settings = {}
    for module in thing.parts["modules"]:
        call = module.call
        if call.last == "Transformer":
            arguments = _known(call, ("model_name_or_path", "max_seq_length"))
            length = arguments.pop("max_seq_length", None)
            settings |= _loaded(arguments, "Transformer")
            settings |= {} if length is None or length.value is None else {"max_seq_length": length}
        elif call.last == "Pooling":
            settings |= _pooling(call)
        elif call.last != "Normalize":
            raise UnsupportedError(
                f"{call.place}: {call.last}: is not modelled; modelled: Transformer, Pooling, Normalize"
            )
    if "model_name_or_path" not in settings:
        raise ConfigError(f"{thing.call.place}: modules of {thing.call.last} are not known without running the script")
    return settings


def _pooling(call: Call) -> Settings:
    arguments = _known(call, ("embedding_dimension", "pooling_mode"))
    flags = {name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token"): value
             for name, value in arguments.items() if name.startswith("pooling_mode_")}  # fmt: skip
    chosen = [ConfigValue(name, value.place) for name, value in flags.items() if value.value is True]
    mode = arguments.get("pooling_mode") or next(iter(chosen), ConfigValue("mean", call.place))
    if len(chosen) > 1 or mode.value not in ("mean", "cls", "lasttoken"):
        raise UnsupportedError(f"{mode.place}: Pooling: modelled are mean, cls and lasttoken, one at a time")
    return {"pooling_mode": mode}


def _loss(trainer: Thing) -> Settings:
    """The loss that the trainer gets, if any, with what of its arguments changes memory.

    Raises:
        UnsupportedError: for other losses than those that are modelled.
        ConfigError: if it is not known.
    """
    key, value = argument(trainer.call, "loss", LOSS_AT)
    if value is None or value.value is None:
        return {}
    losses = [thing for thing in trainer.parts.get(key, []) if thing.call.last.endswith("Loss")]
    if isinstance(value.value, dict) or len(losses) > 1:
        raise UnsupportedError(f"{value.place}: {trainer.call.last}(loss=...): several losses are not modelled yet")
    if len(losses) != 1 or not trainer.is_certain.get(key):
        shown = str(value.value).replace(UNKNOWN, "")
        raise ConfigError(f"{value.place}: {shown} of {trainer.call.last} is not known without running the script")
    settings: Settings = {}
    thing = losses[0]
    if thing.call.last == "MatryoshkaLoss":
        arguments = _known(thing.call, POSITIONS["MatryoshkaLoss"])
        steps = arguments.get("n_dims_per_step")
        if steps is not None and steps.value != -1:
            raise UnsupportedError(f"{steps.place}: MatryoshkaLoss(n_dims_per_step=...) is not modelled yet")
        settings["matryoshka_dims"] = arguments.get("matryoshka_dims", ConfigValue(None, thing.call.place))
        inner = [part for name in ("loss", 1) for part in thing.parts.get(name, []) if part.call.last.endswith("Loss")]
        if len(inner) != 1:
            raise ConfigError(f"{thing.call.place}: the loss in MatryoshkaLoss is not known without running the script")
        thing = inner[0]
    return settings | _loss_arguments(thing.call, trainer.call.last == "CrossEncoderTrainer")


def _loss_arguments(call: Call, of_pairs: bool) -> Settings:
    known = LOSS_ARGUMENTS.get(call.last)
    if known is None and "GIST" in call.last:
        raise UnsupportedError(
            f"{call.place}: {call.last}: its guide model is not modelled yet; nearest:"
            f" {'Cached' * call.last.startswith('Cached')}MultipleNegativesRankingLoss, beside which the guide has"
            " its weights and a forward without gradients"
        )
    if known is None:
        raise _unknown_loss(call, of_pairs)
    arguments = _known(call, POSITIONS.get(call.last, ("model", "scale", "similarity_fct")))
    similarity = arguments.pop("similarity_fct", None)
    named = "" if similarity is None else str(similarity.value).rpartition(".")[2].rpartition("=")[2]
    if similarity is not None and named not in COSINE:
        raise UnsupportedError(f"{similarity.place}: {call.last}(similarity_fct=...): modelled is cos_sim")
    arguments.pop("model", None)
    metric = arguments.get("distance_metric")
    if metric is not None and metric.value == METRICS.get(call.last):
        arguments.pop("distance_metric")
    return {"loss_class": ConfigValue(call.last, call.place)} | _translated(arguments, known, call.last)


def _unknown_loss(call: Call, of_pairs: bool) -> UnsupportedError:
    """The error for a loss that is not modelled, with the nearest estimate."""
    names = OF_PAIRS if of_pairs else tuple(name for name in LOSS_ARGUMENTS if name not in OF_PAIRS)
    nearest = f"vramplan estimate MODEL --gpu GPU --task {'reranker' if of_pairs else 'embedding'} --method full"
    if call.last in LISTWISE:
        nearest += " --micro-batch N, where N is queries times documents: all of them are on the GPU at once"
    elif call.last == "SoftmaxLoss":
        nearest += ", beside which it has a layer of three vectors' width for each label"
    return UnsupportedError(
        f"{call.place}: {call.last} is not modelled yet; modelled: {', '.join(names)}; nearest: {nearest}"
    )


def _negatives(script: Script) -> ConfigValue | None:
    """Texts beside anchor and positive in each sample; None if the script does not say them, or in several ways."""
    counts = [(_num_texts(call) - 2, call) for call in script.calls if call.last in ("select_columns", "from_dict")]
    for call in script.named("load_dataset"):
        arguments = _known(call, ("path", "name"))
        path, name = (arguments.get(key, ConfigValue(None, "")).value for key in ("path", "name"))
        if str(path).startswith(OWN_DATASETS) and name in SUBSETS:
            counts.append((SUBSETS[str(name)], call))
    known = [(count, call) for count, call in counts if count >= 0]
    if not known or any(count != known[0][0] for count, _ in known):
        return None
    return ConfigValue(known[0][0], known[0][1].place)


def _num_texts(call: Call) -> int:
    """Columns with texts among those that a call names."""
    columns: Any = call.positional[0] if call.positional else None
    names = [str(name) for name in columns] if isinstance(columns, (dict, list)) else []
    return len([name for name in names if name not in LABELS])


__all__ = ["FRAMEWORK", "MODELS", "is_run", "settings_of"]
