"""The clusters and models of HAPMoE's evaluation as scenarios, with the rates of unlike devices that are assumed."""

import math
from functools import cache
from typing import NamedTuple

from simmoe.cost.layers import layer_operators
from simmoe.cost.model import StageCost
from simmoe.cost.shard import shard_of
from simmoe.explore.hapmoe_bench import AS_SHIPPED, Assumptions, Case
from simmoe.explore.modules import forward_and_backward, module_s
from simmoe.planners.proposal import plan_like, planned
from simmoe.specs.base import Quantity
from simmoe.specs.data_folders import data_root
from simmoe.specs.hardware import Accelerator
from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario

_STEPS = 60  # of a bisection: far below any rounding of the rates
_WIDEST = 16.0  # times faster or slower than the database


class Part(NamedTuple):
    """A device whose rate is assumed, and the cluster that has no other."""

    accelerator: str
    alone: str


H800 = Part("h800", "16-1-h")
ASCEND = Part("ascend-910b", "16-2-h")
MI300X = Part("mi300x", "16-3-h")


def scenario_of(case: Case, assumptions: Assumptions = AS_SHIPPED) -> Scenario:
    """The job of a case, for planners: of its plan only what all systems share counts.

    Parameters
    ----------
    case : Case
    assumptions : Assumptions

    Examples
    --------
    >>> made = scenario_of(Case("hapmoe", "24-1", "Mixtral-L"))
    >>> made.cluster.devices, made.training.global_batch_size, made.plan.dispatcher
    (24, 512, 'alltoall')
    """
    made = with_rates(_shipped(case.cluster, case.model), assumptions)
    if assumptions.host == 1.0:
        return made
    stack = made.training.software
    launches = stack.host_moe_layer.model_copy(update={"value": stack.host_moe_layer.value * assumptions.host})
    training = made.training.model_copy(update={"software": stack.model_copy(update={"host_moe_layer": launches})})
    return made.model_copy(update={"training": training})


@cache
def _shipped(cluster: str, model: str) -> Scenario:
    name = f"{cluster}-{model.removeprefix('Mixtral-').lower()}.yaml"
    return load_scenario(data_root() / "scenarios" / "papers" / "hapmoe" / name)


def with_rates(scenario: Scenario, assumptions: Assumptions) -> Scenario:
    """The scenario with devices as fast as assumed.

    Parameters
    ----------
    scenario : Scenario
    assumptions : Assumptions

    Returns
    -------
    Scenario
        What kernels limited by arithmetic sustain in a long step is scaled, by one factor a device, until a layer of
        Mixtral-S takes as long as the rate says. Memory, its bandwidth and all links stay as they are.
    """
    rates = _rates(assumptions)
    groups = []
    for group in scenario.cluster.groups:
        part = group.node.accelerator
        if rates.get(part.id):
            part = _scaled(part, factor(part.id, rates[part.id]))
        groups.append(group.model_copy(update={"node": group.node.model_copy(update={"accelerator": part})}))
    return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"groups": tuple(groups)})})


def _rates(assumptions: Assumptions) -> dict[str, float]:
    return {ASCEND.accelerator: assumptions.ascend_rate, MI300X.accelerator: assumptions.mi300x_rate}


def devices_of(case: Case) -> set[str]:
    """Ids of the accelerators of a case's cluster."""
    return {group.node.accelerator.id for group in _shipped(case.cluster, case.model).cluster.groups}


def alike(case: Case, one: Assumptions, other: Assumptions) -> bool:
    """Whether a case runs alike under both: its devices are as fast, and so is the host."""
    return one.host == other.host and all(
        _rates(one)[id] == _rates(other)[id] for id in devices_of(case) if id in _rates(one)
    )


def _scaled(part: Accelerator, factor: float) -> Accelerator:
    def change(sustained: Quantity) -> Quantity:
        return sustained.model_copy(update={"value": sustained.value * factor})

    return part.model_copy(update={"efficiency": part.efficiency.with_sustained(change)})


@cache
def factor(accelerator: str, rate: float) -> float:
    """By what a device's sustained rates are to be multiplied so that a layer runs at a rate of H800's.

    Parameters
    ----------
    accelerator : str
        ``ascend-910b`` or ``mi300x``.
    rate : float
        [1]

    Returns
    -------
    float
        [1]

    Examples
    --------
    The database has 910B at 0.35 of H800 and MI300X at 0.86.

    >>> round(factor("ascend-910b", 0.31), 2), round(factor("mi300x", 0.74), 2)
    (0.88, 0.85)
    """
    part = next(one for one in (ASCEND, MI300X) if one.accelerator == accelerator)
    low, high = 1 / _WIDEST, _WIDEST
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rate_of(part, middle) < rate else (low, middle)
    return math.sqrt(low * high)


def rate_of(part: Part, factor: float = 1.0) -> float:
    """Rate of a layer on a device against H800.

    Parameters
    ----------
    part : Part
    factor : float
        On its sustained rates [1].

    Returns
    -------
    float
        Of the kernels of a layer of Mixtral-S, forward and backward, without exchanges, TP2 EP8 on 8 devices [1].
    """
    return _layer_s(H800, 1.0) / _layer_s(part, factor)


def _layer_s(part: Part, factor: float) -> float:
    scenario = _shipped(part.alone, "Mixtral-S")
    (group,) = scenario.cluster.groups
    node = group.node.model_copy(update={"accelerator": _scaled(group.node.accelerator, factor)})
    cluster = scenario.cluster.model_copy(update={"groups": (group.model_copy(update={"node": node}),)})
    made = scenario.model_copy(update={"cluster": cluster})
    shard = shard_of(made.plan.stages[0], made.plan, made.training, made.routing)
    kernels = [one for one in layer_operators(made.model, shard, 0) if one.stream == "compute"]
    return forward_and_backward(kernels, StageCost(made, 0, 0))


def expert_devices(length: int, attention_devices: int = 16) -> float:
    """Devices for experts beside some for attention at which neither side waits, on H800.

    Parameters
    ----------
    length : int
        Tokens of a sequence.
    attention_devices : int

    Returns
    -------
    float
        Attention devices times the time of the experts over that of attention, of a layer of Mixtral-S for one sequence
        on one device each, forward and backward [devices]. Exchanges are taken to hide behind both.

    References
    ----------
    DisagMoE, arXiv 2605.11005, adapts the split to the length of sequences. Its model is not stated here.

    Examples
    --------
    Attention grows with the length, experts do not:

    >>> expert_devices(16384) < expert_devices(4096)
    True
    """
    scenario = _shipped(H800.alone, "Mixtral-S")
    training = scenario.training.model_copy(update={"sequence_length": length})
    plan = plan_like(scenario, pipeline_parallel=2, expert_parallel=8)
    made = planned(scenario.model_copy(update={"training": training}), plan)
    return attention_devices * module_s(made, "experts") / module_s(made, "attention")
