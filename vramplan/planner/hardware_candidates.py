"""What a search for hardware tries: GPUs, how many of them, and how they share the work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vramplan.dataclass import dataclass
from vramplan.errors import ConfigError, UnknownNameError, setting
from vramplan.inputs.catalog import all_gpus
from vramplan.inputs.former_names import with_current_names
from vramplan.inputs.gpu import Gpu
from vramplan.inputs.load import load_gpu
from vramplan.inputs.prices import Prices
from vramplan.step_time.rates import rates_of
from vramplan.units import divisors

ANY = "any"
"""The word for the whole catalogue."""
PER_NODE = 8
"""Most GPUs of one machine; more are as many machines of this size."""
STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp")
"""Ways to share the work, the simplest first."""
OFFLOADS = (("zero2", "optimizer"), ("zero3", "optimizer"), ("zero3", "all"), ("fsdp", "all"))
"""What the host can keep (strategy, offload), the least first; tried only if nothing fits without."""
LINKS_BY_SPEED = ("pcie", "pcie-p2p", "nvlink")
ALONE = ("laptop", "unified memory")
"""Forms of GPUs of which a machine has one."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """How some GPUs share the work."""

    num_gpus: int
    strategy: str
    offload: str = "none"

    @property
    def settings(self) -> dict[str, Any]:
        """The same as fields of the job."""
        return {
            "num_gpus": self.num_gpus,
            "num_nodes": max(1, self.num_gpus // PER_NODE),
            "strategy": self.strategy,
            "offload": self.offload,
        }


def named_gpus(names: str | Gpu | Sequence[str | Gpu]) -> list[Gpu]:
    """The GPUs of a list with commas, or of a sequence, each once; "any" is the whole catalogue, NVIDIA's first.

    Raises:
        VramplanError: if a name is unknown, or none is given.
    """
    if isinstance(names, Gpu):
        return [names]
    each = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    each = [name for name in each if name != ""]
    if not each:
        raise ConfigError(f"{setting('gpu')}: expected the name of a GPU, several with commas, or {ANY}")
    if any(isinstance(name, str) and name.lower() == ANY for name in each):
        if len(each) > 1:
            raise ConfigError(f"{setting('gpu', ','.join(map(str, each)))}: {ANY} stands alone")
        return sorted(all_gpus(), key=lambda gpu: gpu.vendor != "NVIDIA")
    gpus = [_load(name) for name in each]
    return list({name_on_platform(gpu): gpu for gpu in gpus}.values())


def _load(name: str | Gpu) -> Gpu:
    try:
        return load_gpu(name)
    except UnknownNameError as error:
        raise ConfigError(f"{error.text}; {ANY} is all of them") from error


def name_on_platform(gpu: Gpu) -> str:
    """A GPU's short name, and its platform if that is not the usual one, as `--gpu` takes them: rtx4090@windows."""
    return gpu.name if gpu.platform in ("linux", "macos") else f"{gpu.name}@{gpu.platform}"


def is_guess(gpu: Gpu) -> bool:
    """Whether a GPU's memory or rates were not read from a source, or its maker's software is not modelled."""
    observed_or_derived = gpu.cuda_total_source.startswith(("observed", "derived"))
    return gpu.vendor != "NVIDIA" or gpu.confidence == "inferred" or not observed_or_derived


def most_of(gpu: Gpu, max_gpus: int) -> int:
    """How many GPUs of a kind may work together."""
    return 1 if gpu.form in ALONE else max_gpus


