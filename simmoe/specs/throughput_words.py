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
    "V100-SXM2-16GB": Node("dgx-1-v100-16gb", "infiniband-hdr-200"),
    "V100-SXM2-32GB": Node("dgx-1-v100-32gb", "infiniband-hdr-200"),
    "A100-SXM4-40GB": Node("dgx-a100-40gb", "infiniband-hdr-200"),
    "A100-SXM4-80GB": Node("dgx-a100-80gb", "infiniband-hdr-200"),
    "A800-SXM4-80GB": Node("dgx-a800", "infiniband-hdr-200"),
    "H100-SXM5-80GB": Node("dgx-h100", "infiniband-ndr-400"),
    "H200-SXM-141GB": Node("dgx-h200", "infiniband-ndr-400"),
    "H800-SXM5-80GB": Node("hgx-h800", "infiniband-ndr-400"),
    "GH200-96GB": Node("gh200-x4", "slingshot-200"),
    "B200": Node("dgx-b200", "infiniband-ndr-400"),
    "B300": Node("dgx-b300", "infiniband-xdr-800"),
    "GB200": Node("gb200-tray", "infiniband-ndr-400"),
    "GB300": Node("gb300-tray", "infiniband-xdr-800"),
    "MI300X": Node("mi300x-x8", "roce-400"),
    "Ascend-910B": Node("atlas-910b", "roce-200"),
}
# Words of the interconnect that name another host of the same accelerator.
_OTHER_NODES = (
    ("H100-SXM5-80GB", r"\befa\b|p5\.48xlarge", Node("p5-h100", "efa-400")),
    ("H100-SXM5-80GB", r"a3-megagpu", Node("a3-mega-h100", "roce-200")),
    ("H200-SXM-141GB", r"a3-ultragpu", Node("a3-ultra-h200", "roce-400")),
    ("B300", r"\befa\b|p6-b300", Node("p6-b300", "efa-800")),
    ("A100-SXM4-40GB", r"\befa\b|p4d", Node("p4d-a100-40gb", "efa-100")),
    ("A100-SXM4-80GB", r"jean zay|omni-path", Node("jean-zay-a100", "omni-path-100")),
    ("A100-SXM4-80GB", r"4x100|800 gb/s", Node("hgx-a100-80gb-4nic", "roce-200")),
)
# NVIDIA's recipes for racks of 72 use 16 trays, so that 64 accelerators form one domain.
TRAYS_PER_RACK = {"GB200": 16, "GB300": 16}

_LINKS = (
    (r"omni-?path", "omni-path-100"),
    (r"slingshot", "slingshot-200"),
    (r"4x100 gb/s roce", "roce-100"),
    (r"roce", "roce-400"),
)


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
    return usual


_STACKS = (
    (r"llm-foundry|composer", "llm-foundry-2023"),
    (r"vtrain", "megatron-lm-2021"),  # its measurements use that code
    (r"torchtitan|automodel|fms-fsdp", "torchtitan-2025"),
    (r"^(?!.*megatron).*deepspeed", "deepspeed-moe-2024"),
)


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
    Megatron-Core 0.14 and 0.15, from September 2025 on (release notes of Megatron-LM).

    Examples
    --------
    >>> software_of("NeMo 24.07", "2024-07", "2024"), software_of("Megatron-Bridge", "2026-02", "")
    ('megatron-core-2025', 'megatron-bridge-2026')
    """
    low = words.lower()
    for pattern, stack in _STACKS:
        if re.search(pattern, low):
            return stack
    when = date or (f"{year}-06" if year else "2025-06")
    if "bridge" in low or when >= "2025-09":
        return "megatron-bridge-2026"
    return "megatron-core-2025" if when >= "2023-06" else "megatron-lm-2021"


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


def recompute_of(word: str) -> tuple[Recompute | None, str]:
    """The recomputation mode and what had to be assumed; None for an unknown word.

    Examples
    --------
    >>> recompute_of("modules:layernorm+moe_act")[0].modules
    ('layernorm', 'moe_act')
    >>> recompute_of("full-block:8")[0].num_layers
    8
    """
    if word in {"", "unknown"}:
        return Recompute(), "recomputation not stated, none assumed"
    if word == "selective":
        return Recompute(granularity="selective", modules=("core_attn",)), "recomputed modules not stated"
    if word.startswith("modules:"):
        modules = word.removeprefix("modules:").split("+")
        return Recompute.model_validate({"granularity": "selective", "modules": modules}), ""
    block = _FULL_BLOCK.fullmatch(word)
    if block:
        return Recompute(granularity="full", num_layers=int(block[1])), ""
    if word in {"none", "full"}:
        return Recompute.model_validate({"granularity": word}), ""
    return None, ""
