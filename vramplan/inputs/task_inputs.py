"""The batches of tasks that are not the next token, as TRL's collators make them (trl 1.16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vramplan.inputs.images.types import Tensor as ImageTensor
from vramplan.inputs.job import Job
from vramplan.inputs.job_values import ROLLOUTS
from vramplan.inputs.model_inputs import Input
from vramplan.inputs.task_rules import CONCATENATED, OF_SWIFT, PAIRS


class ImageRows(NamedTuple):
    """What the processor of a vision-language model makes of an image."""

    tensors: Sequence[ImageTensor]
    """The tensors of one image."""
    token_types: bool
    """Whether it marks the tokens of images in each text."""


def task_inputs(job: Job, images: ImageRows | None = None) -> list[Input]:
    """The tensors of one sample; `images` are those of a job with images.

    Both answers of a pair see the images, which come twice (trainer/dpo_trainer.py: DataCollatorForVisionPreference).
    """
    inputs = _texts_of(job)
    if images is None or not job.pictures:
        return inputs
    if job.runs_verl:
        return [_of_images(one) if one.name == "position_ids" else one for one in inputs]
    rows = 2 if job.task in PAIRS else 1
    if images.token_types:
        inputs += [
            one._replace(name=one.name.replace("input_ids", "token_type_ids"))
            for one in inputs
            if one.name.endswith("input_ids")
        ]
    inputs += [
        Input(one.name, one.batched(rows, job.pictures, job.sequence_length), one.dtype, stacked=False)
        for one in images.tensors
    ]
    return inputs


def _texts_of(job: Job) -> list[Input]:
    """The tensors of one sample."""
    if job.value_model is not None:
        return _rollout_of_trl(job)
    if job.task == "ppo":
        return _rollout(job)
    if job.task in ROLLOUTS and job.loss in OF_SWIFT:
        return _swift_completions(job)
    if job.runs_verl:
        return of_verl(job)
    if job.runs_openrlhf:
        return _of_openrlhf(job)
    if job.task in ROLLOUTS:  # prompts and completions as generated, and which of their tokens count
        return [Input(name, (job.sequence_length,)) for name in ("input_ids", "attention_mask")]
    if job.task == "gkd":
        return _prompt_and_sample(job)
    if job.task in ("orpo", "cpo", "simpo"):
        return _both_answers(job)
    if job.loss in CONCATENATED:
        return _prompt_and_answers(job)
    return {"kto": _kto, "reward": _texts}.get(job.task or "", _pair)(job)


def _prompt_and_sample(job: Job) -> list[Input]:
    """The prompt on its own, and with its completion (experimental/utils.py: DataCollatorForChatML).

    DistillationTrainer has prompts and completions apart (trainer/distillation_trainer.py: _prepare_inputs).
    """
    if job.loss == "chunked":
        prompt = max(job.prompt_length or 0, 1)
        lengths = {"prompt": prompt, "completion": job.sequence_length - prompt}
        return [Input(f"{name}_{kind}", (length,)) for name, length in lengths.items() for kind in ("ids", "mask")]
    names = ("input_ids", "position_ids" if job.joins_samples else "attention_mask", "labels")
    sample = [Input(name, (job.sequence_length,)) for name in names]
    if job.loss == "logits_to_keep":  # ms-swift's template
        given = {"teacher_topk_logprobs": "fp32", "teacher_topk_indices": "int64"} if job.teacher is None else {}
        highest = (job.sequence_length, job.teacher_logits or 1)
        return [*sample, *(Input(name, highest, dtype) for name, dtype in given.items())]
    return [*sample, *(Input(name, (max(job.prompt_length or 0, 1),)) for name in ("prompts", "prompt_attention_mask"))]


def of_verl(job: Job) -> list[Input]:
    """Tokens of a micro-batch without padding, and what is known of each (verl 0.9.1, workers/engine_workers.py)."""
    names = ("input_ids", "position_ids", "prompts and responses", "loss_mask", "response_mask")
    numbers = ("values", "returns") if job.is_verl_critic else ("old_log_probs", "advantages")
    whole = [Input(name, (job.row_length,)) for name in names]
    return whole + [Input(name, (job.row_length,), "fp32") for name in numbers]


def _of_images(positions: Input) -> Input:
    """Positions in the text and in images, of which there are three; the images themselves wait in host memory."""
    return positions._replace(shape=(4, *positions.shape), stacked=False)


def _names(job: Job) -> tuple[str, ...]:
    """Of the tensors of a text; answers that share a row are told apart by their position ids."""
    return ("input_ids", "position_ids" if job.joins_samples else "attention_mask", "completion_mask")


def _pair(job: Job) -> list[Input]:
    """Two rows: all chosen answers come before all rejected ones."""
    rows = (2, job.sequence_length)
    inputs = [Input(name, rows, stacked=False) for name in _names(job)]
    if job.reference == "precomputed":
        inputs += [Input(f"ref_{answer}_logps", (), "fp32") for answer in ("chosen", "rejected")]
    return inputs


def _prompt_and_answers(job: Job) -> list[Input]:
    """Prompt and answers apart (trl 0.28, trainer/dpo_trainer.py: DataCollatorForPreference)."""
    prompt = max(job.prompt_length or 0, 1)
    lengths = {"prompt": prompt, "chosen": job.sequence_length - prompt, "rejected": job.sequence_length - prompt}
    inputs = [
        Input(f"{name}_{kind}", (length,))
        for name, length in lengths.items()
        for kind in ("input_ids", "attention_mask")
    ]
    if job.reference == "precomputed":
        inputs += [Input(f"ref_{answer}_logps", (), "fp32") for answer in ("chosen", "rejected")]
    return inputs


def _texts(job: Job) -> list[Input]:
    """A pair whose tokens count alike; LLaMA-Factory's collator makes labels too."""
    if job.loss == "two_forwards":
        names = [f"{name}_{kind}" for kind in ("chosen", "rejected") for name in ("input_ids", "attention_mask")]
        return [Input(name, (job.sequence_length,)) for name in names]
    if job.loss == "value_head":
        return [*_pair(job)[:2], Input("labels", (2, job.sequence_length), stacked=False)]
    return _pair(job)[:2]


