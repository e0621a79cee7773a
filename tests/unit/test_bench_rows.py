"""Benchmarks that calibrate takes: outputs of nccl-tests of several versions, CSV files of products."""

import gzip
from pathlib import Path

import pytest

from simmoe.calibration.bench_rows import CollectiveRow, ProductRow, collective_seconds, product_seconds
from simmoe.calibration.calibrate import Run, calibrate
from simmoe.calibration.gemm_file import read_gemm_csv
from simmoe.calibration.nccl_file import read_nccl_log
from simmoe.cost.collectives import collective_time
from simmoe.cost.groups import GroupShape
from simmoe.cost.network import network_of
from simmoe.cost.operators import Collective
from simmoe.errors import SpecError
from simmoe.pipeline import run
from tests.scenarios import small

RANKS = "".join(
    f"#  Rank {rank:2d} Group  0 Pid 1{rank} on node{rank // 2} device {rank} [0x1] H100\n" for rank in range(4)
)
NEW = "     1048576   262144  float   sum    -1   55.03   19.06   33.35     0   55.30   18.96   33.18      0\n"
OLD = "     1048576        262144   float     sum    55.03   19.06   33.35    N/A    55.30   18.96   33.18    N/A\n"
NO_REDUCTION = (
    "     1048576         65536     float    none      -1    20.00   1.0   1.0    N/A    20.0   1.0   1.0      N/A\n"
)
BLANK_REDUCTION = (
    "     1048576         65536     float            20.00   1.0   1.0    N/A    20.0   1.0   1.0      N/A\n"
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("all_reduce.log", RANKS + NEW, ("all_reduce", 55.03)),
        ("a.log", "# Collective test starting: all_reduce_perf\n" + RANKS + OLD, ("all_reduce", 55.03)),
        ("a.log", "$ mpirun ./all_gather_perf -b 8\n" + RANKS + NO_REDUCTION, ("all_gather", 20.0)),
        ("alltoall.txt", RANKS + BLANK_REDUCTION, ("all_to_all", 20.0)),
        (
            "sendrecv.txt",
            "".join(f"[1,0]<stdout>: {line}\n" for line in (RANKS + NEW).splitlines()),
            ("send_recv", 55.03),
        ),
        (
            "reduce_scatter.txt",
            "".join(f"0: {line}\n" for line in (RANKS + NEW).splitlines()),
            ("reduce_scatter", 55.03),
        ),
    ],
)
def test_outputs_of_nccl_tests(name: str, text: str, expected: tuple[str, float], tmp_path: Path):
    path = tmp_path / name
    path.write_text(text)
    (row,) = read_nccl_log(path)
    assert row == CollectiveRow(expected[0], 2**20, 4, 2, pytest.approx(expected[1] * 1e-6))


def test_several_outputs_in_one_file(tmp_path: Path):
    path = tmp_path / "all.log"
    two = RANKS.splitlines(keepends=True)[:2]
    path.write_text("all_reduce_perf\n" + RANKS + NEW + "alltoall_perf\n" + "".join(two) + NO_REDUCTION)
    assert [(row.collective, row.ranks, row.nodes) for row in read_nccl_log(path)] == [
        ("all_reduce", 4, 2),
        ("all_to_all", 2, 1),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.log", RANKS + NEW, "which collective it is cannot be told"),
        ("all_reduce.log", NEW, "'#  Rank  0 ... on HOST' are missing"),
        ("all_reduce.log", "hello\n", "no rows of nccl-tests here"),
    ],
)
def test_what_is_no_output_of_nccl_tests(name: str, text: str, message: str, tmp_path: Path):
    (tmp_path / name).write_text(text)
    with pytest.raises(SpecError, match=name.replace(".", r"\.")) as caught:
        read_nccl_log(tmp_path / name)
    assert message in str(caught.value)


