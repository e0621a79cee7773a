"""Expert counts that were measured."""

from pydantic import Field

from simmoe.specs.base import Index, Spec


class LayerCounts(Spec):
    """What the experts of one layer received.

    Attributes
    ----------
    layer : int
        Model layer, counted from 0; MTP layers follow the last transformer layer.
    samples : tuple of tuple of int
        Token copies that each expert received, one row a micro-batch.
    """

    layer: Index
    samples: tuple[tuple[Index, ...], ...] = Field(min_length=1)


class ExpertCounts(Spec):
    """Measured expert loads, layer by layer.

    Attributes
    ----------
    source : str
        The file or folder they were read from.
    layers : tuple of LayerCounts
        In ascending order of layer.
    """

    source: str = ""
    layers: tuple[LayerCounts, ...] = Field(min_length=1)

    @property
    def experts(self) -> int:
        """Experts of the longest row."""
        return max(len(row) for layer in self.layers for row in layer.samples)

    def of_layer(self, layer: int) -> LayerCounts:
        """The counts of a layer; where it was not measured, the measured layers stand in by turns."""
        for found in self.layers:
            if found.layer == layer:
                return found
        return self.layers[layer % len(self.layers)]
