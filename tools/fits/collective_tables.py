"""Published times of collectives inside one scale-up domain, by link."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tools.fits.split import thin
from tools.fits.tables import Origin, read, read_bytes

# Bytes of an element as aiconfigurator names the type.
ELEMENT = {"half": 2, "int8": 1}
NAMES = {"alltoall": "all_to_all"}
MOST = 200  # sizes kept of the tables with thousands of them
COMPUTED = 2  # bytes of a vidur element

# Link -> aiconfigurator's folder; the second list is tested on and never fitted to.
FITTED = {
    "nvlink-3": "a100_sxm/comm/nccl/2.27.3",
    "nvlink-4": "h100_sxm/comm/nccl/2.29.2",
    "nvlink-5": "b200_sxm/comm/nccl/2.29.2",
    "nvlink-5-nvl72": "gb200/comm/nccl/2.29.2",
    "pcie-4-host": "l40s/comm/nccl/2.27.3",
    "pcie-5-host": "rtx_pro_6000_server/comm/nccl/2.29.2",
    "pcie-5-x8": "b60/comm/oneccl/2021.17.2",
}
CROSS = {
    "nvlink-4": ("h200_sxm/comm/nccl/2.29.2", "h100_sxm/comm/nccl/2.27.3"),
    "nvlink-5": ("b300_sxm/comm/nccl/2.29.2", "b200_sxm/comm/nccl/2.27.5"),
    "nvlink-5-nvl72": ("gb300/comm/nccl/2.29.2",),
}
# Link -> vidur's tables of the same machine; those of its git history hold activations instead of sizes.
VIDUR_FITTED = {
    "nvlink-2": ("history/v100_all_reduce", "history/v100_p2p_intra_node"),
    "nvlink-3": ("network/a100_dgx/send_recv",),
    "nvlink-3-bridge": ("history/a40_all_reduce", "history/a40_p2p_intra_node"),
    "nvlink-3-bridge-a100": ("network/a100_pairwise_nvlink/all_reduce",),
    "nvlink-4": ("network/h100_dgx/send_recv",),
    "nvlink-4-bridge": ("network/h100_pairwise_nvlink/all_reduce",),
    "pcie-4-host-a40": ("history/a40_all_reduce_by_size", "network/a40_pairwise_nvlink/send_recv"),
}
VIDUR_CROSS = {
    "nvlink-3": ("network/a100_dgx/all_reduce", "history/a100_all_reduce"),
    "nvlink-4": ("network/h100_dgx/all_reduce",),
}
LOGS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


class Series(NamedTuple):
    """One collective on one number of ranks of a link.

    Attributes
    ----------
    link, collective : str
    ranks : int
    size : ndarray
        nccl-tests size [B].
    seconds : ndarray
        [s]
    origin : Origin
        Where it was published.
    fitted : bool
        Whether the parameters may see it.
    machine : str
        Which of its source's machines, where another one was fitted to.
    """

    link: str
    collective: str
    ranks: int
    size: NDArray[np.float64]
    seconds: NDArray[np.float64]
    origin: Origin
    fitted: bool
    machine: str = ""


def series() -> Iterator[Series]:
    """Every published sweep."""
    for link, folder in FITTED.items():
        yield from _aiconfigurator(link, folder, fitted=True)
    for link, names in VIDUR_FITTED.items():
        for name in names:
            yield from _vidur(link, name, fitted=True)
    for link, folders in CROSS.items():
        for folder in folders:
            yield from _aiconfigurator(link, folder, fitted=False)
    for link, names in VIDUR_CROSS.items():
        for name in names:
            yield from _vidur(link, name, fitted=False)
    yield from _superbenchmark()


def _aiconfigurator(link: str, folder: str, *, fitted: bool) -> Iterator[Series]:
    library = folder.split("/")[2]
    table, origin = read(f"aiconfigurator/data/{folder}/{library}_perf.parquet")
    table = table.assign(size=table.message_size * table.nccl_dtype.map(ELEMENT))
    for (name, ranks), rows in table.groupby(["op_name", "num_gpus"]):
        found = rows.groupby(["size", "nccl_dtype"]).latency.median().reset_index()
        one = _series(link, NAMES.get(name, name), ranks, found["size"], found.latency, origin, fitted=fitted)
        yield one if fitted else one._replace(machine=" ".join(folder.split("/")[::3]))


def _vidur(link: str, name: str, *, fitted: bool) -> Iterator[Series]:
    table, origin = read(f"vidur/{name}.csv.gz")
    column = next(one for one in table if one.startswith("time_stats.") and one.endswith(".median"))
    collective = column.split(".")[1]
    if "size" not in table:
        size = COMPUTED * table.n_embd * table.num_tokens
        shared = table.num_tensor_parallel_workers if "num_tensor_parallel_workers" in table else 1
        table = table.assign(size=size // shared)
    if "devices_per_node" in table:
        table = table[table.devices_per_node == table.num_workers]
    table = table.assign(ranks=table.num_workers if "num_workers" in table else 2)
    for ranks, rows in table.groupby("ranks"):
        found = rows.groupby("size")[column].median().reset_index()
        kept = thin(((name, int(ranks), int(size)) for size in found["size"]), MOST)
        kept |= (found["size"] == found["size"].max()) | (found["size"] == found["size"].min())
        found = found[kept]
        yield _series(link, collective, ranks, found["size"], found[column], origin, fitted=fitted)


def _superbenchmark() -> Iterator[Series]:
    """Eight A100 of 40 GB; nccl-tests logs, whose times are in microseconds."""
    for log, collective in LOGS.items():
        data, origin = read_bytes(f"superbenchmark/a100_40gb_x8_nccl_{log}.log.gz")
        rows = []
        for line in data.decode().splitlines():
            words = line.split()
            if len(words) > 6 and words[0].isdigit() and "float" in words:
                times = [word for word in words[words.index("float") + 1 :] if word.replace(".", "").isdigit()]
                rows.append((float(words[0]), float(times[0]) * 1e-3))
        size, milliseconds = (pd.Series(column) for column in zip(*rows, strict=True))
        yield _series("nvlink-3", collective, 8, size, milliseconds, origin, fitted=False)


def _series(
    link: str,
    collective: str,
    ranks: int,
    size: "pd.Series[float]",
    milliseconds: "pd.Series[float]",
    origin: Origin,
    *,
    fitted: bool,
) -> Series:
    seconds = milliseconds.to_numpy(dtype=np.float64) * 1e-3
    return Series(link, collective, int(ranks), size.to_numpy(dtype=np.float64), seconds, origin, fitted)
