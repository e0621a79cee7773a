"""What the words of throughput tables mean here: accelerators, networks, software, precision, recomputation.

Every table is a rule for all rows alike; nothing is chosen for one measurement.
"""

import re
from typing import NamedTuple

from simmoe.specs.plan import Recompute
from simmoe.specs.workload import Precision


class Node(NamedTuple):
    """The usual host of an accelerator, and the usual port of its network."""

    node: str
    link: str


# By accelerator name, as vendors' part names; the link is what the reference system ships with.
NODES: dict[str, Node] = {
    "V100-SXM2-16GB": Node("dgx-1-v100-16gb", "infiniband-edr-100"),
    "V100-SXM2-32GB": Node("dgx-1-v100-32gb", "infiniband-edr-100"),
    "A100-SXM4-40GB": Node("dgx-a100-40gb", "infiniband-hdr-200"),
    "A100-SXM4-80GB": Node("dgx-a100-80gb", "infiniband-hdr-200"),
    "A800-SXM4-80GB": Node("dgx-a800", "infiniband-hdr-200"),
    "H100-SXM5-80GB": Node("dgx-h100", "infiniband-ndr-400"),
    "H100-SXM5-96GB": Node("h100-96gb-x8", "infiniband-ndr-400"),
    "H200-SXM-141GB": Node("dgx-h200", "infiniband-ndr-400"),
    "H800-SXM5-80GB": Node("hgx-h800", "infiniband-ndr-400"),
    "GH200-96GB": Node("gh200-x4", "slingshot-200"),
    "B200": Node("dgx-b200", "infiniband-ndr-400"),
    "B300": Node("dgx-b300", "infiniband-xdr-800"),
    "GB200": Node("gb200-tray", "infiniband-ndr-400"),
    "GB300": Node("gb300-tray", "infiniband-xdr-800"),
    "MI300X": Node("mi300x-x8", "roce-400"),
    "MI325X": Node("mi325x-x8", "roce-400"),
    "MI355X": Node("mi355x-x8", "roce-400"),
    "H20": Node("hgx-h20", "infiniband-ndr-400"),
    "A100-PCIe-80GB": Node("a100-pcie-x8", "infiniband-hdr-200"),
    "L40S": Node("l40s-x8", "ethernet-100"),
    "A40": Node("a40-x8", "ethernet-100"),
    "T4": Node("t4-x8", "ethernet-100"),
    "RTX-4090": Node("rtx-4090-x8", "ethernet-100"),
    "RTX-3090": Node("rtx-3090-x8", "ethernet-100"),
    "RTX-2080Ti": Node("rtx-2080ti-x8", "ethernet-100"),
    "RTX-2080": Node("rtx-2080-x8", "ethernet-100"),
    "Titan-RTX": Node("titan-rtx-x8", "ethernet-100"),
    "Gaudi2": Node("gaudi2-x8", "roce-100"),
    "Gaudi3": Node("gaudi3-x8", "roce-200"),
    "P100-SXM2-16GB": Node("dgx-1-p100", "infiniband-edr-100"),
    "V100-PCIe-16GB": Node("v100-pcie-16gb-x8", "infiniband-edr-100"),
    "V100-PCIe-32GB": Node("v100-pcie-32gb-x8", "infiniband-edr-100"),
    "P100-PCIe-16GB": Node("p100-pcie-x4", "infiniband-edr-100"),
    "A100-PCIe-40GB": Node("a100-pcie-40gb-x8", "infiniband-hdr-200"),
    "MI210": Node("mi210-x4", "infiniband-hdr-200"),
    "MI100": Node("mi100-x8", "infiniband-hdr-200"),
    "H100-PCIe-80GB": Node("h100-pcie-x8", "infiniband-ndr-400"),
    "H100-NVL-94GB": Node("h100-nvl-x4-pairs", "infiniband-ndr-400"),
    "H800-PCIe-80GB": Node("h800-pcie-x8", "infiniband-ndr-400"),
    "MI250X": Node("frontier-mi250x", "slingshot-200"),
    "MI350X": Node("mi350x-x8", "roce-400"),
    "RTX-PRO-6000-Blackwell-Server": Node("rtx-pro-6000-x8", "roce-400"),
    "Arc-Pro-B60": Node("arc-pro-b60-x8", "roce-400"),
    "Ascend-950DT": Node("atlas-950", "roce-400"),
    "L40": Node("l40-x8", "ethernet-100"),
    "L4": Node("l4-x8", "ethernet-100"),
    "A10": Node("a10-x8", "ethernet-100"),
    "RTX-5090": Node("rtx-5090-x8", "ethernet-100"),
    "RTX-6000-Ada": Node("rtx-6000-ada-x8", "ethernet-100"),
    "RTX-A6000": Node("rtx-a6000-x8-pairs", "ethernet-100"),
    "A10G": Node("g5-a10g-x8", "efa-100"),
    "A30": Node("a30-x8", "roce-200"),
    "L20": Node("l20-x8", "roce-200"),
    "Trainium2": Node("trn2-x16", "efa-400"),
    "Ascend-910B": Node("atlas-910b", "roce-200"),
    "Ascend-910C": Node("atlas-910c", "roce-400"),
}
# Words of the interconnect that name another host of the same accelerator.
_OTHER_NODES = (
    ("H100-SXM5-80GB", r"\befa\b|p5\.48xlarge", Node("p5-h100", "efa-400")),
    ("H100-SXM5-80GB", r"a3-megagpu", Node("a3-mega-h100", "gpudirect-tcpxo-200")),
    ("H200-SXM-141GB", r"\befa\b|p5en", Node("p5en-h200", "efa-400")),
    ("B200", r"\befa\b|p6-b200", Node("p6-b200", "efa-400-v4")),
    ("B200", r"a4-highgpu", Node("a4-b200", "roce-400")),
    ("A100-SXM4-80GB", r"p4de", Node("p4de-a100-80gb", "efa-100")),
    ("H200-SXM-141GB", r"a3-ultragpu", Node("a3-ultra-h200", "roce-400")),
    ("B300", r"\befa\b|p6-b300", Node("p6-b300", "efa-800")),
    ("A100-SXM4-40GB", r"\befa\b|p4d", Node("p4d-a100-40gb", "efa-100")),
    ("A100-SXM4-80GB", r"jean zay|omni-path", Node("jean-zay-a100", "omni-path-100")),
    ("A100-SXM4-80GB", r"\b400 gb/s between nodes", Node("hgx-a100-80gb-4nic", "roce-100")),
    ("H100-SXM5-80GB", r"\b800 gb/s between nodes", Node("dgx-h100", "roce-100")),  # of a node, as 8 x 100
    ("A100-SXM4-80GB", r"4x100|800 gb/s", Node("hgx-a100-80gb-4nic", "roce-200")),
)
# NVIDIA's recipes for racks of 72 use 16 trays, so that 64 accelerators form one domain.
TRAYS_PER_RACK = {"GB200": 16, "GB300": 16}

