# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Old and new GPUs in one training job
#
# You own two kinds of GPU and want to train one Mixture-of-Experts model on both. If every GPU does the same work, the
# old ones set the pace and the new ones wait. *HeterMoE* ([arXiv 2504.03871](https://arxiv.org/abs/2504.03871)) gives
# them different work: attention to the new GPUs, experts to the old ones. This notebook shows
#
# 1. why that helps: the old GPUs are not equally bad at everything;
# 2. how both kinds are kept busy at once: **zebra parallelism**;
# 3. how the rest of the imbalance goes away: **asymmetric expert assignment**;
# 4. where it stops paying;
# 5. whether it pays on GPUs of your own.
#
# Nothing is measured here. Every number is simulated by SimMoE from the database that comes with it, in seconds.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from simmoe.explore.hetermoe_bench import Case
from simmoe.explore.hetermoe_modules import balance
from simmoe.explore.hetermoe_modules import module_s as module_of_mixtral_s
from simmoe.explore.hetermoe_systems import measure
from simmoe.explore.modules import module_s
from simmoe.pipeline import run
from simmoe.planners.assignment import squeeze_s
from simmoe.planners.assignment_problem import layer_times
from simmoe.planners.hetermoe import plan
from simmoe.planners.optimal_assignment import assignment_gap
from simmoe.planners.zebra_question import question_of
from simmoe.report.gantt import Step, gantt_comparison
from simmoe.specs.data_folders import data_root
from simmoe.specs.reader import load_scenario

pd.set_option("display.max_colwidth", None)
K = 1024  # "8K" tokens are 8 x 1024
ATTENTION, EXPERTS = "tab:blue", "tab:orange"


