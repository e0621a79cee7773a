"""Write each notebook of ``notebooks/`` from the Python file of the same name, which is its source.

    python -m tools.notebooks

The files hold cells in jupytext's percent format, so that they can be read, compared and linted like any other code.
Whoever edits in Jupyter brings the cells back first: ``jupytext --to py:percent notebooks/NAME.ipynb``. What is written
has no outputs, and the same source gives the same bytes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def sources(folder: Path = FOLDER) -> list[Path]:
    """The Python files of all notebooks."""
    return sorted(folder.glob("*.py"))


def notebook_text(source: Path) -> str:
    """The notebook that a Python file stands for, as the text of its file.

    Parameters
    ----------
    source : Path
        In the percent format.
    """
    read = json.loads(jupytext.writes(jupytext.read(source), fmt="ipynb"))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {
        "jupytext": {"formats": "ipynb,py:percent"},
        "kernelspec": kernel,
        "language_info": {"name": "python"},
    }
    made = read | {"cells": list(_cells(read["cells"])), "metadata": metadata}
    return json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _cells(cells: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The cells with ids that are no random numbers, and without what Jupyter adds when it runs them."""
    for number, cell in enumerate(cells, start=1):
        clean: dict[str, Any] = {"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else {}
        yield cell | {"id": f"cell-{number}"} | clean


def main() -> None:
    """Write those notebooks that are not as their sources say."""
    for source in sources():
        target, text = source.with_suffix(".ipynb"), notebook_text(source)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
            print(f"wrote {target.relative_to(FOLDER.parent)}")


if __name__ == "__main__":
    main()
