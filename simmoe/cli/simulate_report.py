"""The report of `simmoe simulate`."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from simmoe.cli.labels import CAUSES, METRICS, class_name
from simmoe.cli.remedies import set_options
from simmoe.cli.screen import bar, console, count, gib, heading, indented, percent, seconds, table
from simmoe.cost.zebra import moved_of
from simmoe.report.draws import Draws
from simmoe.report.evidence import numbers_used
from simmoe.report.numbers import guesses, nominal_class, unreviewed
from simmoe.report.result import Result
from simmoe.report.uncertainty import step_interval
from simmoe.specs.plan import ExpertDevices, Stage
from simmoe.specs.scenario import Scenario

_WIDE = 96  # columns
_PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "framework")
_SHORT_PARTS = ("weights", "grads", "optim.", "activ.", "temp.", "other")


def print_report(result: Result, path: Path, overrides: Sequence[str], written: Sequence[Path]) -> None:
    """Print everything a person wants to know of a run.

    Parameters
    ----------
    result : Result
    path : Path
        The scenario file, for the hint at the end.
    overrides : sequence of str
        As given to ``--set``.
    written : sequence of Path
        Files to mention.
    """
    screen = console()
    screen.print(heading(result.scenario.name, _about(result)))
    for block in (_headline, _time, _bubbles, _memory, _published):
        block(screen, result)
    _evidence(screen, result, path, overrides)
    for file in written:
        screen.print(f"Wrote {file}", soft_wrap=True)


def _about(result: Result) -> str:
    """Model, machines, batch and plan in a few lines."""
    scenario, training, plan = result.scenario, result.scenario.training, result.scenario.plan
    groups = " + ".join(f"{group.devices} x {group.node.accelerator.name}" for group in scenario.cluster.groups)
    faults = "".join(f"\n{line}" for line in fault_lines(scenario))
    idle = result.devices < scenario.cluster.devices
    used = f", {result.devices} of {scenario.cluster.devices} GPUs used" if idle else ""
    return (
        f"{scenario.model.name} on {groups}\n{training.global_batch_size} sequences of "
        f"{training.sequence_length:,} tokens a step, {training.precision.value}, software {training.software.id}\n"
        f"{_plan(scenario)}, micro-batch {training.micro_batch_size}, schedule {plan.schedule.value}{used}{faults}"
    )


def fault_lines(scenario: Scenario) -> Iterator[str]:
    """What is wrong with the cluster, a line each."""
    lost = scenario.shrinking
    if lost is not None:
        nodes = ", ".join(map(str, lost.failed_nodes))
        yield (
            f"without failed node {nodes}: {scenario.cluster.devices} of {lost.devices} GPUs train "
            f"({lost.left} are left), data parallel {scenario.plan.stages[0].data_parallel} instead of "
            f"{lost.data_parallel}"
        )
    for fault in scenario.cluster.faults:
        place = f"device {fault.device}" if fault.node is None else f"node {fault.node}"
        slow = [f"takes {fault.slowdown:g} times as long"] if fault.slowdown != 1 else []
        ports = [f"has {percent(fault.network, 0)} of its network bandwidth"] if fault.network != 1 else []
        yield f"fault: {place} {' and '.join(slow + ports)}"


def _plan(scenario: Scenario) -> str:
    """The parallel sizes that are not 1."""
    first = scenario.plan.stages[0]
    sizes = {
        "tensor": first.tensor_parallel,
        "pipeline": len(scenario.plan.stages),
        "virtual": len(first.chunks),
        "context": first.context_parallel,
        "expert": first.expert_parallel,
        "expert tensor": first.expert_tensor_parallel,
        "data": first.data_parallel,
    }
    words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    zebra = [(stage, stage.experts) for stage in scenario.plan.stages if stage.experts is not None]
    if zebra:
        some = f" in {len(zebra)} of {sizes['pipeline']} stages" if len(zebra) < sizes["pipeline"] else ""
        words = [_zebra(*zebra[0]) + some, *words, *_moved(scenario)]
    return "parallel: " + (", ".join(words) or "nothing")


def _zebra(stage: Stage, apart: ExpertDevices) -> str:
    """Attention and expert devices of a group, groups of a stage, micro-batches that pass a layer together."""
    groups = f" x {apart.groups} groups" if apart.groups > 1 else ""
    return f"zebra {stage.devices // apart.groups}:{apart.group_devices}{groups}, R {apart.micro_batches}"


def _moved(scenario: Scenario) -> Iterator[str]:
    """How many of the routed experts of all layers stand on attention devices."""
    held = [(stage, stage.experts) for stage in scenario.plan.stages if stage.experts is not None]
    moved = sum(sum(apart.moved_experts) * apart.group_devices for _, apart in held)
    layers = sum(len(moved_of(stage, scenario.model)) for stage, _ in held)
    if moved and scenario.model.moe is not None:
        yield f"{moved} of {layers * scenario.model.moe.num_experts} experts on attention GPUs"


def _headline(screen: Console, result: Result) -> None:
    interval = step_interval(result)
    rows = table()
    rows.add_column()
    rows.add_column()
    rows.add_column(style="dim")
    low, high = (seconds(bound, like=result.step_time_s) for bound in (interval.low, interval.high))
    bounds = f"{percent(interval.level, 0)} interval {low} to {high}"
    rows.add_row("Step time", seconds(result.step_time_s), bounds)
    per_gpu = count(result.tokens_per_s / result.devices)
    rows.add_row("Throughput", f"{count(result.tokens_per_s)} tokens/s", f"{per_gpu} tokens/s per GPU")
    dtype = result.scenario.training.precision.gemm_dtype.value
    mfu = f"{percent(result.mfu)} of the {dtype} peak (MFU, Megatron-Core's FLOP count)"
    rows.add_row("Model FLOP/s", f"{result.model_tflops_per_gpu:.1f} TFLOP/s per GPU", mfu)
    worst = max(zip(result.memory, result.ranks, strict=True), key=lambda pair: pair[0].total)
    capacity = result.accelerator(worst[1]).memory.value
    verdict = "fits" if result.fits else "DOES NOT FIT"
    fullest = f"{gib(worst[0].total)} of {gib(capacity)} GiB on the fullest GPU"
    rows.add_row("Memory", verdict, fullest)
    if result.draws is not None:
        rows.add_row("With jitter", *_jitter(result.draws))
    cost = result.cost_usd_per_million_tokens
    price = "no price known" if cost is None else f"{cost:.3f} USD"
    energy = f"at most {result.energy_kwh_per_million_tokens:.3f} kWh: GPUs at full power, no cooling"
    rows.add_row("A million tokens", price, energy)
    screen.print(indented(rows))


def _jitter(draws: Draws) -> tuple[str, str]:
    """Median and other percentiles of the drawn step times, and what they were drawn from."""
    like, jitter = draws.percentile(50), draws.jitter
    ends = ", ".join(f"p{share} {seconds(draws.percentile(share), like=like)}" for share in (5, 95, 99))
    parts = (("kernels", jitter.sigma), ("collectives", jitter.network_sigma), ("launches", jitter.host_sigma))
    varied = ", ".join(f"{name} {percent(sigma, 0)}" for name, sigma in parts if sigma)
    source = f"by training.jitter: {varied or 'none'}"
    return seconds(like), f"median of {len(draws.step_time_s)}; {ends}\n{source}"


def _time(screen: Console, result: Result) -> None:
    """The critical path beside what an average GPU does."""
    step, metrics = result.step_time_s, result.metrics
    path, mean = result.critical_path.by_category_s, metrics.breakdown_s
    screen.print()
    screen.print(heading("What holds it back", "the chain of waiting tasks that sets the step time"))
    rows = table("", "", "the chain", "", "mean GPU", "", right="llrrrr")
    for category in dict.fromkeys([*path, *mean]):
        on_path, spent = path.get(category, 0.0), mean.get(category, 0.0)
        cells = [_time_and_share(value, step) for value in (on_path, spent)]
        if category not in path:
            cells[0] = ("", "")
        if category == "host":
            cells[1] = ("", "")
        rows.add_row(class_name(category), bar(on_path / step), *cells[0], *cells[1])
    screen.print(indented(rows))
    exposed = sum(metrics.exposed_by_collective_s.values())
    busy = f"{_in_unit(metrics.communication_s, step)}, {_in_unit(exposed, step)} of it exposed"
    idle = f"idle for {percent(metrics.bubble_fraction)} of the step (pipeline bubble and waits)"
    screen.print(
        indented(
            f"The mean GPU communicates for {busy} (not hidden behind computation; its column counts only that), "
            f"and is {idle}."
        )
    )


def _bubbles(screen: Console, result: Result) -> None:
    """Why the compute stream of the mean GPU stands still, and of the stage where that cause is largest."""
    found, step = result.bubbles, result.step_time_s
    causes = sorted((cause for cause, mean in found.mean.items() if mean > 0), key=lambda cause: -found.mean[cause])
    if not causes:
        return
    screen.print()
    idle = percent(sum(found.mean.values()) / step)
    screen.print(heading("Why GPUs idle", f"what their compute stream waits for, {idle} of the step"))
    rows = table("", "", "mean GPU", "", "most", "stage", right="llrrrr")
    for cause in causes:
        mean = found.mean[cause]
        most, rank = max(zip(found.ranks, result.ranks, strict=True), key=lambda pair: pair[0][cause])
        cells = (*_time_and_share(mean, step), _in_unit(most[cause], step), rank.place)
        rows.add_row(CAUSES[cause], bar(mean / step), *cells)
    screen.print(indented(rows))


def _time_and_share(value: float, step: float) -> tuple[str, str]:
    return _in_unit(value, step), percent(value / step)


def _in_unit(value: float, step: float) -> str:
    """A time in the unit that suits the step, so that a column is read at a glance."""
    if step >= 10:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if step >= 1e-2 else f"{value * 1e6:.1f} us"


def _memory(screen: Console, result: Result) -> None:
    """Peak memory of a GPU of each stage against its capacity."""
    screen.print()
    screen.print(heading("Peak memory of one GPU of each stage", "GiB"))
    unlike = len(result.metrics.utilization) > 1
    names = _SHORT_PARTS if unlike or screen.width < _WIDE else _PARTS
    rows = table("stage", "GPUs", *names, "total", "of", "full", right="lr" + "r" * 9, grow="GPUs")
    for rank, memory in zip(result.ranks, result.memory, strict=True):
        capacity = result.accelerator(rank).memory.value
        share = memory.total / capacity
        style = "bold red" if share > 1 else None
        cells = [gib(size) for size in memory]
        gpus = f"{rank.count} {rank.accelerator}" if unlike else str(rank.count)
        rows.add_row(rank.place, gpus, *cells, gib(memory.total), gib(capacity), percent(share, 0), style=style)
    screen.print(indented(rows))


def _published(screen: Console, result: Result) -> None:
    """Each published figure beside the simulated one."""
    if not result.scenario.published:
        return
    screen.print()
    screen.print(heading("Published results of this configuration"))
    rows = table("", "published", "simulated", "error", "tolerance", "", right="lrrrrl")
    for one in result.scenario.published:
        name, form = METRICS[one.metric]
        error = result.error(one)
        within = abs(error) <= one.tolerance
        verdict = "ok" if within else "OUTSIDE"
        rows.add_row(
            name,
            form.format(one.value),
            form.format(result.metric(one.metric)),
            f"{100 * error:+.1f} %",
            percent(one.tolerance, 0),
            verdict,
            style=None if within else "red",
        )
    screen.print(indented(rows))
    for source in dict.fromkeys(one.source for one in result.scenario.published):
        screen.print(indented(f"from {source}"))


def _evidence(screen: Console, result: Result, path: Path, overrides: Sequence[str]) -> None:
    """What the numbers are worth, and where to read more."""
    numbers = numbers_used(result)
    single = unreviewed(numbers)
    nominal = sum(nominal_class(number) is not None for number in single)
    command = f"simmoe cite {shlex.quote(str(path))} {set_options(overrides)}".rstrip()
    screen.print()
    screen.print(heading("What it relies on", f"{len(numbers)} numbers of the hardware database"))
    among = f"; {nominal} of them peaks, memory sizes or bandwidths" if nominal else ""
    screen.print(indented(f"Unreviewed numbers: {len(single)} of {len(numbers)}, from one source only{among}"))
    screen.print(indented(f"Guesses: {len(guesses(numbers))} of {len(numbers)}; listed by"))
    screen.print(f"  {command}", soft_wrap=True)
