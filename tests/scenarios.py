"""Scenarios for tests: one small file, changed by overrides as on the command line."""

from pathlib import Path

from simmoe.specs.reader import load_scenario
from simmoe.specs.scenario import Scenario

SMALL = Path(__file__).parent / "files" / "mixtral-16xh100.yaml"
ZEBRA = SMALL.with_name("zebra-8xh100-8xa100.yaml")


def small(*overrides: str) -> Scenario:
    """Mixtral 8x7B with 8 layers on two DGX H100, pp 2, ep 8, 8 micro-batches."""
    return load_scenario(SMALL, overrides)


def zebra(*overrides: str) -> Scenario:
    """Mixtral 8x7B with 4 layers: two zebra groups of 4 H100 and 4 A100, R = 2, two passes."""
    return load_scenario(ZEBRA, overrides)
