"""The house: who may import whom, who may print, who may touch files, what a `--help` costs."""

import ast
import fnmatch
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

# Only these touch files: the readers of specs, the writers of results, and the command line.
FILE_TOUCHERS = (
    "simmoe/specs/*reader*.py",
    "simmoe/specs/*_file.py",
    "simmoe/calibration/*_file.py",
    "simmoe/specs/data_folders.py",
    "simmoe/report/*.py",
    "simmoe/cli/*.py",
)
FILE_CALLS = {
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "loadtxt", "genfromtxt",
    "savetxt", "savez", "fromfile", "tofile", "savefig", "unlink", "mkdir",
}  # fmt: skip
PRINTERS = ("simmoe/cli/*.py",)
HEAVY = {"numpy", "pandas", "scipy", "matplotlib", "pydantic", "simpy"}


# ---------------------------------------------------------------- imports


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_layers_are_kept(repository: Path) -> None:
    result = lint_imports(repository)
    assert result.returncode == 0, result.stdout + result.stderr
    assert " 0 broken" in result.stdout


# A package of the same shape that obeys every contract.
SKELETON = {
    "__init__": "",
    "errors": "",
    "units": "from simmoe import errors",
    "specs/__init__": "",
    "specs/model": "import pydantic\nfrom simmoe import units",
    "specs/reader": "import pathlib\nimport ruamel.yaml\nfrom simmoe.specs import model",
    "cost/__init__": "",
    "cost/flops": "import numpy\nfrom simmoe.specs import model",
    "graph/__init__": "",
    "graph/task": "import numpy\nfrom simmoe import errors",
    "graph/fluid": "import numpy\nfrom simmoe.graph import task",
    "graph/build": "from simmoe.cost import flops\nfrom simmoe.graph import task",
    "engine/__init__": "",
    "engine/reference": "import simpy\nfrom simmoe.graph import task",
    "report/__init__": "",
    "report/metrics": "from simmoe.engine import reference\nfrom simmoe.specs import model",
    "pipeline": "from simmoe.graph import build\nfrom simmoe.report import metrics",
    "cli/__init__": "",
    "cli/main": "import rich\nimport typer\nfrom simmoe import pipeline",
}


def skeleton(folder: Path, repository: Path, **extra: str) -> Path:
    """Write the skeleton, with lines or modules added by `extra`, under the real contracts."""
    config = (repository / "pyproject.toml").read_text(encoding="utf-8")
    (folder / "pyproject.toml").write_text(config, encoding="utf-8")
    for name in SKELETON | extra:
        file = folder / "simmoe" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [SKELETON.get(name, ""), extra.get(name, "")]
        file.write_text("\n".join(lines), encoding="utf-8")
    return folder


def test_the_contracts_accept_the_intended_shape(tmp_path: Path, repository: Path) -> None:
    result = lint_imports(skeleton(tmp_path, repository))
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("contract", "module", "source"),
    [
        ("data flows one way, up", "cost/flops", "import simmoe.graph.task"),
        ("data flows one way, up", "planners/__init__", "import simmoe.calibration"),
        ("data flows one way, up", "pipeline", "import simmoe.explore"),
        ("data flows one way, up", "newcomer", ""),
        ("the engine is blind", "engine/reference", "import simmoe.specs.model"),
        ("the engine is blind", "engine/reference", "import simmoe.graph.build"),
        ("the words shared by graph and engine", "graph/task", "import simmoe.units"),
        ("the words shared by graph and engine", "graph/fluid", "import simmoe.specs.model"),
        ("only the engine imports SimPy", "planners/search", "import simpy"),
        ("typer and rich only in cli", "report/tables", "from rich import table"),
        ("the cost layer is algebra", "cost/flops", "import json"),
        ("the cost layer is algebra", "cost/flops", "import simmoe.specs.reader"),
    ],
)
def test_a_contract_is_able_to_fail(tmp_path: Path, repository: Path, contract: str, module: str, source: str) -> None:
    optional = {f"{name}/__init__": "" for name in ("explore", "planners", "calibration")}
    result = lint_imports(skeleton(tmp_path, repository, **(optional | {module: source})))
    broken = [line for line in result.stdout.splitlines() if line.endswith("BROKEN")]
    assert any(line.startswith(contract) for line in broken), result.stdout + result.stderr


# ---------------------------------------------------------------- printing and files


def prints(node: ast.AST) -> bool:
    """A call of `print`, or a mention of a standard stream."""
    match node:
        case ast.Call(func=ast.Name(id="print")):
            return True
        case ast.Attribute(value=ast.Name(id="sys"), attr="stdout" | "stderr" | "stdin"):
            return True
    return False


def touches_files(node: ast.AST) -> bool:
    """A call that by its name opens, reads or writes a file."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in FILE_CALLS
    return False


def offences(sources: dict[str, str], test: Callable[[ast.AST], bool], allowed: tuple[str, ...]) -> Iterator[str]:
    """`file:line` of every node that passes `test` in a file that is not `allowed` to hold one."""
    for name, source in sources.items():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in allowed):
            yield from (f"{name}:{n.lineno}" for n in ast.walk(ast.parse(source)) if test(n))


@pytest.fixture(scope="module")
def sources(repository: Path) -> dict[str, str]:
    """Text of every file of the package by its name in the repository."""
    files = sorted((repository / "simmoe").rglob("*.py"))
    return {f.relative_to(repository).as_posix(): f.read_text(encoding="utf-8") for f in files}


def test_only_the_command_line_prints(sources: dict[str, str]) -> None:
    assert list(offences(sources, prints, PRINTERS)) == []


def test_only_readers_writers_and_the_command_line_touch_files(sources: dict[str, str]) -> None:
    assert list(offences(sources, touches_files, FILE_TOUCHERS)) == []


def test_printing_and_file_access_are_found() -> None:
    source = "import sys\nprint(1)\nsys.stderr.write('')\nopen('a')\npath.read_text()\n"
    sources = {"simmoe/cost/a.py": source, "simmoe/cli/a.py": source}
    found = list(offences(sources, prints, PRINTERS))
    assert found == ["simmoe/cost/a.py:2", "simmoe/cost/a.py:3"]
    found = list(offences(sources, touches_files, FILE_TOUCHERS))
    assert found == ["simmoe/cost/a.py:4", "simmoe/cost/a.py:5"]


# ---------------------------------------------------------------- what a --help costs

HELP = """
import sys
sys.argv = ["simmoe", "--help"]
from simmoe.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write("\\n".join(sorted(name for name in sys.modules if "." not in name)))
"""


def test_help_imports_nothing_heavy() -> None:
    result = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "simulate" in result.stdout
    assert HEAVY.intersection(result.stderr.split()) == set()
