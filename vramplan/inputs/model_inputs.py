"""The samples of models that are not causal language models: text to fill in, to classify, images, pairs, speech.

For the analytic estimator and the trace alike: which class of transformers is trained, its inputs, and the meaning of
a job's sequence length, target length and image size for it (transformers 5.23, modeling_<type>.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, setting
from vramplan.inputs import sound, spoken
from vramplan.inputs.batch_input import Input as Input
from vramplan.inputs.embedding import SCORED, columns, describe_embedding, is_embedding_gemma
from vramplan.inputs.images.sounds import HEARD
from vramplan.inputs.images.types import Tensor as ImageTensor
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import Task
from vramplan.inputs.model_spec import Config, ModelSpec
from vramplan.inputs.tasks import CLASS_NAMES, IMAGES, OTHER_TASKS, RERANKERS, class_of, head_of, num_labels


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The class of one architecture that is trained, and its samples."""

    model_class: str
    """transformers' class that is trained."""
    inputs: Callable[[Config, Job], list[Input]]
    most_tokens: Callable[[Config], int | None] = lambda c: None
    """Tokens that the table of positions allows; None without such a table."""
    has_text: bool = True
    """Whether a sample has text, whose length is the job's sequence length."""
    image_config: str | None = None
    """The part of the configuration with the size of images: "" for the configuration itself, None for no images."""
    has_target: bool = False
    """Whether a decoder's labels have a length of their own, the job's target length."""
    arguments: Mapping[str, bool] = field(default_factory=dict)
    """Arguments of the class beside tensors."""
    processed: int | None = None
    """Pixels of a side that the published processor makes, if the configuration names another size."""
    adds_head: bool = False
    """Whether transformers has no such class: `model_class` is a backbone that gets a linear layer on its class token's
    state."""
    asks_to_interpolate: bool = True
    """Whether the class interpolates its positions only if it is told to."""
    tokens: Mapping[str, object] = field(default_factory=dict)
    """Keys that the class needs and a configuration may leave out, such as numbers of tokens; any value will do."""
    hears: bool = False
    """Whether a sample has a waveform, whose length is the job's `audio_seconds`."""
    speaks: bool = False
    """Whether it is the sound of a text (:mod:`vramplan.inputs.spoken`)."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """Keys of the configuration that a trace sets, so that it does not depend on chance."""

    def image(self, c: Config, job: Job) -> tuple[int, int]:
        """Width and height of the images that reach the model."""
        return job.image_size or (own_size(self.vision(c)),) * 2

    def vision(self, c: Config) -> Config:
        """The configuration of the vision encoder."""
        return c.part(self.image_config) if self.image_config else c

    def called_with(self, c: Config, job: Job) -> dict[str, bool]:
        """All arguments of the class beside tensors, with the one for images of another size than its own."""
        arguments = dict(self.arguments)
        if self.image_config is not None and self.asks_to_interpolate and interpolates(self.vision(c), job):
            arguments["interpolate_pos_encoding"] = True
        return arguments

    def patches(self, c: Config, job: Job) -> tuple[int, int]:
        """Rows and columns of patches of an image."""
        return grid(self.vision(c), job)


def own_size(vision: Config) -> int:
    """Pixels of a side of the images that the model was made for."""
    return vision.count("image_size", 224)


def grid(vision: Config, job: Job) -> tuple[int, int]:
    """Rows and columns of patches of an image; a rest at its edge is left out (nn.Conv2d without padding)."""
    width, height = job.image_size or (own_size(vision),) * 2
    patch = vision.count("patch_size")
    return height // patch, width // patch


def interpolates(vision: Config, job: Job) -> bool:
    """Whether images have another size than the one that the model was made for."""
    return job.image_size not in (None, (own_size(vision),) * 2)


# -- inputs ------------------------------------------------------------------------------------------------------------


def with_mask(job: Job, length: int) -> list[Input]:
    """A tokenizer's attention mask: the Trainer's batches have it, a plain loop's only if samples are padded."""
    return [Input("attention_mask", (length,))] if job.batches == "padded" or job.loop == "trainer" else []


