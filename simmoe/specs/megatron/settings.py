"""What follows from an argument list and a world size: the sizes that Megatron derives before it checks them."""

from collections.abc import Mapping
from functools import cached_property

from simmoe.errors import SpecError
from simmoe.specs.layout import layout_items
from simmoe.specs.megatron.arguments import Arguments
from simmoe.specs.megatron.frequency import layer_pattern


class Settings:
    """An argument list on so many GPUs.

    Parameters
    ----------
    arguments : Arguments
    world : int
        GPUs of the job.
    environment : mapping or None
        Environment variables; None = as Megatron asks for.
    blackwell : bool
        The GPUs are of NVIDIA's Blackwell generation or later.
    """

    def __init__(
        self,
        arguments: Arguments,
        world: int,
        environment: Mapping[str, str] | None = None,
        *,
        blackwell: bool = False,
    ) -> None:
        self.given = arguments
        self.world = world
        self.environment = environment
        self.blackwell = blackwell
        self.tensor = arguments.size("tensor-model-parallel-size")
        self.pipeline = arguments.size("pipeline-model-parallel-size")
        self.context = arguments.size("context-parallel-size")
        self.expert = arguments.size("expert-model-parallel-size")
        self.expert_tensor = arguments.number("expert-tensor-parallel-size") or self.tensor
        self.layers = arguments.size("num-layers")
        self.experts = arguments.size("num-experts")

    @property
    def model_size(self) -> int:
        """GPUs that hold one copy of the model."""
        return self.tensor * self.pipeline * self.context

    @property
    def data(self) -> int:
        """Data-parallel size; 0 if the GPUs do not divide."""
        return self.world // self.model_size if self.world % self.model_size == 0 else 0

    @property
    def micro_batch(self) -> int:
        """Sequences of a micro-batch."""
        return self.given.size("micro-batch-size")

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.given.number("global-batch-size") or self.micro_batch * self.data

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step; 0 if they do not divide."""
        share = self.micro_batch * self.data
        return self.batch // share if share and self.batch % share == 0 else 0

    @property
    def sequence_parallel(self) -> bool:
        """Switched off without tensor parallelism."""
        return self.given.on("sequence-parallel") and self.tensor > 1

    @property
    def units(self) -> int:
        """Layers, with embedding and loss counted if asked for."""
        ends = ("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split")
        return self.layers + sum(self.given.on(name) for name in ends)

    @property
    def first(self) -> int | None:
        """Layers of the first stage, where they were given."""
        return self.given.number("decoder-first-pipeline-num-layers")

    @property
    def last(self) -> int | None:
        """Layers of the last stage, where they were given."""
        return self.given.number("decoder-last-pipeline-num-layers")

    @property
    def uneven(self) -> bool:
        """The first or the last stage has layers of its own."""
        return self.first is not None or self.last is not None

    @cached_property
    def layout(self) -> tuple[str, ...] | None:
        """The items of each virtual stage of a written layout, in model order; None if there is none or it is wrong."""
        return None if self.layout_problem else self._layout[0]

    @property
    def layout_problem(self) -> str:
        """Why the layout cannot be read."""
        return self._layout[1]

    @cached_property
    def _layout(self) -> tuple[tuple[str, ...] | None, str]:
        text = self.given.text("pipeline-model-parallel-layout")
        if not text:
            return None, ""
        try:
            return tuple(layout_items(text).split("|")), ""
        except SpecError as error:
            return None, error.problems[0].removeprefix("pipeline_layout: ")

    @property
    def virtual(self) -> int:
        """Virtual stages of a rank, 1 = not interleaved; 0 if they do not divide."""
        if self.layout is not None:
            return len(self.layout) // self.pipeline if len(self.layout) % self.pipeline == 0 else 0
        each = self.given.number("num-layers-per-virtual-pipeline-stage")
        if self.given.given("num-virtual-stages-per-pipeline-rank") or each is None:
            return self.given.number("num-virtual-stages-per-pipeline-rank") or 1
        return self.units // self.pipeline // each if self.units % (self.pipeline * each) == 0 else 0

    @property
    def granularity(self) -> str:
        """Recomputation: empty, ``selective`` or ``full``."""
        return "selective" if self.given.on("recompute-activations") else self.given.text("recompute-granularity")

    @property
    def modules(self) -> tuple[str, ...]:
        """What selective recomputation repeats."""
        return self.given.words("recompute-modules") or ("core_attn",)

    @property
    def fsdp(self) -> bool:
        """Fully sharded, by either implementation."""
        return self.given.on("use-megatron-fsdp") or self.given.on("use-torch-fsdp2")

    @property
    def graph_modules(self) -> tuple[str, ...]:
        """What CUDA graphs of single layers replay."""
        return self.given.words("cuda-graph-modules")

    @cached_property
    def moe_pattern(self) -> tuple[int, ...]:
        """1 for each layer with experts; empty if the list cannot be read."""
        try:
            found = layer_pattern(self.given.text("moe-layer-freq"))
        except SpecError:
            return ()
        if isinstance(found, int):
            return tuple(int(index % found == 0) for index in range(self.layers))
        return found