def _kto(job: Job) -> list[Input]:
    """An answer, and one of another prompt for the KL term."""
    inputs = [Input(f"{kl}{name}", (job.sequence_length,)) for kl in ("", "KL_") for name in _names(job)]
    if job.reference == "precomputed":
        inputs += [Input(name, (), "fp32") for name in ("ref_logps", "ref_KL_logps")]
    return [*inputs, Input("label", (), "bool")]


def _both_answers(job: Job) -> list[Input]:
    """The prompt, and each answer behind it, on its own (experimental/utils.py: DPODataCollatorWithPadding)."""
    names, kinds = ("chosen", "rejected"), ("input_ids", "attention_mask", "labels")
    prompt = [Input(f"prompt_{kind}", (max(job.prompt_length or 0, 1),)) for kind in kinds[:2]]
    return [*prompt, *(Input(f"{name}_{kind}", (job.sequence_length,)) for name in names for kind in kinds)]


def _rollout(job: Job) -> list[Input]:
    """What PPO's loop keeps of a completion (trl 0.9.6, trainer/ppo_trainer.py: step, batch_dict)."""
    texts = [Input(name, (job.sequence_length,)) for name in ("input_ids", "attention_mask")]
    numbers = ("logprobs", "values", "advantages", "returns")
    return [
        *texts,
        Input("masks", (job.sequence_length - 1,)),
        *(Input(name, (job.sequence_length - 1,), "fp32") for name in numbers),
    ]


def _rollout_of_trl(job: Job) -> list[Input]:
    """What TRL's PPO keeps of a completion for an update (trl 1.9, experimental/ppo/ppo_trainer.py: train)."""
    new = (job.sequence_length - max(job.prompt_length or 0, 1),)
    numbers = "log-probs", "reference's log-probs", "kl", "k1", "non-score rewards", "rewards", "advantages", "returns"
    return [
        Input("queries with responses", (job.sequence_length,)),
        *(Input(name, new) for name in ("responses", "postprocessed responses", "places of responses")),
        *(Input(name, new, "fp32") for name in (*numbers, "values")),
        *(Input(name, new, "bool") for name in ("padding mask", "padding mask of values")),
    ]


def _swift_completions(job: Job) -> list[Input]:
    """A prompt with its completion, and what each token of the completion has (ms-swift 4.6, rl_core/data.py)."""
    completion = (job.sequence_length - max(job.prompt_length or 0, 1),)
    scores = ["old_per_token_logps", "advantages"]
    scores += ["ref_per_token_logps"] if job.reference_source != "none" else []
    return [
        *(Input(name, (job.sequence_length,)) for name in _names(job)[:2]),
        Input("completion_mask", completion, "bool"),
        *(Input(name, completion, "fp32") for name in scores),
        Input("seq_lengths", ()),
        Input("truncated_mask", (), "bool"),
    ]


def _of_openrlhf(job: Job) -> list[Input]:
    """An experience, as it is sent to the GPU (OpenRLHF 0.11, trainer/ppo_utils/experience.py)."""
    names = ("input_ids", "attention_mask", "action_mask")
    numbers = ["action_log_probs", "returns", "advantages"]
    numbers += ["base_action_log_probs"] * job.openrlhf.kl_loss + ["values"] * (job.openrlhf.trains == "critic")
    whole = [Input(name, (job.sequence_length,)) for name in names]
    return whole + [Input(name, (job.sequence_length,), "fp32") for name in numbers]
