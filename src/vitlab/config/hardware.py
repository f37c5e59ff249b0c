"""Where work runs: named hardware for plans (speed, memory, power and price of one device), and a Ray cluster. No torch, no Ray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitlab.errors import ConfigError, UsageError, at_least, did_you_mean

# --- hardware ----------------------------------------------------------------------------------------------------------------

# Peaks are those of dense matrix products in 16-bit floats, from the makers' data sheets; power is the thermal design power, so
# energy is an upper bound for the device itself. Links are counted one way, in GB/s for each device: NVLink within a node, and the
# network ports that such machines usually have (DGX-1, DGX A100, DGX H100); the torus of a TPU pod has no nodes. Prices are round
# numbers near the on-demand prices of large clouds and change often. `vitlab plan` prints each of these assumptions with the option
# that changes it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device: `tflops` at peak, `memory_gib`, `watts`, `price` in US dollars an hour; None where nobody knows.

    `node` devices share a machine, with `link_gbs` between them; `network_gbs` goes to other machines.
    """

    name: str
    device: str
    tflops: float | None
    memory_gib: float
    watts: float | None
    price: float | None
    node: int = 1
    link_gbs: float | None = None
    network_gbs: float | None = None

    def __post_init__(self) -> None:
        for name in ("tflops", "memory_gib", "watts", "price", "link_gbs", "network_gbs"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value} must be a positive number")


HARDWARE: tuple[Hardware, ...] = (
    Hardware(name="TPUv3", device="core (half a chip)", tflops=61.5, memory_gib=16, watts=225, price=1.0, network_gbs=164),
    Hardware(
        name="V100", device="GPU, 32 GB", tflops=125, memory_gib=32, watts=300, price=2.5, node=8, link_gbs=150, network_gbs=6.25
    ),
    Hardware(
        name="A100", device="GPU, 80 GB", tflops=312, memory_gib=80, watts=400, price=4.0, node=8, link_gbs=300, network_gbs=25
    ),
    Hardware(
        name="H100", device="GPU, 80 GB", tflops=989, memory_gib=80, watts=700, price=10.0, node=8, link_gbs=450, network_gbs=50
    ),
)
THIS = "this"
"""The name of the machine that a plan is made on; its speed and memory are measured."""

EFFICIENCY = 0.38
"""The fraction of peak that a run reaches, if none is given: the geometric mean over the three ViTs of the paper's Table 2.

By Table 6's compute and Table 2's TPUv3-core-days, H/14 reached 0.32, L/16 on JFT-300M 0.43, and L/16 on ImageNet-21k 0.39.
"""
OVERHEAD = 1.1
"""Energy of the data centre for each unit that the devices take (PUE): that of large, efficient data centres."""
CARBON = 0.43
"""kg CO2 for each kWh: about the mean of the US grid in 2021 (Patterson et al. 2021 take 0.429). Grids range from 0.03 to 0.9."""


def hardware_called(name: str) -> Hardware:
    """The hardware of that name, in any case."""
    found = {entry.name.casefold(): entry for entry in HARDWARE}.get(name.casefold())
    if found is None:
        names = [*(entry.name for entry in HARDWARE), THIS]
        raise UsageError(f"no hardware called {name!r}", hint=did_you_mean(name, names) or f"one of {', '.join(names)}")
    return found


def core_days(exaflops: float, hardware: Hardware, *, efficiency: float = EFFICIENCY) -> float:
    """Days of one device for so much compute; its peak must be known."""
    assert hardware.tflops is not None
    return exaflops * 1e18 / (hardware.tflops * 1e12 * efficiency) / 86_400


# --- work on a cluster: where it is, and how the work is cut -----------------------------------------------------------------

EngineName = Literal["local", "ray"]
"""Where the work runs: in this process (and its own children), or on a Ray cluster."""

MOST_ACTORS = 4096
_CHUNK = 128  # images of a chunk, about: large beside the cost of sending it, small beside the work of a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """Work on Ray.

    `address` is `auto` (the cluster that this machine belongs to), host:port, or None: a Ray of its own on this machine, which
    ends with the work. `actors` models run at once, 0 for one on each GPU or, without GPUs, one on each core; each has `readers`
    processes that read and decode for it, or none and reads for itself. A part of the results holds `part_size` images, rounded up
    to whole batches.
    """

    address: str | None = None
    actors: int = 0
    readers: int = 1
    part_size: int = 4096

    def __post_init__(self) -> None:
        at_least("actors", self.actors, 0, MOST_ACTORS)
        at_least("readers", self.readers, 0, 64)
        at_least("part_size", self.part_size, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How `images` are cut into parts, and parts into chunks, which are what a worker takes at once.

    Every cut is at a multiple of the batch size, so that each batch holds the images that it holds in one process: the last bits of
    a result depend on the size of its batch.
    """

    images: int
    batch_size: int
    part_size: int

    @property
    def part_images(self) -> int:
        """Images of each part but the last."""
        return -(-self.part_size // self.batch_size) * self.batch_size

    @property
    def chunk_images(self) -> int:
        """Images of each chunk but the last of a part."""
        return min(self.part_images, max(1, _CHUNK // self.batch_size) * self.batch_size)

    @property
    def parts(self) -> int:
        """Their number."""
        return -(-self.images // self.part_images)

    def chunks(self, part: int) -> list[tuple[int, int]]:
        """(first image, number of images) of each chunk of a part, in order."""
        first, last = part * self.part_images, min((part + 1) * self.part_images, self.images)
        return [(start, min(self.chunk_images, last - start)) for start in range(first, last, self.chunk_images)]
