"""Vision towers by transformers' ``model_type``, and by the tower's where an architecture takes several."""

from __future__ import annotations

from vramplan.analytic.architectures.towers import glm, mllama, pixtral, qwen, siglip, vit
from vramplan.analytic.architectures.towers.tower import PARTS, TOWER, VisionInput, VisionTower, see

SIGHTS: dict[str, VisionTower] = {
    **vit.SIGHTS,
    **siglip.SIGHTS,
    **pixtral.SIGHTS,
    **qwen.SIGHTS,
    **glm.SIGHTS,
    **mllama.SIGHTS,
}

__all__ = ["PARTS", "SIGHTS", "TOWER", "VisionInput", "VisionTower", "see"]
