"""How long a table takes: cells that share played steps and replays beside one search for each.

Run: ``python benchmarks/tables.py [CARDS]``. Both run in this process, in turns: a busy machine slows both alike.
"""

from __future__ import annotations

import sys
import time
from itertools import product

import vramplan
from vramplan.inputs.catalog import all_gpus
from vramplan.planner.table import fill, table_request

MODELS = ("Qwen/Qwen2.5-7B", "HuggingFaceTB/SmolLM2-360M", "meta-llama/Llama-3.1-70B")
METHODS = ("lora", "qlora", "full")
LENGTHS = (512, 2048, 8192)
WHOLE = 150 * 70 * 4 * 3
"""Cells of a large table: models, cards, methods, lengths."""
SAMPLED = 20
"""Of the cards, every so many is searched alone."""


def main() -> None:
    every = [card for card in all_gpus() if card.vendor == "NVIDIA"]
    number = min(int(sys.argv[1]) if len(sys.argv) > 1 else 70, len(every))
    cards = [every[i * len(every) // number] for i in range(number)]
    shared = alone = 0.0
    cells = asked = 0
    for model, method, length in product(MODELS, METHODS, LENGTHS):
        start = time.process_time()
        fill(table_request([model], cards, methods=[method], seq_lens=[length]))
        middle = time.process_time()
        for card in cards[::SAMPLED]:
            try:
                vramplan.suggest(model, card, 1, advice=False, method=method, sequence_length=length)
            except vramplan.VramplanError:
                continue
        alone += time.process_time() - middle
        shared += middle - start
        cells += len(cards)
        asked += len(cards[::SAMPLED])
    ratio = (alone / asked) / (shared / cells)
    print(f"{ratio:6.1f} x  one search for each cell, beside cells that share ({len(cards)} cards)")
    minutes = shared / cells * WHOLE / 60 / 2
    print(f"{shared / cells * 1e3:6.1f} ms  a cell;  {minutes:.0f} min  {WHOLE:,} cells on two cores")


if __name__ == "__main__":
    main()
