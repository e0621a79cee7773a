"""Run every consistency rule that is known for a kind of spec."""

from simmoe.specs import faults_rules, hardware_rules, model_rules, plan_rules, routing_rules, stage_rules, zebra_rules
from simmoe.specs.base import Spec
from simmoe.specs.document import Document, Path, Problem
from simmoe.specs.rules import RULES, Rule

# Importing the rules registered them; naming the modules here keeps the imports honest.
_MODULES = (faults_rules, hardware_rules, model_rules, plan_rules, routing_rules, stage_rules, zebra_rules)


def run(kind: str, spec: Spec, document: Document, path: Path = ()) -> list[Problem]:
    """Every problem that the rules of a kind find in a spec.

    Parameters
    ----------
    kind : str
        ``link``, ``node``, ``cluster``, ``model``, ``plan``, ``scenario`` (before expansion) or
        ``expanded`` (a scenario whose plan has its stages).
    spec : Spec
        Valid by itself; the rules compare its values with each other.
    document : Document
        Where the spec was written.
    path : path
        Where in the document the spec stands.
    """
    return [
        document.problem(path + rule.path, sentence)
        for rule in rules_of(kind)
        if (sentence := rule.check(spec)) is not None
    ]


def rules_of(kind: str) -> tuple[Rule, ...]:
    """The rules of a kind, in the order they are written."""
    return tuple(RULES.get(kind, ()))
