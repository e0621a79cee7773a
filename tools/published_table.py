"""Restate a wide collection of published training runs as ``scenarios/published/training.csv``.

The collection is a CSV file with the reader's columns and more: words of the sources, derivations, checks. What is kept
are facts: sizes, settings, times, and where they stand. Words are brought into one vocabulary. A row that the shipped
table holds already keeps its cells, several of which were completed by hand from the recipes that a source names.

    python tools/published_table.py COLLECTION.csv scenarios/published/training.csv
"""

import csv
import io
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

COLUMNS = (
    "id", "group", "model", "accelerator_id", "gpu", "num_gpus", "gpus_per_node", "interconnect", "precision_norm",
    "seq_len", "mbs", "gbs", "tp", "pp", "vpp", "cp", "ep", "etp", "dp", "schedule_norm", "schedule_overlap_flags",
    "recompute_norm", "dispatcher_norm", "ep_overlap", "dp_overlap", "tp_overlap", "cuda_graph", "dp_sharding",
    "zero_distopt", "capacity_factor", "routing", "software", "software_date", "year", "measured_s", "flags",
    "num_layers", "hidden_size", "ffn_hidden_size", "moe_ffn_hidden_size", "num_heads", "num_kv_heads", "head_dim",
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_experts", "top_k",
    "shared_expert_ffn", "first_dense_layers", "moe_layer_period", "vocab_size", "mtp_layers", "gated_mlp",
    "tied_embeddings", "sliding_window", "peak_mem_gib", "notes", "source_url",
)  # fmt: skip
HEAD = """\
# Published step times of training, one measured run a row; the columns are told in README.md beside it.
# Units: seq_len in tokens, mbs and gbs in sequences, measured_s in seconds an optimizer step, software_date as YYYY-MM,
# peak_mem_gib in GiB a device. An empty cell means that the source does not say. Facts only, restated from the page,
# paper or repository in source_url.
"""
GROUPS = {
    "A-MBridge": "megatron-bridge", "B-NeMo2407": "nemo-2407", "C2-MLM-llama-example": "megatron-llama",
    "D-PTDP-A100": "ptd-p", "E-Recompute2022-A100": "recompute-2022", "G-MegaScale-A100": "megascale",
    "H-ModelZoo": "moe-modelzoo", "I-MCoreMoE-report": "mcore-report", "K-ParallelFolding": "parallel-folding",
    "L-MegaScaleMoE-H800": "megascale-moe", "M-dgxc": "dgxc", "N-SimuMax-B200": "simumax", "O-Automodel": "automodel",
    "P-torchtitan": "torchtitan", "R-MindSpeed-910B": "mindspeed", "T-Ling-mini": "ling",
    "U-gpu-recipes": "gpu-recipes", "W-MLPerf": "mlperf", "X-MPT": "mpt", "Y-fms-fsdp": "fms-fsdp",
    "Z-InternEvo": "internevo", "AA-BLOOM": "bloom", "AB-vTrain-multi": "vtrain-multi",
    "AC-vTrain-single": "vtrain-single", "AD-Sailor-hetero": "sailor-mixed", "AE-Sailor-GH200": "sailor-gh200",
    "AF-MCore-golden": "mcore-golden", "AH-MCore-recipes": "mcore-recipes", "AI-MBridge-cards": "bridge-cards",
    "AJ-AWS-EFA-dispatch": "aws-efa", "AL-issues": "megatron-issue", "AM-FlagPerf": "flagperf", "AN-Gaudi2": "gaudi2",
}  # fmt: skip
# Rows with one of these flags are no plain training step of a known figure, or stand in the table already.
LEFT_OUT = {"non-plain-arch", "fine-tuning", "from-chart", "duplicate"}
_KEPT_FLAGS = (
    "accelerator-inferred", "accelerator-unlisted", "precision-assumed", "precision-partial", "vocab-assumed",
    "fp8-attention", "activation-offload", "remat-policy", "recompute-inferred", "etp-unstated", "gpus-mismatch",
    "time-from-flops", "source-inconsistent", "secondary-source", "window-size-unknown", "parallel-block",
    "heterogeneous",
)  # fmt: skip
# The network by its words; where none matches it is what the vendor's system ships with.
_NETWORKS = (
    (r"omni-path", "omni-path-100"), (r"slingshot", "slingshot-200"), (r"4x100 gb/s roce", "4x100 Gb/s RoCE"),
    (r"a3-megagpu", "a3-megagpu"), (r"a3-ultragpu", "a3-ultragpu"), (r"p5\.48xlarge", "efa-400"),
    (r"p6-b300", "efa-800"), (r"1600 gb/s roce", "1600 Gb/s RoCE a node"), (r"400 gb/s between", "400 Gb/s a node"),
    (r"800 gb/s between|inter-node 800 gb/s", "800 Gb/s a node"), (r"rocev2", "RoCE"), (r"8x400 gb/s roce", "roce-400"),
    (r"8x200 gb/s rdma", "8x200 Gb/s RDMA a node"), (r"mit cluster", "not stated"),
)  # fmt: skip
# What is kept of the words on schedule and overlap: a pattern, and what is written for it.
_SCHEDULE = (
    (r"(?:pp_layout=|\blayout )([EtmL|*()\d,]+)", r"pp_layout=\1"),
    (r"cuda_graph=(?:local|transformer_engine|TE):(\w+(?:[ +]\w+)*)", r"cuda_graph=\1"),
    (r"external_cuda_graph:([\w+]+)", r"cuda_graph=\1"),
    (r"full(?:-iteration)?(?: CUDA)? graph", "cuda_graph=full_iteration"),
    (r"(?:per-)?layer CUDA graph", "cuda_graph=layer"),
    (r"delay wgrad", "delay wgrad"), (r"\bno sequence parallel", "no sequence parallel"),
    (r"paged stash", "paged stash"), (r"optimizer state offload", "optimizer offload"),
    (r"act_cpu_offload_layers=(\d+)", r"activation offload layers=\1"), (r"activation offload", "activation offload"),
    (r"no TP, P2P, grad or param overlap", "no overlap"), (r"Ulysses", "Ulysses"), (r"async TP", "async TP"),
    (r"layers per stage incl\. embedding/head units: (\[[\d, ]+\])",
     r"layers per stage incl. embedding/head units: \1"),
)  # fmt: skip
_SHARDING = (
    (r"Megatron-FSDP \(shard group (\d+)\)", r"FSDP groups of \1"),
    (r"FSDP groups of (\d+)", r"FSDP groups of \1"),
    (r"FSDP (\d+)x(\d+)", r"FSDP \1x\2"),
    (r"FSDP2? \(.*group (\d+)\)?", r"FSDP groups of \1"),
    (r"(FULL_SHARD|SHARD_GRAD_OP), mixed precision (\w+)", r"\1 \2"),
    (r"ZeRO-1 inside groups of (\d+)", r"ZeRO-1 groups of \1"),
    (r"DeepSpeed ZeRO-(\d)", r"DeepSpeed ZeRO-\1"),
    (r"HSDP", "HSDP"),
)
_MODELS = (
    (r"^L(?:LAMA|lama)[- ]?(\d(?:\.\d)?)[-_ ]", r"Llama-\1-"), (r"^LLaMA-?(\d(?:\.\d)?)-", r"Llama-\1-"),
    (r"^GPT-?3-", "GPT-3 "), (r"^MPT-", "MPT-"), (r"^BLOOM prequel ", "BLOOM "),
    (r"^GPT L(\d+) h(\d+)", r"GPT \1x\2"), (r" (?:proxy|cut to) \(?(\d+) layers\)?", r"/\1 layers"),
    (r" \((?:MLPerf|vTrain|vTrain single node|Sailor|MaxText JAX|MaxText|GPT-3|MT-NLG|15B|MegaScale config)\)", ""),
)  # fmt: skip
_SOURCES = (
    (r"^arXiv (\d{4}\.\d{5})", r"https://arxiv.org/abs/\1"),
    (r"^https://gitee\.com/(\S+) tag \S+ commit (\w+) README\.md \(table\) \+ (\S+)$",
     r"https://gitee.com/\1/blob/\2/\3"),
    (r" \(value[s]? from [^)]*\)", ""), (r" \(values of arXiv (\S+) Table (\d+)\).*", r" arXiv:\1 Table \2"),
    (r" ; results table: .*\(arXiv (\S+) Table (\d+)\)", r" arXiv:\1 Table \2"), (r" \(tag v[\d.]+\)$", ""),
)  # fmt: skip
_STAGES = re.compile(r"stage devices: (\[[^;]*\])")


