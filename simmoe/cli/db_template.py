"""The text of `simmoe db new`: a part that reads as it stands, every number a guess, every key explained."""

import csv
import inspect
import io
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from simmoe.report.database import JUDGEMENT
from simmoe.specs import catalog
from simmoe.specs.base import Spec
from simmoe.specs.hardware import Accelerator, Cluster, Link, Node
from simmoe.specs.kernel_file import COLUMNS, variant_of
from simmoe.specs.numbers import Number, numbers_of
from simmoe.specs.software import SoftwareStack

CLASSES: dict[str, type[Spec]] = {
    "accelerator": Accelerator,
    "link": Link,
    "node": Node,
    "cluster": Cluster,
    "software": SoftwareStack,
}
LIKE = {
    "accelerator": "h100-sxm5-80gb",
    "link": "infiniband-ndr-400",
    "node": "dgx-h100",
    "cluster": "superpod-h100-4",
    "software": "megatron-core-2025",
}
_WIDTH = 116
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 ./()_-]*|[0-9][0-9.eE+-]*( ?[A-Za-z%][A-Za-z0-9/()%]*)?")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off"}

NUMBERS = """\
#
# A number is {{value: ..., kind: ..., source: ...}}, and may have more:
#   value         with its unit. GB is 10^9 bytes, GiB 2^30, Gb 10^9 bits; fractions and counts have no unit
#   kind          datasheet (the vendor says so), paper, measured, derived (computed from others) or guess
#   source        a key of sources.yaml, of SimMoE's (simmoe db show prints them) or of your own beside this folder:
#                   my-datasheet: {{title: ..., publisher: ..., year: 2026, url: "https://...", kind: datasheet}}
#                 a guess without any basis cites {judgement}
#   locator       table, column, section or file inside the source
#   spread        relative standard uncertainty, 0.05 = 5 %; it widens the interval of every prediction
#   reviewed      the key of a second source that gives the same number; without it a run says "unreviewed"
#   alternatives  what other sources say, a list of texts
#   note          what was assumed or converted
"""


class Key(NamedTuple):
    """What a key means; `example` is shown, commented out, where the part it was copied from has none."""

    text: str
    example: str = ""


