"""How many multiprocessors communication keeps from computing while it runs."""

from simmoe.cost.groups import GroupShape
from simmoe.cost.operators import Collective, GroupName, TokenExchange
from simmoe.specs.hardware import Node
from simmoe.specs.plan import Plan

# DeepSeek-V3 (arXiv 2412.19437, section 3.2.2): 20 of 132; DeepEP's README @dd758ca and aiconfigurator measure with
# 24. HybridEP: Megatron-Core's default, 16. UCCL-EP has DeepEP's interface and defaults. Kind: paper, documentation.
DISPATCHER = {"deepep": 20, "hybridep": 16, "uccl": 20}
# NCCL occupies one multiprocessor a channel: rings "16 or more", with SHARP in the NVLink switch "6 or fewer" (NVIDIA,
# "Enabling Fast Inference and Resilient Training with NCCL 2.27", 2025; the few need registered buffers, else it is
# 16, too: src/transport/nvls.cc). Kind: documentation.
RING, SWITCH_REDUCTION = 16, 6
# Two channels for each network peer (NCCL, src/graph/paths.cc, ncclTopoComputeP2pChannels). Kind: documentation.
TRANSFER = 2
# Over PCIe two channels saturate the wire. Kind: guess.
HOST = 2
_FIRST_WITH_REDUCING_SWITCH = 9  # compute capability of Hopper


def held_multiprocessors(work: Collective | TokenExchange, shape: GroupShape, plan: Plan, node: Node) -> float:
    """Multiprocessors that an exchange occupies on each device from its start to its end.

    Parameters
    ----------
    work : Collective or TokenExchange
        What is exchanged.
    shape : GroupShape
        Placement of the group.
    plan : Plan
        Gives the dispatcher; with `tp_comm_overlap` tensor-parallel pieces are moved by copy engines.
    node : Node
        Where.

    Returns
    -------
    float
        [1]; never more than the device has. 0 for Ascend, whose collectives run on engines of their own (a guess).

    Examples
    --------
    DeepEP's dispatch takes 20 of an H800's 132, a reduction in its NVLink switch 6, a ring across nodes 16:

    >>> from simmoe.specs.base import Quantity
    >>> from simmoe.specs.hardware import Accelerator, ScaleUp
    >>> count = Quantity(value=132, unit="1", text="132", source="doctest", kind="guess")
    >>> part = Accelerator.model_construct(vendor="NVIDIA", compute_capability="9.0", sm_count=count)
    >>> node = Node.model_construct(accelerator=part, scale_up=ScaleUp.model_construct(topology="switch"))
    >>> plan, here, far = Plan(dispatcher="deepep"), GroupShape(8, 8, 1), GroupShape(16, 8, 2)
    >>> held_multiprocessors(TokenExchange(4096, 7168, 8, 256, deduplicated=True), far, plan, node)
    20.0
    >>> reduction = Collective("all_reduce", "dp", 1e9)
    >>> held_multiprocessors(reduction, here, plan, node), held_multiprocessors(reduction, far, plan, node)
    (6.0, 16.0)
    """
    part = node.accelerator
    if part.vendor == "Huawei" or (plan.tp_comm_overlap and isinstance(work, Collective) and work.group == "tp"):
        return 0.0
    return float(min(_channels(work, shape, plan, node), round(part.sm_count.value)))


def sharding_share(plan: Plan, shapes: dict[str, GroupShape], node: Node) -> float:
    """The part of the multiprocessors that gathers and scatters of sharded parameters hold [1]."""
    group: GroupName = "dp" if plan.sharding_group is None else "shard"
    if shapes[group].size == 1:
        return 0.0
    held = held_multiprocessors(Collective("all_gather", group, 0.0), shapes[group], plan, node)
    return held / node.accelerator.sm_count.value


def exchange_multiprocessors(plan: Plan, node: Node) -> int:
    """Multiprocessors that a dispatch or combine occupies: the dispatcher's, or a channel each of NCCL."""
    return DISPATCHER.get(plan.dispatcher) or _ring(node)


def peer_multiprocessors(peers: int, node: Node) -> int:
    """Multiprocessors that an exchange with some network peers occupies: two channels each, as many as a ring at most.

    Examples
    --------
    >>> from simmoe.specs.hardware import Accelerator
    >>> node = Node.model_construct(accelerator=Accelerator.model_construct(vendor="NVIDIA"))
    >>> peer_multiprocessors(3, node), peer_multiprocessors(64, node)
    (6, 16)
    """
    return 0 if node.accelerator.vendor == "Huawei" else min(TRANSFER * peers, RING)


def _channels(work: Collective | TokenExchange, shape: GroupShape, plan: Plan, node: Node) -> int:
    if isinstance(work, TokenExchange):
        return exchange_multiprocessors(plan, node)
    if work.collective == "send_recv":
        return TRANSFER
    reducing = shape.local and work.collective != "all_to_all" and node.scale_up.topology == "switch"
    generation = node.accelerator.compute_capability.split(".")[0]
    if reducing and generation.isdigit() and int(generation) >= _FIRST_WITH_REDUCING_SWITCH:
        return SWITCH_REDUCTION
    return _ring(node)


def _ring(node: Node) -> int:
    return HOST if node.scale_up.topology == "host" else RING
