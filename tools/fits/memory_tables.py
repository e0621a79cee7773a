"""Published times of memory-bound kernels of one source each, in SI units."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tools.fits.gemm_tables import MOST, SAILOR, SAILOR_MODELS, SERVED
from tools.fits.split import held_out, thin
from tools.fits.tables import Origin, listing, locator, read, read_bytes

LEAST_BYTES = 3.2e7  # below, a kernel is mostly launch, and its tensors stay in the L2 cache
LEAST_LAYER = 4e8  # the same for the kernels of a layer together, each of which then moves more than a cache holds
WIDEST_ROW = 4096  # layer norms of PyTorch and Megatron keep such a row in registers, wider ones they read twice
# Kernels of the elementwise work of one layer: two residual additions, the activation, rope; with fused additions two.
LAUNCHES = {"layer": 4, "fused layer": 2}

Row = tuple[str, tuple[int, ...], float, float]  # what it computes, its shape, bytes, seconds


class Moves(NamedTuple):
    """Times of kernels that read and write memory.

    Attributes
    ----------
    origins : tuple of Origin
    kernels : list of str
        What each computes: ``add``, ``activation``, ``rope``, ``norm``, ``gather``; ``layer`` and ``fused layer`` are
        the elementwise kernels of a layer together.
    shapes : list of tuple of int
    bytes : ndarray
        Read and written, each tensor once [B].
    seconds : ndarray
        [s]
    eager : bool
        The time includes the launch from a framework in eager mode.
    """

    origins: tuple[Origin, ...]
    kernels: list[str]
    shapes: list[tuple[int, ...]]
    bytes: NDArray[np.float64]
    seconds: NDArray[np.float64]
    eager: bool = False

    @property
    def source(self) -> str:
        """Key of the source."""
        return self.origins[0].source

    @property
    def locator(self) -> str:
        """As `Origin.locator`, of all files."""
        return locator(self.origins)

    def split(self) -> tuple["Moves", "Moves"]:
        """What a fit may use, at most `MOST` of it, and what is held out."""
        out = held_out(self.keys())
        train = self.where(~out)
        return train.where(thin(train.keys(), MOST)), self.where(out)

    def keys(self) -> list[tuple[str, tuple[int, ...]]]:
        """Kernel and shape of every measurement."""
        return list(zip(self.kernels, self.shapes, strict=True))

    def where(self, chosen: NDArray[np.bool_]) -> "Moves":
        """The chosen measurements only."""
        kept = np.flatnonzero(chosen).tolist()
        return self._replace(
            kernels=[self.kernels[at] for at in kept],
            shapes=[self.shapes[at] for at in kept],
            bytes=self.bytes[chosen],
            seconds=self.seconds[chosen],
        )

    def of(self, kernels: Iterable[str]) -> "Moves":
        """The measurements of some kernels."""
        wanted = set(kernels)
        return self.where(np.array([kernel in wanted for kernel in self.kernels], dtype=bool))


def _moves(origins: Iterable[Origin], rows: Iterable[Row], *, eager: bool = False) -> Moves:
    kept = [row for row in rows if row[2] >= (LEAST_LAYER if row[0] in LAUNCHES else LEAST_BYTES) and row[3] > 0]
    return Moves(
        tuple(origins),
        [row[0] for row in kept],
        [row[1] for row in kept],
        np.array([row[2] for row in kept]),
        np.array([row[3] for row in kept]),
        eager,
    )


def vidur(pattern: str) -> Moves:
    """Kernels of vLLM layers [ms], of Vidur and of Frontier, in 16 bits."""
    origins: list[Origin] = []
    found: list[Row] = []
    for path in listing(pattern):
        table, origin = read(path)
        origins.append(origin)
        for row in table.to_dict("records"):
            found += _vidur_layer(row)
    return _moves(origins, found)


def _vidur_layer(row: dict[str, float]) -> list[Row]:
    names = ("n_embd", "n_expanded_embd", "n_head", "n_kv_head", "num_tokens", "num_tensor_parallel_workers")
    hidden, ffn, heads, kv_heads, tokens, tensor = (int(row[name]) for name in names)
    width = 128 if row.get("use_qk_norm") else hidden // heads
    rotated = (heads // tensor + -(-kv_heads // tensor)) * width
    inputs = 2 if row["use_gated_mlp"] else 1
    kernels = {
        "add": ("add", hidden, 6.0),
        "input_layernorm": ("norm", hidden, 4.0),
        "mlp_act": ("activation", ffn // tensor, 2.0 * inputs + 2.0),
        "attn_rope": ("rope", rotated, 4.0),
        "emb": ("gather", hidden, 4.0),
    }
    found: dict[str, Row] = {}
    for name, (kernel, columns, size) in kernels.items():
        milliseconds = row.get(f"time_stats.{name}.median", float("nan"))
        if milliseconds > 0:
            found[kernel] = (kernel, (tokens, columns), size * tokens * columns, milliseconds * 1e-3)
    return [*found.values(), *_elementwise(found, (tokens, hidden, ffn // tensor))]


def _elementwise(kernels: dict[str, Row], shape: tuple[int, ...]) -> list[Row]:
    """The elementwise kernels of a layer as one measurement."""
    if "activation" not in kernels or "rope" not in kernels:
        return []
    parts = [kernels["activation"], kernels["rope"]] + 2 * [kernels[name] for name in ("add",) if name in kernels]
    name = "layer" if "add" in kernels else "fused layer"
    return [(name, shape, sum(row[2] for row in parts), sum(row[3] for row in parts))]


def llmservingsim(gpu: str) -> Moves:
    """Kernels of vLLM layers, 1 to 2048 tokens; ``layers.csv`` in ns, ``dense.csv`` in us."""
    origins: list[Origin] = []
    found: list[Row] = []
    for path in listing(f"llmservingsim/{gpu}/*/*/tp*/*.csv.xz"):
        if path.split("/")[-1] not in {"layers.csv.xz", "dense.csv.xz"}:
            continue
        table, origin = read(path)
        origins.append(origin)
        found += _served(table, SERVED["/".join(path.split("/")[2:4])], int(path.split("/")[4].removeprefix("tp")))
    return _moves(origins, found)


def _served(table: pd.DataFrame, sizes: tuple[int, int, int, int], tensor: int) -> list[Row]:
    hidden, heads, kv_heads, ffn = sizes
    names = table.columns.tolist()
    layer, tokens = ("layer", "tokens") if "layer" in names else ("layer_name", "input")
    time, unit = ("time_us", 1e-6) if "time_us" in names else ("latency(ns)", 1e-9)
    norm, rope = ("norm", hidden, 4.0), ("rope", (heads + kv_heads) * 128 // tensor, 4.0)
    kernels = {"input_layernorm": norm, "layernorm": norm, "rope": rope, "rotary_emb": rope}
    kernels |= {"embedding": ("gather", hidden, 4.0), "act_fn": ("activation", ffn // tensor, 6.0)}
    rows = zip(table[layer].tolist(), table[tokens].tolist(), table[time].tolist(), strict=True)
    found: list[Row] = []
    for name, m, t in rows:
        if name in kernels:
            kernel, columns, size = kernels[name]
            found.append((kernel, (m, columns), size * m * columns, t * unit))
    return found


def llmcompass(gpu: str, name: str) -> Moves:
    """PyTorch kernels in 16 bits, in 1e9 elements a second: ``gelu``, ``layernorm``."""
    data, origin = read_bytes(f"llmcompass/{name}_{gpu}.csv")
    kernel = {"gelu": "activation", "layernorm": "norm"}[name]
    found: list[Row] = []
    for line in data.decode().splitlines():
        *shape, rate = line.split(",")
        sides = tuple(int(side) for side in shape)
        elements = float(np.prod(sides))
        if name == "layernorm" and sides[1] > WIDEST_ROW:
            continue
        found.append((kernel, sides, 4.0 * elements, elements / (float(rate) * 1e9)))
    return _moves([origin], found, eager=True)


def sailor(gpu: str) -> Moves:
    """Layer norms and GELUs of Megatron layers in eager mode [us], fp16."""
    origins: list[Origin] = []
    found: list[Row] = []
    folder = f"./sailor/Planner/baselines/Aceso/profiler/{gpu}/profiled-data-fp16"
    for model, hidden in SAILOR_MODELS.items():
        for batch in (1, 2, 4, 8):
            for tensor in (1, 2, 4):
                table, origin = read(SAILOR, f"{folder}/{model}_mbs{batch}_tp{tensor}_algo0.csv")
                origins.append(origin)
                found += _megatron(table, (2048 * batch, hidden, tensor))
    return _moves(origins, found, eager=True)


def _megatron(table: pd.DataFrame, shape: tuple[int, int, int]) -> list[Row]:
    tokens, hidden, tensor = shape
    kernels = {
        "enc-1st-layernorm": ("norm", 4.0 * tokens * hidden),
        "enc-MLP-gelu": ("activation", 4.0 * tokens * 4 * hidden / tensor),
    }
    found: list[Row] = []
    for row in table.to_dict("records"):
        kernel, size = kernels.get(row["op_name"], ("", 0.0))
        if kernel and (kernel != "norm" or hidden <= WIDEST_ROW):
            found.append((kernel, shape, size, row["forward-compute"] * 1e-6))
    return found
