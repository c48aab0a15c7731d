"""What a tracker records of a storage, and how it is shown."""

from __future__ import annotations

import re
from functools import lru_cache

from vramplan.dataclass import dataclass
from vramplan.memory.buffer import Buffer
from vramplan.memory.timeline import Storage


@dataclass(slots=True)
class Record:
    """One storage, as recorded by the tracker."""

    num_bytes: int
    op: str
    module: str
    shape: tuple[int, ...]
    dtype: str
    category: str = ""
    in_kernel: bool = False
    in_forward: bool = False
    age: int = 0
    """Number of backward formulas run before it was created."""
    outlives: bool = False
    """Created in a forward, and still alive in backward."""
    buffer: Buffer | None = None
    """What its size follows from, if that depends on the GPU."""

    def described(self, vocabulary: int | None) -> Storage:
        """The storage for a timeline; one as wide as `vocabulary` is logits."""
        category = self.category
        if not category:
            category = "activation" if self.outlives and not self.in_kernel else "temporary"
            if vocabulary is not None and self.shape and self.shape[-1] == vocabulary and not self.in_kernel:
                category = "logits"
        named = collapse(self.module), self.op, self.shape, self.dtype
        return _storage(self.num_bytes, category, *named, self.in_kernel, self.buffer)


@lru_cache(maxsize=1 << 16)
def _storage(
    num_bytes: int,
    category: str,
    module: str,
    op: str,
    shape: tuple[int, ...],
    dtype: str,
    in_kernel: bool,
    buffer: Buffer | None,
) -> Storage:
    formula = f"{' x '.join(map(str, shape)) or 'scalar'} {dtype}"
    return Storage(num_bytes, category, f"{module} {op}".strip(), formula, in_kernel, buffer=buffer)


_WRAPPERS = re.compile(r"^(base_model\.model\.)?((model|transformer|gpt_neox|language_model|decoder)\.)*")


@lru_cache(maxsize=1 << 16)
def collapse(path: str) -> str:
    """A module's path as shown to users: all layers share one path.

    >>> collapse("base_model.model.model.layers.31.self_attn.q_proj")
    'layers.*.self_attn.q_proj'
    """
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", _WRAPPERS.sub("", path))
