"""What the kernels of an accelerator are taken to reach where only another part was measured."""

import math
from typing import Any

from simmoe.specs.base import Kind, Quantity, Spec, spread_of
from simmoe.specs.hardware import Efficiency

# Relative standard uncertainty that the transfer adds to a number. Rates of one GPU already differ by 6 to 14 %
# (median) between two published stacks and machines; parts of one architecture differ in clocks and power limits on
# top of that: the fitted GEMM fractions of A100 and A40 are 5 % apart, of B200 and GB200 4 %, of B300 and GB300 5 %.
SAME_ARCHITECTURE = 0.10
# H100's fractions predict B200's GEMMs with a median error of 11 %, a standard deviation of 16 %, and always too fast;
# another vendor's kernels are no nearer.
OTHER_ARCHITECTURE = 0.20
# What tells the fits of one table apart.
_LABELS = ("dtype", "kernel", "head_dim", "operator")


def inherited(efficiency: Efficiency, source: str, *, same_architecture: bool) -> Efficiency:
    """The fits of one accelerator as another one may use them: no firmer than derived, and less certain.

    Parameters
    ----------
    efficiency : Efficiency
        The fits of the accelerator that was measured.
    source : str
        Its id, which the notes then name.
    same_architecture : bool
        Whether the heir has the same architecture.

    Returns
    -------
    Efficiency
        The same values; kind `derived` (a guess stays one); spread ``sqrt(spread^2 + added^2)`` with
        `SAME_ARCHITECTURE` or `OTHER_ARCHITECTURE` added.

    Examples
    --------
    A measured fraction that is known to 6 % is known to 11.7 % on another part of the architecture.

    >>> compute = Quantity(value=0.8, unit="1", text="0.8", source="doctest", kind="measured", spread=0.06)
    >>> taken = _widened(compute, "a40", SAME_ARCHITECTURE)
    >>> taken.kind.value, round(taken.spread, 3), taken.note
    ('derived', 0.117, 'taken from a40')
    """
    added = SAME_ARCHITECTURE if same_architecture else OTHER_ARCHITECTURE
    return efficiency.model_copy(
        update={name: tuple(_widened_fit(fit, source, added) for fit in fits) for name, fits in _tables(efficiency)}
    )


def slowed(efficiency: Efficiency, clock: Quantity) -> Efficiency:
    """The fits of an accelerator that holds other clocks in a long step than the one they were taken from.

    Parameters
    ----------
    efficiency : Efficiency
        As `inherited` returns it.
    clock : Quantity
        Clock in a long step over that of the other accelerator [1].

    Returns
    -------
    Efficiency
        Every ``sustained`` times the clock; short runs are not slowed. Each names the source of the clock.

    Examples
    --------
    A rate known to 12 % at clocks known to 5 % is known to 13 %.

    >>> number = lambda text, spread: Quantity(value=float(text), unit="1", text=text, source="doctest",
    ...                                        kind="derived", spread=spread, note="taken from a40")
    >>> slower = _slowed(number("0.8", 0.12), number("0.85", 0.05))
    >>> slower.text, round(slower.spread, 3), slower.note
    ('0.68', 0.13, '0.8 x 0.85, taken from a40')
    """
    return efficiency.with_sustained(lambda sustained: _slowed(sustained, clock))


def _slowed(sustained: Quantity, clock: Quantity) -> Quantity:
    value = sustained.value * clock.value
    changed = {
        "value": value,
        "text": f"{value:.3g}",
        "kind": Kind.GUESS if Kind.GUESS in {sustained.kind, clock.kind} else Kind.DERIVED,
        "source": clock.source,
        "locator": clock.locator,
        "spread": math.hypot(spread_of(sustained), spread_of(clock)),
        "note": f"{sustained.text} x {clock.text}, {sustained.note}",
    }
    return sustained.model_copy(update=changed)


def overlaid(base: Efficiency, own: Efficiency) -> Efficiency:
    """The fits of `own`, and those of `base` that `own` has none for.

    Parameters
    ----------
    base, own : Efficiency
        A fit stands for another one of the same table with the same dtype, kernel and head width, or operator.

    Returns
    -------
    Efficiency
        In the order of `base`, then what only `own` has.
    """
    owned = dict(_tables(own))
    return base.model_copy(
        update={
            name: tuple(({_label(fit): fit for fit in fits} | {_label(fit): fit for fit in owned[name]}).values())
            for name, fits in _tables(base)
        }
    )


def _tables(efficiency: Efficiency) -> list[tuple[str, Any]]:
    return [(name, getattr(efficiency, name)) for name in type(efficiency).model_fields]


def _label(fit: Spec) -> tuple[object, ...]:
    return tuple(getattr(fit, name, None) for name in _LABELS)


def _widened_fit(fit: Spec, source: str, added: float) -> Spec:
    numbers = {name: getattr(fit, name) for name in type(fit).model_fields}
    return fit.model_copy(
        update={name: _widened(n, source, added) for name, n in numbers.items() if isinstance(n, Quantity)}
    )


def _widened(number: Quantity, source: str, added: float) -> Quantity:
    notes = [f"taken from {source}", *([number.note] if number.note else [])]
    return number.model_copy(
        update={
            "kind": Kind.GUESS if number.kind is Kind.GUESS else Kind.DERIVED,
            "spread": math.hypot(spread_of(number), added),
            "note": "; ".join(notes),
            "reviewed": "",
        }
    )
