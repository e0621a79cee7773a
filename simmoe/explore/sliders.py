"""Sliders for notebooks: what a scenario does under other values, at once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simmoe.errors import SimmoeError
from simmoe.explore.case import Case
from simmoe.report.html_table import html_table

if TYPE_CHECKING:
    from ipywidgets import VBox


def sliders(case: Case, choices: Mapping[str, Sequence[Any]]) -> "VBox":
    """A slider for each key, and below them the simulated step.

    Parameters
    ----------
    case : Case
    choices : mapping of str to sequence
        Key of the scenario -> its values in order; the first one is shown at first.

    Returns
    -------
    ipywidgets.VBox

    Raises
    ------
    SimmoeError
        If ipywidgets is not installed.
    """
    try:
        from ipywidgets import HTML, SelectionSlider, VBox  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise SimmoeError('sliders need ipywidgets, install them with: pip install "simmoe[notebooks]"') from error
    controls = {
        key: SelectionSlider(
            options=[(str(value), value) for value in values],
            description=key.rpartition(".")[2],
            continuous_update=False,
            style={"description_width": "12em"},
            layout={"width": "40em"},
        )
        for key, values in choices.items()
    }
    answer = HTML()

    def update(_change: object = None) -> None:
        answer.value = shown(case, {key: control.value for key, control in controls.items()})

    for control in controls.values():
        control.observe(update, names="value")
    update()
    return VBox([*controls.values(), answer])


def shown(case: Case, values: Mapping[str, Any]) -> str:
    """The simulated step under some values as HTML; what is wrong with them as a sentence.

    Parameters
    ----------
    case : Case
    values : mapping of str to Any
    """
    try:
        return case.with_(values).simulate()._repr_html_()
    except SimmoeError as error:
        return html_table(["these values cannot be simulated"], [[line] for line in str(error).splitlines()])
