"""The launch script of a scenario: bash, torchrun, hosts in the order of ranks."""

import shlex
from collections.abc import Iterator, Sequence

from simmoe.specs.megatron.expressible import world_of
from simmoe.specs.megatron.hosts import Hosts, hosts_of
from simmoe.specs.megatron.model_options import Option
from simmoe.specs.megatron.to_arguments import Export, to_arguments
from simmoe.specs.scenario import Scenario
from simmoe.specs.text_file import one_line

_MOST_GROUPS = 64  # lines on hosts; more are told in one


def launch_script(scenario: Scenario, remarks: Sequence[str] = ()) -> str:
    """A complete bash script that starts one host's share of a job.

    Parameters
    ----------
    scenario : Scenario
        That Megatron-LM can run (`simmoe.specs.megatron.expressible.reasons`).
    remarks : sequence of str
        Told in its head.

    Returns
    -------
    str
        Ends with a line break; the same scenario gives the same bytes.
    """
    export, hosts = to_arguments(scenario), hosts_of(scenario)
    arrays = ["MODEL_ARGS", *(["MOE_ARGS"] if export.moe else []), "TRAINING_ARGS", "PARALLEL_ARGS", "RUN_ARGS"]
    lines = [
        "#!/usr/bin/env bash",
        *_head(scenario, (*remarks, *export.remarks)),
        *_host_lines(hosts),
        "set -euo pipefail",
        "",
        ': "${MEGATRON_PATH:?name the folder of Megatron-LM}"',
        f"NNODES={sum(part.hosts for part in hosts)}",
        "MASTER_PORT=${MASTER_PORT:-29500}",
        *_master(several=sum(part.hosts for part in hosts) > 1),
        f"WORLD_SIZE={world_of(scenario)}",
        *_gpus(hosts),
        *(f"export {name}={value}" for name, value in export.environment.items()),
        *_unset(scenario, export),
        "",
        *_array("MODEL_ARGS", export.model),
        *(_array("MOE_ARGS", export.moe) if export.moe else ()),
        *_array("TRAINING_ARGS", export.training),
        *_array("PARALLEL_ARGS", export.parallel),
        "# Not part of a scenario: data, tokenizer, learning rate, rotary base, length of the run. Replace them.",
        "RUN_ARGS=(--mock-data --lr 1e-4 --train-iters 100 --eval-iters 0 --log-interval 1)",
        "",
        'echo "host $NODE_RANK of $NNODES, $WORLD_SIZE GPUs in all"',
        "torchrun \\",
        '  --nnodes "$NNODES" --node-rank "$NODE_RANK" --nproc-per-node "$NPROC_PER_NODE" \\',
        '  --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" \\',
        '  "$MEGATRON_PATH/pretrain_gpt.py" \\',
        "  " + " ".join(f'"${{{name}[@]}}"' for name in arrays) + ' "$@"',
    ]
    return "\n".join(lines) + "\n"


def _head(scenario: Scenario, remarks: Sequence[str]) -> Iterator[str]:
    yield f"# {one_line(scenario.name)}: {scenario.model.name} on {world_of(scenario)} GPUs, for Megatron-Core 0.19."
    yield "# Written by simmoe export megatron. Run it on every host, with all host names in HOSTFILE, a line each, or"
    yield "# with the number of the host in NODE_RANK and the name of host 0 in MASTER_ADDR."
    for remark in remarks:
        yield f"# Note: {one_line(remark, 400)}."
    yield "#"


def _host_lines(hosts: Sequence[Hosts]) -> Iterator[str]:
    """Which host holds what; the order of hosts puts the stages on the right GPUs."""
    yield "# Hosts in the order of ranks; HOSTFILE must list them so:"
    for part in hosts[:_MOST_GROUPS]:
        last = part.first + part.hosts - 1
        numbers = f"host {part.first}" if part.hosts == 1 else f"hosts {part.first}-{last}"
        first, end = part.stages
        stages = f"stage {first}" if first == end else f"stages {first}-{end}"
        gpus = f"{len(part.used)} x {part.accelerator}"
        ranks = f"ranks {part.first_rank}-{part.first_rank + part.ranks - 1}"
        yield f"#   {numbers}: {part.node} ({gpus}), {ranks}, {stages}"
    if len(hosts) > _MOST_GROUPS:
        yield f"#   and so on, {len(hosts) - _MOST_GROUPS} more parts"


def _master(*, several: bool) -> Iterator[str]:
    """Which host this is and where all meet; Slurm numbers hosts by name, the order of stages needs a HOSTFILE."""
    yield 'if [[ -n "${HOSTFILE:-}" ]]; then'
    yield '  LINE=$(grep -nxF "$HOSTNAME" "$HOSTFILE" | cut -d : -f 1) || {'
    yield '    echo "$HOSTNAME is not in $HOSTFILE" >&2'
    yield "    exit 2"
    yield "  }"
    yield "  NODE_RANK=$((LINE - 1))"
    yield '  MASTER_ADDR=$(head -n 1 "$HOSTFILE")'
    yield "fi"
    yield "NODE_RANK=${NODE_RANK:-${SLURM_NODEID:-0}}"
    if several:
        yield ': "${MASTER_ADDR:?name the first host, or a HOSTFILE}"'
    else:
        yield "MASTER_ADDR=${MASTER_ADDR:-localhost}"


def _gpus(hosts: Sequence[Hosts]) -> Iterator[str]:
    """How many GPUs of each host take part, and which where these are not all."""
    if len({part.used for part in hosts}) == 1 and hosts[0].whole:
        yield f"NPROC_PER_NODE={len(hosts[0].used)}"
        return
    for place, part in enumerate(hosts):
        word = "if" if place == 0 else "elif"
        yield f"{word} (( NODE_RANK < {part.first + part.hosts} )); then"
        yield f"  NPROC_PER_NODE={len(part.used)}"
        if not part.whole:
            yield f"  export CUDA_VISIBLE_DEVICES={','.join(map(str, part.used))}"
    yield "fi"


def _unset(scenario: Scenario, export: Export) -> Iterator[str]:
    if scenario.plan.layerwise and "CUDA_DEVICE_MAX_CONNECTIONS" not in export.environment:
        yield "unset CUDA_DEVICE_MAX_CONNECTIONS # FSDP refuses 1"


def _array(name: str, options: Sequence[Option]) -> Iterator[str]:
    yield f"{name}=("
    for option in options:
        yield "  " + " ".join(shlex.quote(word) for word in option)
    yield ")"