_LINKS = (
    (r"omni-?path", "omni-path-100"),
    (r"slingshot", "slingshot-200"),
    (r"4x100 gb/s roce", "roce-100"),
)
# RoCE runs at the speed of the port that the accelerator's reference system ships with.
_ROCE = {"100": "roce-100", "200": "roce-200", "400": "roce-400", "800": "roce-800"}


def node_of(accelerator: str, interconnect: str, links: tuple[str, ...]) -> Node | None:
    """The host and the network port of an accelerator, None if the hardware database has no such host.

    Parameters
    ----------
    accelerator : str
        Part name, such as ``H100-SXM5-80GB``.
    interconnect : str
        A link id, or the source's own words; unsaid = what the reference system ships with.
    links : tuple of str
        Known link ids.

    Examples
    --------
    >>> node_of("H100-SXM5-80GB", "32x EFA per node", ())
    Node(node='p5-h100', link='efa-400')
    >>> node_of("H100-SXM5-80GB", "roce-400", ("roce-400",))
    Node(node='dgx-h100', link='roce-400')
    """
    words = interconnect.lower()
    usual = NODES.get(accelerator)
    if usual is None:
        return None
    for part, pattern, node in _OTHER_NODES:
        if part == accelerator and re.search(pattern, words):
            usual = node
    if interconnect in links:
        return Node(usual.node, interconnect)
    if usual.link.startswith(("infiniband", "roce")):
        for pattern, link in _LINKS:
            if re.search(pattern, words):
                return Node(usual.node, link)
        if "roce" in words:
            return Node(usual.node, _ROCE[usual.link.rsplit("-", 1)[1]])
    return usual


