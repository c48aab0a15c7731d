"""How long a table takes: cells that share played steps and replays beside one search for each.

Run: ``python benchmarks/tables.py [CARDS]``. Both run in this process, in turns: a busy machine slows both alike.
"""

from __future__ import annotations

import sys
import time

import vramplan
from vramplan.catalog import all_cards
from vramplan.tables import fill, sheet

MODELS = ("Qwen/Qwen2.5-7B", "HuggingFaceTB/SmolLM2-360M", "meta-llama/Llama-3.1-70B")
METHODS = ("lora", "qlora", "full")
WHOLE = 150 * 70 * 4 * 3
"""Cells of a large table: models, cards, methods, lengths."""
SAMPLED = 10
"""Of the cards, every so many is searched alone."""


def main() -> None:
    cards = [card for card in all_cards() if card.vendor == "NVIDIA"][: int(sys.argv[1]) if len(sys.argv) > 1 else 70]
    shared = alone = 0.0
    cells = asked = 0
    for model in MODELS:
        for method in METHODS:
            start = time.perf_counter()
            fill(sheet([model], cards, methods=[method]))
            middle = time.perf_counter()
            for card in cards[::SAMPLED]:
                try:
                    vramplan.suggest(model, card, 1, advice=False, method=method, sequence_length=2048)
                except vramplan.VramplanError:
                    continue
            alone += time.perf_counter() - middle
            shared += middle - start
            cells += len(cards)
            asked += len(cards[::SAMPLED])
    ratio = (alone / asked) / (shared / cells)
    print(f"{ratio:6.1f} x  one search for each cell, beside cells that share ({len(cards)} cards)")
    minutes = shared / cells * WHOLE / 60 / 2
    print(f"{shared / cells * 1e3:6.1f} ms  a cell;  {minutes:.0f} min  {WHOLE:,} cells on two cores")


if __name__ == "__main__":
    main()
