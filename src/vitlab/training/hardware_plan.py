"""`vitlab plan`: what training a model takes on named hardware, computed without data and without training.

Compute is Table 6's rule (`Cost.training_exaflops`), memory that of `vitlab.training.plan.Memory`, and time is compute divided by
a fraction of the hardware's peak. Energy, CO2 and money follow from the time. The machine at hand is measured instead, by a few
real steps on random images.
A step on many devices is simulated; its model is stated at the end of this file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from vitlab.config.hardware import CARBON, EFFICIENCY, HARDWARE, OVERHEAD, THIS, Hardware, core_days, hardware_called
from vitlab.config.model import variant
from vitlab.config.overrides import DataFacts, Machine, Overrides, StartFacts
from vitlab.config.run import RunConfig
from vitlab.config.train import Strategy, mean_area
from vitlab.errors import ConfigError, UsageError, at_least
from vitlab.inference.bench import sgemm_peak
from vitlab.io.display import Block, Displayed
from vitlab.models.cost import Cost, cost
from vitlab.models.families import build_on_meta
from vitlab.recipes import recipe
from vitlab.recipes.paper import PUBLISHED_DATA
from vitlab.recipes.rules import plain_preprocess
from vitlab.training.distributed import sharded_layers
from vitlab.training.plan import Memory, free_memory, plan, survey, this_machine

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What a plan cannot know. None takes the value of the hardware: `tflops` at peak, `memory_gib`, `watts`, `price` an hour.

    `network_gbs` is the speed of the network, GB/s for each device, and `read_rate` the images a second that can be read for each.
    """

    devices: int = 8
    efficiency: float = EFFICIENCY
    overhead: float = OVERHEAD
    carbon: float = CARBON
    tflops: float | None = None
    memory_gib: float | None = None
    watts: float | None = None
    price: float | None = None
    network_gbs: float | None = None
    read_rate: float = 1000.0

    def __post_init__(self) -> None:
        at_least("devices", self.devices, 1, 1 << 16)
        if not self.read_rate > 0:
            raise ConfigError(f"read_rate={self.read_rate} must be a positive number")
        if not 0 < self.efficiency <= 1:
            raise ConfigError(f"efficiency={self.efficiency} must be above 0 and at most 1")
        at_least("overhead", self.overhead, 1)
        at_least("carbon", self.carbon, 0)

    def applied(self, hardware: Hardware) -> Hardware:
        """The hardware with the values that the user gave in place of its own."""
        given = {name: getattr(self, name) for name in OF_A_DEVICE if getattr(self, name) is not None}
        return replace(hardware, **given)