def text_inputs(job: Job, image: Sequence[ImageTensor] = (), token_types: bool = False) -> list[Input]:
    """Text for a causal language model; the tensors that its processor makes of the sample's images come behind.

    `token_types`: the processor marks image tokens for the model.
    """
    length, pictures = job.row_length, job.pictures if image else 0
    names = ["input_ids", "labels"]
    if job.joins_samples:
        names.append("position_ids")
    elif job.batches == "padded" or job.loop == "trainer" or pictures:
        names.append("attention_mask")
    if pictures and token_types:
        names.append("token_type_ids")
    inputs = [Input(name, (length,)) for name in names]
    for one in image if pictures else ():
        stacked = one.layout in ("samples", "tokens")
        inputs.append(Input(one.name, one.batched(1, pictures, length)[int(stacked) :], one.dtype, stacked))
    return inputs


def masked_text(c: Config, job: Job) -> list[Input]:
    """Text with words to fill in; a label for each token."""
    length = job.sequence_length
    return [Input("input_ids", (length,)), Input("labels", (length,)), *with_mask(job, length)]


def masked_text_and_mask(c: Config, job: Job) -> list[Input]:
    """Text with words to fill in and its tokenizer's mask: without one DeBERTa searches the ids for padding."""
    length = job.sequence_length
    return [Input(name, (length,)) for name in ("input_ids", "labels", "attention_mask")]


def classed_image(c: Config, job: Job) -> list[Input]:
    """An image and its class."""
    return [Input("pixel_values", pixels(MODEL_INPUTS["vit"], c, job), "fp32"), Input("labels", ())]


DINOV2 = ModelInputs(
    "Dinov2ForImageClassification",
    classed_image,
    has_text=False,
    image_config="",
    processed=224,
    asks_to_interpolate=False,
)
"""Its processor makes 224 pixels of a side, its table of positions is for 518 (preprocessor_config.json)."""


def clip_pair(c: Config, job: Job) -> list[Input]:
    """A text with its mask and its image."""
    length = job.sequence_length
    image = Input("pixel_values", pixels(MODEL_INPUTS["clip"], c, job), "fp32")
    return [Input("input_ids", (length,)), image, *with_mask(job, length)]


def siglip_pair(c: Config, job: Job) -> list[Input]:
    """A text, filled up to its length and without a mask (SiglipTokenizer: model_input_names), and its image."""
    image = Input("pixel_values", pixels(MODEL_INPUTS["siglip"], c, job), "fp32")
    return [Input("input_ids", (job.sequence_length,)), image]


def text_to_text(c: Config, job: Job) -> list[Input]:
    """A text and the text to write."""
    length = job.sequence_length
    return [Input("input_ids", (length,)), Input("labels", (target_length(job),)), *with_mask(job, length)]


def speech(c: Config, job: Job) -> list[Input]:
    """Thirty seconds of sound, always, as a spectrogram of two frames a position, and the text to write."""
    frames = 2 * c.count("max_source_positions", 1500)
    dtype = job.dtype if job.autocast == "none" else "fp32"  # a convolution without autocast takes no other
    return [
        Input("input_features", (c.count("num_mel_bins", 80), frames), dtype),
        Input("labels", (job.sequence_length,)),
    ]


def waveform(c: Config, job: Job) -> list[Input]:
    """Sound as it is, with the mask that its feature extractor makes for some models."""
    length = sound.values(job)
    dtype = job.dtype if job.autocast == "none" else "fp32"
    mask = [Input("attention_mask", (length,), "int32")] if sound.has_mask(c) else []
    return [Input("input_values", (length,), dtype), *mask]


