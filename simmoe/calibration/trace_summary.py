"""A trace as figures for programs; names of users, hosts and files of code are never among them."""

from typing import Any

from simmoe.calibration.breakdown import Breakdown, Step
from simmoe.calibration.ranks import Matching
from simmoe.calibration.trace import Trace


def figures(part: Breakdown) -> dict[str, Any]:
    """A breakdown; times in seconds.

    Parameters
    ----------
    part : Breakdown
    """
    return {
        "window_s": part.window_ns * 1e-9,
        "compute_s": part.compute_ns * 1e-9,
        "communication_s": part.comm_ns * 1e-9,
        "overlapped_communication_s": part.overlapped_ns * 1e-9,
        "exposed_communication_s": part.exposed_ns * 1e-9,
        "memory_s": part.memory_ns * 1e-9,
        "exposed_memory_s": part.exposed_memory_ns * 1e-9,
        "idle_s": part.idle_ns * 1e-9,
        "rows": part.rows,
        **{
            name: {key: {"rows": share.rows, "seconds": share.sum_ns * 1e-9} for key, share in shares.items()}
            for name, shares in (
                ("by_class", part.by_class),
                ("by_collective", part.by_collective),
                ("by_stream", part.by_stream),
            )
        },
    }


def summary(trace: Trace, whole: Breakdown, steps: list[Step]) -> dict[str, Any]:
    """A trace with its steps.

    Parameters
    ----------
    trace : Trace
    whole : Breakdown
    steps : list of Step
    """
    return {
        "file": trace.path.name,
        "rank": trace.rank,
        "world_size": trace.world_size,
        "trace": figures(whole),
        "steps": [{"name": step.name, "host_s": step.host_ns * 1e-9, **figures(step.launched)} for step in steps],
        "warnings": list(trace.warnings),
    }


def matching_figures(matching: Matching) -> dict[str, Any]:
    """Collectives that were matched over ranks; times in seconds, bandwidths in B/s.

    Parameters
    ----------
    matching : Matching
    """
    return {
        "clocks_agree": matching.aligned,
        "unmatched": matching.unmatched,
        "collectives": [
            {
                "kind": one.kind,
                "bytes": one.bytes,
                "ranks": one.ranks or None,
                "transfer_s": one.transfer_ns * 1e-9,
                "waiting_s": [waited * 1e-9 for waited in one.waiting_ns],
                "bus_bandwidth": one.bus_bandwidth,
            }
            for one in matching.matched
        ],
    }
