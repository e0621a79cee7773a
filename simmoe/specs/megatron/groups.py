"""Which ranks form a group, in either of Megatron's orders of ranks."""

from collections.abc import Mapping
from math import prod

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
MAPPED_ORDER = "tp-cp-ep-pp-dp"  # --use-tp-pp-dp-mapping


def rank_groups(sizes: Mapping[str, int], kind: str, order: str = DEFAULT_ORDER) -> list[list[int]]:
    """The ranks of each group of a kind, ascending.

    Parameters
    ----------
    sizes : mapping
        Of each dimension, by its name in the order; those that are left out are 1. Of the dense part tp, cp, dp, pp; of
        the experts tp (expert tensor parallel), ep, dp (expert data parallel), pp.
    kind : str
        One dimension, or several joined by a dash.
    order : str
        Dimensions, the fastest first.

    References
    ----------
    Megatron-Core 0.19.2 (PyPI, Apache-2.0), ``parallel_state.RankGenerator``.

    Examples
    --------
    Eight ranks of two stages with tensor-parallel pairs: data-parallel ranks stand two apart inside a stage.

    >>> sizes = {"tp": 2, "dp": 2, "pp": 2}
    >>> rank_groups(sizes, "dp"), rank_groups(sizes, "pp")
    ([[0, 2], [1, 3], [4, 6], [5, 7]], [[0, 4], [1, 5], [2, 6], [3, 7]])
    """
    names = order.split("-")
    extents = [sizes.get(name, 1) for name in names]
    wanted = set(kind.split("-"))
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(extents)):
        left, outside = rank, []
        for name, extent in zip(names, extents, strict=True):
            left, place = divmod(left, extent)
            if name not in wanted:
                outside.append(place)
        groups.setdefault(tuple(outside), []).append(rank)
    # Groups are numbered by the dimensions outside them, the fastest of the order first.
    return [groups[key] for key in sorted(groups, key=lambda key: key[::-1])]


def orders_agree(dense: Mapping[str, int], experts: Mapping[str, int]) -> bool:
    """Whether both orders put every rank into the same groups."""
    kinds = ("tp", "cp", "dp", "pp"), ("tp", "ep", "dp", "pp")
    return all(
        rank_groups(sizes, kind) == rank_groups(sizes, kind, MAPPED_ORDER)
        for sizes, names in zip((dense, experts), kinds, strict=True)
        for kind in names
    )
