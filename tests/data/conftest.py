"""What the tests of data share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from simmoe.specs import catalog

DATABASE = Path(__file__).parents[2] / "hardware_db"


@pytest.fixture(scope="module", autouse=True)
def _only_shipped_parts() -> Iterator[None]:
    """Read this checkout, not what a developer keeps in their home folder."""
    patch = pytest.MonkeyPatch()
    patch.setenv("SIMMOE_DATA", str(DATABASE.parent))
    patch.setenv("SIMMOE_HARDWARE_PATH", "")
    patch.setenv("HOME", str(DATABASE))
    catalog.refresh()
    yield
    patch.undo()
    catalog.refresh()