def transcribed(c: Config, job: Job) -> list[Input]:
    """A waveform and its transcript, letter by letter."""
    return [*waveform(c, job), Input("labels", (job.sequence_length,))]


def pixels(samples: ModelInputs, c: Config, job: Job) -> tuple[int, int, int]:
    """Channels, height, width."""
    width, height = samples.image(c, job)
    return samples.vision(c).count("num_channels", 3), height, width


USUAL_TARGET = 128
"""The default length of a decoder's labels in tokens, or the text's if that is shorter."""


def target_length(job: Job) -> int:
    """Tokens of the labels that a decoder beside an encoder writes."""
    return job.target_length or min(USUAL_TARGET, job.sequence_length)


# -- architectures -----------------------------------------------------------------------------------------------------


def table(c: Config, usual: int = 512) -> int | None:
    """A table of positions from the first to the last; of BART's two the text that is written has as long a one."""
    return c.count("max_position_embeddings", usual)


def table_behind_padding(c: Config) -> int | None:
    """RoBERTa counts positions from behind the padding token's number."""
    return c.count("max_position_embeddings", 512) - int(c.number("pad_token_id", 1)) - 1


def deberta_table(c: Config) -> int | None:
    """DeBERTa-v3 has relative positions only."""
    return c.count("max_position_embeddings", 512) if c.flag("position_biased_input", True) else None


def text_table(most: int) -> Callable[[Config], int | None]:
    """The text's table in a pair; `most` is transformers' default."""
    return lambda c: c.part("text_config").count("max_position_embeddings", most)


