"""Published GEMM times of one source each, in SI units."""

import json
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simmoe.cost.operators import Gemm
from tools.fits.split import held_out, thin
from tools.fits.tables import Origin, listing, locator, read, read_bytes

# Shapes of training: enough tokens, and no side so short that split-k kernels take over.
LEAST_M, LEAST_SIDE = 512, 256
MOST = 3000  # measurements a fit uses of one table

Shape = tuple[int, int, int]


class Products(NamedTuple):
    """Times of (m x k) @ (k x n).

    Attributes
    ----------
    origins : tuple of Origin
        The files, all of one source.
    works : list of Gemm
    seconds : ndarray
        [s]
    casts : bool
        The time includes the quantisation of the m x k activations.
    eager : bool
        The time includes the launch from a framework in eager mode.
    """

    origins: tuple[Origin, ...]
    works: list[Gemm]
    seconds: NDArray[np.float64]
    casts: bool = False
    eager: bool = False

    @property
    def source(self) -> str:
        """Key of the source."""
        return self.origins[0].source

    @property
    def locator(self) -> str:
        """As `Origin.locator`, of all files."""
        return locator(self.origins)

    def where(self, chosen: NDArray[np.bool_]) -> "Products":
        """The chosen measurements only."""
        works = [work for work, keep in zip(self.works, chosen, strict=True) if keep]
        return self._replace(works=works, seconds=self.seconds[chosen])

    def split(self) -> tuple["Products", "Products"]:
        """What a fit may use, at most `MOST` of it, and what is held out."""
        out = held_out(shapes(self))
        train = self.where(~out)
        return train.where(thin(shapes(train), MOST)), self.where(out)


def shapes(products: Products) -> list[Shape]:
    """(m, n, k) of every measurement."""
    return [(work.m, work.n, work.k) for work in products.works]


def _products(
    origins: Iterable[Origin], rows: Iterable[tuple[Gemm, float]], *, casts: bool = False, eager: bool = False
) -> Products:
    """The rows with the shapes of training and a time."""
    kept = [
        (work, seconds)
        for work, seconds in rows
        if work.m >= LEAST_M and min(work.n, work.k) >= LEAST_SIDE and seconds > 0
    ]
    return Products(tuple(origins), [work for work, _ in kept], np.array([t for _, t in kept]), casts, eager)


def aiconfigurator(folder: str, dtype: str) -> Products:
    """Kernel times [ms] of one folder such as ``h100_sxm/gemm/trtllm/1.3.0rc20``; its fp8 and fp4 rows cast."""
    table, origin = read(f"aiconfigurator/data/{folder}/gemm_perf.parquet")
    table = table[table.gemm_dtype == dtype]
    rows = zip(table.m.tolist(), table.n.tolist(), table.k.tolist(), table.latency.tolist(), strict=True)
    return _products([origin], ((Gemm(m, n, k), t * 1e-3) for m, n, k, t in rows), casts=dtype != "bfloat16")


def vidur(pattern: str, *, casts: bool = False) -> Products:
    """The weight GEMMs of vLLM layers [ms], of Vidur and of Frontier, which keeps its columns."""
    origins, found = [], []
    for path in listing(pattern):
        table, origin = read(path)
        origins.append(origin)
        for row in table.to_dict("records"):
            found += list(_vidur_layer(row))
    return _products(origins, found, casts=casts)