def restated(row: Mapping[str, str]) -> dict[str, str]:
    """A row of the collection in the vocabulary of the shipped table."""
    found = {column: row.get(column, "").strip() for column in COLUMNS}
    found["id"] = f"{'moe' if found['num_experts'] else 'dense'}-{row['id'].split('-')[-1]}"
    found["group"] = GROUPS[row["group"]]
    found["model"] = replaced(row["model"], _MODELS)
    found["gpu"] = _part(row["gpu"]) if not found["accelerator_id"] else ""
    found["interconnect"] = _first(row["interconnect"], _NETWORKS)
    found["schedule_overlap_flags"] = ";".join(_remarks(row["schedule_overlap_flags"]))
    found["zero_distopt"] = _expanded(row["zero_distopt"], _SHARDING)
    policy = re.search(r"\bremat (?:policy )?(\w+)", row["recompute"])
    found["recompute_norm"] = f"remat {policy[1]}" if policy else row["recompute_norm"]
    commit = re.search(r"commit [0-9a-f]{7,}", row["schedule_overlap_flags"])
    software = row["software"].replace(" paper code", "").replace("activation-recompute paper", "2022")
    found["software"] = f"{software} {commit[0]}" if commit else software
    flags = row["flags"].split(";")
    found["flags"] = ";".join(flag for flag in _KEPT_FLAGS if flag in flags)
    stages = _STAGES.search(row["notes"]) if "heterogeneous" in flags else None
    found["notes"] = f"stage devices: {stages[1]}" if stages else ""
    found["source_url"] = replaced(row["source_url"], _SOURCES)
    return found


