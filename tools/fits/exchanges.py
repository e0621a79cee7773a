"""Fits DeepEP's dispatch and combine inside a domain, and writes the ``exchanges`` of the link files.

Run from the top of the repository: ``python -m tools.fits.exchanges``. Form: t = a + n (c + w/B) for n copies of w
bytes (`simmoe.cost.exchange.exchange_time`).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.exchange import expected_places
from simmoe.specs.residuals_file import Residual
from tools.fits.link_files import Entry, quantity, write_entries
from tools.fits.regression import fit
from tools.fits.report import Errors, errors, residual, write_residuals
from tools.fits.split import held_out
from tools.fits.tables import Origin, read

TABLE = "exchanges"
LIBRARY = "deepep"
NORMAL = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
MULTIPROCESSORS = 20  # Megatron-Core's default
LEAST, MOST = 256, 32768  # tokens a rank: fewer belong to the low-latency kernels, more to no training run
# Link -> folder, ranks and bandwidth [B/s] of the link; the second list is tested on and never fitted to.
FITTED = {
    "nvlink-4": ("h100_sxm", 8, 450e9),
    "nvlink-5": ("b200_sxm", 8, 900e9),
    "nvlink-5-nvl72": ("gb200", 4, 900e9),
}
CROSS = {
    "nvlink-4": ("h200_sxm", 8, 450e9),
    "nvlink-5": ("b300_sxm", 8, 900e9),
    "nvlink-5-nvl72": ("gb300", 4, 900e9),
}
ACROSS = {"nvlink-4": "0.5.6.post2"}  # links of which two nodes were measured, too
# Bytes of an element: what aiconfigurator dispatches in fp8 it combines in bf16.
WIDTH = {"dispatch": 1, "combine": 2}


class Cells(NamedTuple):
    """Measured exchanges: copies a rank, bytes of a copy, seconds, and what names each."""

    copies: NDArray[np.float64]
    width: NDArray[np.float64]
    seconds: NDArray[np.float64]
    shapes: list[tuple[int, ...]]
    origin: Origin


class Rate(NamedTuple):
    """a [s], c [s] and B [B/s]."""

    latency: float
    message: float
    bandwidth: float


def cells(folder: str, ranks: int, operation: str, nodes: int = 1, version: str = "0.5.12") -> Cells:
    """The measurements of one machine and operation; of several nodes the copies to all their ranks."""
    path = f"aiconfigurator/data/{folder}/comm/sglang/{version}/wideep_deepep_normal_perf.parquet"
    table, origin = read(path)
    wanted = (table[f"{operation}_sms"] == MULTIPROCESSORS) & table.num_token.between(LEAST, MOST)
    table = table[wanted & (table.num_experts % ranks == 0) & (table.node_num == nodes)]
    shapes = [
        tuple(int(value) for value in row)
        for row in table[["hidden_size", "num_topk", "num_experts", "num_token"]].itertuples(index=False)
    ]
    places = np.array([expected_places(ranks * nodes, experts, top_k) for _, top_k, experts, _ in shapes])
    microseconds = (table[f"{operation}_transmit_us"] + table[f"{operation}_notify_us"]).to_numpy(dtype=np.float64)
    width = WIDTH[operation] * table.hidden_size.to_numpy(dtype=np.float64)
    return Cells(places * table.num_token.to_numpy(dtype=np.float64), width, microseconds * 1e-6, shapes, origin)


def predict(rate: Rate, found: Cells) -> NDArray[np.float64]:
    """Times of measured exchanges, t = a + n (c + w/B) [s]."""
    return rate.latency + found.copies * (rate.message + found.width / rate.bandwidth)


def fit_cells(found: Cells, seen: NDArray[np.bool_]) -> Rate:
    """The parameters of one operation from the shapes it may see."""
    part = Cells(found.copies[seen], found.width[seen], found.seconds[seen], [], found.origin)

    def made(values: dict[str, float]) -> Rate:
        return Rate(values["latency"] * 1e-6, values["message"] * 1e-9, values["bandwidth"] * 1e9)

    best = fit(
        lambda values: predict(made(values), part),
        part.seconds,
        {"latency": 40.0, "message": 5.0, "bandwidth": 400.0},
        {"latency": (0.0, 200.0), "message": (0.0, 60.0), "bandwidth": (50.0, 2000.0)},
    )
    return made(best)


def forward_share(rates: dict[str, Rate], folder: str, ranks: int, version: str) -> float:
    """Time of a copy inside one node over that in each of two, whose kernels forward besides [1]."""
    shares = []
    for operation, rate in rates.items():
        found = cells(folder, ranks, operation, nodes=2, version=version)
        slope = np.polyfit(found.copies, found.seconds, 1)[0]
        shares.append((rate.message + found.width[0] / rate.bandwidth) / slope)
    return float(np.mean(shares))


def entry(rates: dict[str, Rate], found: dict[str, Errors], origin: Origin, nominal: float) -> Entry:
    """The lines of a link file."""
    lines = {"library": LIBRARY}
    words = f"{origin.locator}, {MULTIPROCESSORS} multiprocessors"
    for name, rate in rates.items():
        spread = round(NORMAL * found[name].median, 3)
        lines[name] = quantity(f"{rate.bandwidth / nominal:.3f}", origin.source, words, spread)
        lines[f"{name}_latency"] = quantity(f"{rate.latency * 1e6:.3g} us", origin.source, "same fit", spread)
        if rate.message >= 5e-11:
            lines[f"{name}_message"] = quantity(f"{rate.message * 1e9:.3g} ns", origin.source, "same fit")
    order = ["library", *(f"{way}{part}" for part in ("", "_latency", "_message") for way in WIDTH)]
    return {key: lines[key] for key in order if key in lines}


def _fit_link(link: str, folder: str, ranks: int, nominal: float) -> Iterator[Residual]:
    """Fit, write, and test on the shapes held out and on the other machine."""
    rates, found = {}, {}
    other, other_ranks, _ = CROSS[link]
    origin = None
    for operation in WIDTH:
        measured = cells(folder, ranks, operation)
        origin = measured.origin
        out = held_out(measured.shapes)
        rates[operation] = fit_cells(measured, ~out)
        found[operation] = errors(predict(rates[operation], measured)[out], measured.seconds[out])
        name = f"{LIBRARY} {operation}"
        yield residual((link, TABLE, name, origin.source), len(out), found[operation])
        second = cells(other, other_ranks, operation)
        source = f"{origin.source} -> {second.origin.source} ({other})"
        tested = errors(predict(rates[operation], second), second.seconds)
        yield residual((link, TABLE, name, source), tested.rows, tested)
    if origin is not None:
        lines = dict(entry(rates, found, origin, nominal))
        if link in ACROSS:
            share = forward_share(rates, folder, ranks, ACROSS[link])
            words = f"same folder, {ACROSS[link]}: time of a copy on one node over that on two"
            lines["forward"] = quantity(f"{share:.2f}", origin.source, words, 0.1)
        write_entries(link, TABLE, ("library",), [lines])


def main() -> None:
    """Fit, write ``hardware_db/links`` and the residuals, and print what was found."""
    rows = [row for link, (folder, ranks, nominal) in FITTED.items() for row in _fit_link(link, folder, ranks, nominal)]
    write_residuals(rows)
    for row in rows:
        print(f"{row.part:15} {row.variant:16} {row.median_error:6.1%} {row.p90_error:6.1%} {row.source}")


if __name__ == "__main__":
    main()
