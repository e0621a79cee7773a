"""The report of `simmoe models show`."""

import re
from typing import Any

from simmoe.cli.screen import bar, console, count, heading, indented, percent, table
from simmoe.specs.model import Model

COMPONENTS = {
    "attention": "attention projections",
    "dense_mlp": "dense MLP",
    "experts": "routed experts",
    "shared_experts": "shared experts",
    "router": "router",
    "embedding": "token embedding",
    "positions": "position embedding",
    "head": "output projection",
    "norms": "norms",
    "biases": "biases",
    "mtp": "multi-token prediction",
}
OPERATORS = {
    "attention.projections": "attention projections",
    "attention.core": "attention scores and values",
    "mlp.dense": "dense MLP",
    "moe.experts": "routed experts",
    "moe.shared": "shared experts",
    "moe.router": "router",
    "mtp.projection": "multi-token prediction",
    "logits": "logits",
}
_WORTH_SAYING = 0.01  # rounding of a printed figure explains less than this [1]
_FACTORS = {"T": 1e12, "B": 1e9, "M": 1e6}


def print_model(model: Model, facts: dict[str, Any]) -> None:
    """Print what `simmoe.cli.models.model_facts` found.

    Parameters
    ----------
    model : Model
    facts : dict
    """
    screen = console()
    screen.print(heading(model.name, f"{model.id}, from {model.source}"), soft_wrap=True)
    screen.print(indented(_about(model)))
    screen.print()
    total = facts["parameters"]
    screen.print(heading("Parameters", "as models are named: weights without norms, biases and MTP"))
    rows = table("", "", "", "", right="lrlr")
    rows.add_row("total", count(total), "", f"{total:,}")
    rows.add_row("active: used by one token", count(facts["active_parameters"]), "", f"{facts['active_parameters']:,}")
    for name, value in facts["components"].items():
        if value:
            rows.add_row(f"  {COMPONENTS[name]}", count(value), bar(value / total), percent(value / total))
    for name, value in facts["apart"].items():
        if value:
            rows.add_row(f"not in the total: {COMPONENTS[name]}", count(value), "", f"{value:,}")
    screen.print(indented(rows))
    if model.published_parameters:
        screen.print(indented(f"The authors state {model.published_parameters} (total / active)."))
    for note in published_notes(model.published_parameters, total, facts["active_parameters"]):
        screen.print(indented(note))
    screen.print()
    _print_flops(facts)


def _print_flops(facts: dict[str, Any]) -> None:
    screen = console()
    length, training = facts["sequence_length"], facts["training_flops_per_token"]
    screen.print(
        heading(
            f"{training / 1e9:.2f} GFLOP to train on one token",
            f"{length:,} tokens a sequence, Megatron-Core's count: 3 forward passes",
        )
    )
    forward = facts["forward_flops_per_token"]
    whole = sum(forward.values())
    rows = table("", "", "", "", right="lrlr")
    for name, flops in sorted(forward.items(), key=lambda item: -item[1]):
        if flops:
            rows.add_row(OPERATORS[name], f"{flops / 1e9:.3f} GFLOP", bar(flops / whole), percent(flops / whole))
    screen.print(indented("Forward pass, by operator:"))
    screen.print(indented(rows))


def _about(model: Model) -> str:
    attention, moe = model.attention, model.moe
    window = f", window {attention.sliding_window:,}" if attention.sliding_window else ""
    latent = attention.kv_lora_rank
    keys = f"keys and values of rank {latent}" if latent else f"{attention.num_kv_heads} for keys and values"
    lines = [
        f"{model.num_layers} layers of width {model.hidden_size:,}; vocabulary {model.vocab_size:,}; "
        f"up to {model.max_position_embeddings:,} tokens",
        f"{attention.kind.upper()} attention: {attention.num_heads} heads of width {attention.qk_dim}, {keys}{window}",
    ]
    if moe is None:
        lines.append(f"dense MLP of width {model.ffn_hidden_size:,}")
    else:
        shared = moe.shared_expert_ffn_hidden_size
        lines.append(
            f"{model.num_moe_layers} MoE layers: {moe.num_experts} experts of width {moe.moe_ffn_hidden_size:,}, "
            f"{moe.top_k} for each token" + (f", shared experts of width {shared:,}" if shared else "")
        )
    if model.mtp_layers:
        lines.append(f"{model.mtp_layers} multi-token-prediction layer(s)")
    return "\n".join(lines)


def published_notes(published: str, total: int, active: int) -> list[str]:
    """Sentences on where the authors' figures differ from the count.

    Parameters
    ----------
    published : str
        Total / active as the authors state them, such as ``46.7B / 12.9B``.
    total, active : int
        The exact count.

    Examples
    --------
    >>> published_notes("46.7B / 12.9B", 46702792704, 12879425536)
    []
    >>> published_notes("30.5B / 3.3B", 30532122624, 3351000000)
    ['The count of active parameters is 1.5 % more.']
    """
    notes = []
    figures = [text.strip() for text in published.split("/")]
    for text, counted, name in zip(figures, (total, active), ("parameters", "active parameters"), strict=False):
        match = re.match(r"~?([\d.]+)\s*([TBM])", text)
        if match is None:
            continue
        error = counted / (float(match[1]) * _FACTORS[match[2]]) - 1
        if abs(error) > _WORTH_SAYING:
            more = "more" if error > 0 else "less"
            notes.append(f"The count of {name} is {percent(abs(error))} {more}.")
    return notes