def _part(words: str) -> str:
    """A part that has no name in the hardware database, in a few words."""
    return "80 GB GPU, H800 or H100 class" if words.startswith("80 GB GPU") else words


def replaced(text: str, rules: Iterable[tuple[str, str]]) -> str:
    """The text after every rule in turn."""
    for pattern, new in rules:
        text = re.sub(pattern, new, text)
    return text.strip()


def _first(text: str, rules: Iterable[tuple[str, str]]) -> str:
    return next((new for pattern, new in rules if re.search(pattern, text, re.IGNORECASE)), "")


def _expanded(text: str, rules: Iterable[tuple[str, str]]) -> str:
    """What the first rule that matches makes of the words it matches; empty if none does."""
    for pattern, new in rules:
        match = re.search(pattern, text)
        if match:
            return match.expand(new)
    return ""


def _remarks(text: str) -> list[str]:
    """The remarks of the vocabulary, each kind once."""
    found: dict[str, str] = {}
    for pattern, new in _SCHEDULE:
        match = re.search(pattern, text)
        if match:
            remark = match.expand(new)
            if remark.startswith("cuda_graph="):
                remark = remark.replace(" ", "+")
            found.setdefault(re.split(r"[=:]", remark)[0], remark)
    return list(found.values())


def usable(row: Mapping[str, str]) -> bool:
    """A measured step of a plain model that stands nowhere else in the collection."""
    return bool(row["measured_s"]) and not LEFT_OUT & set(row["flags"].split(";"))


def merged(new: Mapping[str, str], shipped: Mapping[str, str] | None) -> dict[str, str]:
    """A new row, or the shipped one with the columns and remarks that it does not have yet."""
    if shipped is None:
        return dict(new)
    found = {column: shipped.get(column, new[column]) for column in COLUMNS}
    held = shipped["schedule_overlap_flags"].split(";")
    kinds = {remark.split("=")[0] for remark in held}
    more = [one for one in new["schedule_overlap_flags"].split(";") if one.split("=")[0] not in kinds]
    found["schedule_overlap_flags"] = ";".join(filter(None, [*held, *more]))
    return found


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, without its comments; none if there is no such file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def table(collection: Iterable[Mapping[str, str]], shipped: Iterable[Mapping[str, str]]) -> str:
    """The text of the shipped table."""
    held = {row["id"]: row for row in shipped}
    rows = [restated(row) for row in collection if row["group"] in GROUPS and usable(row)]
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(merged(row, held.get(row["id"])) for row in sorted(rows, key=lambda row: row["id"].split("-")[1]))
    return HEAD + text.getvalue()


def main() -> None:
    """Write the table."""
    collection, target = map(Path, sys.argv[1:3])
    text = table(read(collection), read(target))
    target.write_text(text, encoding="utf-8")
    print(f"{target}: {len(text.splitlines()) - len(HEAD.splitlines()) - 1} rows")


if __name__ == "__main__":
    main()
