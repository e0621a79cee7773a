"""Random pipelines to be divided, small enough to enumerate; a seed makes the same one everywhere."""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from simmoe.planners.pipeline_search.problem import DeviceType, Extra, PipelineProblem, StageOption, alike

NAMES = ("new", "mid", "old")


def random_problem(seed: int, layers: int = 7, devices: int = 6) -> PipelineProblem:
    """Two or three types, layers alike or not, with and without transfers, memory that often binds."""
    draw = random.Random(seed)
    count = draw.randint(2, layers)
    kinds = draw.randint(2, 3)
    split = _split(draw, draw.randint(kinds, devices), kinds)
    types = tuple(DeviceType(name, number) for name, number in zip(NAMES, split, strict=False))
    alike = draw.random() < 0.5
    sizes = [1.0] * count if alike else [draw.uniform(0.5, 2.0) for _ in range(count)]
    capacity = draw.choice([10**6, 100, 60, 40])
    options = [
        _option(draw, kind, size, name, sizes, capacity)
        for kind, number in enumerate(split)
        for size in sorted({1, draw.choice([1, 2, 2, 4])})
        if size <= number
        for name in ("a", "b")[: draw.randint(1, 2)]
    ]
    if draw.random() < 0.5:
        options += [_recomputing(option, draw.choice([0, 1, 9])) for option in options if draw.random() < 0.5]
    slow = draw.choice([0.0, 0.3, 1.0])
    transfer = tuple(tuple(draw.uniform(0.0, slow) for _ in range(kinds)) for _ in range(kinds))
    return PipelineProblem(
        types, count, draw.randint(1, 12), tuple(options), transfer, max_stages=draw.choice([0, 0, 3, 4])
    )


