"""From a row of a throughput table to its model: sizes from the columns, details from the catalogue."""

from functools import cache
from typing import Any

from simmoe.specs import catalog
from simmoe.specs.model import Attention, Model, MoE
from simmoe.specs.throughput_table_reader import TableRow


def model_of(row: TableRow) -> Model:
    """The architecture that the columns give, with the details of the catalogue's model of that shape.

    Parameters
    ----------
    row : TableRow
        With its layers, width, heads and vocabulary; other columns may be empty.
    """
    attention, moe = _attention(row), _moe(row)
    twin = _twin(row.whole("hidden_size") or 0, attention, moe)
    fields: dict[str, Any] = {
        "id": row.text("model"),
        "name": row.text("model"),
        "source": row.text("source_url"),
        "num_layers": row.whole("num_layers"),
        "hidden_size": row.whole("hidden_size"),
        "ffn_hidden_size": row.whole("ffn_hidden_size") or row.whole("moe_ffn_hidden_size"),
        "vocab_size": row.whole("vocab_size"),
        "max_position_embeddings": max(row.whole("seq_len") or 1, twin.max_position_embeddings if twin else 1),
        "attention": attention,
        "moe": moe,
        "gated_mlp": row.switch("gated_mlp") is not False,
        "tied_embeddings": row.switch("tied_embeddings") or False,
        "mtp_layers": row.whole("mtp_layers") or 0,
    }
    if twin is None:
        return Model(**fields)
    fields["attention"] = attention.model_copy(update=_details(twin.attention, _ATTENTION_DETAILS))
    if moe is not None and twin.moe is not None:
        wanted = _MOE_DETAILS if moe.num_experts == twin.moe.num_experts else _MOE_DETAILS[:3]
        fields["moe"] = moe.model_copy(update=_details(twin.moe, wanted))
    return Model(**fields, **_details(twin, _MODEL_DETAILS))


def known_vocabulary(row: TableRow) -> int | None:
    """Rows of the embedding of the catalogue's model whose layers have the row's sizes; None if there is none."""
    twin = _twin(row.whole("hidden_size") or 0, _attention(row), _moe(row))
    return twin.vocab_size if twin else None


# Details that tables do not give.
_ATTENTION_DETAILS = ("bias", "output_bias", "qk_norm", "sinks")
_MOE_DETAILS = ("shared_expert_gate", "router_bias", "clamped", "group_limit", "num_groups")
_MODEL_DETAILS = ("learned_positions", "mlp_bias", "norm_bias", "norms_per_layer")


def _details(spec: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in names}


def _attention(row: TableRow) -> Attention:
    heads, hidden = row.whole("num_heads") or 1, row.whole("hidden_size") or 1
    nope, rope = row.whole("qk_nope_head_dim") or 0, row.whole("qk_rope_head_dim") or 0
    window = row.whole("sliding_window")
    return Attention(
        num_heads=heads,
        num_kv_heads=row.whole("num_kv_heads") or heads,
        head_dim=row.whole("head_dim") or nope + rope or hidden // heads,
        q_lora_rank=row.whole("q_lora_rank") or 0,
        kv_lora_rank=row.whole("kv_lora_rank") or 0,
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=row.whole("v_head_dim") or 0,
        sliding_window=window,
        window_period=2 if window else 1,
    )


def _moe(row: TableRow) -> MoE | None:
    experts, top_k, width = row.whole("num_experts"), row.whole("top_k"), row.whole("moe_ffn_hidden_size")
    if experts is None or top_k is None or width is None:
        return None
    return MoE(
        num_experts=experts,
        top_k=top_k,
        moe_ffn_hidden_size=width,
        shared_expert_ffn_hidden_size=row.whole("shared_expert_ffn") or 0,
        first_dense_layers=row.whole("first_dense_layers") or 0,
        layer_period=row.whole("moe_layer_period") or 1,
    )


@cache
def _twin(hidden_size: int, attention: Attention, moe: MoE | None) -> Model | None:
    """The first model of the catalogue whose layers have these sizes, whatever its depth and expert count."""
    for name in catalog.list_ids("model"):
        model = catalog.model(name)
        other = model.attention
        same = model.hidden_size == hidden_size and other.kind == attention.kind
        same = same and (other.num_heads, other.num_kv_heads) == (attention.num_heads, attention.num_kv_heads)
        same = same and (other.qk_dim, other.v_dim) == (attention.qk_dim, attention.v_dim)
        same = same and (other.q_lora_rank, other.kv_lora_rank) == (attention.q_lora_rank, attention.kv_lora_rank)
        if same and _expert_sizes(model.moe) == _expert_sizes(moe):
            return model
    return None


def _expert_sizes(moe: MoE | None) -> tuple[int, ...]:
    return () if moe is None else (moe.moe_ffn_hidden_size, moe.top_k, moe.shared_expert_ffn_hidden_size)
