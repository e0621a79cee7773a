"""Mistakes that the rules of the router balance answer, as in `tests.spec_mistakes`."""

ONE_LAYER = "routing={kind: counts, counts: {layers: [{layer: 3, samples: [%s]}]}}"

ROUTING_MISTAKES = [
    (["routing.kind=zipf"], "routing.kind: zipf needs routing.exponent, write for example 0.5"),
    (["routing.kind=counts"], "routing.kind: counts needs routing.counts, name a file"),
    (
        ["routing={kind: dirichlet, concentration: 5, exponent: 1}"],
        "routing.kind: dirichlet does not use routing.exponent, write kind: zipf or power_law or remove it",
    ),
    (
        ["routing={concentration: 5}"],
        "routing.kind: balanced does not use routing.concentration, write kind: dirichlet or remove it",
    ),
    (
        ["model=llama-2-7b", "plan.expert_parallel=1", "routing={kind: zipf, exponent: 1}"],
        "routing.kind: llama-2-7b has no experts (got 'zipf'), write balanced",
    ),
    (
        ["routing.pad_to_capacity=true"],
        "routing.pad_to_capacity: needs routing.capacity_factor, write for example 1.0 there",
    ),
    (
        [ONE_LAYER % "[1, 1, 1, 1, 1, 1, 1, 1, 1]"],
        "routing.counts: expert 8 is counted, the model has 8, take counts of this model",
    ),
    (
        [ONE_LAYER % "[0, 0, 0, 0]"],
        "routing.counts: no expert of layer 3 received a token, remove the layer",
    ),
    (
        ["routing.expert_replicas=8"],
        "routing.expert_replicas: at expert_parallel 8 a rank has room for 7 copies (got 8), write fewer",
    ),
]
