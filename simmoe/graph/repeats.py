"""Stages that do the same with other layers: most of a pipeline, worked out once and renumbered."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simmoe.graph.schedules import Kind
from simmoe.graph.step_ends import Bucket, StepEnds
from simmoe.graph.template import Template
from simmoe.specs.model import Model
from simmoe.specs.plan import Chunk, Stage

if TYPE_CHECKING:
    from simmoe.cost.operators import Work


class StageWork(NamedTuple):
    """Everything that a rank of a stage does, before it is put in order: fields as in `simmoe.graph.stamp.RankPlan`."""

    templates: dict[tuple[Kind, int], Template]
    ends: StepEnds
    before: Template
    after: Template


class Repeats:
    """The work of the stages met so far, for one model.

    Parameters
    ----------
    model : Model

    Attributes
    ----------
    seconds : dict
        For `simmoe.cost.model.StageCost.share`.
    """

    def __init__(self, model: Model) -> None:
        self.seconds: dict[Hashable, dict[Work, float]] = {}
        self._model = model
        self._known: dict[Hashable, tuple[tuple[int, ...], StageWork]] = {}

    def work(self, stage: Stage, likeness: Hashable, make: Callable[[], StageWork]) -> StageWork:
        """The work of a stage: that of an earlier one with its own layer numbers, or what `make` returns.

        Parameters
        ----------
        stage : Stage
        likeness : hashable
            What its work depends on besides the kinds of its layers.
        make : callable
            Works it out.
        """
        layers = tuple(layer for chunk in stage.chunks for layer in chunk_layers(chunk, self._model))
        key = (tuple(self._kind(chunk) for chunk in stage.chunks), tuple(map(layers.index, layers)), likeness)
        if key not in self._known:
            self._known[key] = layers, make()
        known, work = self._known[key]
        return work if known == layers else renumbered(work, dict(zip(known, layers, strict=True)))

    def _kind(self, chunk: Chunk) -> Hashable:
        """What a chunk is made of."""
        last = self._model.num_layers - 1  # MTP layers are like the last layer
        kinds = tuple(self._model.layer(min(layer, last)) for layer in chunk_layers(chunk, self._model))
        return kinds, chunk.layers, chunk.embedding, chunk.head


def chunk_layers(chunk: Chunk, model: Model) -> tuple[int, ...]:
    """The numbers of the layers of a chunk; MTP layers follow the last layer of the model.

    Examples
    --------
    >>> from simmoe.specs.model import Attention
    >>> model = Model(
    ...     id="tiny", name="tiny", source="", num_layers=6, hidden_size=8, ffn_hidden_size=16, vocab_size=100,
    ...     max_position_embeddings=32, attention=Attention(num_heads=2, num_kv_heads=2, head_dim=4),
    ... )
    >>> chunk_layers(Chunk(first_layer=2, layers=2, mtp_layers=1), model)
    (2, 3, 6)
    """
    plain = range(chunk.first_layer, chunk.first_layer + chunk.layers)
    return (*plain, *range(model.num_layers, model.num_layers + chunk.mtp_layers))


def renumbered(work: StageWork, layers: dict[int, int]) -> StageWork:
    """The same work on other layers.

    Parameters
    ----------
    work : StageWork
    layers : dict of int to int
        Old number of each layer -> new one.
    """

    def buckets(parts: tuple[tuple[int, Bucket], ...]) -> tuple[tuple[int, Bucket], ...]:
        return tuple((step, part._replace(layer=layers.get(part.layer, part.layer))) for step, part in parts)

    return StageWork(
        templates={key: _renumbered(template, layers) for key, template in work.templates.items()},
        ends=work.ends._replace(gathered=buckets(work.ends.gathered), reduced=buckets(work.ends.reduced)),
        before=_renumbered(work.before, layers),
        after=_renumbered(work.after, layers),
    )


def _renumbered(template: Template, layers: dict[int, int]) -> Template:
    """A template with other layer numbers; its other arrays are shared."""
    new = np.arange(max([*layers, -1]) + 2, dtype=np.int32)
    new[list(layers)] = list(layers.values())
    new[-1] = -1  # of what belongs to no layer
    return replace(
        template,
        layer=new[template.layer],
        layer_entry={layers.get(layer, layer): steps for layer, steps in template.layer_entry.items()},
        layer_exit={layers.get(layer, layer): steps for layer, steps in template.layer_exit.items()},
    )