T5 = ModelInputs("T5ForConditionalGeneration", text_to_text, has_target=True, tokens={"decoder_start_token_id": 0})
PAIR = {"return_loss": True}
WAV2VEC2 = ModelInputs("Wav2Vec2ForCTC", transcribed, hears=True, fixed={"layerdrop": 0.0})
BART = ModelInputs(
    "BartForConditionalGeneration",
    text_to_text,
    lambda c: table(c, 1024),
    has_target=True,
    fixed={"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0},
)
MODEL_INPUTS: dict[str, ModelInputs] = {
    "bert": ModelInputs("BertForMaskedLM", masked_text, table),
    "roberta": ModelInputs("RobertaForMaskedLM", masked_text, table_behind_padding),
    "xlm-roberta": ModelInputs("XLMRobertaForMaskedLM", masked_text, table_behind_padding),
    "camembert": ModelInputs("CamembertForMaskedLM", masked_text, table_behind_padding),
    "electra": ModelInputs("ElectraForMaskedLM", masked_text, table),
    "albert": ModelInputs("AlbertForMaskedLM", masked_text, table),
    "distilbert": ModelInputs("DistilBertForMaskedLM", masked_text, table),
    "modernbert": ModelInputs("ModernBertForMaskedLM", masked_text),
    "deberta-v2": ModelInputs("DebertaV2ForMaskedLM", masked_text_and_mask, deberta_table),
    "eurobert": ModelInputs("EuroBertForMaskedLM", masked_text),
    "nomic_bert": ModelInputs("NomicBertForMaskedLM", masked_text),
    "gte": ModelInputs("GteForMaskedLM", masked_text),
    "mpnet": ModelInputs("MPNetForMaskedLM", masked_text, table_behind_padding),
    "vit": ModelInputs("ViTForImageClassification", classed_image, has_text=False, image_config=""),
    "dinov2": DINOV2,
    "dinov2_with_registers": replace(DINOV2, model_class="Dinov2WithRegistersForImageClassification"),
    "dinov3_vit": replace(DINOV2, model_class="DINOv3ViTModel", processed=None, adds_head=True),
    "clip": ModelInputs("CLIPModel", clip_pair, text_table(77), image_config="vision_config", arguments=PAIR),
    "siglip": ModelInputs("SiglipModel", siglip_pair, text_table(64), image_config="vision_config", arguments=PAIR),
    "t5": T5,
    "mt5": replace(T5, model_class="MT5ForConditionalGeneration"),
    "umt5": replace(T5, model_class="UMT5ForConditionalGeneration"),
    "wav2vec2": WAV2VEC2,
    "hubert": replace(WAV2VEC2, model_class="HubertForCTC"),
    "bart": BART,
    "mbart": replace(BART, model_class="MBartForConditionalGeneration"),
    "pegasus": replace(BART, model_class="PegasusForConditionalGeneration"),
    "marian": replace(BART, model_class="MarianMTModel"),
    "m2m_100": replace(BART, model_class="M2M100ForConditionalGeneration"),
    "csm": ModelInputs("CsmForConditionalGeneration", spoken.inputs, hears=True, speaks=True),
    "whisper": ModelInputs("WhisperForConditionalGeneration", speech, lambda c: c.count("max_target_positions", 448)),
}
"""By transformers' model_type."""


# -- tasks -------------------------------------------------------------------------------------------------------------


def labelled_text(c: Config, job: Job) -> list[Input]:
    """Text with a label: a class, or a number if there is one label alone."""
    label = Input("labels", (), "fp32" if num_labels(c, job) == 1 else "int64")
    places = (
        [Input("position_ids", (job.sequence_length,))] if job.joins_samples else with_mask(job, job.sequence_length)
    )
    inputs = [Input("input_ids", (job.sequence_length,)), label, *places]
    return [one.of_rows(1 + job.negatives) for one in inputs] if job.task in RERANKERS else inputs


def classed_sound(c: Config, job: Job) -> list[Input]:
    """A waveform and its class."""
    return [*waveform(c, job), Input("labels", ())]


def masked(inputs: Callable[[Config, Job], list[Input]]) -> Callable[[Config, Job], list[Input]]:
    """The same inputs with the mask of the tokenizer in any case."""

    def with_it(c: Config, job: Job) -> list[Input]:
        found = inputs(c, job)
        named = any(one.name == "attention_mask" for one in found)
        return found if named else [*found, Input("attention_mask", (job.sequence_length,))]

    return with_it


def texts_to_compare(c: Config, job: Job) -> list[Input]:
    """Texts of one length, each with its mask; pairs have a score under some losses."""
    length = job.sequence_length
    if job.joins_texts:
        names = "input_ids", "position_ids" if job.joins_samples else "attention_mask"
        rows = [Input(name, (length,)).of_rows(len(columns(job))) for name in names]
        return [*rows, Input("labels", (), "fp32").of_rows(1 + job.negatives)]
    inputs = [Input(f"{one}_{name}", (length,)) for one in columns(job) for name in ("input_ids", "attention_mask")]
    if job.embedding_loss == "margin_mse" and job.negatives > 1:
        return [*inputs, Input("labels", (job.negatives,), "fp32")]
    return [*inputs, Input("labels", (), "fp32")] if job.embedding_loss in (*SCORED, "margin_mse") else inputs


TASK_INPUTS: dict[Task, Callable[[Config, Job], list[Input]]] = {
    "sequence_classification": labelled_text,
    "token_classification": masked_text,
    "image_classification": classed_image,
    "reranker": labelled_text,
    "generative_reranker": labelled_text,
    "embedding": texts_to_compare,
}
"""By task."""
TASK_KEYS: dict[str, object] = {"pad_token_id": 0}
"""Keys that a task needs: a decoder finds each sample's last token by its padding."""


def inputs_of(model_type: str, task: Task | None, owner: str) -> ModelInputs | None:
    """The class of an architecture that a task trains, and its samples; None for a causal language model.

    Raises:
        UnsupportedError: if the architecture has no such class, or none that is modelled.
    """
    usual = MODEL_INPUTS.get(model_type)
    if task not in TASK_INPUTS:  # a causal language model's, or one of TRL's
        return usual
    name, inputs = class_of(model_type, task, owner), TASK_INPUTS[task]
    if usual is not None and usual.adds_head:
        return usual
    if usual is not None and usual.hears:
        return replace(usual, model_class=name, inputs=classed_sound, has_text=False)
    if model_type == "deberta-v2" and task != "embedding":
        inputs = masked(inputs)
    if usual is None:
        return ModelInputs(name, inputs, tokens=TASK_KEYS)
    return replace(usual, model_class=name, inputs=inputs, tokens=TASK_KEYS if usual.has_text else usual.tokens)


def trained_as(spec: ModelSpec, job: Job) -> str:
    """The class of transformers that a job trains, and that there are others if it trains a language model."""
    found, names = inputs_of(spec.model_type, job.task, spec.name), CLASS_NAMES.get(spec.model_type)
    if job.value_model is not None:
        return "a causal language model, and a value model of one label beside it"
    if job.loss == "value_head" or job.task == "ppo":
        return "a causal language model with a value head"
    if job.task == "reward" and job.loss == "kept_log_probs":
        return "a language model without its head, with a number for each token"
    if job.task == "reward" and names is not None:
        return f"{class_of(spec.model_type, job.task, spec.name)} with 1 label"
    if found is None:
        return "a causal language model" if names is None else names.causal or f"{names.prefix}ForCausalLM"
    if job.task is None and names is not None and found.has_text and not found.hears:
        return f"{found.model_class} (every token is a word to fill in; otherwise give {OTHER_TASKS})"
    if job.joins_texts and names is not None:
        causal = names.causal or f"{names.prefix}ForCausalLM"
        return f"{causal} for embeddings, {describe_embedding(job, False)}"
    if job.task == "embedding":
        has_dense = is_embedding_gemma(spec.model_type, Config(spec.config, spec.name))
        words = describe_embedding(job, has_dense or spec.model_type in MODEL_INPUTS)
        return f"{found.model_class} {'and two dense layers ' * has_dense}for embeddings, {words}"
    if head_of(spec.model_type, job.task) is None and (names is None or names.tasks != IMAGES):
        return found.model_class
    labels = num_labels(Config(spec.config, spec.name), job)
    counted = f"with {labels} label{'s' * (labels > 1)}"
    if found.adds_head:
        return (
            f"{found.model_class} and a linear layer on its class token's state, {counted} (transformers has no image"
            " classifier of it)"
        )
    return f"{found.model_class} {counted}"


# -- what is given -----------------------------------------------------------------------------------------------------


PUBLISHED: dict[str, Task] = {
    "ForSequenceClassification": "sequence_classification",
    "ForTokenClassification": "token_classification",
    "ForImageClassification": "image_classification",
    "Model": "embedding",
}
"""The task of a checkpoint by the end of its class's name."""


def published_task(spec: ModelSpec) -> Task | None:
    """The task of the class that a checkpoint was saved from; None if that is what its type is trained for anyway."""
    if spec.model_type not in CLASS_NAMES:
        return None
    names = [str(name) for name in spec.config.get("architectures") or ()]
    known = CLASS_NAMES[spec.model_type].tasks
    found = next((task for name in names for end, task in PUBLISHED.items() if name.endswith(end)), None)
    return found if found in known else None


def complete(spec: ModelSpec, given: dict[str, object]) -> dict[str, object]:
    """A job's settings with the lengths that follow from the model.

    Raises:
        ConfigError: for a setting that the model does not have.
    """
    task = given.get("task") or published_task(spec)
    names = CLASS_NAMES.get(spec.model_type)
    if task is None and given.get("num_labels") is not None and names is not None and names.tasks == IMAGES:
        task = IMAGES[0]
    given = {**given, "task": task} if task else given
    samples = inputs_of(spec.model_type, task, spec.name)  # type: ignore[arg-type]
    if samples is None:
        if given.get("audio_seconds") is not None and spec.model_type not in HEARD:
            raise ConfigError(f"{setting('audio_seconds', given['audio_seconds'])}: {spec.name} reads no waveforms")
        if given.get("target_length") is not None:
            raise ConfigError(
                f"{setting('target_length', given['target_length'])}: {spec.name} has no decoder beside an encoder"
            )
        return given
    settings, c = dict(given), Config(spec.config, spec.name)
    if samples.image_config is None and settings.get("image_size") is not None:
        raise ConfigError(f"{setting('image_size')}: {spec.name} takes no images")
    one_image = () if samples.image_config is None else (1,)
    if settings.pop("images", None) not in (None, 0, *one_image):
        raise ConfigError(
            f"{setting('images', given['images'])}: {spec.name} takes "
            + ("no images" if samples.image_config is None else "one image a sample")
        )
    for name in ("videos", "sounds", "frames", "min_pixels", "max_pixels", "max_tiles", "vision", "projector"):
        if settings.get(name) not in (None, Job.model_fields[name].default):
            raise ConfigError(f"{setting(name)}: {spec.name} is no vision-language model")
    if not samples.has_target and settings.get("target_length") is not None:
        raise ConfigError(
            f"{setting('target_length')}: {spec.name} has no decoder with a length of its own; the labels are"
            f" {setting('sequence_length')} tokens"
        )
    if samples.hears:
        completes = spoken.complete if samples.speaks else sound.complete
        return completes(c, settings, samples.has_text)
    if settings.get("audio_seconds") is not None:
        raise ConfigError(f"{setting('audio_seconds', settings['audio_seconds'])}: {spec.name} reads no waveforms")
    if samples.has_text:
        most = samples.most_tokens(c) or c.get("max_position_embeddings")  # DeBERTa's, which bounds nothing
        if most is not None:
            settings.setdefault("sequence_length", min(most, Job.model_fields["sequence_length"].default))
        return settings
    if samples.processed is not None and settings.get("image_size") is None:
        settings["image_size"] = (samples.processed,) * 2
    tokens = tokens_of_image(samples, c, settings)
    if settings.setdefault("sequence_length", tokens) != tokens:
        raise ConfigError(
            f"{setting('sequence_length', settings['sequence_length'])}: {spec.name} takes no text; the number of its"
            f" patches follows from {setting('image_size')}"
        )
    return settings


def tokens_of_image(samples: ModelInputs, c: Config, given: Mapping[str, object]) -> int:
    """Patches of one image, the class token and registers."""
    job = Job.model_construct(None, image_size=given.get("image_size"))
    rows, columns = samples.patches(c, job)
    return max(1, rows * columns + 1 + int(c.number("num_register_tokens", 0)))


def describe(spec: ModelSpec, job: Job) -> str | None:
    """A sample in a few words; None for a causal language model."""
    samples = inputs_of(spec.model_type, job.task, spec.name)
    if samples is None:
        return None
    c, parts = Config(spec.config, spec.name), []
    if samples.hears:
        describes = spoken.describe if samples.speaks else sound.describe
        parts.append(describes(job, samples.has_text))
    elif samples.has_text:
        parts.append(f"{job.batches} sequences of {job.sequence_length} tokens, all equally long")
    if spec.model_type == "whisper":
        parts.append("30 seconds of sound each")
    if samples.has_target:
        default = "" if job.target_length else " (not given)"
        parts.append(f"labels of {target_length(job)} tokens{default}")
    if samples.image_config is not None:
        width, height = samples.image(c, job)
        rows, columns = samples.patches(c, job)
        parts.append(f"an image of {width} x {height} pixels as {rows} x {columns} patches")
    if "return_loss" in samples.arguments or (
        job.task == "embedding" and job.embedding_loss not in (*SCORED, "triplet", "margin_mse")
    ):
        parts.append("told apart within each micro-batch")
    return ", ".join(parts)