def length_axis(axes, lengths):
    """Lengths of sequences in K tokens, each doubling as wide as the last."""
    axes.set_xscale("log", base=2)
    axes.set_xticks([length / K for length in lengths], [f"{length / K:g}" for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("sequence length [K tokens]")


def draw_gap(axes, title, lengths, ratios):
    """How many times longer the old GPU takes, a line for each module."""
    for (part, values), colour, mark in zip(ratios.items(), (ATTENTION, EXPERTS), "os", strict=True):
        axes.plot([length / K for length in lengths], values, color=colour, marker=mark, label=part)
    length_axis(axes, lengths)
    axes.set(title=title, ylabel="time on old GPU / new GPU [1]", ylim=(0, 1.1 * max(map(max, ratios.values()))))
    axes.legend(loc="lower right")


# %% [markdown]
# ## 1. The gap is not the same everywhere
#
# One layer of Mixtral 8x7B, one sequence, forward and backward. How many times longer does the old GPU take? *Experts*
# are plain matrix products, which old GPUs do well. *Attention* grows with the square of the sequence, and its fast
# kernels (FlashAttention 2) do not run on V100 and T4.

# %%
lengths = [4 * K, 8 * K, 16 * K, 32 * K, 64 * K]
figure, panels = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
pairs = {"A40 and V100": ("a40", "v100-sxm2-16gb"), "L40S and T4": ("l40s", "t4")}
for axes, (names, (new, old)) in zip(panels, pairs.items(), strict=True):
    ratios = {
        part: [module_of_mixtral_s(part, old, length) / module_of_mixtral_s(part, new, length) for length in lengths]
        for part in ("attention", "experts")
    }
    draw_gap(axes, names, lengths, ratios)
plt.show()

# %% [markdown]
# Where the two lines are apart, each kind of GPU has a job that it is *relatively* good at. That is all HeterMoE needs.
#
# ## 2. Zebra parallelism: stripes instead of waiting
#
# The scenario `o1-d1.yaml` is one of the paper's: 6 A40 hold attention, 6 V100 hold the experts, over a 100 Gb/s
# network. A layer is now two stops, and tokens travel A40 → V100 → A40. If the whole batch travels at once, one side
# always waits: the paper calls that *DistEP*. Zebra parallelism cuts the batch into R micro-batches, so that one is
# with the experts while the next is in attention.
#
# Same devices, same tokens, one time axis. DistEP may cut its exchanges into 4 pieces, to send one while the experts
# work on another.

# %%
O1 = data_root() / "scenarios" / "papers" / "hetermoe" / "o1-d1.yaml"
LENGTH = [f"training.sequence_length={8 * K}", "training.global_batch_size=48"]  # one pass, to see the stripes
ZEBRA = [*LENGTH, "training.micro_batch_size=2", "plan.zebra.micro_batches=4"]
DISTEP = [*LENGTH, "training.micro_batch_size=8", "plan.zebra.micro_batches=1", "plan.a2a_ffn_overlap_degree=4"]


def busy(result):
    """Share of the step in which each kind of GPU computes, in words."""
    shares = zip(result.scenario.cluster.accelerators, result.metrics.utilization.values(), strict=True)
    return ", ".join(f"{part.name.split()[1]} busy {100 * share:.0f} %" for part, share in shares)


zebra, distep = run(load_scenario(O1, ZEBRA)), run(load_scenario(O1, DISTEP))
gantt_comparison(
    [
        Step(f"DistEP, R = 1: {busy(distep)}", distep.timeline, distep.ranks),
        Step(f"zebra parallelism, R = 4: {busy(zebra)}", zebra.timeline, zebra.ranks),
    ]
)

# %%
print(f"Zebra parallelism trains {zebra.tokens_per_s / distep.tokens_per_s:.2f} times as many tokens a second.")

# %% [markdown]
# ## 3. Asymmetric expert assignment: gather bubbles, squeeze them
#
# One side is still the slower one. If it is the experts, some of them can move to the attention GPUs. But experts move
# in whole *chunks* (here one from each V100 to each A40), and the bubble of one layer may not be worth a chunk. So
# HeterMoE *gathers*: it adds up the bubbles layer by layer, and moves a chunk whenever the sum pays for one.

# %%
problem, step = question_of(load_scenario(O1, ZEBRA))
answer = assignment_gap(problem, step)  # gather and squeeze, and the optimum by integer programming
bubble = problem.expert_s - problem.attention_s
print(f"One micro-batch of a layer: {1e3 * problem.attention_s:.1f} ms of attention on an A40,")
print(f"{1e3 * problem.expert_s:.1f} ms of experts on a V100, hence a bubble of {1e3 * bubble:.1f} ms on the A40.")
print(f"Moving a chunk removes {1e3 * squeeze_s(problem):.1f} ms of bubble.")

# %%
layers = np.arange(1, problem.layers + 1)
before = layer_times(problem, (0,) * problem.layers)
after = layer_times(problem, answer.greedy.moved)
gathered = np.cumsum([layer.experts_s - layer.attention_s for layer in before])
left = np.cumsum([layer.experts_s - layer.attention_s for layer in after])

figure, (times, sums) = plt.subplots(1, 2, figsize=(12, 3.6), layout="constrained", width_ratios=(3, 2))
for shift, moved, colour, name in (
    (-0.3, before, "0.75", "nothing moved"),
    (0.1, after, None, "gather and squeeze"),
):
    attention, experts = (1e3 * np.array(side) for side in zip(*moved, strict=True))
    times.bar(layers + shift, attention, 0.2, color=colour or ATTENTION, label=f"A40, {name}")
    times.bar(layers + shift + 0.2, experts, 0.2, color=colour or EXPERTS, hatch="//", label=f"V100, {name}")
for layer, count in zip(layers, answer.greedy.moved, strict=True):
    times.text(layer + 0.2, 1e3 * problem.expert_s * 1.02, f"{count}", ha="center")
times.set(xlabel="layer [1]", ylabel="time of a micro-batch [ms]", title="chunks moved: the numbers above the bars")
times.set_ylim(0, 1.45e3 * problem.expert_s)
times.legend(loc="upper left", ncols=2, fontsize=8, frameon=False)
sums.step(layers, 1e3 * gathered, where="mid", color="0.6", label="nothing moved")
sums.step(layers, 1e3 * left, where="mid", color="tab:green", label="gather and squeeze")
sums.axhline(1e3 * squeeze_s(problem), color="black", linewidth=0.8, linestyle=":", label="worth of a chunk")
sums.set(xlabel="layer [1]", ylabel="bubbles up to this layer [ms]", title="bubbles on the A40", ylim=(0, None))
sums.legend(frameon=False)
for axes in (times, sums):
    axes.set_xticks(layers)
plt.show()

# %% [markdown]
# Gather and squeeze looks at one layer after the other. The optimum weighs all layers at once, and sees the start, the
# exchanges and the output head too. Each of the three assignments, simulated as a whole step:

# %%
assignments = {
    "nothing moved": (0,) * problem.layers,
    "gather and squeeze": answer.greedy.moved,
    "optimum": answer.optimal.moved,
}
rows = {}
for name, moved in assignments.items():
    result = run(load_scenario(O1, [*ZEBRA, f"plan.zebra.moved_experts={list(moved)}"]))
    a40, v100 = result.metrics.utilization.values()
    rows[name] = {
        "experts moved, by layer": " ".join(map(str, moved)),
        "A40 busy [%]": round(100 * a40),
        "V100 busy [%]": round(100 * v100),
        "tokens/s": round(result.tokens_per_s),
        "speed-up [1]": round(result.tokens_per_s / zebra.tokens_per_s, 2),
    }
pd.DataFrame(rows).T

# %% [markdown]
# ## 4. Where it stops paying
#
# The rival is *EP (Ideal)*: train on the A40 alone and on the V100 alone, and add up both. Nobody waits for anybody,
# though it needs two separate jobs. For every length both get their best plan.
#
# The crossover is where attention on the A40 (T_A) takes as long as the experts on the V100 (T_E). On its left experts
# can move to even things out. On its right there is nothing left to move: the A40 set the pace, the V100 wait.

# %%
lengths = [4 * K, 8 * K, 16 * K, 20 * K, 24 * K, 32 * K, 64 * K]
ideal = [measure(Case("ep-ideal", "O1", "D1", s)).tokens_per_s for s in lengths]
moving, fixed = (
    np.array([measure(Case("zebra", "O1", "D1", s, asymmetric=moves)).tokens_per_s for s in lengths]) / ideal
    for moves in (True, False)
)
fine = np.arange(4 * K, 64 * K + 1, K)
crossover = np.interp(1.0, [balance("O1", "D1", int(s)) for s in fine], fine)

figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
axes.plot([s / K for s in lengths], moving, color="tab:green", marker="o", label="HeterMoE, experts may move")
axes.plot([s / K for s in lengths], fixed, color="0.5", marker="s", linestyle="--", label="HeterMoE, no experts moved")
axes.axhline(1, color="black", linewidth=0.8)
axes.axvline(crossover / K, color="tab:red", linestyle=":", label=f"T_A = T_E at {crossover / K:.1f}K tokens")
length_axis(axes, lengths)
axes.set(ylabel="throughput / EP (Ideal) [1]", title="Mixtral-D1 on 6 A40 and 6 V100")
axes.legend(frameon=False)
plt.show()

# %%
best = int(np.argmax(moving))
for number in (0, best, -1):
    print(f"{lengths[number] / K:g}K tokens: HeterMoE trains {moving[number]:.2f} times as much as both kinds apart.")
for name, gains in (("experts that move", moving), ("experts that stay", fixed)):
    losses = [f"{length / K:g}K" for length, gain in zip(lengths, gains, strict=True) if gain < 1]
    print(f"With {name} it loses at: {', '.join(losses) or 'none of these lengths'}.")

# %% [markdown]
# ## 5. Your own pair
#
# Change the two names of nodes; `simmoe db list node` prints them all. The model may be another one too, such as
# `qwen3-30b-a3b` (which takes longer: it has more ways to cut its experts).

# %%
NEW, OLD = "dgx-h100", "dgx-a100-80gb"  # four nodes of each
MODEL = "mixtral-8x7b"

EXAMPLE = data_root() / "scenarios" / "examples" / "mixtral-8x7b-32xh100-32xa100.yaml"
OWN = [
    f"cluster.groups.0.node={NEW}",
    f"cluster.groups.1.node={OLD}",
    f"model={MODEL}",
    "training.global_batch_size=256",
    "training.precision=fp16",  # V100 and T4 know no bf16
    "plan={}",  # the planner finds one
]
own = load_scenario(EXAMPLE, OWN)
lengths = [s for s in (2 * K, 4 * K, 8 * K, 16 * K, 32 * K) if s <= own.model.max_position_embeddings]
at_length = [load_scenario(EXAMPLE, [*OWN, f"training.sequence_length={s}"]) for s in lengths]
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
ratios = {
    part: [module_s(one, part, group=1) / module_s(one, part, group=0) for one in at_length]
    for part in ("attention", "experts")
}
draw_gap(axes, f"{OLD} and {NEW}: {own.model.name}", lengths, ratios)
plt.show()

# %% [markdown]
# Lines that lie close together are a bad sign: neither kind is made for one of the jobs. But the price of the exchanges
# and what fits into memory count too. So ask the planner. It tries every way to cut the cluster into groups of
# attention and expert GPUs, in either order: where experts are most of the work, the new GPUs may well get them. It
# simulates the best ones, and compares them with plans that keep attention and experts together.
#
# In its words, `8 A : 4 B, 2 groups, R 4 x 1` is twice 8 A for attention with 4 B for experts, where 4 micro-batches of
# 1 sequence pass each layer together. *EP n* spreads the experts over n GPUs that do attention too; *hetero PP* is a
# pipeline with some layers on one kind of GPU and some on the other.

# %%
ranking = plan(own, top=3)
pd.DataFrame(
    {
        "plan": one.name,
        "tokens/s": round(one.tokens_per_s),
        "MFU [%]": round(100 * one.mfu, 1),
        "idle [%]": round(100 * one.bubble_fraction, 1),
        "exposed communication [%]": round(100 * one.exposed_s / one.simulated_s, 1),
        "memory left [GiB]": round(one.free_bytes / 2**30, 1),
    }
    for one in ranking.proposals
)

# %%
print("The verdict, and what else was tried:", *ranking.remarks, sep="\n- ")
if ranking.proposals:
    print("\nWhy the best of the plans above is as fast as it is:", *ranking.best.why, sep="\n- ")
print(f"\nRefused, {len(ranking.rejected)} in all, for example:")
for one in ranking.rejected[:3]:
    print(f"- {one.what}: {one.reason}")

# %% [markdown]
# `simmoe plan FILE --planner hetermoe` does the same at the command line and writes the best plan to a file, and
# `simmoe reproduce hetermoe` sets the numbers of the paper beside those of the simulator.