def _vidur_layer(row: dict[str, float]) -> Iterable[tuple[Gemm, float]]:
    names = ("n_embd", "n_expanded_embd", "n_head", "n_kv_head", "num_tokens", "num_tensor_parallel_workers")
    hidden, ffn, heads, kv_heads, tokens, tensor = (int(row[name]) for name in names)
    width = 128 if row.get("use_qk_norm") else hidden // heads  # Qwen3's heads are 128 wide whatever its hidden size
    shapes_of = {
        "attn_pre_proj": (heads // tensor * width + 2 * -(-kv_heads // tensor) * width, hidden),
        "attn_post_proj": (hidden, heads // tensor * width),
        "mlp_up_proj": ((2 if row["use_gated_mlp"] else 1) * ffn // tensor, hidden),
        "mlp_down_proj": (hidden, ffn // tensor),
    }
    for name, (n, k) in shapes_of.items():
        milliseconds = row.get(f"time_stats.{name}.median", float("nan"))
        if milliseconds > 0:
            yield Gemm(tokens, n, k), milliseconds * 1e-3


# hidden, heads, kv heads, ffn; every head is 128 wide
SERVED = {
    "meta-llama/Llama-3.1-8B": (4096, 32, 8, 14336),
    "microsoft/Phi-mini-MoE-instruct": (4096, 32, 8, 0),
    "mistralai/Mixtral-8x7B-v0.1": (4096, 32, 8, 0),
    "Qwen/Qwen3-32B": (5120, 64, 8, 25600),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": (2048, 32, 4, 0),
}


def llmservingsim(gpu: str) -> Products:
    """The weight GEMMs of vLLM layers, 1 to 2048 tokens; ``layers.csv`` in ns, ``dense.csv`` in us."""
    origins: list[Origin] = []
    found: list[tuple[Gemm, float]] = []
    for path in listing(f"llmservingsim/{gpu}/*/*/tp*/*.csv.xz"):
        name = path.split("/")[-1]
        if name not in {"layers.csv.xz", "dense.csv.xz"}:
            continue
        table, origin = read(path)
        model, tensor = "/".join(path.split("/")[2:4]), int(path.split("/")[4].removeprefix("tp"))
        origins.append(origin)
        found += _served(table, SERVED[model], tensor)
    return _products(origins, found)


def _served(table: pd.DataFrame, sizes: tuple[int, int, int, int], tensor: int) -> list[tuple[Gemm, float]]:
    hidden, heads, kv_heads, ffn = sizes
    q, kv, f = heads * 128 // tensor, kv_heads * 128 // tensor, ffn // tensor
    sides = {
        "q_proj": (q, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "qkv_proj": (q + 2 * kv, hidden),
        "o_proj": (hidden, q),
        "gate_proj": (f, hidden),
        "up_proj": (f, hidden),
        "gate_up_proj": (2 * f, hidden),
        "down_proj": (hidden, f),
    }
    names = table.columns.tolist()
    layer, tokens = ("layer", "tokens") if "layer" in names else ("layer_name", "input")
    time, unit = ("time_us", 1e-6) if "time_us" in names else ("latency(ns)", 1e-9)
    rows = zip(table[layer].tolist(), table[tokens].tolist(), table[time].tolist(), strict=True)
    return [(Gemm(m, *sides[name]), t * unit) for name, m, t in rows if name in sides and min(sides[name])]


SAILOR = "sailor/sailor_profiles.tar.xz"
# hidden size; every model has heads that divide it and sequences of 2048 tokens
SAILOR_MODELS = {"OPT-350": 1024, "GPT-Neo-2.7": 2560, "OPT-30": 7168}


def sailor(gpu: str) -> Products:
    """Forward and data-gradient GEMMs [us] of Megatron layers in eager mode, fp16.

    The QKV operator also rearranges its output, and with tensor parallelism the second GEMM of a pair contains its
    all-reduce: both are left out.
    """
    origins: list[Origin] = []
    found: list[tuple[Gemm, float]] = []
    folder = f"./sailor/Planner/baselines/Aceso/profiler/{gpu}/profiled-data-fp16"
    for model, hidden in SAILOR_MODELS.items():
        for batch in (1, 2, 4, 8):
            for tensor in (1, 2, 4):
                table, origin = read(SAILOR, f"{folder}/{model}_mbs{batch}_tp{tensor}_algo0.csv")
                origins.append(origin)
                found += _megatron(table, 2048 * batch, hidden, tensor)
    return _products(origins, found, eager=True)


def _megatron(table: pd.DataFrame, m: int, hidden: int, tensor: int) -> list[tuple[Gemm, float]]:
    sides = {"enc-MLP-GEMM-1": (4 * hidden // tensor, hidden)}
    if tensor == 1:
        sides |= {"enc-attention-dense": (hidden, hidden), "enc-MLP-GEMM-2": (hidden, 4 * hidden)}
    found = []
    for row in table.to_dict("records"):
        if row["op_name"] in sides:
            n, k = sides[row["op_name"]]
            found.append((Gemm(m, n, k), row["forward-compute"] * 1e-6))
            if tensor == 1:  # else the gradient contains the all-reduce
                found.append((Gemm(m, k, n, "dgrad"), row["backward-compute"] * 1e-6))
    return found


def neusight(path: str, device: str) -> Products:
    """Linear layers [ms] in fp32 with TF32 off, PyTorch in eager mode."""
    table, origin = read(f"neusight/{path}")
    table = table[(table.Device == device) & (table.B == 1)]
    rows = zip(table.M.tolist(), table.N.tolist(), table.K.tolist(), table.Latency.tolist(), strict=True)
    return _products([origin], ((Gemm(m, n, k), t * 1e-3) for m, n, k, t in rows), eager=True)


def llmcompass(gpu: str) -> Products:
    """Square and 12288-wide products in fp16; M, N, K, latency in ms."""
    data, origin = read_bytes(f"llmcompass/matmul_{gpu}.csv")
    rows = [line.split(",") for line in data.decode().splitlines() if line.strip()]
    return _products(
        [origin], ((Gemm(int(m), int(n), int(k)), float(t.strip().removesuffix("ms")) * 1e-3) for m, n, k, t, _ in rows)
    )


def simumax(name: str, pass_: str) -> Products:
    """Transformer Engine GEMMs as a fraction of the nominal peak the file names; pass_ is ``forward`` or ``wgrad``."""
    data, origin = read_bytes(f"simumax/{name}.json.gz")
    matmul = json.loads(data)["accelerator"]["op"]["matmul"]
    layout = "NT" if pass_ == "wgrad" else "TN"
    found = []
    for text, share in matmul["accurate_efficient_factor"].items():
        words = dict(word.split("=") for word in text.split(", "))
        if words["layout"] == layout and words["b"] == "1" and share > 0:
            work = Gemm(int(words["m"]), int(words["n"]), int(words["k"]), "wgrad" if pass_ == "wgrad" else "forward")
            found.append((work, work.flops / (share * matmul["tflops"] * 1e12)))
    return _products([origin], found)


Loader = Callable[[], Products]
