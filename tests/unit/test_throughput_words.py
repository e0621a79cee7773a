"""The words of throughput tables: hosts, networks, software, precision."""

import pytest

from simmoe.specs.throughput_words import NODES, gradient_dtype_of, node_of, precision_of, recompute_of, software_of


def test_every_node_and_link_exists():
    from simmoe.specs import catalog

    for name in NODES:
        found = node_of(name, "", ())
        assert found.node in catalog.list_ids("node")
        assert found.link in catalog.list_ids("link")


@pytest.mark.parametrize(
    ("accelerator", "words", "expected"),
    [
        ("H100-SXM5-80GB", "", ("dgx-h100", "infiniband-ndr-400")),
        ("H100-SXM5-80GB", "RoCEv2 cluster network", ("dgx-h100", "roce-400")),
        ("B300", "p6-b300.48xlarge: EFA", ("p6-b300", "efa-800")),
        ("A100-SXM4-80GB", "Jean Zay: 4x Omni-Path per node", ("jean-zay-a100", "omni-path-100")),
        ("A100-SXM4-80GB", "NVLink in node; 4x100 Gb/s RoCE per node", ("hgx-a100-80gb-4nic", "roce-100")),
        ("A100-SXM4-80GB", "NVLink in node; 400 Gb/s between nodes", ("hgx-a100-80gb-4nic", "roce-100")),
        ("H100-SXM5-80GB", "NVLink in node; 800 Gb/s between nodes", ("dgx-h100", "roce-100")),
        ("GB200", "NVL72", ("gb200-tray", "infiniband-ndr-400")),
    ],
)
def test_words_name_the_host_and_the_network(accelerator, words, expected):
    assert node_of(accelerator, words, ()) == expected


def test_an_unknown_part_has_no_host():
    assert node_of("XPU", "", ()) is None


@pytest.mark.parametrize(
    ("words", "date", "year", "stack"),
    [
        ("Megatron-LM", "2021-04", "2021", "megatron-lm-2021"),
        ("Megatron-DeepSpeed", "", "2022", "megatron-deepspeed-2022"),
        ("Megatron-LM commit 285068c8", "2024-02", "2024", "megatron-lm-2021"),
        ("Sailor (DeepSpeed/Megatron)", "", "2025", "sailor-2025"),
        ("FlagPerf (Megatron-LM)", "", "2024", "flagperf-2024"),
        ("fms-fsdp, PyTorch FSDP", "", "2024", "fms-fsdp-2024"),
        ("InternEvo", "", "2023", "internevo-2024"),
        ("NeMo 24.07 container", "2024-07", "2024", "megatron-core-2025"),
        ("Megatron-LM dev branch", "2026-02", "2026", "megatron-bridge-2025"),
        ("Megatron-LM dev branch", "2026-06", "2026", "megatron-bridge-2026"),
        ("Megatron-Bridge", "", "", "megatron-bridge-2025"),
        ("llm-foundry / Composer", "", "2023", "llm-foundry-2023"),
        ("", "", "", "megatron-core-2025"),
    ],
)
def test_software_is_known_by_name_or_date(words, date, year, stack):
    assert software_of(words, date, year) == stack


def test_precision_and_recomputation_words():
    assert precision_of("fp8-blockwise", "H100-SXM5-80GB") == ("fp8-blockwise", "")
    assert precision_of("fp8", "H100-SXM5-80GB") == ("fp8-current", "fp8 recipe not stated, fp8-current assumed")
    assert precision_of("fp8", "GB200")[0] == "mxfp8"
    assert precision_of("nvfp4", "GB200") == ("nvfp4", "")
    assert precision_of("fp6", "GB200") == (None, "")
    assert recompute_of("full")[0].granularity == "full"
    assert recompute_of("selective")[0].modules == ("core_attn",)
    assert recompute_of("unknown") == (recompute_of("none")[0], "recomputation not stated, none assumed")
    assert recompute_of("sometimes") == (None, "")


def test_fsdp_reduces_in_the_dtype_of_its_mixed_precision():
    assert gradient_dtype_of("llm-foundry / Composer", "FSDP FULL_SHARD, mixed precision PURE") == "bf16"
    assert gradient_dtype_of("llm-foundry / Composer", "FSDP FULL_SHARD, mixed precision DEFAULT") == "fp32"
