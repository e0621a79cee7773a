"""Errors on their way from a worker process to the screen."""

import pickle

from simmoe.errors import SpecError


def test_an_error_of_a_worker_arrives_as_it_was_raised():
    """Expectation: each problem a line; Actual without care: each character, for the text is taken for the list."""
    raised = SpecError(["one: is wrong, write 1", "two: is wrong, write 2"])
    arrived = pickle.loads(pickle.dumps(raised))
    assert arrived.problems == raised.problems
    assert str(arrived) == str(raised)
