"""Random values for the batches of a probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from vramplan.inputs.job import Job
from vramplan.torch_backend.model.batches import Inputs
from vramplan.torch_backend.model.subject import Subject


def on_host(example: Any) -> Any:
    """A user's example inputs in the host's memory."""
    if isinstance(example, Mapping):
        return {name: tensor.cpu() for name, tensor in example.items()}
    return None if example is None else tuple(tensor.cpu() for tensor in example)


def filler(subject: Subject, job: Job) -> Callable[[Inputs], Inputs]:
    """A function that fills a batch in place: random ids, a padded end, two documents in a packed row."""
    if subject.example is not None:
        example = on_host(subject.example)

        def repeat(inputs: Inputs) -> Inputs:
            names = example if isinstance(example, Mapping) else range(len(example))
            tensors: Any = inputs
            for name in names:
                tensors[name].view(-1, *example[name].shape).copy_(example[name])
            return inputs

        return repeat
    vocabulary = subject.vocabulary or 1
    if subject.model_inputs is not None:
        return lambda inputs: random_values(inputs, job, vocabulary)

    def fill(inputs: Inputs) -> Inputs:
        assert isinstance(inputs, Mapping)
        ids = inputs["input_ids"]
        if subject.images is None:
            ids.random_(0, vocabulary)
        else:  # image tokens stay where they are, and no other token becomes one
            image_tokens, token = ids == subject.images.token_id, subject.images.token_id
            ids.random_(0, vocabulary)
            ids[ids == token] = (token + 1) % vocabulary
            ids[image_tokens] = token
            inputs[subject.images.processed.tensors[0].name].normal_()
        inputs["labels"].copy_(inputs["input_ids"])
        if job.batches == "padded" and ids.shape[1] > 1:  # a row of one token stays valid
            inputs["attention_mask"][-1, -1:] = 0
            inputs["labels"][-1, -1:] = -100
        if "position_ids" in inputs:
            length = ids.shape[1]
            first = (length + 1) // 2
            inputs["position_ids"][:, :first] = torch.arange(first)
            inputs["position_ids"][:, first:] = torch.arange(length - first)
        return inputs

    return fill


def random_values(inputs: Inputs, job: Job, vocabulary: int) -> Inputs:
    """Random inputs of a model other than a causal language model; class 0 if it has no vocabulary."""
    assert isinstance(inputs, Mapping)
    for name, tensor in inputs.items():
        if name == "attention_mask":
            tensor[-1, -1:] = int(job.batches != "padded")
        elif tensor.is_floating_point():
            tensor.normal_()
        else:
            tensor.random_(0, vocabulary)
    return inputs
