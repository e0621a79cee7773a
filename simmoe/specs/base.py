"""What every spec shares: frozen models, strict sizes, and numbers that carry their source."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from simmoe import units
from simmoe.errors import UnitError


class Spec(BaseModel):
    """A frozen, validated description; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class Kind(StrEnum):
    """Where a number comes from, from the firmest to the weakest."""

    DATASHEET = "datasheet"
    PAPER = "paper"
    MEASURED = "measured"
    DERIVED = "derived"
    GUESS = "guess"


# Relative standard uncertainty of a number whose file states none, by how firm it is; guesses themselves.
DEFAULT_SPREAD = {
    Kind.DATASHEET: 0.05,
    Kind.PAPER: 0.10,
    Kind.MEASURED: 0.10,
    Kind.DERIVED: 0.20,
    Kind.GUESS: 0.30,
}


class Quantity(Spec):
    """One number with everything needed to check it.

    Attributes
    ----------
    value : float
        The number in SI units.
    unit : str
        The SI unit of `value`.
    text : str
        The number as the file states it, for people.
    source : str
        A key of ``hardware_db/sources.yaml``.
    locator : str
        Where in the source: table, column, section, file.
    kind : Kind
        How firm the number is.
    note : str
        What was assumed or corrected.
    spread : float or None
        Relative standard uncertainty, where the source allows one to be stated [1].
    alternatives : tuple of str
        What other sources say instead.
    reviewed : str
        The second source that confirms the number; empty = unreviewed.
    """

    value: float
    unit: str
    text: str
    source: str
    locator: str = ""
    kind: Kind
    note: str = ""
    spread: float | None = Field(default=None, ge=0)
    alternatives: tuple[str, ...] = ()
    reviewed: str = ""

    def __float__(self) -> float:
        return self.value


def spread_of(quantity: Quantity) -> float:
    """The stated relative standard uncertainty, else the default of the kind [1].

    Examples
    --------
    >>> spread_of(Quantity(value=0.8, unit="1", text="0.8", source="doctest", kind="derived"))
    0.2
    """
    return quantity.spread if quantity.spread is not None else DEFAULT_SPREAD[quantity.kind]


def _read_quantity(dimension: str) -> Callable[[Any], Any]:
    def read(raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        if "value" not in raw:
            raise ValueError("a number needs value, source and kind, add value")
        text = raw["value"]
        try:
            value = units.parse(text, dimension)
        except UnitError as error:
            raise ValueError(str(error)) from error
        return {**raw, "value": value, "unit": dimension, "text": str(text)}

    return read


def _read_plain(dimension: str) -> Callable[[Any], Any]:
    def read(raw: Any) -> Any:
        if isinstance(raw, float) and dimension != "1":
            return raw  # already SI: built by a program, not read from a file
        try:
            return units.parse(raw, dimension)
        except UnitError as error:
            raise ValueError(str(error)) from error

    return read


Positive = Field(gt=0)

# Numbers of the hardware database: a mapping with value, source and kind.
SourcedBytes = Annotated[Quantity, BeforeValidator(_read_quantity("B"))]
SourcedBandwidth = Annotated[Quantity, BeforeValidator(_read_quantity("B/s"))]
SourcedFlops = Annotated[Quantity, BeforeValidator(_read_quantity("FLOP/s"))]
SourcedSeconds = Annotated[Quantity, BeforeValidator(_read_quantity("s"))]
SourcedWatts = Annotated[Quantity, BeforeValidator(_read_quantity("W"))]
SourcedPrice = Annotated[Quantity, BeforeValidator(_read_quantity("USD/h"))]
SourcedNumber = Annotated[Quantity, BeforeValidator(_read_quantity("1"))]
SourcedSqrt = Annotated[Quantity, BeforeValidator(_read_quantity("s/sqrt(B)"))]

# Numbers a user writes in a scenario: the string alone.
_AS_FLOAT = PlainSerializer(float, return_type=float)
Bandwidth = Annotated[float, BeforeValidator(_read_plain("B/s")), Positive, _AS_FLOAT]
Seconds = Annotated[float, BeforeValidator(_read_plain("s")), Field(ge=0), _AS_FLOAT]
ByteCount = Annotated[float, BeforeValidator(_read_plain("B")), Positive, _AS_FLOAT]

# Sizes: whole numbers; "8", 8.0 and true are not.
Count = Annotated[int, Field(strict=True, gt=0)]
Index = Annotated[int, Field(strict=True, ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]
