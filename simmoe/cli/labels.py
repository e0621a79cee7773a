"""What classes of time are called in front of people."""

CLASSES = {
    "gemm": "dense matrix products",
    "grouped_gemm": "expert matrix products",
    "attention": "attention",
    "memory": "memory-bound operators",
    "optimizer": "optimizer update",
    "host": "host: kernel launches",
    "all_to_all": "all-to-all (expert tokens)",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_reduce": "all-reduce",
    "send_recv": "send/receive between stages",
    "idle": "idle: nothing to run",
}
CAUSES = {
    "warm_up": "pipeline fills",
    "drain": "pipeline drains",
    "imbalance": "slower stages or GPUs",
    "attention": "attention on other GPUs",
    "experts": "experts on other GPUs",
    "all_to_all": "all-to-all (expert tokens)",
    "tensor_parallel": "tensor parallelism",
    "context_parallel": "context parallelism",
    "pipeline_transfer": "transfer between stages",
    "data_parallel": "gradients or parameters",
    "host": "host: kernel launches",
    "dependency": "other tasks",
}
METRICS = {
    "model_tflops_per_gpu": ("model TFLOP/s per GPU", "{:.1f}"),
    "step_time_s": ("step time [s]", "{:.3f}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}"),
    "tokens_per_s_per_gpu": ("tokens/s per GPU", "{:,.0f}"),
    "mfu": ("MFU", "{:.3f}"),
}


def class_name(category: str) -> str:
    """The name of a class of time; its identifier if it has none."""
    return CLASSES.get(category, category)