_STACKS = (
    (r"llm-foundry|composer", "llm-foundry-2023"),
    (r"vtrain", "megatron-lm-2021"),  # its measurements use that code
    (r"sailor", "sailor-2025"),
    (r"flagperf.*megatron", "flagperf-2024"),
    (r"internevo|internlm", "internevo-2024"),
    (r"megatron-deepspeed", "megatron-deepspeed-2022"),
    (r"fms-fsdp", "fms-fsdp-2024"),
    (r"torchtitan", "torchtitan-2025"),
    (r"automodel", "automodel-2025"),
    (r"^(?!.*megatron).*deepspeed", "deepspeed-moe-2024"),
)


# Commits that sources name: the code is older than the publication that the date of a row may be.
_COMMITS = {"285068c8": "2023-01"}  # of Megatron-LM, 11 January 2023: MegaScale's baseline, arXiv 2402.15627
_VERSION = re.compile(r"\b[vV]?(2\d)\.(0[1-9]|1[0-2])\b")


def software_month(words: str, date: str, year: str) -> str:
    """The month of a framework as ``YYYY-MM``: of a commit, as stated, of a container named, or mid-year.

    Parameters
    ----------
    words : str
        Framework and version; NVIDIA names containers and benchmark releases by year and month.
    date, year : str
        ``YYYY-MM`` of the software, and year of publication; empty where unknown.

    Examples
    --------
    >>> software_month("NeMo (dgxc-benchmarking v25.05.05)", "", "2025"), software_month("InternEvo", "", "2024")
    ('2025-05', '2024-06')
    """
    for commit, month in _COMMITS.items():
        if commit in words:
            return month
    named = _VERSION.search(words)
    return date or (f"20{named[1]}-{named[2]}" if named else f"{year or 2025}-06")


def software_of(words: str, date: str, year: str) -> str:
    """The software stack that stands for a framework: by its name, else Megatron's of that month.

    Parameters
    ----------
    words : str
        Framework and version; empty where unknown.
    date, year : str
        ``YYYY-MM`` of the software, and year of publication where the month is unknown.

    Notes
    -----
    Fused attention and distributed optimizers came to Megatron in 2023; its mixture-of-experts path was rewritten in
    Megatron-Core 0.14 and 0.15, from September 2025 on, and got fused expert kernels for MXFP8 in mid-2026 (release
    notes of Megatron-LM and Megatron-Bridge).

    Examples
    --------
    >>> software_of("NeMo 24.07", "2024-07", "2024"), software_of("Megatron-Bridge", "2026-02", "")
    ('megatron-core-2025', 'megatron-bridge-2025')
    """
    low = words.lower()
    for pattern, stack in _STACKS:
        if re.search(pattern, low):
            return stack
    when = software_month(words, date, year)
    if when >= "2026-05":
        return "megatron-bridge-2026"
    if "bridge" in low or when >= "2025-09":
        return "megatron-bridge-2025"
    return "megatron-core-2025" if when >= "2023-06" else "megatron-lm-2021"