OF_A_DEVICE = ("tflops", "memory_gib", "watts", "price", "network_gbs")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """Memory of one device in GiB with `micro_batch` images at a time; `largest_batch` of them fit, 0 if not even one does.

    `total` is the sum of the parts on the device, at the busiest moment of a step; `host` is in host memory (`offload`).
    """

    hardware: str
    strategy: Strategy
    devices: int
    micro_batch: int
    weights: float
    gradients: float
    optimizer: float
    average: float
    gathered: float
    activations: float
    host: float
    total: float
    memory: float
    largest_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """Time, energy and price of the whole run, None where nothing is known; `efficiency` is the fraction of the peak."""

    hardware: str
    devices: int
    efficiency: float | None
    hours: float | None
    device_days: float | None
    kwh: float | None
    co2_kg: float | None
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One step of FSDP on all devices, simulated (the end of this file): seconds of its parts, and what it reaches.

    `exposed` is what exchange and reading add to computing. `hours` are those of the whole run.
    """

    hardware: str
    devices: int
    images_of_a_device: float
    compute: float
    all_gather: float
    reduce_scatter: float
    data: float
    exposed: float
    step_seconds: float
    efficiency: float
    images_per_sec: float
    hours: float


class TrainingPlan(Displayed):
    """What a run takes: `memory` and `time` have a row for each hardware and strategy, `assumptions` what they rest on.

    `steps` has a row for each hardware whose network is known, if several devices share the work.
    """

    def __init__(
        self,
        run: RunConfig,
        spent: Cost,
        data: DataFacts,
        memory: Sequence[MemoryRow],
        time: Sequence[TimeRow],
        steps: Sequence[StepRow],
        assumptions: Sequence[dict[str, Any]],
        notes: Sequence[str],
    ) -> None:
        self.run, self.cost, self.data = run, spent, data
        self.memory, self.time, self.steps = tuple(memory), tuple(time), tuple(steps)
        self.assumptions, self.notes = tuple(assumptions), tuple(notes)

    @property
    def exaflops(self) -> float:
        """Compute of the run, 10^18 operations."""
        return _exaflops(self.run, self.cost)

    def _about(self) -> dict[str, Any]:
        run, batch = self.run, self.run.data.loader.batch_size
        return {
            "recipe": run.name,
            "model": run.model.name or run.model.title,
            "image_size": list(run.model.image_size),
            "parameters": self.cost.parameters,
            "macs": self.cost.macs,
            "dataset": self.data.dataset,
            "images": self.data.images,
            "batch_size": batch,
            "steps": run.train.steps,
            "epochs": round(run.train.steps * batch / self.data.images, 2),
            "exaflops": self.exaflops,
            "checkpoint_bytes": Memory(run, self.cost, 1).checkpoint_bytes,
        }

    def tables(self) -> Iterable[Block]:
        """The run, memory of a device in GiB, time with energy and price, and every assumption with its option."""
        memory = [
            {
                name: f"{value:.2f}"
                if isinstance(value, float)
                else "does not fit"
                if (name, value) == ("largest_batch", 0)
                else value
                for name, value in asdict(row).items()
            }
            for row in self.memory
        ]
        time = [{name: _short(value) for name, value in asdict(row).items()} for row in self.time]
        steps = [{name: _short(value) for name, value in asdict(row).items()} for row in self.steps]
        renamed = [{f"{name}, GiB" if name in _IN_GIB else name: value for name, value in row.items()} for row in memory]
        notes = "\n".join(f"note: {note}" for note in self.notes)
        return [self._about(), renamed, time, *([steps] if steps else []), list(self.assumptions), notes]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            **self._about(),
            "memory": [asdict(row) for row in self.memory],
            "time": [asdict(row) for row in self.time],
            "simulated_steps": [asdict(row) for row in self.steps],
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
        }


_IN_GIB = ("weights", "gradients", "optimizer", "average", "gathered", "activations", "host", "total", "memory")


def plan_training(
    model: str,
    name: str,
    hardware: Sequence[str],
    overrides: Overrides,
    assumed: Assumptions,
    *,
    data: DataFacts | None = None,
) -> TrainingPlan:
    """The plan of a recipe for a model on each hardware; `data` are the facts of a dataset other than the published one."""
    chosen = [word for word in hardware if word] or [entry.name for entry in HARDWARE]
    given = [option for option in OF_A_DEVICE if getattr(assumed, option) is not None]
    if given and len(chosen) > 1:
        raise UsageError(f"`{given[0]}` is a property of one device, and {len(chosen)} are named", hint="name one: `hardware=A100`")
    memory, time, steps, notes = list[MemoryRow](), list[TimeRow](), list[StepRow](), list[str]()
    assumptions: list[dict[str, Any]] = []
    found: tuple[RunConfig, DataFacts] | None = None
    for word in chosen:
        here = word.casefold() == THIS
        run, facts = _run(model, name, overrides, data, this_machine() if here else Machine(cores=16, accelerator=True))
        found = found or (run, facts)
        spent = cost(run.model)
        device = assumed.applied(_this_hardware() if here else hardware_called(word))
        memory += _memory_rows(run, spent, device, 1 if here else assumed.devices)
        row, said = _measured(run, facts, device, assumed) if here else (_computed(run, spent, device, assumed), ())
        time.append(row)
        notes += said
        if not here and assumed.devices > 1 and device.network_gbs is not None:
            steps.append(_simulated(run, spent, device, assumed))
        if run.train.lora is not None and not here:  # on this machine it is among what is said
            parts = Memory(run, spent, 1)
            notes.append(f"{device.name}: {parts.spared(_at_once(run, parts, device, 1))}")
        assumptions += _device_assumptions(device, measured=here)
    assert found is not None
    run, facts = found
    assumptions += _shared_assumptions(assumed, devices=1 if chosen == [THIS] else assumed.devices)
    if steps:
        assumptions += _scale_assumptions(assumed)
    notes.append(
        "time is that of the steps alone: communication between devices, reading, evaluation and checkpoints are not included"
        + ("; simulated steps include the exchange between devices and reading" if steps else "")
    )
    if run.train.offload == "cpu" and steps:
        notes.append("simulated steps leave out the way of weights and gradients between host and device")
    return TrainingPlan(run, cost(run.model), facts, memory, time, steps, assumptions, notes)


def _run(model: str, name: str, overrides: Overrides, data: DataFacts | None, machine: Machine) -> tuple[RunConfig, DataFacts]:
    """The recipe's run of this model, and the facts of its data."""
    if data is None and name in ("small-data", "finetune-folder"):
        raise UsageError(f"{name} has no dataset of its own: say how many images there are", hint="`images=50000` `classes=20`")
    start = None
    if "finetune" in name:
        config = variant(model)
        start = StartFacts(path=model, model=config, preprocess=plain_preprocess(config, margin=1.0, interpolation="bilinear"))
    else:
        overrides = replace(overrides, model=model)
    run = recipe(name, overrides, data=data, start=start, machine=machine)
    run = replace(run, start=None)
    return run, data or PUBLISHED_DATA.get(run.data.dataset) or survey(run.data.dataset, rule=run.data.rule)


