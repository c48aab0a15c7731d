"""Vision towers by transformers' ``model_type``, and by the tower's if an architecture takes several."""

from __future__ import annotations

from vramplan.analytic.architectures.towers import glm, mllama, pixtral, qwen, siglip, vit
from vramplan.analytic.architectures.vision_tower import VisionTower

TOWERS: dict[str, VisionTower] = {
    **vit.TOWERS,
    **siglip.TOWERS,
    **pixtral.TOWERS,
    **qwen.TOWERS,
    **glm.TOWERS,
    **mllama.TOWERS,
}
