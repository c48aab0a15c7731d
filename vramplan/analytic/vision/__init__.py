"""Vision towers by transformers' ``model_type``."""

from __future__ import annotations

from vramplan.analytic.vision import qwen, siglip, vit
from vramplan.analytic.vision.sight import PARTS, TOWER, Seen, Sight, see

SIGHTS: dict[str, Sight] = {**vit.SIGHTS, **siglip.SIGHTS, **qwen.SIGHTS}

__all__ = ["PARTS", "SIGHTS", "TOWER", "Seen", "Sight", "see"]
