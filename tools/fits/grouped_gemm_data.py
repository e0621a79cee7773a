"""Published times of expert products: whole expert MLPs of inference kernels, single products of training ones."""

import json
from typing import NamedTuple

import numpy as np
import pandas as pd

from tools.fits.tables import Origin, read, read_bytes

AIC = "aiconfigurator/data"
FEWEST_TOKENS = 16  # of an expert: below, all kernels only read weights
# moe_dtype of aiconfigurator -> bytes of an element; nvfp4 has a scale of one byte for 16 elements.
ELEMENT_BYTES = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5625}


class Mlps(NamedTuple):
    """Expert MLPs of one rank and their measured times, one array element each.

    Attributes
    ----------
    keys : tuple
        What identifies a shape, for `tools.fits.split.held_out`.
    experts, tokens : ndarray
        Local experts, and tokens of each.
    hidden, width : ndarray
        Model width, and local width of an expert.
    routed : ndarray
        Token copies of the whole group: those of local experts and, where the group is larger, all others.
    element : float
        Bytes of an input element.
    seconds : ndarray
        Measured: gate and up projection, activation, down projection, with the copies around them [s].
    """

    keys: tuple[tuple[float, ...], ...]
    experts: np.ndarray
    tokens: np.ndarray
    hidden: np.ndarray
    width: np.ndarray
    routed: np.ndarray
    element: float
    seconds: np.ndarray

    def where(self, mask: np.ndarray) -> "Mlps":
        """The shapes of a mask."""
        keys = tuple(key for key, kept in zip(self.keys, mask, strict=True) if kept)
        names = ("experts", "tokens", "hidden", "width", "routed", "seconds")
        return self._replace(keys=keys, **{name: getattr(self, name)[mask] for name in names})


def serving(path: str, dtype: str, kernel: str) -> tuple[Mlps, Origin]:
    """Gated expert MLPs under balanced routing: ``moe_perf`` of aiconfigurator.

    Parameters
    ----------
    path : str
        ``<gpu>/moe/<framework>/<version>`` under `AIC`.
    dtype, kernel : str
        moe_dtype and kernel_source to take.
    """
    table, origin = read(f"{AIC}/{path}/moe_perf.parquet")
    table = table[(table["moe_dtype"] == dtype) & (table["kernel_source"] == kernel)]
    table = table[table["distribution"] == "balanced"]
    tokens = table["num_tokens"] * table["topk"] / table["num_experts"]
    table = table[(tokens >= FEWEST_TOKENS) & (table["num_experts"] >= table["moe_ep_size"])]
    names = ["num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"]
    keys = tuple(table[names].itertuples(index=False, name=None))
    tokens_in, hidden, inter, topk, experts, tensor, expert = (table[name].to_numpy(float) for name in names)
    return Mlps(
        keys,
        experts / expert,
        tokens_in * topk / experts,
        hidden,
        inter / tensor,
        tokens_in * topk,
        ELEMENT_BYTES[dtype],
        table["latency"].to_numpy(float) * 1e-3,
    ), origin


def frontier(path: str) -> tuple[Mlps, Origin]:
    """Expert MLPs of vLLM under its own router, as Frontier measured them on A800; medians of equal shapes."""
    table, origin = read(f"frontier/{path}")
    table = table[table["routing_assignment_policy"] == "logit_topk"]
    names = [
        "num_tokens",
        "num_experts_per_device",
        "num_experts",
        "router_topk",
        "hidden_dim",
        "expert_hidden_dim",
        "num_tensor_parallel_workers",
    ]
    time = "time_stats.moe_grouped_gemm.median"
    table = table.groupby(names, as_index=False)[time].median()
    tokens = table["num_tokens"] * table["router_topk"] / table["num_experts"]
    table = table[tokens >= FEWEST_TOKENS]
    keys = tuple(table[names].itertuples(index=False, name=None))
    tokens_in, local, experts, topk, hidden, width, tensor = (table[name].to_numpy(float) for name in names)
    rows = tokens_in * topk
    return Mlps(
        keys, local, rows / experts, hidden, width / tensor, rows, 2.0, table[time].to_numpy(float) * 1e-3
    ), origin


def transformer_engine(name: str) -> tuple[pd.DataFrame, Origin]:
    """Grouped products of Transformer Engine in bf16, forward and both gradients, as SimuMax measured them.

    Products that stand there twice, for the sake of their weight gradient's dtype, are one.

    Returns
    -------
    table : pandas.DataFrame
        groups, tokens, n, k as the product runs, pass_ as in `simmoe.cost.operators`, accumulate (bytes that
        move for each weight of a weight gradient) and seconds.
    origin : Origin
    """
    data, origin = read_bytes(f"simumax/{name}.json.gz")
    table = json.loads(data)["accelerator"]["op"]["group_matmul"]
    rows = []
    for text, fraction in table["accurate_efficient_factor"].items():
        said = dict(word.split("=") for word in text.split(", "))
        groups, tokens, n, k = int(said["ng"]), int(said["M"]), int(said["N"]), int(said["K"])
        seconds = 2.0 * groups * tokens * n * k / (table["tflops"] * 1e12 * fraction)
        pass_ = {"fwd": "forward", "bwd_grad_act": "dgrad", "bwd_grad_w": "wgrad"}[said["stage"]]
        n, k = (k, n) if pass_ == "dgrad" else (n, k)
        accumulate = 0.0 if pass_ != "wgrad" else 8.0 if said["main_grad_dtype"] == "fp32" else 4.0
        rows.append((groups, tokens, n, k, pass_, accumulate, seconds))
    columns = ["groups", "tokens", "n", "k", "pass_", "accumulate", "seconds"]
    return pd.DataFrame(rows, columns=columns).groupby(columns[:-1], as_index=False)["seconds"].median(), origin


def frontier_projections(path: str) -> tuple[pd.DataFrame, Origin]:
    """Single projections of one gated expert, as Frontier measured them on A100: columns as `transformer_engine`."""
    table, origin = read(f"frontier/{path}")
    width = table["expert_hidden_dim"] // table["num_tensor_parallel_workers"]
    parts = [
        pd.DataFrame(
            {
                "groups": 1,
                "tokens": table["num_tokens"] * table["router_topk"] / table["num_experts"],
                "n": n,
                "k": k,
                "pass_": "forward",
                "accumulate": 0.0,
                "seconds": table[f"time_stats.moe_expert_{name}_proj.median"] * 1e-3,
            }
        )
        for name, n, k in (("up", 2 * width, table["hidden_dim"]), ("down", table["hidden_dim"], width))
    ]
    both = pd.concat(parts)
    return both[both["tokens"] >= FEWEST_TOKENS].drop_duplicates(), origin
