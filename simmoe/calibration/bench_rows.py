"""Single products and collectives that were measured outside a step, and what a scenario says of them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simmoe.cost.collectives import collective_time
from simmoe.cost.device import device_of, kernel_time
from simmoe.cost.groups import GroupShape
from simmoe.cost.network import network_of
from simmoe.cost.operators import Collective, CollectiveName, Gemm
from simmoe.errors import SpecError
from simmoe.specs.scenario import Scenario
from simmoe.specs.workload import Precision

FloatArray = NDArray[np.float64]


class ProductRow(NamedTuple):
    """A matrix product (m x k) @ (k x n) of a benchmark.

    Attributes
    ----------
    m, n, k : int
    dtype : str
        As in `simmoe.specs.hardware.Dtype`.
    seconds : float
        [s]
    """

    m: int
    n: int
    k: int
    dtype: str
    seconds: float


class CollectiveRow(NamedTuple):
    """A collective of nccl-tests.

    Attributes
    ----------
    collective : str
    bytes : float
        As nccl-tests counts: the full buffer of one rank [B].
    ranks, nodes : int
    seconds : float
        [s]
    """

    collective: CollectiveName
    bytes: float
    ranks: int
    nodes: int
    seconds: float


# The arithmetic of a product -> the recipe that runs it.
_RECIPES = {
    "fp32": Precision.FP32,
    "tf32": Precision.TF32,
    "fp16": Precision.FP16,
    "bf16": Precision.BF16,
    "fp8": Precision.FP8_DELAYED,
}
DTYPES = tuple(_RECIPES)


def product_seconds(rows: Sequence[ProductRow], scenario: Scenario) -> FloatArray:
    """What the first accelerator of a scenario takes for products on their own [s].

    Parameters
    ----------
    rows : sequence of ProductRow
    scenario : Scenario
        Its kernels keep the rates of short benchmarks here.

    Raises
    ------
    SpecError
        If the accelerator has no such arithmetic.
    """
    device = device_of(scenario.cluster.groups[0].node.accelerator, sustained=False)
    software = scenario.training.software.model_copy(update={"narrow_gemm_fill": None})
    return np.array(
        [kernel_time(Gemm(row.m, row.n, row.k), device, _RECIPES[row.dtype], software) for row in rows],
        dtype=np.float64,
    )


def collective_seconds(rows: Sequence[CollectiveRow], scenario: Scenario) -> FloatArray:
    """What the first nodes of a scenario take for collectives on their own [s].

    Parameters
    ----------
    rows : sequence of CollectiveRow
    scenario : Scenario

    Raises
    ------
    SpecError
        If a collective takes more ranks on a node than a scale-up domain of the scenario holds.
    """
    network = network_of(scenario.cluster, 0)
    return np.array(
        [collective_time(Collective(row.collective, "ep", row.bytes), _shape(row, scenario), network) for row in rows],
        dtype=np.float64,
    )


def _shape(row: CollectiveRow, scenario: Scenario) -> GroupShape:
    """Where the ranks of a benchmark stand."""
    domain = scenario.cluster.groups[0].domain_devices
    each = -(-row.ranks // row.nodes)
    if (row.nodes > 1 and each > domain) or (row.nodes == 1 and row.ranks > domain):
        name = scenario.cluster.groups[0].node.id
        raise SpecError(
            [
                f"--nccl-log: {each} ranks on a node, but {domain} of {name} are joined by its scale-up network: "
                "give a log of this scenario's nodes"
            ]
        )
    return GroupShape(row.ranks, each, row.nodes)
