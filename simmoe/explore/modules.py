"""Times of single modules of a scenario: what tells devices apart before any plan is made."""

from collections.abc import Iterable

from simmoe.cost.backward import backward
from simmoe.cost.layers import layer_operators
from simmoe.cost.model import StageCost
from simmoe.cost.operators import Operator
from simmoe.cost.shard import shard_of
from simmoe.errors import SpecError
from simmoe.explore.hetermoe_bench import Part
from simmoe.specs.scenario import Scenario


def module_s(scenario: Scenario, part: Part, group: int = 0) -> float:
    """Forward and backward of the attention or of the experts of one layer, without exchanges and recomputation.

    Parameters
    ----------
    scenario : Scenario
        With an expanded plan; its first stage says how tokens and experts are cut.
    part : str
        ``attention`` or ``experts``, of the first layer that has experts.
    group : int
        Node group whose devices do it; any, whatever the plan.

    Returns
    -------
    float
        Seconds of the kernels for one micro-batch of a rank [s].

    Raises
    ------
    SpecError
        If the model has no experts.

    Notes
    -----
    Unlike devices should share a model by module where the ratio of these times differs between the modules: then each
    kind has something that it is better at.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 2.3.

    Examples
    --------
    The experts of a layer take longer on a V100 than on an A40:

    >>> from simmoe.specs.data_folders import data_root
    >>> from simmoe.specs.reader import load_scenario
    >>> mixed = load_scenario(data_root() / "scenarios" / "papers" / "hetermoe" / "o1-d1.yaml")
    >>> module_s(mixed, "experts", 0) < module_s(mixed, "experts", 1)
    True
    """
    layers = (layer for layer in range(scenario.model.num_layers) if scenario.model.layer(layer).moe)
    first = next(layers, None)
    if first is None:
        raise SpecError([f"model {scenario.model.id} has no experts, there are no modules to tell apart"])
    shard = shard_of(scenario.plan.stages[0], scenario.plan, scenario.training, scenario.routing)
    chosen = [one for one in layer_operators(scenario.model, shard, first) if _belongs(one, part)]
    return forward_and_backward(chosen, StageCost(scenario, 0, group))


def _belongs(operator: Operator, part: Part) -> bool:
    """Whether an operator is a kernel of a module."""
    if operator.stream != "compute":
        return False
    if part == "attention":
        return operator.name.startswith("attention.")
    return operator.name.startswith("moe.expert") or operator.name == "moe.activation"


def forward_and_backward(operators: Iterable[Operator], cost: StageCost) -> float:
    """Time of operators and of their gradients [s]."""
    kept = tuple(operators)
    return sum(map(cost.seconds, kept)) + sum(cost.seconds(part) for one in kept for part in backward(one))
