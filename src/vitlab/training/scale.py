"""A step of FSDP training on many devices, simulated from a stated model: computing, exchanging weights and gradients, reading.

For n devices, each with b images, and a model of P parameters in L layers:

- **compute** = operations of b images / (peak x efficiency): 6 for each multiply-add of a forward pass, 8 with `recompute`. A third
  of the 6 is the forward pass.
- **all-gather**, twice a step: each device receives (n - 1) / n of P in the precision of the products. Within a node at the speed
  of its links; between nodes all devices of a node receive together, each over its own port, and pass on: the slower of the links
  and of all ports of a node. Collectives reach the fraction `REACHED` of it.
- **reduce-scatter**, once: the same with P in float32.
- Each of the L + 1 collectives also has a ring to go round: a hop for each device in a node, a longer one for each node.
- The exchange hides behind computing, forward and backward each for itself; what is longer shows, and so do the gather of the
  first layer and the scatter of the last one, which have nothing to hide behind.
- **data**: reading hides behind the rest, if `read_rate` images a second for each device are enough.

Not in the model: slow devices, contention for a device's memory between products and exchange, evaluation, checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitlab.config.hardware import Hardware

REACHED = 0.8
"""The fraction of a link's speed that collectives reach."""
LINK_HOP = 1e-6
"""Seconds from one device to the next within a node."""
NETWORK_HOP = 5e-6
"""Seconds from one node to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a step is made of: operations of one device (without `recompute`), and the parameters and layers of the model."""

    operations: float
    parameters: int
    layers: int
    number_bytes: int = 2
    recompute: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """Seconds of one step and of its parts; `exposed` is what the exchange and reading add to computing.

    `efficiency` is the fraction of the device's peak that useful operations reach: those of `recompute` are not useful.
    """

    compute: float
    all_gather: float
    reduce_scatter: float
    data: float
    exposed: float
    seconds: float
    efficiency: float


def exchange_seconds(size: float, collectives: int, hardware: Hardware, devices: int) -> float:
    """Seconds in which each device receives `size` bytes in so many collectives."""
    if devices == 1:
        return 0.0
    node = min(hardware.node, devices)
    nodes = -(-devices // node)
    assert hardware.network_gbs is not None
    speeds = [hardware.link_gbs] if hardware.link_gbs is not None and node > 1 else []
    speeds += [hardware.network_gbs * node] if nodes > 1 else []
    hops = (devices - nodes) * LINK_HOP + (nodes - 1) * NETWORK_HOP
    return size * (devices - 1) / devices / (min(speeds) * 1e9 * REACHED) + collectives * hops


def simulate_step(work: Work, hardware: Hardware, *, devices: int, efficiency: float, data: float = 0.0) -> SimulatedStep:
    """The step on so many devices; `data` are the seconds in which a device's images are read."""
    assert hardware.tflops is not None
    third = work.operations / 3 / (hardware.tflops * 1e12 * efficiency)
    forward, backward = third, third * (3 if work.recompute else 2)
    collectives = work.layers + 1
    gather = exchange_seconds(work.parameters * work.number_bytes, collectives, hardware, devices)
    scatter = exchange_seconds(work.parameters * 4, collectives, hardware, devices)
    edges = (gather + scatter) / collectives
    exposed = max(0.0, gather - forward) + max(0.0, gather + scatter - backward) + edges if devices > 1 else 0.0
    busy = forward + backward + exposed
    seconds = max(busy, data)
    return SimulatedStep(
        compute=forward + backward,
        all_gather=2 * gather,
        reduce_scatter=scatter,
        data=data,
        exposed=max(exposed, seconds - forward - backward),
        seconds=seconds,
        efficiency=work.operations / (hardware.tflops * 1e12 * seconds),
    )
