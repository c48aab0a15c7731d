"""A small language model of characters, on texts that come with Python."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional

CHARACTERS = 128
CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
VALIDATION_SAMPLES = 512
HELD_OUT = 10
"""One file, or chapter, of so many is for validation."""


def sources() -> list[str]:
    """The standard library's top-level modules."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return [path.read_text(encoding="utf-8", errors="replace") for path in files]


def documentation() -> list[str]:
    """The chapters of the language reference that `help()` shows: English, and shorter by far."""
    return [topics[name] for name in sorted(topics)]


def split(parts: list[str]) -> tuple[Tensor, Tensor]:
    """Texts as ASCII codes: for training, for validation."""
    held_out = "".join(parts[::HELD_OUT])
    train = "".join(part for number, part in enumerate(parts) if number % HELD_OUT)
    return _codes(train), _codes(held_out)


def _codes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode("ascii", "replace")), dtype=torch.uint8)


def draw(source: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Samples of CONTEXT + 1 characters from anywhere in a text: [count, CONTEXT + 1]."""
    starts = torch.randint(len(source) - CONTEXT - 1, (count, 1), generator=generator)
    return source[starts + torch.arange(CONTEXT + 1)].long()


class Block(nn.Module):
    """Attention and feed-forward, each after its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[samples, positions, WIDTH] in and out."""
        samples, positions, _ = hidden.shape
        parts = self.qkv(self.norms[0](hidden)).view(samples, positions, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(samples, positions, WIDTH))
        return hidden + self.down(functional.gelu(self.up(self.norms[1](hidden))))


class LanguageModel(nn.Module):
    """A decoder of 0.11 million parameters, its output head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, WIDTH)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        for name, weight in self.named_parameters():
            if weight.dim() == 2 and name != "position":
                nn.init.normal_(weight, std=0.02 if name == "embedding.weight" else weight.shape[1] ** -0.5 / 2)

    def loss(self, samples: Tensor) -> Tensor:
        """Mean cross-entropy of the next character in nats."""
        hidden = self.embedding(samples[:, :-1]) + self.position
        logits = self.norm(self.blocks(hidden)) @ self.embedding.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), samples[:, 1:].flatten())


def validator(source: Tensor) -> Callable[[LanguageModel], float]:
    """The loss on samples that are the same for all runs."""
    samples = draw(source, VALIDATION_SAMPLES, torch.Generator().manual_seed(0))

    @torch.no_grad()
    def loss(model: LanguageModel) -> float:
        return sum(float(model.loss(part)) for part in samples.split(128)) / (VALIDATION_SAMPLES / 128)

    return loss
