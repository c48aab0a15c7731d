"""A linear classifier on a backbone of transformers, which has no class of its own for that."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import transformers
from torch import nn
from transformers.modeling_outputs import ImageClassifierOutput


def classifier_on(name: str) -> Any:
    """A class of transformers' kind: the backbone `name`, a linear layer on its class token's last state."""
    backbone: Any = getattr(transformers, name)
    _forget_coordinates(sys.modules[backbone.__module__])

    class Classifier(backbone.__base__):
        """Backbone and linear layer."""

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.backbone = backbone(config)
            self.classifier = nn.Linear(config.hidden_size, config.num_labels)
            self.post_init()

        def get_input_embeddings(self) -> nn.Module:
            """The module whose output gets a gradient under adapters with checkpointing."""
            found: nn.Module = self.backbone.get_input_embeddings()
            return found

        def forward(self, pixel_values: Any, labels: Any) -> ImageClassifierOutput:
            """Logits of the classes, and their cross-entropy."""
            logits = self.classifier(self.backbone(pixel_values).pooler_output)
            return ImageClassifierOutput(loss=nn.functional.cross_entropy(logits, labels), logits=logits)

    return Classifier


def _forget_coordinates(module: Any) -> None:
    """Give DINOv3's function of patches an empty cache: it holds tensors of the model before, which a trace left."""
    made = module.get_patches_center_coordinates
    module.get_patches_center_coordinates = lru_cache(maxsize=32)(made.__wrapped__)
