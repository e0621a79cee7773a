"""The ways to run a pipeline stage: how its devices share the work, and what they compute again."""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from simmoe.planners.proposal import divisors
from simmoe.specs.model import Model
from simmoe.specs.plan import Chunk, Recompute, RecomputeModule, Stage
from simmoe.specs.scenario import Scenario
from simmoe.specs.software import SoftwareStack

LEAST_TOKENS = (
    4096  # of a sequence on a context-parallel rank: shorter pieces leave attention too little to hide behind
)
MOST_TOKENS = 32768  # of a micro-batch on a rank


class Way(NamedTuple):
    """Parallel sizes and recomputation of a stage.

    Attributes
    ----------
    tensor, context, data, expert, expert_tensor : int
        Sizes of the parallel groups; devices = tensor * context * data.
    recompute : Recompute
    """

    tensor: int
    context: int
    data: int
    expert: int
    expert_tensor: int
    recompute: Recompute

    @property
    def devices(self) -> int:
        """Of the stage."""
        return self.tensor * self.context * self.data

    @property
    def name(self) -> str:
        """In a few words, sizes of 1 left out.

        Examples
        --------
        >>> Way(2, 1, 4, 8, 1, Recompute(granularity="full")).name
        'TP2 DP4 EP8 full'
        """
        sizes = {"TP": self.tensor, "CP": self.context, "DP": self.data, "EP": self.expert, "ETP": self.expert_tensor}
        words = [f"{name}{size}" for name, size in sizes.items() if size > 1]
        return " ".join([*words, *recomputed_words(self.recompute)]) or "one device"

    def stage(self, first_device: int, chunks: tuple[Chunk, ...]) -> Stage:
        """A stage that is run this way."""
        return Stage(
            first_device=first_device,
            devices=self.devices,
            chunks=chunks,
            tensor_parallel=self.tensor,
            context_parallel=self.context,
            data_parallel=self.data,
            expert_parallel=self.expert,
            expert_tensor_parallel=self.expert_tensor,
            recompute=self.recompute,
        )


def recomputed_words(recompute: Recompute) -> list[str]:
    """What is computed again, as words; empty if nothing is."""
    if recompute.granularity == "none":
        return []
    return ["full"] if recompute.granularity == "full" else ["+".join(recompute.modules)]


class Freedom(NamedTuple):
    """What the ways of a search may differ in; every restriction may cost the best plan.

    Attributes
    ----------
    expert, expert_tensor : int
        Frozen sizes, as far as they divide the devices and experts; 0 = free.
    recomputes : tuple of Recompute
        From nothing to everything.
    """

    expert: int = 0
    expert_tensor: int = 0
    recomputes: tuple[Recompute, ...] = ()


def recompute_ladder(scenario: Scenario) -> tuple[Recompute, ...]:
    """What a stage may compute again, from nothing to everything; the scenario's own is among it.

    Selective recomputation takes what is cheap to repeat for what it keeps: norms and the activation of experts, the
    up-projections of latent attention, and the core of attention where it is not fused.
    """
    model, software = scenario.model, scenario.training.software
    modules = tuple(_cheap(model, software))
    ladder = [Recompute(), Recompute(granularity="selective", modules=modules), Recompute(granularity="full")]
    own = scenario.plan.stages[0].recompute if scenario.plan.stages else scenario.plan.recompute
    return tuple(ladder if own in ladder or own.num_layers else [*ladder[:2], own, ladder[2]])


def _cheap(model: Model, software: SoftwareStack) -> Iterator[RecomputeModule]:
    if software.attention != "fused":
        yield "core_attn"
    yield "layernorm"
    if model.attention.kind == "mla":
        yield "mla_up_proj"
    if model.moe is not None:
        yield "moe_act"


def ways(scenario: Scenario, devices: int, domain: int, freedom: Freedom) -> Iterator[list[Way]]:
    """Every way to run a stage on so many devices that the model's sizes allow, nothing computed again.

    Parameters
    ----------
    scenario : Scenario
    devices : int
        Of the stage.
    domain : int
        Devices of a scale-up domain, beyond which tensor parallelism is not tried.
    freedom : Freedom

    Yields
    ------
    list of Way
        Those that differ only in how they share experts. Context parallelism leaves at least `LEAST_TOKENS` of a
        sequence on a rank. Experts are cut only inside a scale-up domain (Liu et al. 2025, arXiv 2504.14960, section
        4.3: beyond a node communication takes most of the time).
    """
    length = scenario.training.sequence_length
    longest = max(1, length // LEAST_TOKENS)
    experts = _expert_sizes(scenario.model, devices, domain, freedom)
    for tensor in _tensor_sizes(scenario.model, min(devices, domain)):
        for context in divisors(devices // tensor, longest) if devices % tensor == 0 else ():
            if length % (2 * context * tensor) == 0:
                data = devices // (tensor * context)
                yield [Way(tensor, context, data, *pair, Recompute()) for pair in experts]


@cache
def _tensor_sizes(model: Model, most: int) -> tuple[int, ...]:
    """Tensor-parallel sizes that heads and MLPs allow."""
    attention = model.attention
    heads = attention.num_heads if attention.kind == "mla" else attention.num_kv_heads
    shared = model.moe.shared_expert_ffn_hidden_size if model.moe else 0
    dense = any(not layer.moe for layer in model.layers)
    return tuple(
        size
        for size in divisors(attention.num_heads, most)
        if (heads % size == 0 or size % heads == 0)
        and shared % size == 0
        and not (dense and model.ffn_hidden_size % size)
    )


def _expert_sizes(model: Model, devices: int, domain: int, freedom: Freedom) -> list[tuple[int, int]]:
    """Expert-parallel and expert-tensor-parallel sizes."""
    moe = model.moe
    if moe is None:
        return [(1, 1)]
    sizes = [
        (expert, cut)
        for expert in divisors(moe.num_experts, devices)
        for cut in divisors(moe.moe_ffn_hidden_size, domain if expert < domain else 1)
        if devices % (expert * cut) == 0 and (cut == 1 or expert * cut <= domain)
    ]
    if not freedom.expert:
        return sizes
    # A stage of fewer devices than the frozen group comes as near to it as it can.
    fixed = [pair for pair in sizes if pair[0] <= freedom.expert and pair[1] <= max(freedom.expert_tensor, 1)]
    return [max(fixed)]
