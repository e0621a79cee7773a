"""What departs from the ideal machine: slow devices, degraded ports, lost nodes, and times that vary."""

from typing import Literal

from pydantic import Field

from simmoe.specs.base import Count, Fraction, Index, Spec


class Fault(Spec):
    """Something wrong with one device or one node of a cluster.

    Attributes
    ----------
    device, node : int or None
        Which: devices and nodes count from 0 over all groups; exactly one of the two is given.
    slowdown : float
        Factor on the time of every kernel of the device, or of all devices of the node [1].
    network : float
        Share of the bandwidth that the node's network ports have left [1].
    failed : bool
        The node is lost; the job goes on without it, see `simmoe.specs.shrink`.
    """

    device: Index | None = None
    node: Index | None = None
    slowdown: float = Field(default=1.0, ge=1, le=1000)
    network: Fraction = 1.0
    failed: bool = False


class Jitter(Spec):
    """How much times vary from one execution to the next; the mean of each stays.

    Attributes
    ----------
    kind : str
        ``lognormal``: a time is multiplied by exp(sigma z - sigma^2 / 2), z standard normal.
    sigma, network_sigma, host_sigma : float
        Of kernels, of collectives, and of launches on the host [1].
    """

    kind: Literal["lognormal"] = "lognormal"
    sigma: float = Field(default=0.05, ge=0, le=2)
    network_sigma: float = Field(default=0.0, ge=0, le=2)
    host_sigma: float = Field(default=0.0, ge=0, le=2)


class Shrinking(Spec):
    """What lost nodes made of a job; filled in by `simmoe.specs.shrink`.

    Attributes
    ----------
    failed_nodes : tuple of int
        As the file numbers them.
    devices, left : int
        Accelerators of the whole cluster, and of the nodes that are left.
    data_parallel : int
        Data-parallel size before.
    """

    failed_nodes: tuple[Index, ...]
    devices: Count
    left: Index
    data_parallel: Count
