"""Typed access to a Hugging Face configuration, and the parts of a model that most families share."""

from collections.abc import Mapping, Sequence
from typing import NoReturn

from simmoe.errors import SpecError
from simmoe.specs.model import Attention, Model, MoE

LARGEST = 2**31 - 1  # of any size: larger is a slip of the keyboard
MOST_LAYERS = 10_000  # keeps a slip from building a list of a billion layers

# What families spell differently. The first spelling names the field.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "d_model", "n_embd"),
    "num_hidden_layers": ("num_hidden_layers", "n_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_heads", "n_head", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "kv_n_heads"),
    "head_dim": ("head_dim", "d_kv"),
    "max_position_embeddings": ("max_position_embeddings", "max_seq_len", "n_positions"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "experts_per_token", "moe_top_k"),
}

_ATTENTION_NAMES = {
    "sliding_attention": True,
    "chunked_attention": True,
    "full_attention": False,
}


class Fields:
    """A configuration that gathers every problem instead of stopping at the first.

    A reader that meets a problem notes it and returns the smallest valid value, so that a family's
    function runs to its end; the model built from such values is never handed out.

    Parameters
    ----------
    config : mapping of str to object
        The parsed file or a section of it.
    id, source : str
        Of the model to be built.
    within : str
        Where the section stands, as a prefix of its keys.
    """

    def __init__(self, config: Mapping[str, object], *, id: str, source: str, within: str = "") -> None:
        self.config, self.id, self.source, self.within = config, id, source, within
        self._wrong: list[str] = []
        self._inconsistent: list[str] = []

    def fail(self) -> NoReturn:
        """Raise what was noted; inconsistencies only when no single field is wrong."""
        raise SpecError(self._wrong or self._inconsistent)

    @property
    def failed(self) -> bool:
        """Something was noted."""
        return bool(self._wrong or self._inconsistent)

    def wrong(self, key: str, problem: str) -> None:
        """Note that one field is missing, of the wrong type or out of bounds."""
        self._note(self._wrong, key, problem)

    def inconsistent(self, key: str, problem: str) -> None:
        """Note that fields contradict each other or say more than a `Model` can."""
        self._note(self._inconsistent, key, problem)

    def _note(self, problems: list[str], key: str, problem: str) -> None:
        line = f"{self.within}{key}: {problem}"
        if line not in problems:  # a field may be read more than once
            problems.append(line)

    def derive(self, config: Mapping[str, object], within: str = "") -> "Fields":
        """Other fields of the same model, noting problems in the same place."""
        fields = Fields(config, id=self.id, source=self.source, within=self.within + within)
        fields._wrong, fields._inconsistent = self._wrong, self._inconsistent
        return fields

    def section(self, key: str) -> "Fields":
        """A nested mapping."""
        value = self.config.get(key)
        if not isinstance(value, Mapping):
            self.wrong(key, f"must be a mapping (got {value!r}), use the original config.json")
            value = {}
        return self.derive(value, within=f"{key}.")

    def present(self, name: str) -> dict[str, object]:
        """The spellings of a field that the file has, with their values; null counts as absent."""
        keys = SPELLINGS.get(name, (name,))
        return {key: self.config[key] for key in keys if self.config.get(key) is not None}

    def integer(self, name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST) -> int:
        """A whole number within bounds; required when there is no default."""
        found = self.present(name)
        if not found and default is not None:
            return default
        if not found:
            spellings = " or ".join(SPELLINGS.get(name, (name,)))
            self.wrong(name, f"is missing, add {spellings}, a whole number of at least {least}")
            return least
        for key, value in found.items():
            if type(value) is not int or not least <= value <= most:
                self.wrong(key, f"must be a whole number from {least} to {most} (got {value!r}), correct it")
                return least
        values = [value for value in found.values() if isinstance(value, int)]
        if len(set(values)) > 1:
            self.wrong(name, f"its spellings disagree (got {found!r}), keep one")
        return values[0]

    def boolean(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(key, f"must be true or false (got {value!r}), correct it")
            return default
        return value

    def items(self, key: str) -> list[object]:
        """A list, empty when absent."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, list):
            self.wrong(key, f"must be a list (got {value!r}), correct it")
        return value if isinstance(value, list) else []

    @property
    def layers(self) -> int:
        """Transformer layers."""
        return self.integer("num_hidden_layers", most=MOST_LAYERS)


def decoder(fields: Fields, attention: Attention, moe: MoE | None = None, **more: object) -> Model:
    """A decoder-only model from the fields that every family has.

    Parameters
    ----------
    fields : Fields
        The configuration.
    attention, moe : Attention, MoE or None
        What the family made of its own fields.
    **more : object
        Further fields of `Model`, or other values for those read here.
    """
    sizes = {
        "hidden_size": "hidden_size",
        "ffn_hidden_size": "intermediate_size",
        "vocab_size": "vocab_size",
        "max_position_embeddings": "max_position_embeddings",
    }
    return Model.model_validate(
        {
            "id": fields.id,
            "name": fields.id,
            "source": fields.source,
            "num_layers": fields.layers,
            "attention": attention,
            "moe": moe,
            "tied_embeddings": fields.boolean("tie_word_embeddings", default=False),
            **{name: fields.integer(key) for name, key in sizes.items() if name not in more},
            **more,
        }
    )


def heads(fields: Fields, **more: object) -> Attention:
    """Multi-head or grouped-query attention; a head is hidden / heads wide unless the file says so."""
    count = fields.integer("num_attention_heads")
    hidden = fields.integer("hidden_size")
    if not fields.present("head_dim") and hidden % count:
        fields.inconsistent("head_dim", f"hidden_size {hidden} does not divide by {count} heads, add head_dim")
    groups = fields.integer("num_key_value_heads", count)
    if count % groups:
        fields.inconsistent("num_key_value_heads", f"must divide the {count} heads (got {groups}), correct it")
    sizes = {
        "num_heads": count,
        "num_kv_heads": groups,
        "head_dim": fields.integer("head_dim", max(1, hidden // count)),
    }
    return Attention.model_validate({**sizes, **more})


def attention_bias(fields: Fields, *, default: bool = False) -> dict[str, bool]:
    """The usual meaning of attention_bias: all four projections or none."""
    bias = fields.boolean("attention_bias", default=default)
    return {"bias": bias, "output_bias": bias}


def windowed_layers(fields: Fields) -> list[bool]:
    """Which layers ``layer_types`` makes windowed; all of them without the list."""
    layers = fields.layers
    types = fields.items("layer_types") or ["sliding_attention"] * layers
    odd = [repr(name) for name in types if name not in list(_ATTENTION_NAMES)]
    if odd or len(types) != layers:
        fields.inconsistent(
            "layer_types",
            f"must be {' or '.join(_ATTENTION_NAMES)} for each of {layers} layers "
            f"(got {len(types)} entries{', first unknown ' + odd[0] if odd else ''}), "
            "other kinds of attention are not supported",
        )
    return [_ATTENTION_NAMES.get(str(name), False) for name in types]


def window(fields: Fields, windowed: Sequence[bool], key: str = "sliding_window") -> dict[str, int]:
    """Window width and its period; none when no sequence is longer than the window."""
    width = fields.integer(key, LARGEST)
    if width >= fields.integer("max_position_embeddings") or not any(windowed):
        return {}
    period = 1 if all(windowed) else windowed.index(False) + 1
    regular = [period == 1 or index % period < period - 1 for index in range(len(windowed))]
    if regular != list(windowed):
        fields.inconsistent(
            "layer_types",
            "windowed and full layers do not alternate regularly, write a model file by hand",
        )
    return {"sliding_window": width, "window_period": period}


def every_layer(fields: Fields) -> list[bool]:
    """The pattern of a model whose layers are all MoE."""
    return [True] * fields.layers


def experts(fields: Fields, pattern: Sequence[bool], width: str, **more: object) -> MoE | None:
    """Routed experts of the layers where `pattern` is true; None when there are none.

    Parameters
    ----------
    fields : Fields
        The configuration.
    pattern : sequence of bool
        Which layers are MoE.
    width : str
        The field that holds the width of one expert.
    **more : object
        Further fields of `MoE`.
    """
    if not any(pattern):
        return None
    first = pattern.index(True)
    later = pattern[first + 1 :]
    period = later.index(True) + 1 if any(later) else 1
    dense = first - period + 1
    regular = [i >= dense and (i - dense) % period == period - 1 for i in range(len(pattern))]
    if dense < 0 or regular != list(pattern):
        listed = ", ".join(str(index) for index, moe in enumerate(pattern) if moe)
        fields.inconsistent(
            "num_hidden_layers",
            f"MoE layers {listed} of {len(pattern)} are not periodic, write a model file by hand",
        )
    count, chosen = fields.integer("num_experts"), fields.integer("num_experts_per_tok")
    if chosen > count:
        fields.inconsistent("num_experts_per_tok", f"must not exceed the {count} experts (got {chosen}), correct it")
    sizes = {
        "num_experts": count,
        "top_k": chosen,
        "moe_ffn_hidden_size": fields.integer(width),
        "first_dense_layers": max(0, dense),
        "layer_period": period,
    }
    return MoE.model_validate({**sizes, **more})