_NUMBER = "kind: datasheet, source: my-datasheet"
KEYS: dict[str, dict[str, Key]] = {
    "accelerator": {
        "id": Key("Name of this file without .yaml; nodes name the accelerator by it."),
        "name": Key("For reports."),
        "vendor": Key(""),
        "architecture": Key("Parts of one architecture may share kernel tables (efficiency_of)."),
        "compute_capability": Key("Of NVIDIA parts, in quotes.", '"9.0"'),
        "release_year": Key(""),
        "peak_flops": Key(
            "Dense peak of the matrix units with fp32 accumulation, without 2:4 sparsity, for each arithmetic "
            "that the part has. Leave out what it lacks."
        ),
        "memory": Key("Vendors write GB but most count in 2^30: 80 GB is 80 GiB."),
        "memory_bandwidth": Key("Peak, as vendors print it."),
        "l2_cache": Key("Not used by the cost model yet.", f"{{value: 50 MiB, {_NUMBER}}}"),
        "sm_count": Key("Streaming multiprocessors, compute units or AI cores: what output tiles are dealt to."),
        "tdp": Key("Board power; gives the energy of a million tokens."),
        "attention_kernels": Key(
            "Fused kernels that exist for it (fa2, fa3, cudnn, memory-efficient), and math for unfused attention."
        ),
        "price_per_hour": Key(
            "Of one accelerator; gives the cost of a million tokens.", f"{{value: 2.5 USD/h, {_NUMBER}}}"
        ),
        "efficiency_of": Key(
            "Whose kernel tables to use. Tables of its own, efficiency/<id>/gemm.csv, attention.csv, "
            "grouped_gemm.csv and memory_bound.csv, replace them variant by variant: simmoe db new --tables "
            "writes all four.",
            "h100-sxm5-80gb",
        ),
        "sustained_clock": Key(
            "Where a power limit keeps it at other clocks in a long step than the part of efficiency_of: its clock "
            "over that part's.",
            f"{{value: 0.85, {_NUMBER}}}",
        ),
    },
    "link": {
        "id": Key("Name of this file without .yaml; nodes and clusters name the link by it."),
        "name": Key("For reports."),
        "kind": Key("scale_up (NVLink, xGMI, HCCS), network (a port between nodes) or pcie."),
        "bandwidth": Key(
            "Nominal, one direction: of one accelerator (scale_up, pcie: half of what vendors print) or of one "
            "port (network; 400 Gb/s is 50 GB/s)."
        ),
        "latency": Key("Of one message between two accelerators, as a communication library sees it."),
        "achievable": Key("Fraction of the bandwidth that large messages reach, above 0 and at most 1."),
        "collectives": Key(
            "Collectives measured inside one scale-up domain: time = latency + n/B + sqrt_term sqrt(n), n as "
            "nccl-tests counts it, B from the bus bandwidth, never faster than peak_bus_bandwidth. collective is "
            "all_reduce, all_gather, reduce_scatter, all_to_all or send_recv. Without them bandwidth, latency and "
            "achievable rule.",
            "\n  - collective: all_reduce\n    ranks: 8\n"
            "    latency: {value: 15 us, kind: measured, source: my-bench}\n"
            "    bus_bandwidth: {value: 300 GB/s, kind: measured, source: my-bench}\n"
            "    sqrt_term: {value: 5 ns/sqrt(B), kind: measured, source: my-bench}",
        ),
        "exchanges": Key(
            "Expert dispatch and combine by a library that sends a token once to each place: deepep, hybridep or "
            "uccl. Fractions of the bandwidth, and the time of an empty exchange.",
            "\n  - library: deepep\n"
            "    dispatch: {value: 0.8, kind: measured, source: my-bench}\n"
            "    combine: {value: 0.8, kind: measured, source: my-bench}\n"
            "    dispatch_latency: {value: 40 us, kind: measured, source: my-bench}\n"
            "    combine_latency: {value: 60 us, kind: measured, source: my-bench}",
        ),
    },
    "node": {
        "id": Key("Name of this file without .yaml; clusters and simmoe new name the node by it."),
        "name": Key("For reports."),
        "accelerator": Key("Id of the accelerator: simmoe db list accelerator."),
        "accelerators": Key("How many of them."),
        "scale_up": Key(
            "What joins them. link: its id; domain: how many accelerators reach each other over it (8 in a DGX, "
            "72 in an NVL72 rack); topology: switch, mesh, pairs, or host for PCIe through the CPU."
        ),
        "pcie": Key("Id of the link between accelerators and host."),
        "network_ports": Key(
            "Ports to other nodes of the size of the cluster's fabric link; a fraction where hosts share one."
        ),
    },
    "cluster": {
        "name": Key("For reports. A cluster has no id: the name of the file is its id."),
        "groups": Key("Equal nodes that stand together; unlike groups are allowed. Ranks fill them in this order."),
        "fabric": Key(
            "What joins the nodes. link: id of a network link; topology: rail, fat_tree or flat; "
            "oversubscription: bandwidth below a leaf switch over that above it, 1 = none; bandwidth and latency "
            "replace the link's own."
        ),
        "cross_group": Key(
            "What joins unlike groups, if it is another fabric.", "{link: ethernet-100, topology: flat}"
        ),
        "faults": Key("Slow devices and nodes; more often written into a scenario.", "[{device: 3, slowdown: 1.2}]"),
    },
    "software": {
        "id": Key("Name of this file without .yaml; training.software of a scenario names the stack by it."),
        "name": Key("For reports."),
        "date": Key("Month of the release, in quotes."),
    },
}


def template(kind: catalog.Kind, id: str, like: str, *, tables: bool = False) -> str:
    """The file of a new part.

    Parameters
    ----------
    kind : str
        A key of `CLASSES`.
    id : str
        Of the new part.
    like : str
        The part of that kind whose numbers are copied, as guesses.
    tables : bool
        The accelerator gets kernel tables of its own (`tables_of`), so that it inherits none.

    Returns
    -------
    str
        YAML with a comment above every key.
    """
    data = catalog.raw(kind, like)
    if "id" in CLASSES[kind].model_fields:
        data["id"] = id
    data["name"] = id
    if kind == "accelerator":
        data["efficiency_of"] = like
    if tables:
        del data["efficiency_of"]
    data = {name: value for name, value in data.items() if not _is_measured(value)}
    lines = list(_head(kind, like, numbers=kind != "cluster"))
    for name in CLASSES[kind].model_fields:
        if name != "efficiency" and (name in data or _example(kind, name)):
            lines += [*_comment(explanation(kind, name)), *_entry(kind, name, data, like)]
    return "\n".join(lines) + "\n"


def _is_measured(value: Any) -> bool:
    """Whether a value is a list of fits: what was measured on one part is no start for another."""
    entries = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
    return any(isinstance(inner, dict) and "value" in inner for one in entries for inner in one.values())


