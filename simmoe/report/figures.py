"""Pictures as files: what all of them share."""

from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simmoe.errors import OutputError, SimmoeError
from simmoe.report.output import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The first entry removes the time of writing, so that equal pictures are equal files.
FORMATS = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
_STYLE: dict[Any, str] = {"svg.hashsalt": "simmoe", "svg.fonttype": "none"}


def check_suffix(path: Path) -> None:
    """Refuse a name whose suffix is no format that can be drawn.

    Parameters
    ----------
    path : Path
        Of the picture.

    Raises
    ------
    OutputError
    """
    if path.suffix not in FORMATS:
        raise OutputError(f"cannot draw {path}: its suffix is none of {', '.join(FORMATS)}; use one")


def new_figure(width: float, height: float) -> "Figure":
    """An empty picture.

    Parameters
    ----------
    width, height : float
        [inch].

    Raises
    ------
    SimmoeError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SimmoeError('a picture needs matplotlib, install it with: pip install "simmoe[plot]"') from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: "Figure", path: Path) -> None:
    """Write a picture; equal pictures give equal bytes.

    Parameters
    ----------
    figure : Figure
    path : Path
        Its suffix is one of `FORMATS`.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    import matplotlib as mpl

    with mpl.rc_context(_STYLE), replacing(path) as temporary:
        figure.savefig(temporary, dpi=150, metadata=FORMATS[path.suffix])


def svg_text(figure: "Figure", name: str) -> str:
    """A picture as the text of an SVG element, for HTML.

    Parameters
    ----------
    figure : Figure
    name : str
        Different for each picture of a page: what the picture names inside itself must not meet another one's.
    """
    import matplotlib as mpl

    with mpl.rc_context({**_STYLE, "svg.hashsalt": f"simmoe {name}"}), StringIO() as text:
        figure.savefig(text, format="svg", metadata=FORMATS[".svg"])
        whole = text.getvalue()
    return whole[whole.index("<svg") :]


def shade(place: int) -> Any:
    """The colour of the n-th thing, of matplotlib's tab10, which most people tell apart.

    Parameters
    ----------
    place : int
    """
    from matplotlib import colormaps

    return colormaps["tab10"](place % 10)
