"""Vision towers by transformers' ``model_type``."""

from __future__ import annotations

from vramplan.analytic.vision import qwen, vit
from vramplan.analytic.vision.sight import PARTS, TOWER, Seen, Sight, see

SIGHTS: dict[str, Sight] = {**vit.SIGHTS, **qwen.SIGHTS}

__all__ = ["PARTS", "SIGHTS", "TOWER", "Seen", "Sight", "see"]
