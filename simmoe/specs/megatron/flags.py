"""The command-line flags of Megatron-LM that are written or understood.

Names, kinds, defaults and choices are those of ``megatron.training.arguments`` of Megatron-Core 0.19.2 (PyPI,
Apache-2.0).
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, cast

# size: a whole number above 0; freq: a number or a list of 0 and 1, see `frequency`; pair: two whole numbers.
Kind = Literal["on", "off", "size", "int", "float", "str", "words", "freq", "pair"]
Effect = Literal["read", "unmodelled", "neutral", "refused"]


class Flag(NamedTuple):
    """One flag.

    Attributes
    ----------
    name : str
        Without the dashes.
    kind : str
        ``on`` sets it, ``off`` unsets what is on by default; the others take a value.
    default : str
        As in Megatron; empty = none.
    choices : tuple of str
        Values that are accepted; empty = all.
    effect : str
        ``read``: part of a scenario; ``unmodelled``: changes a step in a way that is not simulated; ``neutral``:
        changes no step; ``refused``: makes another model, which is not known here.
    dest : str
        Name among the arguments that Megatron prints when it starts.
    """

    name: str
    kind: Kind
    default: str
    choices: tuple[str, ...]
    effect: Effect
    dest: str


# name, kind, default or -, then choices; an `=dest` where the name does not tell it.
_READ = """
tensor-model-parallel-size size 1
pipeline-model-parallel-size size 1
context-parallel-size size 1
expert-model-parallel-size size 1
expert-tensor-parallel-size size -
sequence-parallel on
use-tp-pp-dp-mapping on
num-layers size -
hidden-size size -
ffn-hidden-size size -
num-attention-heads size -
group-query-attention on
num-query-groups size 1
kv-channels size -
seq-length size -
max-position-embeddings size -
position-embedding-type str learned_absolute learned_absolute rope mrope yarn relative none
vocab-size size -
padded-vocab-size size -
untie-embeddings-and-output-weights on
swiglu on
quick-geglu on
disable-bias-linear off =add_bias_linear
add-qkv-bias on
normalization str LayerNorm LayerNorm RMSNorm
qk-layernorm on
softmax-type str vanilla vanilla off-by-one learnable
window-size pair -
window-attn-skip-freq freq -
activation-func-clamp-value float -
glu-linear-offset float 0.0
multi-latent-attention on
q-lora-rank size -
kv-lora-rank size 32
qk-head-dim size 128
qk-pos-emb-head-dim size 64
v-head-dim size 128
num-experts size -
moe-layer-freq freq 1
moe-ffn-hidden-size size -
moe-router-topk size 2
moe-shared-expert-intermediate-size size -
moe-shared-expert-gate on
moe-router-num-groups size -
moe-router-group-topk size -
moe-router-pre-softmax on
moe-router-score-function str softmax softmax sigmoid sqrtsoftplus
moe-router-enable-expert-bias on
moe-router-load-balancing-type words aux_loss aux_loss seq_aux_loss global_aux_loss sinkhorn quantile_balancing none
moe-aux-loss-coeff words 0.0
moe-grouped-gemm on
moe-token-dispatcher-type str allgather allgather alltoall flex
moe-flex-dispatcher-backend str deepep deepep hybridep ncclep
moe-enable-deepep on
moe-expert-capacity-factor float -
moe-pad-expert-input-to-capacity on
mtp-num-layers int -
micro-batch-size size -
global-batch-size size -
bf16 on
fp16 on
fp8-format str - e4m3 hybrid =fp8
fp8-recipe str delayed tensorwise delayed mxfp8 blockwise custom
fp4-format str - e2m1 =fp4
fp4-recipe str nvfp4 nvfp4 custom
optimizer str adam adam sgd muon dist_muon lion soap adaptive_muon
accumulate-allreduce-grads-in-fp32 on
grad-reduce-in-bf16 on
num-layers-per-virtual-pipeline-stage size -
num-virtual-stages-per-pipeline-rank size -
decoder-first-pipeline-num-layers int -
decoder-last-pipeline-num-layers int -
pipeline-model-parallel-layout str -
account-for-embedding-in-pipeline-split on
account-for-loss-in-pipeline-split on
microbatch-group-size-per-virtual-pipeline-stage size - =microbatch_group_size_per_vp_stage
no-overlap-p2p-communication off =overlap_p2p_comm
recompute-activations on
recompute-granularity str - full selective
recompute-method str - uniform block
recompute-num-layers size -
recompute-modules words -
use-distributed-optimizer on
num-distributed-optimizer-instances size 1
use-megatron-fsdp on
data-parallel-sharding-strategy str optim_grads_params no_shard optim optim_grads optim_grads_params
use-torch-fsdp2 on
torch-fsdp2-no-reshard-after-forward off =torch_fsdp2_reshard_after_forward
overlap-grad-reduce on
overlap-param-gather on
optimizer-cpu-offload on
optimizer-offload-fraction float 1.0
overlap-cpu-optimizer-d2h-h2d on
use-precision-aware-optimizer on
overlap-moe-expert-parallel-comm on
overlap-dispatch-backward-with-experts-wgrad on
tp-comm-overlap on
cuda-graph-impl str none none local transformer_engine full_iteration
cuda-graph-modules words -
transformer-impl str transformer_engine local transformer_engine inference_optimized
"""
_UNMODELLED = """
attention-backend str auto
attention-output-gate on
batch-invariant-mode on
cp-comm-type words p2p
cross-entropy-fusion-impl str native native te
cross-entropy-loss-fusion on
cuda-graph-scope words - =cuda_graph_scope_deprecated
delay-wgrad-compute on
distribute-saved-activations on
enable-cuda-graph on
external-cuda-graph on
fine-grained-activation-offloading on
first-last-layers-bf16 on
fp8-param-gather on
fsdp-double-buffer on
high-priority-a2a-comm-stream on
hierarchical-context-parallel-sizes words -
moe-hybridep-num-sms size -
moe-latent-size size -
moe-permute-fusion-into-hybridep on
moe-router-force-biased float -
moe-router-fusion on
moe-router-padding-for-fp8 on
moe-router-padding-for-quantization on
moe-shared-expert-overlap on
mtp-use-repeated-layer on
no-gradient-accumulation-fusion off =gradient_accumulation_fusion
no-rope-fusion off =apply_rope_fusion
offload-modules words -
overlap-param-gather-with-optimizer-step on
rampup-batch-size words -
reuse-grad-buf-for-mxfp8-param-ag on
spec words -
squared-relu on
step-batch-size-schedule str -
use-nccl-ub on =nccl_ub
"""
_REFUSED = """
encoder-num-layers size -
expert-tensor-parallel-num-weight-shards size -
experimental-attention-variant str - gated_delta_net dsa
heterogeneous-layers-config-encoded-json str -
heterogeneous-layers-config-path str -
hybrid-layer-pattern str -
linear-attention-freq freq -
tensor-parallel-num-weight-shards size -
"""
_NEUTRAL = """
adam-beta1 float 0.9
adam-beta2 float 0.999
adam-eps float 1e-08
apply-layernorm-1p on =layernorm_zero_centered_gamma
async-save on
attention-dropout float 0.1
attention-softmax-in-fp32 on
auto-detect-ckpt-format on
ckpt-format str torch_dist torch torch_dist torch_dcp fsdp_dtensor
calculate-per-token-loss on
ckpt-assume-constant-structure on
ckpt-fully-parallel-load on
clip-grad float 1.0
data-cache-path str -
data-path words -
dataloader-type str -
disable-bf16-reduced-precision-matmul on
dist-ckpt-strictness str assume_ok_unexpected
distributed-backend str nccl nccl gloo
distributed-timeout-minutes int 10
enable-experimental on
eval-interval int -
eval-iters int 100
exit-duration-in-mins int -
exit-interval int -
exit-signal-handler on
finetune on
hidden-dropout float 0.1
init-model-with-meta-device on
init-method-std float 0.02
load str -
log-interval int 100
log-memory-to-tensorboard on
log-num-zeros-in-grad on
log-params-norm on
log-progress on
log-throughput on
log-timers-to-tensorboard on
log-validation-ppl-to-tensorboard on
logging-level int -
lr float -
lr-decay-iters int -
lr-decay-samples int -
lr-decay-style str linear constant linear cosine inverse-square-root WSD
lr-warmup-fraction float -
lr-warmup-init float 0.0
lr-warmup-iters int 0
lr-warmup-samples int 0
make-vocab-size-divisible-by int 128
manual-gc on
manual-gc-interval int 0
merge-file str -
min-lr float 0.0
mock-data on
moe-permute-fusion on
moe-per-layer-logging on
moe-router-bias-update-rate float 0.001
moe-router-dtype str - fp32 fp64
moe-router-force-load-balancing on
moe-router-topk-scaling-factor float -
moe-token-drop-policy str probs probs position
moe-z-loss-coeff float -
mscale float 1.0
mscale-all-dim float 0.0
mtp-loss-scaling-factor float 0.1
no-bias-dropout-fusion off =bias_dropout_fusion
no-bias-gelu-fusion off =bias_gelu_fusion
no-bias-swiglu-fusion off =bias_swiglu_fusion
no-check-for-nan-in-loss-and-grad off =check_for_nan_in_loss_and_grad
no-ckpt-fully-parallel-save off =ckpt_fully_parallel_save
no-create-attention-mask-in-dataloader off =create_attention_mask_in_dataloader
no-load-optim on
no-load-rng on
no-masked-softmax-fusion off =masked_softmax_fusion
no-mmap-bin-files off =mmap_bin_files
no-persist-layer-norm on
no-position-embedding off =add_position_embedding
no-save-optim on
no-save-rng on
norm-epsilon float 1e-05 =layernorm_epsilon
num-workers int 2
override-opt_param-scheduler on =override_opt_param_scheduler
profile on
profile-ranks words -
profile-step-end int 12
profile-step-start int 10
rotary-base int 10000
rotary-interleaved on
rotary-percent float 1.0
rotary-scaling-factor float 1.0
save str -
save-interval int -
seed int 1234
split str -
tensorboard-dir str -
tensorboard-queue-size int 1000
timing-log-level int 0 0 1 2
tokenizer-model str -
tokenizer-type str -
train-data-path words -
train-iters int -
train-samples int -
use-checkpoint-args on
use-flash-attn on
use-dist-ckpt on =use_dist_ckpt_deprecated
use-mcore-models on =deprecated_use_mcore_models
use-pytorch-profiler on
use-rope-scaling on
use-rotary-position-embeddings on
valid-data-path words -
vocab-file str -
wandb-entity str -
wandb-exp-name str -
wandb-project str -
wandb-save-dir str -
weight-decay float 0.01
yarn-original-max-position-embeddings int -
"""


def _flags(table: str, effect: Effect) -> Iterator[tuple[str, Flag]]:
    for line in table.split("\n"):
        words = line.split()
        if not words:
            continue
        dest = next((word[1:] for word in words if word.startswith("=")), words[0].replace("-", "_"))
        name, kind, *rest = [word for word in words if not word.startswith("=")]
        default = rest[0] if rest and rest[0] != "-" else ""
        yield name, Flag(name, cast("Kind", kind), default, tuple(rest[1:]), effect, dest)


FLAGS: Mapping[str, Flag] = {
    **dict(_flags(_READ, "read")),
    **dict(_flags(_UNMODELLED, "unmodelled")),
    **dict(_flags(_REFUSED, "refused")),
    **dict(_flags(_NEUTRAL, "neutral")),
}
BY_DEST: Mapping[str, Flag] = {flag.dest: flag for flag in FLAGS.values()}
