"""SimMoE: how fast a Mixture-of-Experts training plan runs on a cluster of unlike GPUs, and whether it fits.

======================  =====================================================================
`load_scenario`         read a scenario file, with overrides
`run`                   simulate one training iteration of a scenario
`load`                  a scenario for notebooks: change it, simulate, compare, sweep
======================  =====================================================================
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["load", "load_scenario", "run"]

_HOMES = {"load": "simmoe.explore.case", "load_scenario": "simmoe.specs.reader", "run": "simmoe.pipeline"}


def __getattr__(name: str) -> Any:
    """Import the public functions on first use, so that the command line starts quickly."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'simmoe' has no attribute {name!r}")
