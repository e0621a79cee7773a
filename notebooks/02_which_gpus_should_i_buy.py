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
# # Which GPUs should I buy?
#
# You want to train Qwen3-30B-A3B and have offers for several kinds of nodes. This notebook asks, for each, how fast
# the best plan is that SimMoE finds for it, what a million tokens cost at cloud prices, and which offers no other one
# beats in both.

# %%
import matplotlib.pyplot as plt
import pandas as pd

from simmoe.planners.registry import Planner, Request, ask
from simmoe.specs.reader import scenario_of

OFFERS = {
    "8 A100": ("dgx-a100-80gb", 1, "infiniband-hdr-200"),
    "8 H100": ("dgx-h100", 1, "infiniband-ndr-400"),
    "8 H200": ("dgx-h200", 1, "infiniband-ndr-400"),
    "8 B200": ("dgx-b200", 1, "infiniband-ndr-400"),
}
TEXT = """\
name: {name}
model: qwen3-30b-a3b
cluster: {{groups: [{{node: {node}, count: {count}}}], fabric: {{link: {link}}}}}
training: {{sequence_length: 4096, global_batch_size: 128, precision: bf16}}
plan: {{expert_parallel: 8}}
"""


def best(name: str, node: str, count: int, link: str) -> dict[str, object]:
    """The fastest plan on an offer."""
    scenario = scenario_of(TEXT.format(name=name, node=node, count=count, link=link), "offer.yaml")
    plan = ask(Planner.HAPMOE, scenario, Request(top=1)).best
    price = scenario.cluster.accelerators[0].price_per_hour
    dollars = None if price is None else price.value * scenario.cluster.devices / 3600 / plan.tokens_per_s * 1e6
    figures = {"tokens/s": plan.tokens_per_s, "MFU": plan.mfu, "USD per M tokens": dollars}
    return {"offer": name, "plan": plan.name, **figures}


offers = pd.DataFrame([best(name, *offer) for name, offer in OFFERS.items()])
offers.round(3)

# %% [markdown]
# ## Speed against cost
#
# Offers to the lower right are better. Prices are those of the database (`simmoe db show h100-sxm5-80gb` says where
# from); put in your own with `price_per_hour` in a part of your own.

# %%
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for offer in offers.itertuples():
    axes.scatter(offer[3] / 1e3, offer[5], s=60)
    axes.annotate(offer.offer, (offer[3] / 1e3, offer[5]), xytext=(6, 4), textcoords="offset points")
axes.set(xlabel="thousand tokens a second", ylabel="USD per million tokens", ylim=(0, 0.16), xlim=(0, 190))
axes.set_title("Qwen3-30B-A3B, best plan of each offer", loc="left")

# %% [markdown]
# ## How sure is that?
#
# Every prediction has an interval from the doubt in its numbers; where two offers are closer than that, ask for a
# trial run and compare it with `simmoe validate`.
