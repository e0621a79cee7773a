"""What must hold for the router balance, alone and beside model and plan."""

from simmoe.specs.rules import rule
from simmoe.specs.scenario import Scenario
from simmoe.specs.text_file import got

# The one number that each kind of skew needs.
_NEEDED = {"zipf": "exponent", "power_law": "exponent", "dirichlet": "concentration", "counts": "counts"}
_REMEDY = {"exponent": "write for example 0.5", "concentration": "write for example 5", "counts": "name a file"}


@rule("scenario", "routing.kind")
def skew_has_its_number(scenario: Scenario) -> str | None:
    """Each kind of skew comes with the number that says how strong it is."""
    kind = scenario.routing.kind
    name = _NEEDED.get(kind)
    if name is None or getattr(scenario.routing, name) is not None:
        return None
    return f"{kind} needs routing.{name}, {_REMEDY[name]}"


@rule("scenario", "routing.kind")
def numbers_are_used(scenario: Scenario) -> str | None:
    """A number of another kind of skew would change nothing; ``kind: balanced`` may switch one off."""
    kind = scenario.routing.kind
    if kind == "balanced" and "kind" in scenario.routing.model_fields_set:
        return None
    for name in dict.fromkeys(_NEEDED.values()):
        if getattr(scenario.routing, name) is not None and _NEEDED.get(kind) != name:
            kinds = " or ".join(other for other, needed in _NEEDED.items() if needed == name)
            return f"{kind} does not use routing.{name}, write kind: {kinds} or remove it"
    return None


@rule("scenario", "routing.kind")
def skew_needs_experts(scenario: Scenario) -> str | None:
    """Only a model with routed experts has a router."""
    if scenario.model.moe is not None or scenario.routing.kind == "balanced":
        return None
    return f"{scenario.model.id} has no experts {got(scenario.routing.kind)}, write balanced"


@rule("scenario", "routing.pad_to_capacity")
def padding_needs_a_capacity(scenario: Scenario) -> str | None:
    """Experts can only be filled up to a capacity that is given."""
    if not scenario.routing.pad_to_capacity or scenario.routing.capacity_factor is not None:
        return None
    return "needs routing.capacity_factor, write for example 1.0 there"


@rule("scenario", "routing.counts")
def counts_fit_the_model(scenario: Scenario) -> str | None:
    """Measured counts name no expert that the model lacks, and every layer received something."""
    counts, moe = scenario.routing.counts, scenario.model.moe
    if counts is None or moe is None:
        return None
    if counts.experts > moe.num_experts:
        return f"expert {counts.experts - 1} is counted, the model has {moe.num_experts}, take counts of this model"
    for layer in counts.layers:
        if not any(any(row) for row in layer.samples):
            return f"no expert of layer {layer.layer} received a token, remove the layer"
    return None


@rule("expanded", "routing.expert_replicas")
def replicas_stand_on_other_ranks(scenario: Scenario) -> str | None:
    """A rank holds no expert twice: its own experts and the copies together are at most all experts."""
    moe, replicas = scenario.model.moe, scenario.routing.expert_replicas
    if moe is None or not replicas:
        return None
    size = max(stage.expert_parallel for stage in scenario.plan.stages)
    most = min(moe.num_experts - moe.num_experts // stage.expert_parallel for stage in scenario.plan.stages)
    if replicas <= most:
        return None
    return f"at expert_parallel {size} a rank has room for {most} copies (got {replicas}), write fewer"
