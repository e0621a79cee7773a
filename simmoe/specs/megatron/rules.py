"""What Megatron-LM refuses, in the order in which it looks: an argument list is checked without Megatron.

References
----------
Megatron-Core 0.19.2 (PyPI, Apache-2.0): ``validate_args`` of ``megatron.training.arguments`` and
``TransformerConfig.__post_init__``; the rules are written anew. `tests/data/test_megatron_golden.py` compares them with
what the real code said to 262 argument lists.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from simmoe.specs.megatron.arguments import Arguments
from simmoe.specs.megatron.rules_of_groups import LATE
from simmoe.specs.megatron.rules_of_model import EXPERTS, MODEL
from simmoe.specs.megatron.settings import Settings

Check = Callable[[Settings], str | None]
_ONE_OF = (
    "num-layers-per-virtual-pipeline-stage",
    "num-virtual-stages-per-pipeline-rank",
    "pipeline-model-parallel-layout",
)


class Problem(NamedTuple):
    """One thing that Megatron refuses.

    Attributes
    ----------
    rule : str
        A short name.
    sentence : str
        Flags and sizes, and what to do.
    late : bool
        Megatron accepts the arguments and fails later, when it makes process groups, layers or the schedule.
    """

    rule: str
    sentence: str
    late: bool = False


def problems(
    arguments: Arguments, world: int, environment: Mapping[str, str] | None = None, *, blackwell: bool = False
) -> tuple[Problem, ...]:
    """Everything that Megatron-LM would refuse, what it meets first being the first.

    Parameters
    ----------
    arguments : Arguments
    world : int
        GPUs of the job.
    environment : mapping or None
        Environment variables; None = not checked.
    blackwell : bool
        The GPUs are of NVIDIA's Blackwell generation or later.

    Examples
    --------
    >>> from simmoe.specs.megatron.arguments import parse_words
    >>> words = "--num-layers 32 --pipeline-model-parallel-size 4 --micro-batch-size 1".split()
    >>> problems(parse_words(words), 30)[0].sentence
    'world size 30 is not divisible by tensor x pipeline x context = 1 x 4 x 1, change one of them'
    """
    settings = Settings(arguments, world, environment, blackwell=blackwell)
    return (
        *(Problem("unknown flag", f"{text}: no flag of Megatron-LM, remove it") for text in arguments.unknown),
        *(Problem("value", sentence) for sentence in arguments.problems),
        *_found({**_SIZES, **_PIPELINE, **_DATA, **EXPERTS, **MODEL, **_SPLIT}, settings, late=False),
        *_found(LATE, settings, late=True),
    )


def _found(rules: Mapping[str, Check], settings: Settings, *, late: bool) -> Iterator[Problem]:
    for name, check in rules.items():
        sentence = check(settings)
        if sentence is not None:
            yield Problem(name, sentence, late)


def _world(s: Settings) -> str | None:
    if s.world % s.model_size == 0:
        return None
    sizes = f"{s.tensor} x {s.pipeline} x {s.context}"
    return f"world size {s.world} is not divisible by tensor x pipeline x context = {sizes}, change one of them"


def _batch(s: Settings) -> str | None:
    if not s.given.given("micro-batch-size"):
        return "--micro-batch-size is missing, add it"
    if s.data == 0 or s.batch % (s.micro_batch * s.data) == 0:
        return None
    return (
        f"--global-batch-size {s.batch} is not divisible by --micro-batch-size {s.micro_batch} x data parallel "
        f"{s.data}, change one of them"
    )


def _one_split(s: Settings) -> str | None:
    given = [f"--{name}" for name in _ONE_OF if s.given.given(name)]
    return f"{' and '.join(given)} cannot be given together, keep one" if len(given) > 1 else None


def _mtp_positions(s: Settings) -> str | None:
    positions = s.given.text("position-embedding-type")
    if not s.given.size("mtp-num-layers") or positions in {"rope", "none"}:
        return None
    return f"--mtp-num-layers needs --position-embedding-type rope or none (got {positions}), change it"


def _layout_letters(s: Settings) -> str | None:
    return f"--pipeline-model-parallel-layout: {s.layout_problem}" if s.layout_problem else None


def _layout_divides(s: Settings) -> str | None:
    if s.layout is None or len(s.layout) % s.pipeline == 0:
        return None
    return (
        f"--pipeline-model-parallel-layout has {len(s.layout)} stages, not a multiple of "
        f"--pipeline-model-parallel-size {s.pipeline}, change one of them"
    )


def _virtual_with_ends(s: Settings) -> str | None:
    if not s.given.given("num-layers-per-virtual-pipeline-stage") or not s.uneven:
        return None
    return (
        "--num-layers-per-virtual-pipeline-stage does not go with --decoder-first/last-pipeline-num-layers, "
        "write --num-virtual-stages-per-pipeline-rank"
    )


def _layers_divide(s: Settings) -> str | None:
    written = s.given.given("pipeline-model-parallel-layout") or s.given.given("num-virtual-stages-per-pipeline-rank")
    if written or s.uneven or s.units % s.pipeline == 0:
        return None
    counted = f" ({s.units} with embedding and loss)" if s.units != s.layers else ""
    return (
        f"--num-layers {s.layers}{counted} is not divisible by --pipeline-model-parallel-size {s.pipeline}, "
        "write a --pipeline-model-parallel-layout"
    )


def _layers_divide_again(s: Settings) -> str | None:
    each = s.given.number("num-layers-per-virtual-pipeline-stage")
    if each is None or s.uneven or s.units % s.pipeline or s.units // s.pipeline % each == 0:
        return None
    return (
        f"the {s.units // s.pipeline} layers of a stage are not divisible by --num-layers-per-virtual-pipeline-stage "
        f"{each}, change it"
    )


def _interleaving(s: Settings) -> str | None:
    least = 3 if s.given.on("no-overlap-p2p-communication") else 2
    if s.virtual <= 1 or s.pipeline >= least:
        return None
    why = " with --no-overlap-p2p-communication" if least == 3 else ""
    return (
        f"the interleaved schedule{why} needs --pipeline-model-parallel-size {least} or more (got {s.pipeline}), "
        "change it or leave out virtual stages"
    )


_SIZES: dict[str, Check] = {"world": _world, "batch": _batch}
_PIPELINE: dict[str, Check] = {
    "mtp positions": _mtp_positions,
    "one split": _one_split,
    "layout letters": _layout_letters,
    "layout divides": _layout_divides,
    "virtual with ends": _virtual_with_ends,
    "layers divide": _layers_divide,
    "layers divide again": _layers_divide_again,
    "interleaving": _interleaving,
}


def _param_gather(s: Settings) -> str | None:
    if not s.given.on("overlap-param-gather"):
        return None
    sharded = s.given.on("use-distributed-optimizer") or s.given.on("use-megatron-fsdp")
    if not sharded and s.given.text("optimizer") != "dist_muon":
        return "--overlap-param-gather needs --use-distributed-optimizer or --use-megatron-fsdp, add one"
    return None


def _param_gather_with_reduce(s: Settings) -> str | None:
    if not s.given.on("overlap-param-gather") or s.given.on("overlap-grad-reduce"):
        return None
    return "--overlap-param-gather needs --overlap-grad-reduce, add it"


def _offload(s: Settings) -> str | None:
    if not s.given.on("optimizer-cpu-offload") or s.given.on("use-precision-aware-optimizer"):
        return None
    return "--optimizer-cpu-offload needs --use-precision-aware-optimizer, add it"


def _precision_aware(s: Settings) -> str | None:
    if not s.given.on("use-precision-aware-optimizer"):
        return None
    if s.given.text("optimizer") != "adam":
        return f"--use-precision-aware-optimizer needs --optimizer adam (got {s.given.text('optimizer')}), write it"
    if not s.given.on("use-distributed-optimizer") and not s.given.on("use-megatron-fsdp"):
        return "--use-precision-aware-optimizer needs --use-distributed-optimizer, add it"
    return None


def _torch_fsdp(s: Settings) -> str | None:
    if not s.given.on("use-torch-fsdp2"):
        return None
    wrong = (
        (s.pipeline > 1, f"--pipeline-model-parallel-size {s.pipeline}, write 1"),
        (s.expert > 1, f"--expert-model-parallel-size {s.expert}, write 1"),
        (s.given.on("use-distributed-optimizer"), "--use-distributed-optimizer, remove it"),
        (
            not s.given.on("no-gradient-accumulation-fusion"),
            "fused accumulation, add --no-gradient-accumulation-fusion",
        ),
        (not s.given.on("untie-embeddings-and-output-weights"), "tied embeddings"),
        (s.given.on("fp16"), "--fp16, write --bf16"),
    )
    return next((f"--use-torch-fsdp2 does not go with {what}" for there, what in wrong if there), None)


def _megatron_fsdp(s: Settings) -> str | None:
    if not s.given.on("use-megatron-fsdp") or s.given.text("ckpt-format") == "fsdp_dtensor":
        return None
    return "--use-megatron-fsdp needs --ckpt-format fsdp_dtensor, add it"


def _one_precision(s: Settings) -> str | None:
    if s.given.on("fp16") and s.given.on("bf16"):
        return "--fp16 and --bf16 cannot be given together, keep one"
    if s.given.given("fp8-format") and s.given.given("fp4-format"):
        return "--fp8-format and --fp4-format cannot be given together, keep one"
    return None


def _sequence(s: Settings) -> str | None:
    length, most = s.given.size("seq-length"), s.given.size("max-position-embeddings")
    if s.context > 1 and length % (2 * s.context):
        return f"--seq-length {length} is not divisible by 2 x --context-parallel-size {s.context}, change one of them"
    if most and length > most:
        return f"--max-position-embeddings {most} is less than --seq-length {length}, raise it"
    return None


def _overlap_tensor(s: Settings) -> str | None:
    if not s.given.on("tp-comm-overlap") or s.sequence_parallel:
        return None
    return "--tp-comm-overlap needs --sequence-parallel and tensor parallelism, add them or leave it out"


def _connections(s: Settings) -> str | None:
    if s.environment is None:
        return None
    value = s.environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    if s.fsdp:
        return "FSDP needs another CUDA_DEVICE_MAX_CONNECTIONS than 1, unset it" if value == "1" else None
    wanted = (s.tensor > 1 or s.context > 1) and not s.blackwell
    if not wanted or s.given.on("overlap-moe-expert-parallel-comm") or value == "1":
        return None
    return "tensor or context parallelism needs CUDA_DEVICE_MAX_CONNECTIONS=1 in the environment, set it"


_DATA: dict[str, Check] = {
    "param gather": _param_gather,
    "param gather with reduce": _param_gather_with_reduce,
    "offload": _offload,
    "precision-aware optimizer": _precision_aware,
    "torch fsdp": _torch_fsdp,
    "megatron fsdp": _megatron_fsdp,
    "one precision": _one_precision,
    "sequence": _sequence,
    "overlap tensor": _overlap_tensor,
    "connections": _connections,
}


def _ends_and_account(s: Settings) -> str | None:
    if not s.uneven or s.units == s.layers:
        return None
    return "--decoder-first/last-pipeline-num-layers does not go with --account-for-..., keep one"


def _layout_alone(s: Settings) -> str | None:
    if not s.given.given("pipeline-model-parallel-layout") or (not s.uneven and s.units == s.layers):
        return None
    return (
        "--pipeline-model-parallel-layout does not go with --decoder-first/last-pipeline-num-layers or "
        "--account-for-..., keep one"
    )


def _layout_ends(s: Settings) -> str | None:
    items = "".join(s.layout or ())
    if s.layout is None or (items[:1] == "E" and items[-1:] == "L" and items.count("E") == items.count("L") == 1):
        return None
    return "--pipeline-model-parallel-layout needs one E, first, and one L, last, correct it"


def _layout_layers(s: Settings) -> str | None:
    count = "".join(s.layout or ()).count("t")
    if s.layout is None or count == s.layers:
        return None
    return f"--pipeline-model-parallel-layout holds {count} layers, --num-layers is {s.layers}, make them equal"


def _layout_mtp(s: Settings) -> str | None:
    if s.layout is None:
        return None
    items, wanted = "".join(s.layout), s.given.size("mtp-num-layers")
    if items.count("m") != wanted:
        return f"--pipeline-model-parallel-layout holds {items.count('m')} MTP layers, --mtp-num-layers is {wanted}"
    if "t" in items[items.find("m") :] and wanted:
        return "--pipeline-model-parallel-layout: MTP layers stand after all others, move m back"
    before = len(s.layout) - s.pipeline
    holders = [index for index, stage in enumerate(s.layout) if "m" in stage]
    if len(holders) > 1 or (holders and holders[0] < before):
        return "--pipeline-model-parallel-layout: MTP layers share one of the last virtual stages, move them together"
    return None


def _ends(s: Settings) -> str | None:
    if not s.uneven or s.given.given("pipeline-model-parallel-layout"):
        return None
    ends = [count for count in (s.first, s.last) if count is not None]
    layers, stages, virtual = s.layers - sum(ends), s.pipeline - len(ends), max(1, s.virtual)
    wrong = (
        (min(ends) <= 0, "must be above 0"),
        (any(count % virtual for count in ends), f"is not divisible by the {virtual} virtual stages"),
        (bool(layers) != bool(stages), f"leaves {layers} layers for {stages} middle stages"),
        (
            stages > 0 and layers % max(1, stages) != 0,
            f"leaves {layers} layers, not divisible by {stages} middle stages",
        ),
        (
            stages > 0 and layers // max(1, stages) % virtual != 0,
            f"leaves middle stages not divisible by {virtual} virtual stages",
        ),
    )
    found = next((what for there, what in wrong if there), None)
    return None if found is None else f"--decoder-first/last-pipeline-num-layers {found}, change it"


def _account(s: Settings) -> str | None:
    if s.units == s.layers or s.uneven or s.given.given("pipeline-model-parallel-layout") or s.virtual <= 1:
        return None
    stages = s.pipeline * s.virtual
    if s.units % stages == 0:
        return None
    return f"--num-layers {s.layers}, {s.units} with its ends, is not divisible by {stages} virtual stages, change one"


_SPLIT: dict[str, Check] = {
    "ends and account": _ends_and_account,
    "layout alone": _layout_alone,
    "layout ends": _layout_ends,
    "layout layers": _layout_layers,
    "layout mtp": _layout_mtp,
    "ends": _ends,
    "account": _account,
}
