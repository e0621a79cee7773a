"""In which order the hosts of a cluster join a job, so that every pipeline stage stands where the plan puts it."""

from collections.abc import Iterator
from typing import NamedTuple

from simmoe.errors import SpecError
from simmoe.specs.scenario import Scenario


class Hosts(NamedTuple):
    """Equal hosts that follow one another.

    Attributes
    ----------
    first, hosts : int
        Hosts [first, first + hosts) of the job.
    node : str
        Id of the node.
    accelerator : str
        Name of what computes in it.
    used : tuple of int
        The GPUs of each host that take part.
    whole : bool
        These are all GPUs of a host.
    first_rank : int
    stages : tuple of int
        The first and the last pipeline stage that stand here.
    """

    first: int
    hosts: int
    node: str
    accelerator: str
    used: tuple[int, ...]
    whole: bool
    first_rank: int
    stages: tuple[int, int]

    @property
    def ranks(self) -> int:
        """Ranks of all these hosts."""
        return self.hosts * len(self.used)


class _Host(NamedTuple):
    """One host as the job uses it."""

    number: int
    group: int
    used: tuple[int, ...]
    whole: bool
    node: str
    accelerator: str
    stages: tuple[int, int]


def hosts_of(scenario: Scenario) -> tuple[Hosts, ...]:
    """The hosts in the order of ranks: stage s holds ranks [s W / pp, (s + 1) W / pp).

    Parameters
    ----------
    scenario : Scenario
        With its plan expanded, no zebra stages.

    Raises
    ------
    SpecError
        If the stages take the GPUs of a host in turns, so that its ranks do not follow one another.
    """
    found: list[Hosts] = []
    rank = 0
    for host in _in_rank_order(scenario):
        last = found[-1] if found else None
        same = last is not None and (last.node, last.used, last.stages) == (host.node, host.used, host.stages)
        if last is not None and same:
            found[-1] = last._replace(hosts=last.hosts + 1)
        else:
            place = sum(part.hosts for part in found)
            found.append(Hosts(place, 1, host.node, host.accelerator, host.used, host.whole, rank, host.stages))
        rank += len(host.used)
    return tuple(found)


def _in_rank_order(scenario: Scenario) -> Iterator[_Host]:
    starts, nodes = _host_starts(scenario)
    pieces: list[tuple[int, int, int]] = []  # host, device in it, stage
    host = 0
    for stage, part in enumerate(scenario.plan.stages):
        for device in range(part.first_device, part.first_device + part.devices):
            host = host if starts[host] <= device < starts[host + 1] else _host_at(starts, device)
            pieces.append((host, device - starts[host], stage))
    seen: set[int] = set()
    first = 0
    for place, (host, _, _) in enumerate(pieces):
        if place + 1 < len(pieces) and pieces[place + 1][0] == host:
            continue
        own = pieces[first : place + 1]
        first = place + 1
        if host in seen:
            raise SpecError([f"the stages take the GPUs of host {host} in turns, its ranks must follow one another"])
        seen.add(host)
        used = tuple(device for _, device, _ in own)
        group = nodes[host]
        node = scenario.cluster.groups[group].node
        yield _Host(
            host,
            group,
            used,
            used == tuple(range(node.accelerators)),
            node.id,
            node.accelerator.name,
            (own[0][2], own[-1][2]),
        )


def _host_starts(scenario: Scenario) -> tuple[list[int], list[int]]:
    """The first device of each host, then the number of devices; and the node group of each host."""
    starts, groups = [0], []
    for number, group in enumerate(scenario.cluster.groups):
        for _ in range(group.count):
            starts.append(starts[-1] + group.node.accelerators)
            groups.append(number)
    return starts, groups


def _host_at(starts: list[int], device: int) -> int:
    low, high = 0, len(starts) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if starts[middle] <= device else (low, middle)
    return low
