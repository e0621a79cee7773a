"""Parameters sharded over data-parallel ranks (FSDP, ZeRO-3): gathered before each layer, gradients scattered after.

The gather of a layer is issued when the layer before it starts and waits until the layer two before has ended, so that
two layers are whole at any time (PyTorch FSDP2's implicit prefetch with its rate limiter). One stream carries gathers
and scatters.
"""

from collections.abc import Sequence
from typing import NamedTuple

from simmoe.cost.gradients import Weights, gather_parameters, reduce_gradients
from simmoe.cost.groups import GroupShape
from simmoe.cost.operators import Operator
from simmoe.graph.passes import Pass, Step
from simmoe.graph.step_ends import Bucket, between_ranks
from simmoe.specs.plan import Plan
from simmoe.specs.workload import Training


class Sharding(NamedTuple):
    """The collectives of each layer of a chunk: what gathers its parameters, what scatters its gradients."""

    gathers: dict[int, list[Operator]]
    scatters: dict[int, list[Operator]]


def sharding_of(
    buckets: Sequence[Bucket], chunk: int, plan: Plan, training: Training, shapes: dict[str, GroupShape]
) -> Sharding:
    """The collectives of the layers of a chunk; a group of one rank has none."""
    own: dict[int, Weights] = {bucket.layer: bucket.weights for bucket in buckets if bucket.chunk == chunk}
    return Sharding(
        {layer: between_ranks(gather_parameters(weights, plan), shapes) for layer, weights in own.items()},
        {layer: between_ranks(reduce_gradients(weights, plan, training), shapes) for layer, weights in own.items()},
    )


def with_sharded_parameters(passed: Pass, sharding: Sharding, *, backward: bool) -> Pass:
    """Add the gathers, and in a backward pass the scatters, of sharded parameters.

    Parameters
    ----------
    passed : Pass
        A whole forward or backward pass.
    sharding : Sharding
        Of its chunk.
    backward : bool
        Gradients are scattered layer by layer.

    Returns
    -------
    Pass
        `leftover` holds the scatters, which only the optimizer waits for.

    References
    ----------
    Zhao et al. 2023, PyTorch FSDP, arXiv 2304.11277, sections 3.3 and 4; Rajbhandari et al. 2020, arXiv 1910.02054.
    """
    return _Sharded(passed, sharding, backward=backward).run()


class _Sharded:
    """Copies a pass step by step and adds collectives at the edges of its layers."""

    def __init__(self, passed: Pass, sharding: Sharding, *, backward: bool) -> None:
        self.passed, self.sharding, self.backward = passed, sharding, backward
        self.order = list(passed.layer_entry)
        self.starts = {steps[0]: layer for layer, steps in passed.layer_entry.items()}
        self.ends = {max(steps): layer for layer, steps in passed.layer_exit.items()}
        self.steps: list[Step] = []
        self.number: dict[int, int] = {}
        self.gathered: dict[int, tuple[int, ...]] = {}
        self.leftover: tuple[int, ...] = ()

    def run(self) -> Pass:
        """The pass with its collectives."""
        if self.order:
            self.gather(0)
        for position, step in enumerate(self.passed.steps):
            layer = self.starts.get(position)
            if layer is not None:
                self.gather(self.order.index(layer) + 1)
            after = self.mapped(step.after) + (self.gathered[layer] if layer is not None else ())
            self.number[position] = len(self.steps)
            self.steps.append(step._replace(after=after))
            if self.backward and position in self.ends:
                self.scatter(self.ends[position])
        return Pass(
            steps=tuple(self.steps),
            tail=self.mapped(self.passed.tail),
            layer_entry={layer: self.mapped(steps) for layer, steps in self.passed.layer_entry.items()},
            layer_exit={layer: self.mapped(steps) for layer, steps in self.passed.layer_exit.items()},
            leftover=self.leftover,
        )

    def mapped(self, steps: tuple[int, ...]) -> tuple[int, ...]:
        """Steps of the pass as they are numbered now."""
        return tuple(self.number[step] for step in steps)

    def gather(self, place: int) -> None:
        """Gather the parameters of a layer, by its place in the pass, once there is room for them."""
        if place >= len(self.order):
            return
        layer = self.order[place]
        room = self.mapped(self.passed.layer_exit[self.order[place - 2]]) if place > 1 else ()
        first = len(self.steps)
        self.steps += [
            Step(operator, "backward" if self.backward else "forward", layer, room)
            for operator in self.sharding.gathers.get(layer, [])
        ]
        self.gathered[layer] = tuple(range(first, len(self.steps)))

    def scatter(self, layer: int) -> None:
        """Scatter the gradients of a layer behind its last step."""
        ready = self.mapped(self.passed.layer_exit[layer])
        first = len(self.steps)
        self.steps += [Step(operator, "backward", layer, ready) for operator in self.sharding.scatters.get(layer, [])]
        self.leftover += tuple(range(first, len(self.steps)))
