"""What a user gets from the wheel: the package, its data, and a simulation run from anywhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLE = "scenarios/examples/mixtral-8x7b-64xh100.yaml"
MAIN = "from simmoe.cli.main import main; main()"


def succeed(*command: str | Path, **options: object) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """Folder with the installed wheel, itself built from the sdist, so that both are seen whole."""
    dist, target = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    python = sys.executable
    succeed(python, "-m", "build", "--no-isolation", "--outdir", dist, repository)
    (wheel,) = dist.glob("simmoe-*.whl")
    succeed(python, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel)
    return target


def python_from_root(site: Path, *arguments: str) -> str:
    """Output of Python run in `/` with the installed package first on its path."""
    hidden = ("SIMMOE_DATA", "SIMMOE_HARDWARE_PATH")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    return succeed(sys.executable, *arguments, cwd="/", env=environment | {"PYTHONPATH": str(site)})


def data_files(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for name in ("hardware_db", "scenarios")
        for path in (folder / name).rglob("*")
        if path.is_file()
    }


def test_the_installed_package_is_the_one_tested(site: Path) -> None:
    where = python_from_root(site, "-c", "import simmoe; print(simmoe.__file__)").strip()
    assert Path(where) == site / "simmoe" / "__init__.py"


def test_every_data_file_is_in_the_wheel(site: Path, repository: Path) -> None:
    assert data_files(site / "simmoe" / "_data") == data_files(repository)


def test_the_licence_is_in_the_wheel(site: Path) -> None:
    assert list(site.glob("simmoe-*.dist-info/licenses/LICENSE"))


def test_an_installed_scenario_runs_from_any_folder(site: Path) -> None:
    scenario = site / "simmoe" / "_data" / EXAMPLE
    result = json.loads(python_from_root(site, "-c", MAIN, "simulate", str(scenario), "--json", "-"))
    assert result["step_time_s"] > 0
