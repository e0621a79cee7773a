"""What a row of a throughput table leaves open, filled by assumptions that are said.

Every assumption is a rule for all rows alike; none looks at the measured time.
"""

import re
from dataclasses import replace
from math import ceil, gcd, prod

from simmoe.specs import catalog
from simmoe.specs.throughput_model import known_vocabulary
from simmoe.specs.throughput_table_reader import TableRow
from simmoe.specs.throughput_words import NODES

# Parts that sources describe without naming one of the database, by their own words, and what stands for them.
_STAND_INS = (
    (r"h100 .*96 ?gb", "H100-SXM5-96GB", "clocks of an H100 at 500 W assumed"),
    (r"^80 ?gb gpu.*h800", "H800-SXM5-80GB", "accelerator not named, H800 assumed"),
)
# Rows of an embedding whose tokenizer is not named: GPT-2's 50257 tokens padded for eight ranks, and Llama 2's.
_VOCABULARY = {"gpt": 51200, "gated": 32000}

# What MaxText's policies compute again: all but the named outputs that they save (AI-Hypercomputer/maxtext,
# get_remat_policy), as the nearest of Megatron's modes; save_qkv_proj keeps a tenth of a layer's work.
_POLICIES = {
    "save_qkv_proj": "full",
    "save_out_proj": "full",
    "save_dot_except_mlp": "modules:core_attn+layernorm+mlp",
    "save_dot_with_context_except_mlp": "modules:layernorm+mlp",
    "save_dot_except_mlpwi": "modules:core_attn+layernorm+mlp",
    "minimal": "modules:core_attn+layernorm",
    "minimal_flash": "modules:layernorm",
    "minimal_with_context": "modules:layernorm",
}
_PYTORCH = re.compile(r"torchtitan|fms-fsdp")
_POLICY = re.compile(r"\bremat(?: policy)?[ :](\w+)")


def filled(row: TableRow, assumed: list[str]) -> TableRow:
    """The row with gaps filled where a usual value is known; each is told in `assumed`.

    Parameters
    ----------
    row : TableRow
    assumed : list of str
        Gets one sentence for each gap that was filled.
    """
    for fill in (_accelerator, _precision, _vocabulary, _expert_parallel, _micro_batch, _recomputation):
        cells, note = fill(row)
        if cells:
            row = replace(row, cells={**row.cells, **cells})
            assumed.append(note)
    return row


_Filling = tuple[dict[str, str], str]
_NOTHING: _Filling = ({}, "")


def _accelerator(row: TableRow) -> _Filling:
    if row.text("accelerator_id"):
        return _NOTHING
    words = row.text("gpu").lower()
    for pattern, name, note in _STAND_INS:
        if re.search(pattern, words):
            return {"accelerator_id": name}, note
    return _NOTHING


def _precision(row: TableRow) -> _Filling:
    """Megatron's default of 32 bits where only Megatron is named, else 16 bits: bf16 where tensor cores have it."""
    if row.text("precision_norm"):
        return _NOTHING
    mixed, usual = "heterogeneous" in row.flags, NODES.get(row.text("accelerator_id"))
    if usual is None and not mixed:
        return _NOTHING
    peaks = catalog.node(usual.node).accelerator.peak_flops if usual else None
    if "megatron" in row.text("software").lower():  # neither --fp16 nor --bf16: fp32, in TF32 on the parts that have it
        name = "tf32" if peaks is not None and peaks.tf32 is not None else "fp32"
        return {"precision_norm": name}, f"precision not stated, {name} assumed, Megatron's default"
    name = "bf16" if peaks is not None and peaks.bf16 is not None else "fp16"
    return {"precision_norm": name}, f"precision not stated, {name} assumed"


def _vocabulary(row: TableRow) -> _Filling:
    """That of a known model of this shape, else the usual tokenizer's of its kind."""
    if row.text("vocab_size") or not (row.whole("hidden_size") and row.whole("num_heads")):
        return _NOTHING
    usual = _VOCABULARY["gpt" if row.switch("gated_mlp") is False else "gated"]
    rows = known_vocabulary(row) or usual
    return {"vocab_size": str(rows)}, f"vocabulary not stated, {rows} assumed"


def _expert_parallel(row: TableRow) -> _Filling:
    """As far as experts and stages divide: over 64 devices with DeepEP (its largest published group), else over a host.

    FSDP without a dispatcher gathers experts.
    """
    experts, devices, pipeline = row.whole("num_experts"), row.whole("num_gpus"), row.whole("pp")
    if row.text("ep") or experts is None or devices is None or pipeline is None:
        return _NOTHING
    gathers = row.text("dp_sharding") == "zero3-fsdp" and row.text("dispatcher_norm") in {"", "unknown", "alltoall"}
    widest = 64 if row.text("dispatcher_norm") == "deepep" else row.whole("gpus_per_node") or 1
    size = 1 if gathers else gcd(experts, widest, devices // pipeline)
    return {"ep": str(size)}, f"expert parallelism not stated, {size} assumed"


def _micro_batch(row: TableRow) -> _Filling:
    """With a pipeline torchtitan cuts the batch of a replica into as many micro-batches as there are stages.

    torchtitan of 2024, ``parallelisms/pipelining_utils.py``: ``pipeline_parallel_microbatches`` is the degree if unset.
    """
    stages, batch, replicas = row.whole("pp") or 1, row.whole("gbs"), row.whole("dp")
    if row.text("mbs") or stages == 1 or "torchtitan" not in row.text("software").lower() or not batch or not replicas:
        return _NOTHING
    size = max(1, batch // (replicas * stages))
    return {"mbs": str(size)}, f"micro-batch not stated, {size} assumed, torchtitan's default"


def _recomputation(row: TableRow) -> _Filling:
    """The nearest of Megatron's modes for what MaxText and PyTorch call a policy."""
    word = row.text("recompute_norm")
    if word == "selective" and _PYTORCH.search(row.text("software").lower()):
        half = ceil((row.whole("num_layers") or 1) / (row.whole("pp") or 1) / 2)
        return {"recompute_norm": f"full-block:{half}"}, "PyTorch's selective checkpointing taken as every second layer"
    found = _POLICY.search(f"{word} {row.text('recompute')}")
    if word not in {"", "unknown"} and not word.startswith("remat"):
        return _NOTHING
    if found is None or found[1] not in _POLICIES:
        return _NOTHING
    mode = _POLICIES[found[1]]
    return {"recompute_norm": mode}, f"MaxText policy {found[1]} simulated as recompute {mode}"


_GROUPS = (re.compile(r"groups of (\d+)"), re.compile(r"FSDP (\d+)x(\d+)"))


def sharding_group(row: TableRow, assumed: list[str]) -> int | None:
    """The ranks that share one copy of what is sharded, by the words of the source; None = all ranks.

    Parameters
    ----------
    row : TableRow
    assumed : list of str
        Is told if the size is not stated.
    """
    if row.text("dp_sharding") not in {"hsdp", "zero1"}:
        return None
    for pattern in _GROUPS:
        found = pattern.search(row.text("zero_distopt"))
        if found:
            return prod(map(int, found.groups()))
    if row.text("dp_sharding") == "zero1":
        return None
    assumed.append("size of sharding groups not stated, one host assumed")
    return row.whole("gpus_per_node")
