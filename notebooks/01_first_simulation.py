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
# # A first simulation
#
# How fast does Mixtral 8x7B train on 64 H100, does it fit, and what holds it back? Nothing is measured here: SimMoE
# simulates one training step, task by task, from a database of what GPUs and networks reach. It takes a tenth of a
# second.

# %%
import matplotlib.pyplot as plt

import simmoe
from simmoe.explore.sliders import sliders
from simmoe.specs.data_folders import data_root

case = simmoe.load(data_root() / "scenarios" / "examples" / "mixtral-8x7b-64xh100.yaml")
step = case.simulate()
step

# %% [markdown]
# NVIDIA measured 468 TFLOP/s per GPU on this cluster. The simulation is within a few per cent of that, and of the
# tokens a second that follow.

# %%
published = case.scenario.published[0]
measured, simulated = published.value, step.figures["model_tflops_per_gpu"]
print(f"measured {measured:.0f}, simulated {simulated:.0f} TFLOP/s per GPU: {simulated / measured - 1:+.1%}")

# %% [markdown]
# ## What every GPU does, and when
#
# A row is a pipeline stage. The upper half of a row is computation, the lower one communication: red where nothing
# hides it.

# %%
step.plot_gantt()

# %%
step.to_pandas().round(4)

# %% [markdown]
# ## Change something
#
# Any value of the scenario file can be replaced. Here the pipeline is not interleaved any more, so it fills and
# drains slowly.

# %%
plain = case.with_(plan__virtual_pipeline=1, plan__schedule="1f1b").simulate()
print(f"{plain.step_time_s / step.step_time_s - 1:+.1%} step time without interleaving")

# %% [markdown]
# Or with sliders, when this notebook runs in Jupyter:

# %%
sliders(
    case,
    {
        "training.global_batch_size": [256, 64, 128, 512],
        "training.sequence_length": [4096, 2048, 8192],
        "cluster.fabric.bandwidth": ["400 Gb/s", "100 Gb/s", "200 Gb/s", "800 Gb/s"],
    },
)

# %% [markdown]
# ## What matters most?
#
# The elasticity says by how many per cent the step changes for one per cent more of a resource.

# %%
matters = case.sensitivity().to_pandas().set_index("resource")
figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
axes.barh(matters.index, -matters["elasticity"])
axes.invert_yaxis()
axes.set(xlabel="per cent shorter for one per cent more")
matters.round(4)
