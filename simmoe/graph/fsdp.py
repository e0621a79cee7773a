"""Parameters sharded over data-parallel ranks (FSDP, ZeRO-3): gathered before each layer, gradients scattered after.

The gather of a layer is issued when the layer before it starts and waits until the layer two before has ended, so that
two layers are whole at any time (PyTorch FSDP2's implicit prefetch with its rate limiter). One stream carries gathers
and scatters.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from simmoe.cost.gradients import Weights, copy_gathered, gather_parameters, reduce_gradients
from simmoe.cost.groups import GroupShape
from simmoe.cost.operators import Operator
from simmoe.graph.passes import Pass, Step
from simmoe.graph.step_ends import Bucket, between_ranks
from simmoe.graph.template import STREAMS, Template
from simmoe.specs.plan import Plan
from simmoe.specs.workload import Training


class Sharding(NamedTuple):
    """What sharding adds to each layer of a chunk: gathers of parameters, copies of these, scatters of gradients."""

    gathers: dict[int, list[Operator]]
    copies: dict[int, list[Operator]]
    scatters: dict[int, list[Operator]]


def sharding_of(
    buckets: Sequence[Bucket],
    chunk: int,
    plan: Plan,
    training: Training,
    shapes: dict[str, GroupShape],
    *,
    backward: bool,
) -> Sharding:
    """The collectives of the layers of a chunk; a group of one rank has none.

    Parameters
    ----------
    backward : bool
        Of a backward pass: gradients are scattered; parameters are gathered only if they did not stay (zero3).
    """
    own: dict[int, Weights] = {bucket.layer: bucket.weights for bucket in buckets if bucket.chunk == chunk}
    gathered = own if plan.sharding == "zero3" or not backward else {}
    return Sharding(
        {layer: between_ranks(gather_parameters(weights, plan), shapes) for layer, weights in gathered.items()},
        {layer: copy_gathered(weights, training) for layer, weights in gathered.items()},
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


def sharing_the_port(template: Template, shapes: dict[str, GroupShape]) -> Template:
    """Stretch gathers and scatters by the time that other collectives of their layer hold the network port.

    Parameters
    ----------
    template : Template
        A pass with sharded parameters.
    shapes : dict of str to GroupShape
        Placement of the stage's groups: only those that leave their scale-up domain use the port.

    Returns
    -------
    Template
        Expert, context- and tensor-parallel exchanges keep their times, for computation waits for them; the port
        then is busy for the sum of all. Half duplex is a simplification that errs towards slow.
    """
    far = np.array([bool(group) and not shapes[group].local for group in template.groups])
    sharded = far & (template.stream == STREAMS.index("dp"))
    duration = template.duration.copy()
    for layer in np.unique(template.layer[sharded]):
        own = sharded & (template.layer == layer)
        others = far & ~sharded & (template.layer == layer)
        duration[own] *= 1.0 + duration[others].sum() / duration[own].sum()
    return replace(template, duration=duration)


def beside_collectives(template: Template, share: float) -> Template:
    """Stretch what computes while gathers and scatters hold multiprocessors.

    Parameters
    ----------
    template : Template
        A pass with sharded parameters.
    share : float
        Part of the multiprocessors that a collective holds from its start to its end, q [1].

    Returns
    -------
    Template
        While the collectives of a layer run, D in all, its computation, C alone, advances at 1 - q of its rate: it
        takes min(C + q D, C / (1 - q)).

    Examples
    --------
    10 ms of collectives that hold 16 of 108 multiprocessors cost 1.5 ms; beneath 2 ms of work they cost 0.35 ms.

    >>> from simmoe.graph.template import STREAMS as names
    >>> def template(work):
    ...     arrays = dict(stream=np.array([names.index("compute"), names.index("dp")]), layer=np.array([0, 0]))
    ...     unused = dict.fromkeys(("operation", "source", "target", "entry"), np.array([])) | {"tail": ()}
    ...     return Template(duration=np.array([work, 10e-3]), **arrays, **unused)
    >>> [round(1e3 * float(beside_collectives(template(work), 16 / 108).duration[0]), 2) for work in (50e-3, 2e-3)]
    [51.48, 2.35]
    """
    moving, computing = (template.stream == STREAMS.index(name) for name in ("dp", "compute"))
    duration = template.duration.copy()
    for layer in np.unique(template.layer[moving]):
        own = computing & (template.layer == layer)
        alone, beside = duration[own].sum(), duration[moving & (template.layer == layer)].sum()
        duration[own] *= min(1.0 + share * beside / alone, 1.0 / (1.0 - share))
    return replace(template, duration=duration)


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
            after = self.mapped(step.after) + (self.arrived(layer) if layer is not None else ())
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

    def arrived(self, layer: int) -> tuple[int, ...]:
        """Copy the gathered parameters of a layer to where it reads them; what its first step waits for."""
        ready = self.gathered[layer]
        for operator in self.sharding.copies.get(layer, []):
            self.steps.append(Step(operator, "backward" if self.backward else "forward", layer, ready))
            ready = (len(self.steps) - 1,)
        return ready

    def scatter(self, layer: int) -> None:
        """Scatter the gradients of a layer behind its last step."""
        ready = self.mapped(self.passed.layer_exit[layer])
        first = len(self.steps)
        self.steps += [Step(operator, "backward", layer, ready) for operator in self.sharding.scatters.get(layer, [])]
        self.leftover += tuple(range(first, len(self.steps)))