def _exaflops(run: RunConfig, spent: Cost) -> float:
    area = mean_area(run.train.progressive_resizing)
    return spent.training_exaflops(area * run.train.steps * run.data.loader.batch_size)


def _this_hardware() -> Hardware:
    machine = this_machine()
    memory = free_memory() / _GIB
    if machine.accelerator:
        return Hardware(name=THIS, device=torch.cuda.get_device_name(), tflops=None, memory_gib=memory, watts=None, price=None)
    peak = sgemm_peak() / 1e12
    return Hardware(name=THIS, device=f"{machine.cores} CPU cores", tflops=peak, memory_gib=memory, watts=None, price=None)


def _memory_rows(run: RunConfig, spent: Cost, device: Hardware, devices: int) -> list[MemoryRow]:
    """One device alone and, with several, each strategy that shares the batch among them."""
    ways: list[tuple[Strategy, int]] = [("single", 1)]
    ways += [("ddp", devices), ("fsdp", devices)] if devices > 1 else []
    rows = []
    for strategy, ranks in ways:
        offload = run.train.offload if strategy == "fsdp" else "none"
        memory = Memory(replace(run, train=replace(run.train, strategy=strategy, offload=offload)), spent, ranks)
        largest = memory.most(int(device.memory_gib * _GIB))
        images = _at_once(run, memory, device, ranks)
        parts = memory.parts(images)
        rows.append(
            MemoryRow(
                hardware=device.name,
                strategy=strategy,
                devices=ranks,
                micro_batch=images,
                **{part: value / _GIB for part, value in asdict(parts).items()},
                total=parts.total / _GIB,
                memory=device.memory_gib,
                largest_batch=largest,
            )
        )
    return rows


