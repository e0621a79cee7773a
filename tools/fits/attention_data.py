"""Published times of attention kernels as shapes with what the model of `simmoe.cost.attention` needs of them."""

import json
from typing import NamedTuple

import numpy as np
import pandas as pd

from simmoe.cost.operators import AttentionCore
from tools.fits.tables import Origin, read, read_bytes

AIC = "aiconfigurator/data"
# Below these the time is that of the launch and of a few blocks.
SHORTEST, FEWEST_ROWS = 256, 4096
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)  # of FlashAttention's figures: 16384 tokens in all, 2048 channels
# Shah et al., "FlashAttention-3", arXiv 2407.08608, figures 5 (forward, causal) and 6 (backward, not causal): TFLOP/s
# on H100 SXM5 in fp16 at the six lengths, as the bars are labelled.
FLASH_ATTENTION_3 = {
    ("fa3", 64, "forward"): (197, 265, 371, 420, 460, 473),
    ("fa3", 128, "forward"): (292, 423, 521, 579, 602, 616),
    ("fa3", 64, "backward"): (272, 363, 422, 453, 472, 474),
    ("fa3", 128, "backward"): (316, 424, 501, 542, 559, 561),
    ("cudnn", 64, "forward"): (225, 288, 334, 363, 379, 388),
    ("cudnn", 128, "forward"): (315, 410, 484, 518, 529, 539),
    ("cudnn", 256, "forward"): (308, 391, 450, 483, 497, 509),
    ("cudnn", 64, "backward"): (266, 348, 395, 417, 432, 433),
    ("cudnn", 128, "backward"): (305, 408, 465, 499, 518, 516),
    ("fa2", 64, "forward"): (180, 229, 262, 284, 295, 299),
    ("fa2", 128, "forward"): (191, 260, 298, 319, 333, 335),
    ("fa2", 256, "forward"): (208, 251, 278, 293, 297, 298),
    ("fa2", 64, "backward"): (198, 238, 264, 279, 287, 291),
    ("fa2", 128, "backward"): (214, 260, 291, 310, 318, 322),
}
FLASH_ATTENTION_3_ORIGIN = Origin("flash-attention-3", "figures 5 and 6", "")


class Shapes(NamedTuple):
    """Attention shapes and measured times, one array element each.

    Attributes
    ----------
    keys : tuple
        What identifies a shape, for `tools.fits.split.held_out`.
    flops : ndarray
        As `AttentionCore.flops`, on whole blocks of queries [FLOP].
    mean, most : ndarray
        Keys a query sees on average and at most.
    blocks : ndarray
        Blocks of 128 queries of all heads.
    cache : ndarray
        Bytes of keys and values, read and written once: a server copies them into its cache [B].
    queries : ndarray
        Bytes of the queries, read and written once [B].
    seconds : ndarray
        Measured [s].
    windowed, backward : bool
    """

    keys: tuple[tuple[int, ...], ...]
    flops: np.ndarray
    mean: np.ndarray
    most: np.ndarray
    blocks: np.ndarray
    cache: np.ndarray
    queries: np.ndarray
    seconds: np.ndarray
    windowed: bool = False
    backward: bool = False

    def where(self, mask: np.ndarray) -> "Shapes":
        """The shapes of a mask."""
        keys = tuple(key for key, kept in zip(self.keys, mask, strict=True) if kept)
        arrays = {name: getattr(self, name)[mask] for name in self._fields[1:8]}
        return self._replace(keys=keys, **arrays)


