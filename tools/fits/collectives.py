"""Fits t = max(a + n/B + c sqrt(n), f n/peak), twice where NCCL changes its protocol, and writes the link files.

Run from the top of the repository: ``python -m tools.fits.collectives``.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.collectives import fitted_time, traffic_factor
from simmoe.cost.network import Fit, Small
from simmoe.specs.residuals_file import Residual
from tools.fits.collective_tables import Series, series
from tools.fits.link_files import Entry, quantity, write_entries
from tools.fits.regression import SCALE, fit
from tools.fits.report import Errors, errors, residual, write_residuals
from tools.fits.split import held_out

TABLE = "collectives"
NORMAL = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
LEAST_SIZES, MOST_SWITCHES = 5, 30  # on each side of a change of protocol; of a sweep that is searched for one
LEAST_ROOT, ROOTLESS = 1e-11, "no root"  # below it a root term is left out [s/sqrt(B)]
STARTS = ((0.8, 1.0), (1.2, 5.0), (0.3, 0.1))  # bandwidth over the peak [1] and root term [ns/sqrt(B)]
LEAST_LATENCY = 1.1  # of any collective; the longer messages of a sweep alone do not tell it [us]
LARGE = 2.0**20  # training sends few messages below 1 MiB [B]
Key = tuple[str, str, int]


class Trial(NamedTuple):
    """A sweep, the sizes of it that its parameters never saw, and the times predicted."""

    series: Series
    out: NDArray[np.bool_]
    predicted: NDArray[np.float64]


def split(one: Series) -> NDArray[np.bool_]:
    """True for the sizes kept out of the fit; the ends of a sweep stay in it, as no form reaches beyond them."""
    inside = (one.size > one.size.min()) & (one.size < one.size.max())
    return np.asarray(held_out((one.collective, one.ranks, int(size)) for size in one.size) & inside, dtype=bool)


def fit_series(one: Series, seen: NDArray[np.bool_]) -> Fit:
    """The parameters of a sweep from the sizes it may see: one piece, or two where they pay for their number."""
    part = one._replace(size=one.size[seen], seconds=one.seconds[seen])
    factor = traffic_factor(one.collective, one.ranks)
    peak = float((factor * part.size / part.seconds).max())
    alone = Fit(one.collective, one.ranks, *_piece(part, peak), peak)
    sizes = np.unique(part.size)
    if len(sizes) > MOST_SWITCHES:  # a table so dense is of one protocol or smooth anyway
        return alone
    pairs = [_two_pieces(part, peak, sizes[at - 1 : at + 1]) for at in range(LEAST_SIZES, len(sizes) - LEAST_SIZES + 1)]
    best = min(pairs, key=lambda made: _loss(made, part), default=alone)
    price = 4.0 * np.log(len(part.size))  # Schwarz's criterion for four parameters, twice
    return best if _loss(best, part) + price < _loss(alone, part) else alone


def _two_pieces(part: Series, peak: float, around: NDArray[np.float64]) -> Fit:
    """The fit whose protocol changes between two neighbouring sizes."""
    below = float(np.sqrt(around.prod()))
    few = part.size < below
    low, high = (part._replace(size=part.size[kept], seconds=part.seconds[kept]) for kept in (few, ~few))
    return Fit(part.collective, part.ranks, *_piece(high, peak), peak, Small(below, *_piece(low, peak)))


def _piece(part: Series, peak: float) -> tuple[float, float, float]:
    """The a [s], bus bandwidth [B/s] and c [s/sqrt(B)] of one protocol."""
    least = float(part.seconds.min())

    def made(values: dict[str, float]) -> Fit:
        bandwidth, root = values["bandwidth"] * 1e9, values["root"] * 1e-9
        return Fit(part.collective, part.ranks, values["latency"] * 1e-6, bandwidth, root, peak)

    bounds = {
        "latency": (LEAST_LATENCY, least * 1.5e6),
        "bandwidth": (peak * 0.005e-9, peak * 4e-9),
        "root": (0.0, 1e3),
    }
    found = []
    for faster, root in STARTS:  # the cap at the peak is flat, and more than one minimum stands beside it
        start = {"latency": least * 0.8e6, "bandwidth": peak * faster * 1e-9, "root": root}
        found.append(made(fit(lambda values: _predict(made(values), part.size), part.seconds, start, bounds)))
    best = min(found, key=lambda one: _loss(one, part))
    return best.latency, best.bus_bandwidth, best.sqrt_term


def _loss(made: Fit, part: Series) -> float:
    """The soft-L1 loss that `tools.fits.regression` minimises."""
    error = (np.log(_predict(made, part.size)) - np.log(part.seconds)) / SCALE
    return float(np.sum(2.0 * (np.sqrt(1.0 + error**2) - 1.0)))


def _predict(made: Fit, size: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([fitted_time(made, one) for one in size.tolist()])


def entry(made: Fit, one: Series, found: Errors) -> Entry:
    """The lines of a fit in a link file."""
    source, spread = one.origin.source, round(NORMAL * found.median, 3)

    def same(value: str) -> str:
        return quantity(value, source, "same fit")

    def root(term: float) -> str:
        return same(f"{term * 1e9:.4g} ns/sqrt(B)" if term >= LEAST_ROOT else ROOTLESS)

    lines = {
        "collective": made.collective,
        "ranks": str(made.ranks),
        "latency": quantity(f"{made.latency * 1e6:.3g} us", source, one.origin.locator, spread),
        "bus_bandwidth": quantity(f"{made.bus_bandwidth / 1e9:.4g} GB/s", source, "same fit", spread),
        "sqrt_term": root(made.sqrt_term),
        "peak_bus_bandwidth": quantity(f"{made.peak / 1e9:.4g} GB/s", source, "same file, largest of its sizes"),
    }
    if made.small is not None:
        small = {
            "below": same(f"{made.small.below / 1e6:.4g} MB"),
            "latency": same(f"{made.small.latency * 1e6:.3g} us"),
            "bus_bandwidth": same(f"{made.small.bus_bandwidth / 1e9:.4g} GB/s"),
            "sqrt_term": root(made.small.sqrt_term),
        }
        lines["small"] = "".join(f"\n      {key}: {value}" for key, value in small.items() if ROOTLESS not in value)
    return {key: value for key, value in lines.items() if ROOTLESS not in value or key == "small"}


def _pooled(link: str, source: str, parts: Sequence[Trial]) -> Iterator[Residual]:
    """All sweeps of a link and source together, and the large messages among them."""
    rows = sum(len(one.series.size) for one in parts)
    for variant, least in (("all", 0.0), ("all, 1 MiB and more", LARGE)):
        kept = [(one.out & (one.series.size >= least), one) for one in parts]
        predicted = np.concatenate([one.predicted[out] for out, one in kept])
        measured = np.concatenate([one.series.seconds[out] for out, one in kept])
        yield residual((link, TABLE, variant, source), rows, errors(predicted, measured))


def _label(source: str, one: Series) -> str:
    """The words of ``residuals.csv`` for what was fitted to and what was tested on."""
    if one.fitted:
        return source
    return f"{source} -> {one.origin.source}" + (f" ({one.machine})" if one.machine else "")


def main() -> None:
    """Fit, write ``hardware_db/links`` and the residuals, and print what was found."""
    known: dict[Key, tuple[Fit, str]] = {}
    entries: dict[str, list[Entry]] = defaultdict(list)
    pools: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    rows = []
    for one in series():
        key = (one.link, one.collective, one.ranks)
        out = split(one) if one.fitted else np.ones(len(one.size), dtype=bool)
        if one.fitted:
            known[key] = fit_series(one, ~out), one.origin.source
        elif key not in known:
            continue
        made, source = known[key]
        tested = Trial(one, out, _predict(made, one.size))
        found = errors(tested.predicted[out], one.seconds[out])
        if one.fitted:
            entries[one.link].append(entry(made, one, found))
            rows.append(residual((one.link, TABLE, f"{one.collective}:{one.ranks}", source), len(one.size), found))
        pools[one.link, _label(source, one)].append(tested)
    for link, wanted in entries.items():
        write_entries(link, TABLE, ("collective", "ranks"), wanted)
    for (link, label), parts in pools.items():
        rows += _pooled(link, label, parts)
    write_residuals(rows)
    for row in rows:
        print(f"{row.part:15} {row.variant:20} {row.median_error:6.1%} {row.p90_error:6.1%} {row.source}")


if __name__ == "__main__":
    main()