def gradient_dtype_of(software: str, sharding: str = "") -> str:
    """The dtype of main gradients and their reduction: fp32, except where the framework or the row says bf16.

    NVIDIA's performance recipes and MLPerf runs set ``grad_reduce_in_fp32`` to false (NVIDIA-NeMo/Megatron-Bridge and
    NVIDIA-NeMo/NeMo, scripts/performance), or ``grad_sync_dtype`` to bf16 in the launcher of 2024. Composer's FSDP
    reduces in bf16 under mixed precision PURE and in fp32 under DEFAULT (composer, ``get_mixed_precision``), InternEvo
    in the dtype of its model (``HybridZeroOptimizer``), fms-fsdp in bf16 (``policies/mixed_precision.py``).

    Parameters
    ----------
    software, sharding : str
        Framework, and the source's own words on sharding; empty where unknown.

    Examples
    --------
    >>> gradient_dtype_of("NeMo 24.07 container"), gradient_dtype_of("Megatron-LM"), gradient_dtype_of("NeMo Automodel")
    ('bf16', 'fp32', 'fp32')
    >>> gradient_dtype_of("llm-foundry / Composer", "FSDP FULL_SHARD, mixed precision PURE")
    'bf16'
    """
    recipes = re.search(r"nemo (?!automodel)|megatron-bridge|mlperf|internevo|fms-fsdp", software.lower())
    return "bf16" if recipes or re.search(r"\bPURE\b", sharding) else "fp32"


def precision_of(word: str, accelerator: str) -> tuple[Precision | None, str]:
    """The precision recipe and what had to be assumed; None if it cannot be simulated.

    Examples
    --------
    >>> precision_of("fp8", "B200")
    (<Precision.MXFP8: 'mxfp8'>, 'fp8 recipe not stated, mxfp8 assumed')
    """
    if word == "fp8":
        # The native recipe of the tensor cores: block scales in hardware from Blackwell on.
        native = Precision.MXFP8 if accelerator.lstrip("G").startswith(("B200", "B300")) else Precision.FP8_CURRENT
        return native, f"fp8 recipe not stated, {native} assumed"
    if word in set(Precision):
        return Precision(word), ""
    return None, ""


_FULL_BLOCK = re.compile(r"full-block:(\d+)")


def recompute_of(word: str, *, fused_attention: bool = True) -> tuple[Recompute | None, str]:
    """The recomputation mode and what had to be assumed; None for an unknown word.

    Parameters
    ----------
    word : str
        As the column ``recompute_norm`` has it.
    fused_attention : bool
        Without it, what is not stated is core attention, as Megatron recommends since it can (Korthikanti et al.,
        arXiv 2205.05198, section 5): its scores are most of what a layer keeps.

    Examples
    --------
    >>> recompute_of("modules:layernorm+moe_act")[0].modules
    ('layernorm', 'moe_act')
    >>> recompute_of("full-block:8")[0].num_layers
    8
    """
    core = Recompute(granularity="selective", modules=("core_attn",))
    if word in {"", "unknown"}:
        assumed = "none" if fused_attention else "core attention"
        return Recompute() if fused_attention else core, f"recomputation not stated, {assumed} assumed"
    if word == "selective":
        return core, "recomputed modules not stated"
    if word.startswith("modules:"):
        modules = word.removeprefix("modules:").split("+")
        return Recompute.model_validate({"granularity": "selective", "modules": modules}), ""
    block = _FULL_BLOCK.fullmatch(word)
    if block:
        return Recompute(granularity="full", num_layers=int(block[1])), ""
    if word in {"none", "full"}:
        return Recompute.model_validate({"granularity": word}), ""
    return None, ""


_SCOPES = re.compile(r"(?:cuda_graph=|cuda graphs?:|external_cuda_graph:)([\w:+ ]*)", re.IGNORECASE)
_MODULE = re.compile(r"full_iteration|moe_preprocess|moe_router|\battn\b|\bmoe\b|\bmlp\b")


def graph_scope_of(words: str) -> tuple[str, ...]:
    """What the CUDA graphs of a run replay, from the flags of a row; empty where no scope is stated.

    Examples
    --------
    >>> graph_scope_of("1F1B;cuda_graph=transformer_engine:attn+moe_router+moe_preprocess;ep_a2a_overlap=False")
    ('attn', 'moe_router', 'moe_preprocess')
    >>> graph_scope_of("no PP; full-iteration CUDA graph; overlap grad reduce")
    ('full_iteration',)
    """
    low = words.lower()
    if "cuda_graph=none" in low:
        return ()
    found = _SCOPES.search(low)
    scope = tuple(dict.fromkeys(_MODULE.findall(found[1]))) if found else ()
    return scope or (("full_iteration",) if "full-iteration" in low or "full cuda graph" in low else ())
