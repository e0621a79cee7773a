"""Fixtures that every test may use."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("few", max_examples=25)
settings.register_profile("many", max_examples=200)


def pytest_configure(config: pytest.Config) -> None:
    """Few examples of drawn input in the default suite, many beside the slow tests."""
    settings.load_profile("few" if "not slow" in config.option.markexpr else "many")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--update-golden`` rewrites the recorded timelines."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden/timelines.json")


REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def repository() -> Path:
    """Top folder of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared(repository: Path) -> Path:
    """Folder of reference material (`SIMMOE_SHARED`, or `shared` beside the checkout)."""
    folder = Path(os.environ.get("SIMMOE_SHARED") or repository.parent / "shared")
    if not folder.is_dir():
        pytest.skip(f"no reference material: {folder} is not a folder; set SIMMOE_SHARED")
    return folder
