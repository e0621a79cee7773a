"""Every example in a docstring of the package gives what it says."""

import doctest
import importlib
import pkgutil

import pytest

import simmoe

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(simmoe.__path__, "simmoe.")
    if not module.name.startswith("simmoe._data") and module.name != "simmoe.__main__"
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert failed == 0, f"{failed} examples of {name} fail; see the captured output"


def test_examples_are_found() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = finder.find(importlib.import_module("simmoe.units"))
    assert sum(bool(test.examples) for test in found) >= 2
