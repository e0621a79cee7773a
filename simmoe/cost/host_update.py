"""The optimizer on the host: gradients go there, parameters come back."""

from typing import NamedTuple

from simmoe.cost.operators import HostUpdate

ADAM_RATE = 10e9 / 2.57
"""Parameters that the processors of a node update in a second [1/s]: CPU-Adam with 10 billion parameters on a DGX-2
(two Xeon 8168), Ren et al. 2021, "ZeRO-Offload", arXiv 2101.06840, table 4. PyTorch's own Adam of that time took 5.7
times as long."""


class Host(NamedTuple):
    """A node as its accelerators see it.

    Attributes
    ----------
    bandwidth : float
        Between one accelerator and the host, each way [B/s].
    accelerators : int
        That share the host's processors.
    """

    bandwidth: float
    accelerators: int


def host_update_time(work: HostUpdate, host: Host) -> float:
    """Time until the host has updated its share of the parameters of each of its accelerators.

    Parameters
    ----------
    work : HostUpdate
        Of one accelerator.
    host : Host

    Returns
    -------
    float
        [s].

    Notes
    -----
    ::

        t_down = n gradient_bytes / bandwidth,  t_up = n weight_bytes / bandwidth,  t_update = n accelerators / rate

    their longest where moves overlap with updates, otherwise their sum. Valid where all accelerators of a node update
    at the same time, each over a wire of its own, as with Megatron-LM's ``HybridDeviceOptimizer``; a newer host is
    faster than `ADAM_RATE`.

    Examples
    --------
    >>> work = HostUpdate(parameters=1e9, gradient_bytes=4, weight_bytes=2, overlapped=False)
    >>> round(host_update_time(work, Host(bandwidth=25e9, accelerators=8)), 3)  # 0.16 + 0.08 + 2.056
    2.296
    """
    moves = (work.parameters * size / host.bandwidth for size in (work.gradient_bytes, work.weight_bytes))
    parts = (*moves, work.parameters * host.accelerators / ADAM_RATE)
    return max(parts) if work.overlapped else sum(parts)