def gpu_counts(global_batch_size: int, max_gpus: int, fixed: int | None, few: bool = False) -> list[int]:
    """Numbers of GPUs that divide a global batch, smallest first; `few`: powers of two alone.

    Raises:
        ConfigError: if the number that was asked for does not; names the nearest batches and numbers that do.
    """
    if fixed is None:
        whole = [n for n in divisors(global_batch_size) if n <= max_gpus and (n <= PER_NODE or n % PER_NODE == 0)]
        return [count for count in whole if not few or count & (count - 1) == 0]
    if global_batch_size % fixed:
        below = global_batch_size // fixed * fixed
        batches = " or ".join(str(batch) for batch in (below, below + fixed) if batch)
        dividing = divisors(global_batch_size)
        nearest = [
            *[count for count in dividing if count < fixed][-1:],
            *[count for count in dividing if count > fixed][:1],
        ]
        raise ConfigError(
            f"{setting('global_batch', global_batch_size)} is not a multiple of {fixed} GPUs; nearest batches that"
            f" are: {batches}; nearest numbers of GPUs that divide {global_batch_size}:"
            f" {' or '.join(map(str, nearest))}"
        )
    return [fixed]


def sharings(counts: Iterable[int], settings: Mapping[str, Any]) -> list[Sharing]:
    """Every way to share the work that the user has left open, fewest GPUs and simplest strategy first."""
    given = with_current_names(settings)
    strategies = (given["strategy"],) if given.get("strategy") is not None else STRATEGIES
    offload = given.get("offload") or "none"
    return [
        Sharing(count, strategy, offload)
        for count in counts
        for strategy in strategies
        if count > 1 or len(strategies) == 1 or strategy == "ddp" or (offload != "none" and strategy != "fsdp")
    ]


def with_offload(counts: Iterable[int], settings: Mapping[str, Any]) -> list[Sharing]:
    """The same with states or weights on the host; none if the user has said where they stay."""
    given = with_current_names(settings)
    if given.get("offload") is not None:
        return []
    return [
        Sharing(count, strategy, offload)
        for count in counts
        for strategy, offload in OFFLOADS
        if given.get("strategy") in (None, strategy) and (count > 1 or strategy != "fsdp")
    ]


def without_surpassed(gpus: Sequence[Gpu], prices: Prices) -> list[Gpu]:
    """The GPUs that no other surpasses: one of as much memory, as fast in all, of the same maker and not dearer.

    A GPU without a known price surpasses others without one alone, and a guess surpasses guesses alone.
    """
    return [gpu for gpu in gpus if not any(_surpasses(other, gpu, prices) for other in gpus)]


def _surpasses(one: Gpu, other: Gpu, prices: Prices) -> bool:
    """Whether the first GPU is no worse in anything; what is known surpasses guesses of other makers too."""
    if one.name == other.name or (is_guess(one) and (one.vendor != other.vendor or not is_guess(other))):
        return False
    if one.vendor != other.vendor and not is_guess(other):
        return False
    for count in (1, PER_NODE):  # some providers rent a few of a kind alone
        price, other_price = prices.get(one.name, count), prices.get(other.name, count)
        if other_price is not None and (price is None or price.per_hour > other_price.per_hour):
            return False
    if most_of(one, PER_NODE) < most_of(other, PER_NODE) or one.capability < other.capability:
        return False
    if other.flops_per_second.keys() - one.flops_per_second.keys():
        return False
    ours, theirs = _figures(one, other), _figures(other, other)
    no_worse = all(mine >= its for mine, its in zip(ours, theirs, strict=True))
    priced_alike = prices.get(one.name) == prices.get(other.name)
    return no_worse and (ours != theirs or one.name < other.name or not priced_alike)


def _figures(gpu: Gpu, of: Gpu) -> list[Any]:
    """Memory, and the rates of kernels and links that are reached."""
    reached = rates_of(gpu)
    shares = (reached.matmul, reached.attention, reached.attention_backward)
    rates = [gpu.flops_per_second[dtype] * share for dtype in sorted(of.flops_per_second) for share in shares]
    nominal = gpu.nvlink_bytes_per_second if gpu.link == "nvlink" else gpu.pcie_bytes_per_second
    link = (LINKS_BY_SPEED.index(gpu.link), nominal or 0)
    return [gpu.usable_bytes, gpu.bandwidth_bytes_per_second * reached.bandwidth, link, *rates]