def test_real_outputs(shared: Path, tmp_path: Path):
    packed = shared / "profiles" / "superbenchmark" / "a100_40gb_x8_nccl_alltoall.log.gz"
    path = tmp_path / "alltoall.log"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    rows = read_nccl_log(path)
    assert len(rows) == 29
    assert (rows[-1].bytes, rows[-1].ranks, rows[-1].nodes) == (2**33, 8, 1)


def test_products_with_columns_in_any_order(tmp_path: Path):
    path = tmp_path / "gemm.csv"
    path.write_text("dtype,k,n,m,name,seconds\nbf16,3,2,1,x,1e-3\n\nFP8,6,5,4,y,0.5\n")
    assert read_gemm_csv(path) == (ProductRow(1, 2, 3, "bf16", 1e-3), ProductRow(4, 5, 6, "fp8", 0.5))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m,n,k,seconds\n1,1,1,1\n", ":1: the columns m, n, k, dtype, seconds are expected"),
        ("m,n,k,dtype,seconds\n", "no products here"),
        ("m,n,k,dtype,seconds\n0,1,1,bf16,1\n", ":2: m: a whole number up to 10,000,000 is expected (got '0')"),
        ("m,n,k,dtype,seconds\n1,1,x,bf16,1\n", ":2: k: a whole number"),
        ("m,n,k,dtype,seconds\n1,1,1,int4,1\n", ":2: dtype: one of fp32, tf32, fp16, bf16, fp8 is expected"),
        ("m,n,k,dtype,seconds\n1,1,1,bf16,nan\n", ":2: seconds: a time in seconds is expected (got 'nan')"),
        ("m,n,k,dtype,seconds\n1,1,1,bf16,-1\n", ":2: seconds: a time in seconds is expected (got '-1')"),
        ("m,n,k,dtype,seconds\n1,1,1,bf16\n", ":2:"),
    ],
)
def test_what_is_no_file_of_products(text: str, message: str, tmp_path: Path):
    path = tmp_path / "gemm.csv"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        read_gemm_csv(path)
    assert message in str(caught.value)


def test_rows_are_priced_by_the_cost_functions():
    scenario = small()
    row = CollectiveRow("all_reduce", 2.0**26, 8, 1, 1.0)
    expected = collective_time(
        Collective("all_reduce", "ep", 2.0**26), GroupShape(8, 8, 1), network_of(scenario.cluster, 0)
    )
    assert collective_seconds([row], scenario).tolist() == [expected]
    slow, fast = product_seconds([ProductRow(8192, 8192, 8192, word, 1.0) for word in ("bf16", "fp8")], scenario)
    assert fast < slow < 2 * 8192**3 / 500e12


def test_more_ranks_on_a_node_than_its_domain_holds_are_refused():
    with pytest.raises(SpecError, match="16 ranks on a node, but 8 of dgx-h100"):
        collective_seconds([CollectiveRow("all_reduce", 1e6, 16, 1, 1.0)], small())


def test_benchmarks_made_by_other_numbers_give_these_numbers():
    scenario = small()
    result = run(scenario)
    sizes = [2.0**power for power in range(12, 32)]
    rows = [CollectiveRow("all_reduce", size, 8, 1, 1.0) for size in sizes]
    shapes = [(1024 * i, 1024 * j, 1024 * k) for i in (1, 3, 8) for j in (1, 5) for k in (1, 2, 7)]
    products = [ProductRow(m, n, k, "bf16", 1.0) for m, n, k in shapes]
    seconds = 1.3 * collective_seconds(rows, scenario), 1.1 * product_seconds(products, scenario)
    rows = [row._replace(seconds=took) for row, took in zip(rows, seconds[0].tolist(), strict=True)]
    products = [row._replace(seconds=took) for row, took in zip(products, seconds[1].tolist(), strict=True)]
    found = calibrate([Run(result, ())], products, rows)
    factors = {found.numbers[one.number].name: one.factor for one in found.fit.fitted}
    assert factors["efficiency.gemm[bf16].compute"] == pytest.approx(1 / 1.1, rel=0.01)
    assert abs(found.fit.predicted / found.measured - 1).max() < 0.05
