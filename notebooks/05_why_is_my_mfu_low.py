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
# # Why is my MFU low?
#
# Three causes are common: the pipeline idles, experts wait for tokens, and the router loads some experts more than
# others. Each can be told from the simulated step, and each has its remedy.

# %%
import matplotlib.pyplot as plt
import pandas as pd

import simmoe
from simmoe.explore.case import Case
from simmoe.specs.data_folders import data_root

case = simmoe.load(data_root() / "scenarios" / "examples" / "mixtral-8x7b-64xh100.yaml")


def causes(case: Case) -> dict[str, float]:
    """MFU, and the share of the step in which the mean GPU's compute stream waits, by cause."""
    result = case.simulate().result
    waits = {name: seconds / result.step_time_s for name, seconds in result.bubbles.mean.items() if seconds > 0}
    return {"MFU": result.mfu, **waits}


# %% [markdown]
# ## The pipeline
#
# With few micro-batches a pipeline spends its time filling and draining; virtual stages make it fill in smaller
# pieces.

# %%
runs = {
    f"batch {batch}, virtual {virtual}": causes(
        case.with_(
            training__global_batch_size=batch,
            plan__virtual_pipeline=virtual,
            plan__schedule="interleaved" if virtual > 1 else "1f1b",
        )
    )
    for batch in (64, 256)
    for virtual in (1, 8)
}
pd.DataFrame(runs).T.fillna(0).round(3)

# %%
waits = pd.DataFrame(runs).T.fillna(0).drop(columns="MFU")
figure, axes = plt.subplots(figsize=(9, 3.2), layout="constrained")
waits.plot.barh(stacked=True, ax=axes)
axes.set(xlabel="share of the step in which the compute stream waits")
axes.legend(bbox_to_anchor=(1.01, 1), loc="upper left", frameon=False)
axes.invert_yaxis()

# %% [markdown]
# ## The all-to-all
#
# Experts spread over more GPUs than a node has exchange their tokens over the network. The same plan on a slower
# network:

# %%
wide = case.with_(plan__expert_parallel=8, plan__pipeline_parallel=1, plan__virtual_pipeline=1, plan__schedule="1f1b")
tokens = {
    f"{bandwidth}": causes(wide.with_({"cluster.groups.0.nodes_per_domain": 1, "cluster.fabric.bandwidth": bandwidth}))
    for bandwidth in ("100 Gb/s", "400 Gb/s")
}
pd.DataFrame(tokens).T.fillna(0).round(3)

# %% [markdown]
# ## Imbalance
#
# Every exchange waits for the most loaded expert. How much that costs depends on how uneven the router is:

# %%
skews = {
    "balanced": causes(case),
    "a little": causes(case.with_({"routing": {"kind": "dirichlet", "concentration": 5}})),
    "a lot": causes(case.with_({"routing": {"kind": "dirichlet", "concentration": 0.5}})),
}
pd.DataFrame(skews).T.fillna(0).round(3)