def _split(draw: random.Random, total: int, parts: int) -> list[int]:
    """Numbers of at least 1 with a sum."""
    cuts = sorted(draw.sample(range(1, total), parts - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def _recomputing(option: StageOption, kept: int) -> StageOption:
    """Slower, and of 1 byte kept or none also leaner; of 9 it is never of use."""
    backward = tuple(f + b for f, b in zip(option.forward_s, option.backward_s, strict=True))
    return option._replace(name=option.name + "r", backward_s=backward, kept_bytes=alike(kept, len(backward)))


def _option(draw, kind, devices, name, sizes, capacity) -> StageOption:
    forward, backward = draw.uniform(0.3, 1.5) / devices, draw.uniform(0.3, 3.0) / devices
    held, kept = draw.randint(2, 12), draw.randint(1, 6)
    head = draw.choice([0.0, 0.6])
    return StageOption(
        kind,
        devices,
        name,
        tuple(forward * size for size in sizes),
        tuple(backward * size for size in sizes),
        tuple(draw.choice([0.0, 0.2, 1.0]) * size for size in sizes),
        (held,) * len(sizes),
        (kept,) * len(sizes),
        capacity,
        every=Extra(0.01, 0.02, draw.choice([0.0, 0.5]), 3),
        first=Extra(0.1 * head, 0.2 * head, 0.1, 5, draw.choice([0, 2])),
        last=Extra(head, 2 * head, 0.1, draw.choice([0, 8]), 1),
    )


class Kind(NamedTuple):
    """Devices of a made-up cluster: speed relative to the fastest, memory [GB]."""

    name: str
    count: int
    speed: float
    memory: float


class Training(NamedTuple):
    """A made-up step of a Mixture-of-Experts model: layers alike, an output head of a third of a layer."""

    layers: int
    batch: int
    layer_s: float = 7.4e-3
    attention_parameters: float = 0.1e9
    expert_parameters: float = 1.41e9
    sequence_bytes: float = 33.5e6
    offload: bool = False


def cluster_problems(
    kinds: Sequence[Kind], training: Training, units: Sequence[int], sizes: Sequence[int]
) -> list[PipelineProblem]:
    """One problem for each pipeline unit, with every tensor, data and expert parallelism that divides."""
    problems = []
    for unit in units:
        options = [
            option
            for number, kind in enumerate(kinds)
            for size in sizes
            if size <= kind.count
            for option in _cluster_options(number, kind, size, unit, training)
        ]
        wire = [[training.sequence_bytes * unit / (40e9 if a is b else 20e9) / 8 for b in kinds] for a in kinds]
        types = tuple(DeviceType(kind.name, kind.count, kind.speed) for kind in kinds)
        rows = tuple(tuple(row) for row in wire)
        if options:
            problems.append(
                PipelineProblem(types, training.layers, training.batch // unit, tuple(options), rows, unit, 64)
            )
    return problems


def _cluster_options(number: int, kind: Kind, size: int, unit: int, training: Training) -> Iterator[StageOption]:
    """Tensor and expert parallelism up to 8, with and without recomputation; a stage's ranks share the unit evenly."""
    # Optimizer states (12 bytes a parameter) may stay on the host and cross a link of 25 GB/s once a step.
    ways = product((1, 2, 4, 8), (1, 2, 4, 8), (False, True), (False, True) if training.offload else (False,))
    for tensor, expert, again, away in ways:
        data = size // tensor
        if size % tensor or size % expert or data > unit or unit % data:
            continue
        rows = unit // data
        work = training.layer_s / kind.speed / tensor * (1.0 + 0.05 * (tensor - 1)) + 0.3e-3 * (1 - 1 / expert)
        weights = training.attention_parameters / tensor + training.expert_parameters / expert
        states = training.attention_parameters / tensor * 12 / data
        states += training.expert_parameters / expert * 12 / (size // expert)
        held = 6 * weights + (0 if away else states)
        kept = rows * training.sequence_bytes / tensor * (1 if again else 17)
        forward, backward = rows * work, rows * work * (3 if again else 2)
        sync = 4.0 * weights / 100e9 * (1 - 1 / data) + (states / 25e9 if away else 0.0)
        head = Extra(forward / 3, 2 * forward / 3, sync / 3, int(held / 9))
        yield StageOption(
            number,
            size,
            f"tp{tensor} ep{expert} {'full' if again else 'none'}{' offload' if away else ''}",
            *(alike(value, training.layers) for value in (forward, backward, sync)),
            *(alike(int(value), training.layers) for value in (held, kept)),
            int(kind.memory * 0.9e9),
            first=Extra(0.0, 0.0, sync / 3, int(held / 9)),
            last=head,
        )


H800, B910, MI300X = Kind("H800", 8, 1.0, 80.0), Kind("910B", 8, 0.31, 64.0), Kind("MI300X", 8, 0.74, 192.0)
SMALL, LARGE = Training(24, 256), Training(48, 512, 14e-3, 0.18e9, 2.42e9, 50e6, True)


def paper_clusters() -> dict[str, tuple[Kind, ...]]:
    """The twelve clusters of HAPMoE (arXiv 2609.39350v1, table 1); speeds are assumptions."""
    pairs = [(H800, B910), (H800, MI300X), (B910, MI300X)]
    clusters = {f"16-{n + 1}-h": (kind._replace(count=16),) for n, kind in enumerate((H800, B910, MI300X))}
    twice = [(8, 16), (8, 16), (16, 8)]
    for n, (a, b) in enumerate(pairs):
        clusters[f"16-{n + 1}"] = (a, b)
        clusters[f"24-{n + 1}"] = (a._replace(count=twice[n][0]), b._replace(count=twice[n][1]))
        clusters[f"32-{n + 1}"] = (a._replace(count=16), b._replace(count=16))
    return clusters


def large_cluster(scale: int) -> tuple[Kind, ...]:
    """512, 256 and 256 devices of three types, times `scale`."""
    return tuple(
        kind._replace(count=count * scale) for kind, count in zip((H800, MI300X, B910), (512, 256, 256), strict=True)
    )