def shapes_of(cores: list[AttentionCore], seconds: list[float], cached_per_token: float | None = None) -> Shapes:
    """Shapes from operators; `cached_per_token` overrides the bytes of keys and values a token leaves in a cache."""
    rows = [-(-core.queries // 128) for core in cores]
    tokens = [core.batch * core.queries for core in cores]
    kept = [
        cached_per_token or 2.0 * core.kv_heads * (core.qk_dim + core.v_dim) for core in cores
    ]  # 16 bits an element
    return Shapes(
        tuple((c.batch, c.heads, c.kv_heads, c.queries, c.qk_dim, c.window or 0) for c in cores),
        np.array([core.flops * row * 128 / core.queries for core, row in zip(cores, rows, strict=True)]),
        np.array([core.pairs / core.queries for core in cores]),
        np.array([float(core.most_keys) for core in cores]),
        np.array([float(core.batch * core.heads * row) for core, row in zip(cores, rows, strict=True)]),
        np.array([2.0 * token * each for token, each in zip(tokens, kept, strict=True)]),
        np.array([4.0 * token * core.heads * core.qk_dim for core, token in zip(cores, tokens, strict=True)]),
        np.array(seconds),
        any(core.window is not None for core in cores),
        any(core.backward for core in cores),
    )


def serving(path: str, kernel: str, width: int, *, dtype: str = "bfloat16", window: int = 0) -> tuple[Shapes, Origin]:
    """Causal prefill of a serving framework: ``context_attention_perf`` of aiconfigurator.

    Parameters
    ----------
    path : str
        ``<gpu>/attention/<framework>/<version>`` under `AIC`.
    kernel, width, dtype, window
        Rows to take: kernel_source, head_dim, attn_dtype and window_size (0 = none). The cache has the same dtype.
    """
    table, origin = read(f"{AIC}/{path}/context_attention_perf.parquet")
    windows = table["window_size"] if "window_size" in table else pd.Series(0, index=table.index)
    taken = (table["kernel_source"] == kernel) & (table["head_dim"] == width) & (windows == window)
    taken &= (table["attn_dtype"] == dtype) & (table["kv_cache_dtype"] == dtype) & (table["step"] == 0)
    taken &= (table["isl"] >= SHORTEST) & (table["isl"] > window)
    table = table[taken & (table["batch_size"] * table["num_heads"] * table["isl"] >= FEWEST_ROWS)]
    names = ["batch_size", "num_heads", "num_key_value_heads", "isl"]
    cores = [
        AttentionCore(batch, heads, kv_heads, length, length, width, width, causal=True, window=window or None)
        for batch, heads, kv_heads, length in table[names].itertuples(index=False)
    ]
    return shapes_of(cores, (table["latency"] * 1e-3).tolist()), origin


def latent(path: str) -> tuple[Shapes, Origin]:
    """Prefill of multi-head latent attention, keys 192 and values 128 wide: ``context_mla_perf`` of aiconfigurator.

    From 512 tokens on: below, the copies rule. The cache keeps 576 elements a token. A shape that stands there for
    several tensor-parallel sizes is one shape.
    """
    table, origin = read(f"{AIC}/{path}/context_mla_perf.parquet")
    table = table[(table["kv_cache_dtype"] == "bfloat16") & (table["isl"] >= 2 * SHORTEST)]
    table = table[table["batch_size"] * table["num_heads"] * table["isl"] >= FEWEST_ROWS]
    median = table.groupby(["batch_size", "num_heads", "isl"], as_index=False)["latency"].median()
    cores = [
        AttentionCore(batch, heads, heads, length, length, 192, 128, causal=True)
        for batch, heads, length in median[["batch_size", "num_heads", "isl"]].itertuples(index=False)
    ]
    return shapes_of(cores, (median["latency"] * 1e-3).tolist(), cached_per_token=2.0 * 576), origin


def transformer_engine(name: str, width: int, *, backward: bool) -> tuple[Shapes, Origin]:
    """Transformer Engine's attention as SimuMax measured it, up to 32768 tokens.

    Parameters
    ----------
    name : str
        ``a100_pcie`` or ``b200_bf16_ceperm``.
    width : int
        Of a query-key head.
    backward : bool
        The backward pass. Its table counts the whole square although the mask is causal.
    """
    data, origin = read_bytes(f"simumax/{name}.json.gz")
    table = json.loads(data)["accelerator"]["op"]["sdp_bwd" if backward else "sdp_fwd"]
    cores, seconds = [], []
    for text, fraction in table["accurate_efficient_factor"].items():
        said = dict(word.split("=") for word in text.split(", "))
        length, qk_dim = int(said["seq_len"]), int(said["qk_head_dim"])
        if said["qkv_contiguous"] != "True" or length > 32768 or qk_dim != width:
            continue
        heads, kv_heads, v_dim = int(said["head_num"]), int(said["kv_head_num"]), int(said["v_head_dim"])
        core = AttentionCore(int(said["batch"]), heads, kv_heads, length, length, qk_dim, v_dim, True, None, backward)
        cores.append(core)
        seconds.append(core._replace(causal=False).flops / (table["tflops"] * 1e12 * fraction))
    return shapes_of(cores, seconds), origin


def flash_attention_3(kernel: str, width: int, *, backward: bool) -> tuple[Shapes, Origin]:
    """H100 in the figures of FlashAttention-3: causal forward, or backward without a mask."""
    rates = FLASH_ATTENTION_3[kernel, width, "backward" if backward else "forward"]
    cores = [figure_core(length, width, causal=not backward)._replace(backward=backward) for length in LENGTHS]
    seconds = [core.flops / (rate * 1e12) for core, rate in zip(cores, rates, strict=True)]
    return shapes_of(cores, seconds), FLASH_ATTENTION_3_ORIGIN


def figure_core(length: int, width: int, *, causal: bool) -> AttentionCore:
    """A point of FlashAttention's figures."""
    heads = 2048 // width
    return AttentionCore(16384 // length, heads, heads, length, length, width, width, causal)