def _at_once(run: RunConfig, memory: Memory, device: Hardware, ranks: int) -> int:
    """Images that one device runs at once: its part of the batch, or as many as fit."""
    own = -(-run.data.loader.batch_size // ranks)
    return min(own, max(memory.most(int(device.memory_gib * _GIB)), 1))


def _computed(run: RunConfig, spent: Cost, device: Hardware, assumed: Assumptions) -> TimeRow:
    return _time_row(device, assumed.devices, core_days(_exaflops(run, spent), device, efficiency=assumed.efficiency), assumed)


def _simulated(run: RunConfig, spent: Cost, device: Hardware, assumed: Assumptions) -> StepRow:
    """A step of FSDP on all devices."""
    images, area = run.data.loader.batch_size, mean_area(run.train.progressive_resizing)
    own = images / assumed.devices
    work = Work(
        operations=spent.training_exaflops(area * own) * 1e18,
        parameters=spent.parameters,
        layers=len(sharded_layers(build_on_meta(run.model))),
        number_bytes=2 if run.train.precision == "bfloat16" else 4,
        recompute=run.train.recompute,
    )
    step = simulate_step(work, device, devices=assumed.devices, efficiency=assumed.efficiency, data=own / assumed.read_rate)
    return StepRow(
        hardware=device.name,
        devices=assumed.devices,
        images_of_a_device=own,
        compute=step.compute,
        all_gather=step.all_gather,
        reduce_scatter=step.reduce_scatter,
        data=step.data,
        exposed=step.exposed,
        step_seconds=step.seconds,
        efficiency=step.efficiency,
        images_per_sec=images / step.seconds,
        hours=run.train.steps * step.seconds / 3600,
    )


def _scale_assumptions(assumed: Assumptions) -> list[dict[str, Any]]:
    rows: tuple[tuple[str, float, str, str], ...] = (
        ("speed of links that collectives reach", REACHED, "", "a fraction, assumed"),
        ("seconds of a hop in a node", LINK_HOP, "", "of a ring through all devices"),
        ("seconds of a hop between nodes", NETWORK_HOP, "", "of a ring through all nodes"),
        ("images read a second, for each device", assumed.read_rate, "--read-rate", "8 cores that decode JPEG at 125 a second"),
    )
    return [{"assumption": f"simulated steps: {what}", **_row(value, option, why)} for what, value, option, why in rows]


def _measured(run: RunConfig, facts: DataFacts, device: Hardware, assumed: Assumptions) -> tuple[TimeRow, tuple[str, ...]]:
    """The row of the machine at hand, by a few real steps; by its peak if a step does not fit into its memory."""
    made = plan(run, data=facts, ranks=1)
    exaflops = _exaflops(run, cost(run.model))
    if made.step_seconds is not None:
        days = run.train.steps * made.step_seconds / 86_400
        reached = None if device.tflops is None else exaflops * 1e6 / (device.tflops * days * 86_400)
        return replace(_time_row(device, 1, days, assumed), efficiency=reached), made.notes
    if device.tflops is None:
        return _time_row(device, 1, None, assumed), made.notes
    extrapolated = f"the time on {THIS} is extrapolated from one matrix product at {assumed.efficiency:g} of its speed"
    return _time_row(device, 1, core_days(exaflops, device, efficiency=assumed.efficiency), assumed), (*made.notes, extrapolated)


def _time_row(device: Hardware, devices: int, days: float | None, assumed: Assumptions) -> TimeRow:
    hours = None if days is None else days * 24
    kwh = None if hours is None or device.watts is None else hours * device.watts * assumed.overhead / 1000
    return TimeRow(
        hardware=device.name,
        devices=devices,
        efficiency=assumed.efficiency,
        hours=None if hours is None else hours / devices,
        device_days=days,
        kwh=kwh,
        co2_kg=None if kwh is None else kwh * assumed.carbon,
        usd=None if hours is None or device.price is None else hours * device.price,
    )


def _device_assumptions(device: Hardware, *, measured: bool) -> list[dict[str, Any]]:
    speed = "measured: one large float32 matrix product" if measured else "data sheet: dense products in 16-bit floats"
    rows = [
        ("peak, TFLOP/s", device.tflops, "--tflops", speed),
        ("memory, GiB", device.memory_gib, "--memory-gib", "free now" if measured else "data sheet"),
        ("power, W", device.watts, "--watts", "not known" if device.watts is None else "thermal design power"),
        (
            "price, USD an hour",
            device.price,
            "--price",
            "not known" if device.price is None else "about the on-demand price of a cloud",
        ),
        ("network, GB/s one way", device.network_gbs, "--network-gbs", "not known" if device.network_gbs is None else "data sheet"),
    ]
    return [
        {"assumption": f"{device.name} ({device.device}): {what}", **_row(value, option, why)} for what, value, option, why in rows
    ]


def _shared_assumptions(assumed: Assumptions, *, devices: int) -> list[dict[str, Any]]:
    stated = "as given" if assumed.efficiency != EFFICIENCY else "mean over the ViTs of the paper's Table 2 on TPUv3 (0.32 to 0.43)"
    rows: tuple[tuple[str, float, str, str], ...] = (
        ("operations for a multiply-add", 6, "", "forward and twice that back, two operations each (Table 6)"),
        ("devices", devices, "--devices", "each takes an equal part of the batch"),
        ("efficiency, fraction of peak", assumed.efficiency, "--efficiency", stated),
        ("overhead of the data centre (PUE)", assumed.overhead, "--overhead", "large, efficient data centres"),
        ("kg CO2 for a kWh", assumed.carbon, "--carbon", "about the mean of the US grid in 2021"),
    )
    return [{"assumption": what, **_row(value, option, why)} for what, value, option, why in rows]


def _short(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _row(value: float | None, option: str, why: str) -> dict[str, Any]:
    return {"value": None if value is None else float(f"{value:.4g}"), "option": option or None, "why": why}


# --- a step on many devices ---------------------------------------------------------------------------------------------------
# A step of FSDP training on many devices, simulated from a stated model: computing, exchanging weights and gradients, reading.
#
# For n devices, each with b images, and a model of P parameters in L layers:
#
# - **compute** = operations of b images / (peak x efficiency): 6 for each multiply-add of a forward pass, 8 with `recompute`. A
#   third of the 6 is the forward pass.
# - **all-gather**, twice a step: each device receives (n - 1) / n of P in the precision of the products. Within a node at the speed
#   of its links; between nodes all devices of a node receive together, each over its own port, and pass on: the slower of the links
#   and of all ports of a node. Collectives reach the fraction `REACHED` of it.
# - **reduce-scatter**, once: the same with P in float32.
# - Each of the L + 1 collectives also has a ring to go round: a hop for each device in a node, a longer one for each node.
# - The exchange hides behind computing, forward and backward each for itself; what is longer shows, and so do the gather of the
#   first layer and the scatter of the last one, which have nothing to hide behind.
# - **data**: reading hides behind the rest, if `read_rate` images a second for each device are enough.
#
# Not in the model: slow devices, contention for a device's memory between products and exchange, evaluation, checkpoints.

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
