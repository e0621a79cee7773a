"""Which devices do identical work and are simulated once."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.faults import facing_devices, group_members, ports_of_devices, slowdown_of_devices
from simmoe.cost.groups import domain_of_devices
from simmoe.specs.hardware import Cluster
from simmoe.specs.plan import Plan, Stage

Ids = NDArray[np.int64]
_INSIDE = ("tp", "cp", "ep", "etp")  # groups that wait for each other inside a pass


class DeviceClass(NamedTuple):
    """Devices of one stage that do the same at the same times.

    Attributes
    ----------
    group : int
        Cluster group they belong to.
    first : int
        One of them, counted over the whole cluster.
    devices : int
        How many.
    spans : tuple of (from, to)
        The parts of the stage's devices that they are [1].
    teams : dict of str to frozenset of int
        Kind of group -> which groups of that kind hold one of them; a kind left out joins all classes of the stage.
    """

    group: int
    first: int
    devices: int
    spans: tuple[tuple[float, float], ...]
    teams: dict[str, frozenset[int]]


def device_classes(plan: Plan, cluster: Cluster, *, fold: bool = True) -> tuple[tuple[DeviceClass, ...], ...]:
    """The rank classes of every stage, each stage's in the order of their first devices.

    Parameters
    ----------
    plan : Plan
        Expanded.
    cluster : Cluster
    fold : bool
        False gives every device its own class.

    Returns
    -------
    tuple of tuple of DeviceClass

    Notes
    -----
    On a healthy cluster there is one class for each cluster group of a stage. Faults make devices differ, and so
    everyone who waits for them: two devices are alike if they are equally healthy, if their tensor-, context- and
    expert-parallel groups hold the same kinds of devices, and if they exchange activations with the same kinds. That is
    the coarsest equitable partition, found by refining until nothing changes (Paige and Tarjan 1987; colour
    refinement). Data-parallel groups are not told apart: they meet at the end of the step, where all wait for all.
    """
    if not fold:
        labels = [np.arange(stage.devices) for stage in plan.stages]
    elif cluster.faults:
        labels = _refined(plan, cluster)
    else:
        groups = domain_of_devices(cluster)[1]
        labels = [groups[stage.first_device : stage.first_device + stage.devices] for stage in plan.stages]
    exact = not fold or bool(cluster.faults)
    return tuple(_of_stage(stage, own, cluster, exact=exact) for stage, own in zip(plan.stages, labels, strict=True))


def _of_stage(stage: Stage, labels: Ids, cluster: Cluster, *, exact: bool) -> tuple[DeviceClass, ...]:
    """The classes of a stage from a label for each of its devices."""
    group = domain_of_devices(cluster)[1]
    _, first, number = np.unique(labels, return_index=True, return_inverse=True)
    teams = {kind: _team_of_places(stage, kind) for kind in _INSIDE} if exact else {}
    found = []
    for position in np.argsort(first):
        places = np.flatnonzero(number == position)
        device = stage.first_device + int(places[0])
        joined = {kind: frozenset(team[places].tolist()) for kind, team in teams.items()}
        found.append(DeviceClass(int(group[device]), device, len(places), _spans(places, stage.devices), joined))
    return tuple(found)


def _team_of_places(stage: Stage, kind: str) -> Ids:
    """The number of the group of a kind that each place of a stage belongs to."""
    members = group_members(stage, kind)
    found = np.empty(stage.devices, dtype=np.int64)
    found[members] = np.arange(len(members))[:, None]
    return found


def _spans(places: Ids, devices: int) -> tuple[tuple[float, float], ...]:
    """Runs of neighbouring places as parts of the stage."""
    cuts = [0, *(np.flatnonzero(np.diff(places) > 1) + 1).tolist(), len(places)]
    return tuple((int(places[low]) / devices, (int(places[high - 1]) + 1) / devices) for low, high in pairwise(cuts))


def _refined(plan: Plan, cluster: Cluster) -> list[Ids]:
    """Labels of the devices of each stage: equal for those that are alike and wait for the like."""
    health = np.stack([domain_of_devices(cluster)[1], slowdown_of_devices(cluster), ports_of_devices(cluster)], axis=1)
    labels = [_numbered(health[stage.first_device : stage.first_device + stage.devices]) for stage in plan.stages]
    teams = [{kind: group_members(stage, kind) for kind in _INSIDE} for stage in plan.stages]
    facing = [
        [facing_devices(plan, number, place) for place in range(stage.devices)]
        for number, stage in enumerate(plan.stages)
    ]
    everywhere = np.zeros(cluster.devices, dtype=np.int64)
    while True:
        for stage, own in zip(plan.stages, labels, strict=True):
            everywhere[stage.first_device : stage.first_device + stage.devices] = own
        finer = [
            _numbered(np.stack([own, *_seen_in_teams(own, mine), *_seen_beyond(everywhere, beyond)], axis=1))
            for own, mine, beyond in zip(labels, teams, facing, strict=True)
        ]
        if [own.max() for own in finer] == [own.max() for own in labels]:
            return labels
        labels = finer


def _seen_in_teams(labels: Ids, teams: dict[str, Ids]) -> list[Ids]:
    """For each kind of group, a number for what the group of each place is made of."""
    columns = []
    for members in teams.values():
        made_of = _numbered(np.sort(labels[members], axis=1))
        column = np.empty(len(labels), dtype=np.int64)
        column[members] = made_of[:, None]
        columns.append(column)
    return columns


def _seen_beyond(everywhere: Ids, facing: Sequence[Sequence[Ids]]) -> list[Ids]:
    """For each neighbouring stage, a number for what each place exchanges activations with."""
    columns = []
    for side in range(len(facing[0])):
        kinds: dict[tuple[int, ...], int] = {}
        seen = (tuple(np.unique(everywhere[beyond[side]]).tolist()) for beyond in facing)
        columns.append(np.array([kinds.setdefault(kind, len(kinds)) for kind in seen], dtype=np.int64))
    return columns


def _numbered(rows: NDArray[np.generic]) -> Ids:
    """A number for each row, equal for equal rows."""
    found: Ids = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return found