def _head(kind: str, like: str, *, numbers: bool) -> Iterator[str]:
    """What the file is, what to do with it, and how a number is written."""
    what = f"{'An' if kind[0] in 'aeiou' else 'A'} {'software stack' if kind == 'software' else kind}"
    todo = "Every number is a guess, copied from there: replace value, kind and source, and delete the note. "
    yield from _comment(f"{what} of your own, like {like}. {todo if numbers else ''}Check it with: simmoe db check")
    yield NUMBERS.format(judgement=JUDGEMENT) if numbers else ""


def tables_of(accelerator: Accelerator) -> dict[str, str]:
    """Kernel tables with the numbers of another accelerator, each a guess.

    Parameters
    ----------
    accelerator : Accelerator
        Whose numbers to copy.

    Returns
    -------
    dict
        Name of the table -> text of its CSV file.
    """
    found = {}
    for table in type(accelerator.efficiency).model_fields:
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        for fit in getattr(accelerator.efficiency, table):
            for number in numbers_of(fit, "", f"{variant_of(table, fit)}|"):
                writer.writerow(_table_row(number, accelerator.id))
        found[table] = stream.getvalue()
    return found


def _table_row(number: Number, like: str) -> list[str]:
    variant, parameter = number.name.split("|")
    return [variant, parameter, number.quantity.text, "guess", JUDGEMENT, "", "", _copied(like)]


def _copied(like: str) -> str:
    return f"as {like}: replace it"


def explanation(kind: str, name: str) -> str:
    """What a key means: from `KEYS`, else from the docstring of its class."""
    key = KEYS[kind].get(name)
    return key.text if key is not None else attribute_text(CLASSES[kind], name)


def _example(kind: str, name: str) -> str:
    key = KEYS[kind].get(name)
    return key.example if key is not None else ""


def attribute_text(cls: type[Spec], name: str) -> str:
    """What the docstring of a class says of one of its attributes; empty if nothing.

    Examples
    --------
    >>> attribute_text(SoftwareStack, "host_sync")
    'The dropless dispatcher reads token counts back to the host before it launches the experts.'
    """
    lines = inspect.cleandoc(cls.__doc__ or "").splitlines()
    for at, line in enumerate(lines):
        names, separator, _ = line.partition(" : ")
        if separator and name in names.split(", "):
            text = []
            for below in lines[at + 1 :]:
                if not below.startswith(" "):
                    break
                text.append(below.strip())
            return " ".join(text).replace("`", "")
    return ""


def _comment(text: str) -> Iterator[str]:
    """A text as comment lines."""
    line = "#"
    for word in text.split():
        if len(line) + 1 + len(word) > _WIDTH:
            yield line
            line = "#"
        line += f" {word}"
    if line != "#":
        yield line


def _entry(kind: str, name: str, data: Mapping[str, Any], like: str) -> list[str]:
    """A key with its value; commented out where the copied part has none."""
    if name not in data:
        return [f"# {line}" for line in f"{name}: {_example(kind, name)}".replace(": \n", ":\n").splitlines()]
    value = data[name]
    if isinstance(value, dict) and "value" not in value and all(isinstance(inner, dict) for inner in value.values()):
        inner = [f"  {key}: {_flow(number, like)}" for key, number in value.items()]
        absent = [dtype for dtype in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4") if dtype not in value]
        more = [f"  # {dtype}: {{value: 1000 TFLOP/s, {_NUMBER}}}" for dtype in absent] if name == "peak_flops" else []
        return [f"{name}:", *inner, *more]
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return [f"{name}:", *(f"  - {_flow(one, like)}" for one in value)]
    return [f"{name}: {_flow(value, like)}"]


def _flow(value: Any, like: str) -> str:
    """A value in one line; a number as a guess."""
    if isinstance(value, dict):
        if "value" in value:
            value = {"value": value["value"], "kind": "guess", "source": JUDGEMENT, "note": _copied(like)}
        return "{" + ", ".join(f"{key}: {_flow(inner, like)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(one, like) for one in value) + "]"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, int | float):
        return repr(value)
    return _quoted(str(value))


def _quoted(text: str) -> str:
    """A text, in quotes unless YAML reads it as the same text without.

    Examples
    --------
    >>> _quoted("3.35 TB/s"), _quoted("9.0"), _quoted("no"), _quoted("as x: replace it")
    ('3.35 TB/s', '"9.0"', '"no"', '"as x: replace it"')
    """
    number = re.fullmatch(r"[0-9.eE+-]+", text) is not None
    plain = _PLAIN.fullmatch(text) is not None and not text.endswith(" ") and text.lower() not in _WORDS
    return text if plain and not number else json.dumps(text, ensure_ascii=False)
