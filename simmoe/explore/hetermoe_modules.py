"""Times of single modules: the measurements that motivate HeterMoE, and the balance that its placement rests on."""

from collections.abc import Sequence

from simmoe.cost.model import StageCost
from simmoe.cost.operators import Operator, TokenExchange
from simmoe.cost.zebra import zebra_work
from simmoe.explore import modules
from simmoe.explore.hetermoe_bench import AS_SHIPPED, Assumptions, Case, Part
from simmoe.explore.hetermoe_scenarios import LINK, NODES, scenario_of, stack_of
from simmoe.specs import catalog
from simmoe.specs.expand import expand
from simmoe.specs.hardware import Cluster, Fabric, NodeGroup
from simmoe.specs.plan import Plan, Zebra
from simmoe.specs.scenario import Scenario
from simmoe.specs.workload import Precision, Training

_MODULES_OF = "mixtral-8x7b"
_TOKENS = 32_768  # of a micro-batch: a quarter of what an attention device of O1 gets in a step


def module_s(part: Part, accelerator: str, length: int, assumptions: Assumptions = AS_SHIPPED) -> float:
    """Forward and backward of one module of Mixtral-8x7B for one sequence, without exchanges.

    Parameters
    ----------
    part : str
        ``attention`` or ``experts``.
    accelerator : str
        Of HeterMoE's clusters.
    length : int
        Tokens of the sequence.
    assumptions : Assumptions

    Returns
    -------
    float
        Seconds of the kernels [s].

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, section 2.3 and figure 2.

    Examples
    --------
    An L40S is several times faster than a T4.

    >>> module_s("experts", "t4", 4096) > 4 * module_s("experts", "l40s", 4096)
    True
    """
    return modules.module_s(_one_layer(accelerator, length, assumptions), part)


def _one_layer(accelerator: str, length: int, assumptions: Assumptions) -> Scenario:
    """One layer on one accelerator."""
    node = next(node for node in map(catalog.node, NODES.values()) if node.accelerator.id == accelerator)
    group = NodeGroup(node=node.model_copy(update={"accelerators": 1}), count=1)
    model = catalog.model(_MODULES_OF).model_copy(update={"num_layers": 1})
    training = Training(
        sequence_length=length, global_batch_size=1, precision=Precision.FP16, software=stack_of(assumptions)
    )
    cluster = Cluster(groups=(group,), fabric=Fabric(link=catalog.link(LINK)))
    plan = expand(Plan(), model, cluster, training)
    return Scenario(name="one layer", model=model, cluster=cluster, training=training, plan=plan)


def balance(cluster: str, model: str, length: int, assumptions: Assumptions = AS_SHIPPED) -> float:
    """Time of an attention block over that of the experts of the same layer, no experts moved.

    Parameters
    ----------
    cluster, model : str
        As in `Case`.
    length : int
        Tokens of a sequence.
    assumptions : Assumptions

    Returns
    -------
    float
        T_A/T_E of a layer within the model, without embedding, head and loss [1].

    Notes
    -----
    Forward, forward again, backward, as with recomputation. A micro-batch has 32,768 tokens on each attention device,
    or one sequence if that is longer.

    References
    ----------
    HeterMoE, arXiv 2504.03871v1, sections 4.2 and 6.4.3.

    Examples
    --------
    Attention grows with the length of sequences, experts do not.

    >>> balance("O1", "D1", 8192) < balance("O1", "D1", 32768)
    True
    """
    scenario = _zebra(cluster, model, length, assumptions)
    work = zebra_work(scenario, scenario.plan.stages[0])
    attention = [one for part in work.attention[1] for one in part.operators if not _exchanges(one)]
    sides = [
        _recomputed(operators, StageCost(scenario, 0, group, role=group))
        for group, operators in enumerate((attention, work.experts[1]))
    ]
    return sides[0] / sides[1]


def _exchanges(operator: Operator) -> bool:
    return isinstance(operator.work, TokenExchange)


def _recomputed(operators: Sequence[Operator], cost: StageCost) -> float:
    return sum(map(cost.seconds, operators)) + modules.forward_and_backward(operators, cost)


def _zebra(cluster: str, model: str, length: int, assumptions: Assumptions) -> Scenario:
    """One zebra group of all devices, one micro-batch at a time."""
    made = scenario_of(Case("zebra", cluster, model, length), assumptions)
    first, second = (group.devices for group in made.cluster.groups)
    size = max(1, _TOKENS // length)
    batch = {"micro_batch_size": size, "global_batch_size": size * first}
    training = made.training.model_copy(update=batch)
    plan = made.plan.model_copy(update={"zebra": Zebra(attention_devices=first, expert_devices=second)})
    plan = expand(plan, made.model, made.cluster, training)
    return made.model_copy(update={"training": training, "plan": plan})
