"""``simmoe models``: the architectures of the catalogue, and their size."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from simmoe.cli.options import AsJson

if TYPE_CHECKING:
    from simmoe.specs.model import Model

app = typer.Typer(help="Look at model architectures: parameters and FLOPs.", no_args_is_help=True)
_USUAL_LENGTH = 4096


@app.command("list")
def list_models(json: AsJson = False) -> None:
    """List the models of the catalogue with their parameters."""
    from simmoe.cli.screen import console, count, table
    from simmoe.cost.parameters import count_parameters
    from simmoe.specs import catalog

    models = [catalog.model(id) for id in catalog.list_ids("model")]
    counts = [count_parameters(model) for model in models]
    if json:
        found = [
            {"id": model.id, "name": model.name, "parameters": size.total, "active_parameters": size.active}
            for model, size in zip(models, counts, strict=True)
        ]
        _print_json(found)
        return
    rows = table(
        "id", "layers", "hidden", "experts", "parameters", "active", "authors say", right="lrrlrrl", grow="authors say"
    )
    for model, size in zip(models, counts, strict=True):
        active = count(size.active) if model.moe else ""
        rows.add_row(
            model.id,
            str(model.num_layers),
            str(model.hidden_size),
            _experts(model),
            count(size.total),
            active,
            model.published_parameters,
        )
    console().print(rows)


def _experts(model: "Model") -> str:
    """How many experts a token visits, of how many."""
    moe = model.moe
    if moe is None:
        return ""
    shared = " + shared" if moe.shared_expert_ffn_hidden_size else ""
    return f"{moe.top_k} of {moe.num_experts}{shared}"


@app.command(short_help="Show parameters and FLOPs of a model.")
def show(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Id of the catalogue, a model file, or a Hugging Face config.json.",
            show_default=False,
        ),
    ],
    sequence_length: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Tokens of a sequence, for FLOPs; {_USUAL_LENGTH} or the model's limit.", show_default=False
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Show a model: parameters by component, total and active, and FLOPs per token."""
    from simmoe.specs import catalog

    found = catalog.model(model)
    length = sequence_length or min(_USUAL_LENGTH, found.max_position_embeddings)
    facts = model_facts(found, length)
    if json:
        _print_json(facts)
        return
    from simmoe.cli.model_report import print_model

    print_model(found, facts)


def model_facts(model: "Model", sequence_length: int) -> dict[str, Any]:
    """What is known of a model, for programs.

    Parameters
    ----------
    model : Model
    sequence_length : int
        Tokens of a sequence, for FLOPs [tokens].
    """
    from simmoe.cost.flops import forward_flops_by_operator, model_flops_per_token
    from simmoe.cost.parameters import count_parameters

    size = count_parameters(model)
    apart = ("norms", "biases", "mtp", "active_experts", "active_biases", "active_mtp")
    return {
        "id": model.id,
        "name": model.name,
        "source": model.source,
        "layers": model.num_layers,
        "moe_layers": model.num_moe_layers,
        "attention": model.attention.kind,
        "parameters": size.total,
        "active_parameters": size.active,
        "exact_parameters": size.exact,
        "published_parameters": model.published_parameters,
        "components": {name: value for name, value in size._asdict().items() if name not in apart},
        "apart": {name: size._asdict()[name] for name in ("norms", "biases", "mtp")},
        "sequence_length": sequence_length,
        "training_flops_per_token": model_flops_per_token(model, sequence_length),
        "training_flops_per_token_with_mtp": model_flops_per_token(model, sequence_length, mtp=True),
        "forward_flops_per_token": forward_flops_by_operator(model, sequence_length),
    }


def _print_json(found: object) -> None:
    import json

    typer.echo(json.dumps(found, indent=2, allow_nan=False))
