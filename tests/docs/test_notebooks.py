"""The notebooks run from top to bottom, are what their Python sources say, and are kept without outputs."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("jupytext", reason="no jupytext, which reads notebooks: pip install -e .[notebooks]")
from tools.notebooks import FOLDER, notebook_text, sources

SECONDS = 60  # of processor time, so that a busy machine makes no difference
SOURCES = sources()
SYNC = "run: python -m tools.notebooks"


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Jupyter keeps its own files in a folder that goes, and reads no settings of whoever runs the tests."""
    with TemporaryDirectory() as folder:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            monkeypatch.setenv(name, str(Path(folder) / name.lower()))
        yield


def execute(text: str, folder: Path) -> list[dict]:
    """The outputs of a notebook that is run in a folder; raises what a cell raises."""
    pytest.importorskip("ipykernel", reason="no ipykernel, which runs notebooks: pip install -e .[notebooks]")
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.reads(text, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, kernel_name="python3", timeout=240, resources=resources).execute()
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def children_s() -> float:
    """Processor time of all processes that were started and have ended [s]."""
    times = os.times()
    return times.children_user + times.children_system


def test_there_are_notebooks_and_their_names_say_in_which_order_to_read_them() -> None:
    assert SOURCES
    assert [one.stem for one in SOURCES if not re.fullmatch(r"\d\d_[a-z0-9_]+", one.stem)] == []
    numbers = [one.stem[:2] for one in SOURCES]
    assert len(set(numbers)) == len(numbers), f"two notebooks have one number: {numbers}"


def test_every_notebook_has_a_source() -> None:
    names = {path.stem for path in FOLDER.glob("*.ipynb")}
    assert names == {path.stem for path in SOURCES}, SYNC


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_is_what_its_source_says(source: Path) -> None:
    assert source.with_suffix(".ipynb").read_text(encoding="utf-8") == notebook_text(source), SYNC


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(source: Path) -> None:
    cells = json.loads(source.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == [], SYNC


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(source: Path, tmp_path: Path) -> None:
    """In an empty folder: it finds its data wherever it is run, and has nothing to complain about."""
    before = children_s()
    outputs = execute(source.with_suffix(".ipynb").read_text(encoding="utf-8"), tmp_path)
    took = children_s() - before
    assert [output["text"] for output in outputs if output.get("name") == "stderr"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs), "it shows no picture"
    assert took < SECONDS, f"{took:.0f} s"
    assert list(tmp_path.iterdir()) == [], "it leaves files behind"


@pytest.mark.usefixtures("elsewhere")
def test_a_cell_that_fails_fails_the_run(tmp_path: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    (tmp_path / "wrong.py").write_text("# %%\n1 / 0\n", encoding="utf-8")
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        execute(notebook_text(tmp_path / "wrong.py"), tmp_path)


def test_equal_sources_give_equal_notebooks_without_outputs(tmp_path: Path) -> None:
    """Whatever the head of the file says, which Jupyter rewrites."""
    cells = '# %% [markdown]\n# Words.\n\n# %% tags=["wide"]\nprint(1)\n'
    (tmp_path / "bare.py").write_text(cells, encoding="utf-8")
    head = "# ---\n# jupyter:\n#   jupytext:\n#     formats: ipynb,py:percent\n# ---\n\n"
    (tmp_path / "head.py").write_text(head + cells, encoding="utf-8")
    text = notebook_text(tmp_path / "bare.py")
    assert text == notebook_text(tmp_path / "head.py")
    words, code = json.loads(text)["cells"]
    assert (words["source"], code["source"], code["outputs"]) == (["Words."], ["print(1)"], [])
    assert code["metadata"] == {"tags": ["wide"]}
