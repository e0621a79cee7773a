"""Streams of traces and of simulated ranks, ready to be drawn."""

import numpy as np

from simmoe.calibration.kernel_classes import TABLE, KernelClass
from simmoe.calibration.step_comparison import step_classes
from simmoe.calibration.trace import IntArray, Trace
from simmoe.report.lanes_picture import Lane, Panel

_MOST_LANES = 12


def trace_panel(trace: Trace, rows: IntArray, title: str, table: tuple[KernelClass, ...] = TABLE) -> Panel:
    """The streams of some rows of a trace from their first begin on, the busiest first, at most twelve.

    Parameters
    ----------
    trace : Trace
    rows : array of int
    title : str
    table : tuple of KernelClass
    """
    classes = step_classes(trace, table)
    begin = int(trace.start_ns[rows].min()) if len(rows) else 0
    busy = np.bincount(trace.lane[rows], weights=(trace.end_ns - trace.start_ns)[rows], minlength=len(trace.lanes))
    several = len({device for device, _ in trace.lanes}) > 1
    lanes = []
    for number in [int(lane) for lane in np.argsort(-busy, kind="stable")[:_MOST_LANES] if busy[lane] > 0]:
        own = rows[trace.lane[rows] == number]
        device, stream = trace.lanes[number]
        name = stream if not stream.isdecimal() else f"stream {stream}"
        lanes.append(
            Lane(
                f"{device}: {name}" if several else name,
                (trace.start_ns[own] - begin) * 1e-9,
                (trace.end_ns[own] - begin) * 1e-9,
                classes[own],
            )
        )
    return Panel(title, tuple(lanes))
