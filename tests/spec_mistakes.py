"""Mistakes that the consistency rules answer, one to three overrides each of the example in unit/conftest.py.

An entry is (overrides, key and sentence of the one problem they make).
"""

from tests.fault_mistakes import FAULT_MISTAKES
from tests.schedule_mistakes import SCHEDULE_MISTAKES

NODE = "cluster.groups.0.node"

# overrides of the example -> key and sentence of the one problem
MISTAKES = [
    *FAULT_MISTAKES,
    *SCHEDULE_MISTAKES,
    # ------------------------------------------------------------ hardware
    (
        ["cluster.fabric.link.bandwidth.value=800 GB/s"],
        "cluster.fabric.link.bandwidth: 800 GB/s is more than any network port (200 GB/s), "
        "did you mean 800 Gb/s (100 GB/s)?",
    ),
    (
        ["cluster.fabric.link.achievable.value=1.5"],
        "cluster.fabric.link.achievable: must be above 0 and at most 1 (got 1.5), correct it",
    ),
    (
        [f"{NODE}.scale_up.domain=3"],
        f"{NODE}.scale_up.domain: a domain of 3 does not match a node of 8 accelerators, make one divide the other",
    ),
    ([f"{NODE}.pcie=roce-100"], f"{NODE}.pcie: roce-100 is a network link, name a link of kind pcie"),
    (
        [f"{NODE}.scale_up.link=roce-100"],
        f"{NODE}.scale_up.link: roce-100 is a network link, name a link of kind scale_up or pcie",
    ),
    (
        [f"{NODE}.network_ports.value=0"],
        f"{NODE}.network_ports: must be greater than 0 (got 0), write a positive number",
    ),
    (
        ["cluster.groups.0.nodes_per_domain=2"],
        "cluster.groups.0.nodes_per_domain: 2 nodes of 8 accelerators do not fit into a scale-up domain of 8, "
        "write at most 1",
    ),
    (
        ["cluster.groups.0.count=1000000000"],
        "cluster.groups: 8000000000 accelerators are more than 1048576, write smaller counts",
    ),
    (
        ["cluster.fabric.link=nvlink-4"],
        "cluster.fabric.link: nvlink-4 is a scale_up link, name a link of kind network",
    ),
    (
        ["cluster.cross_group={link: pcie-4}"],
        "cluster.cross_group.link: pcie-4 is a pcie link, name a link of kind network",
    ),
    (
        ["cluster.fabric.bandwidth=400 GB/s"],
        "cluster.fabric.bandwidth: 400 GB/s is more than any network port (200 GB/s), did you mean 400 Gb/s (50 GB/s)?",
    ),
    (
        ["cluster.cross_group={link: roce-100, bandwidth: 0.4 TB/s}"],
        "cluster.cross_group.bandwidth: 400 GB/s is more than any network port (200 GB/s), "
        "did you mean 400 Gb/s (50 GB/s)?",
    ),
    # ------------------------------------------------------------ model
    (["model.num_layers=10004"], "model.num_layers: at most 10000 is accepted (got 10004), write less"),
    (["model.hidden_size=100000000"], "model.hidden_size: at most 16777216 is accepted (got 100000000), write less"),
    (
        ["model.ffn_hidden_size=1000000000"],
        "model.ffn_hidden_size: at most 268435456 is accepted (got 1000000000), write less",
    ),
    (["model.vocab_size=1000000000"], "model.vocab_size: at most 268435456 is accepted (got 1000000000), write less"),
    (
        ["model.max_position_embeddings=10000000000"],
        "model.max_position_embeddings: at most 4294967296 is accepted (got 10000000000), write less",
    ),
    (["model.mtp_layers=101"], "model.mtp_layers: at most 100 is accepted (got 101), write less"),
    (
        ["model.attention.num_heads=2097152"],
        "model.attention.num_heads: at most 1048576 is accepted (got 2097152), write less",
    ),
    (
        ["model.attention.head_dim=2097152"],
        "model.attention.head_dim: at most 1048576 is accepted (got 2097152), write less",
    ),
    (["model.moe.num_experts=2097152"], "model.moe.num_experts: at most 1048576 is accepted (got 2097152), write less"),
    (
        ["model.moe.moe_ffn_hidden_size=1000000000"],
        "model.moe.moe_ffn_hidden_size: at most 268435456 is accepted (got 1000000000), write less",
    ),
    (
        ["model.attention.num_kv_heads=5"],
        "model.attention.num_kv_heads: 5 key/value heads do not divide 32 heads, choose a divisor",
    ),
    (
        ["model.attention.kv_lora_rank=512", "model.attention.v_head_dim=128"],
        "model.attention.kv_lora_rank: latent attention also needs qk_nope_head_dim, qk_rope_head_dim, add them",
    ),
    (["model.encoder_layers=32"], "model.encoder_layers: 32 of 32 layers leave no decoder, write fewer"),
    (["model.moe.top_k=9"], "model.moe.top_k: top_k 9 is more than num_experts 8, choose at most 8"),
    (
        ["model.moe.num_groups=3"],
        "model.moe.num_groups: 3 groups do not divide num_experts 8, choose a divisor",
    ),
    (
        ["model.moe.num_groups=2", "model.moe.group_limit=3"],
        "model.moe.group_limit: group_limit 3 is more than num_groups 2, write less",
    ),
    (
        ["model.moe.num_groups=8", "model.moe.group_limit=1"],
        "model.moe.group_limit: 1 groups hold 1 experts, fewer than top_k 2, write more",
    ),
    (
        ["model.moe.first_dense_layers=32"],
        "model.moe.first_dense_layers: 32 dense layers and period 1 leave no MoE layer among 32, "
        "write less or set moe: null",
    ),
    # ------------------------------------------------------------ plan alone
    (
        ["plan.recompute={granularity: full, modules: [mlp]}"],
        "plan.recompute.modules: modules are for granularity: selective (got full), remove them",
    ),
    (
        ["plan.recompute={granularity: selective, modules: []}"],
        "plan.recompute.modules: selective needs a module, write for example [core_attn]",
    ),
    (
        ["plan.recompute={granularity: selective, num_layers: 1}"],
        "plan.recompute.num_layers: num_layers is for granularity: full (got selective), remove it",
    ),
    (
        ["plan.stage_layers=[8, 8, 8, 8]", "plan.account_for_loss=true"],
        "plan.stage_layers: given beside account_for_embedding or account_for_loss, remove one of the two",
    ),
    (
        ["plan.stage_layers=[8, 8, 8, 8]", "plan.pipeline_layout=Et*8|t*8|t*8|t*8L"],
        "plan.stage_layers: given beside pipeline_layout, remove one of the two",
    ),
    (
        ["plan.pipeline_layout=Et*8|t*8|t*8|t*8L", "plan.account_for_embedding=true"],
        "plan.pipeline_layout: places embedding and loss itself, remove account_for_embedding and account_for_loss",
    ),
    (
        ["plan.virtual_pipeline=2"],
        "plan.schedule: virtual_pipeline 2 needs schedule: interleaved (got 1f1b), set it",
    ),
    (
        ["plan.schedule=interleaved"],
        "plan.schedule: interleaved needs virtual_pipeline above 1, set it or write 1f1b",
    ),
    (
        ["plan.schedule=interleaved", "plan.virtual_pipeline=2", "plan.pipeline_parallel=1"],
        "plan.virtual_pipeline: 2 needs pipeline_parallel above 1, set it or write 1",
    ),
    (
        ["plan.tp_comm_overlap=true", "plan.sequence_parallel=false"],
        "plan.tp_comm_overlap: needs sequence_parallel: true, set it or write false",
    ),
    (
        ["plan.cuda_graph_scope=[full_iteration, attn]"],
        "plan.cuda_graph_scope: full_iteration covers the other scopes, write [full_iteration] alone",
    ),
    (
        ["plan.cuda_graph_scope=[moe_preprocess]"],
        "plan.cuda_graph_scope: moe_preprocess needs moe_router, add it",
    ),
    (
        ["plan.cuda_graph_scope=[attn, moe]"],
        "plan.cuda_graph_scope: moe needs routing.pad_to_capacity: true, set it or write [moe_router, moe_preprocess]",
    ),
    # ------------------------------------------------------------ plan, model, batch and cluster
    (
        ["training.sequence_length=2147483648", "model.max_position_embeddings=4294967296"],
        "training.sequence_length: at most 1073741824 is accepted (got 2147483648), write less",
    ),
    (
        ["training.global_batch_size=33554432", "training.micro_batch_size=65536"],
        "training.global_batch_size: at most 16777216 is accepted (got 33554432), write less",
    ),
    (
        ["training.micro_batch_size=2097152", "plan.context_parallel=16", "training.global_batch_size=2097152"],
        "training.micro_batch_size: at most 1048576 is accepted (got 2097152), write less",
    ),
    (
        ["cluster.groups.0.count=9", "plan.expert_parallel=1", "plan.context_parallel=16"],
        "plan: 72 accelerators are not divisible by tensor_parallel 1 x pipeline_parallel 4 x "
        "context_parallel 16 = 64, change one of them or the number of nodes",
    ),
    (
        ["plan.data_parallel=8"],
        "plan.data_parallel: 64 accelerators / 4 leave 16 (got 8), write 16 or leave it out",
    ),
    (["model=llama-2-7b"], "plan.expert_parallel: llama-2-7b has no experts (got 8), write 1"),
    (
        ["plan.expert_parallel=16"],
        "plan.expert_parallel: expert_parallel 16 does not divide num_experts 8, choose 8",
    ),
    (
        ["plan.expert_tensor_parallel=4"],
        "plan.expert_parallel: stages of size 16 are not divisible by expert_parallel 8 x "
        "expert_tensor_parallel 4 = 32, choose a divisor of 16",
    ),
    (
        ["plan.expert_tensor_parallel=2", "model.moe.moe_ffn_hidden_size=1407"],
        "plan.expert_tensor_parallel: expert_tensor_parallel 2 does not divide moe_ffn_hidden_size 1407, choose 1 or 3",
    ),
    (
        ["model.attention.num_heads=8", "plan.tensor_parallel=16"],
        "plan.tensor_parallel: tensor_parallel 16 is more than the 8 attention heads, choose at most 8",
    ),
    (
        ["model.attention.num_heads=12", "model.attention.num_kv_heads=12", "plan.tensor_parallel=8"],
        "plan.tensor_parallel: tensor_parallel 8 does not divide num_heads 12, choose 6 or 12",
    ),
    (
        ["model.attention.num_heads=24", "model.attention.num_kv_heads=6", "plan.tensor_parallel=4"],
        "plan.tensor_parallel: tensor_parallel 4 and num_kv_heads 6 do not divide one another, "
        "choose a divisor or a multiple of 6",
    ),
    (
        ["model.moe.shared_expert_ffn_hidden_size=1407", "plan.tensor_parallel=2"],
        "plan.tensor_parallel: tensor_parallel 2 does not divide shared_expert_ffn_hidden_size 1407, choose 1 or 3",
    ),
    (
        ["model.ffn_hidden_size=1407", "model.moe.first_dense_layers=1", "plan.tensor_parallel=2"],
        "plan.tensor_parallel: tensor_parallel 2 does not divide ffn_hidden_size 1407, choose 1 or 3",
    ),
    (
        ["plan.context_parallel=4", "training.sequence_length=4100"],
        "training.sequence_length: 4100 is not divisible by 2 x context_parallel 4 = 8, write a multiple of 8",
    ),
    (
        ["plan.tensor_parallel=4", "training.sequence_length=4098"],
        "training.sequence_length: 4098 is not divisible by context_parallel x tensor_parallel = 4, "
        "write a multiple of 4 or set plan.sequence_parallel: false",
    ),
    (
        ["training.sequence_length=65536"],
        "training.sequence_length: 65536 is more than the 32768 positions of mixtral-8x7b, "
        "shorten it or --set model.max_position_embeddings=65536",
    ),
    (
        ["training.micro_batch_size=3"],
        "training.global_batch_size: 256 is not divisible by micro_batch_size 3 x data_parallel 16 = 48, "
        "choose 240 or 288",
    ),
    (
        ["training.global_batch_size=2097152"],
        "training.global_batch_size: 131072 micro-batches a step are more than 65536, write a smaller batch",
    ),
    (
        ["model.num_layers=3"],
        "plan.pipeline_parallel: 3 layers are fewer than the stages, pipeline_parallel 4 x virtual_pipeline 1 = 4, "
        "choose fewer stages",
    ),
    (
        ["model.num_layers=30"],
        "plan.pipeline_parallel: 30 layers are not divisible by pipeline_parallel 4 x virtual_pipeline 1 = 4, "
        "choose a divisor or write plan.stage_layers",
    ),
    (
        ["plan.account_for_loss=true"],
        "plan.pipeline_parallel: 33 layers are not divisible by pipeline_parallel 4 x virtual_pipeline 1 = 4, "
        "choose a divisor or write plan.stage_layers",
    ),
    (
        ["plan.stage_layers=[16, 16]"],
        "plan.stage_layers: 2 entries for pipeline_parallel x virtual_pipeline = 4 stages, write one for each",
    ),
    (
        ["plan.stage_layers=[8, 8, 8, 9]"],
        "plan.stage_layers: the sum is 33, the model has 32 layers, make them equal",
    ),
    (
        ["training.precision=fp8-delayed", f"{NODE}=dgx-a100-80gb"],
        "training.precision: fp8-delayed needs fp8, which is not supported by a100-sxm4-80gb (fp32, tf32, fp16, bf16), "
        "set training.precision: bf16",
    ),
    (
        ["plan.recompute={granularity: selective, modules: [core_attn, shared_experts]}"],
        "plan.recompute.modules: shared_experts needs shared experts, which mixtral-8x7b lacks, remove it",
    ),
    # ------------------------------------------------------------ after expansion
    (
        ["plan.pipeline_parallel=2", "plan.pipeline_layout=Et*8|t*8|t*8|t*8L"],
        "plan.schedule: 2 chunks a stage need interleaved (got 1f1b), set it",
    ),
    (
        ["plan.schedule=interleaved", "plan.pipeline_layout=Et*8|t*8|t*8|t*8L"],
        "plan.schedule: interleaved needs more than one chunk a stage, write 1f1b",
    ),
    (
        ["plan.schedule=interleaved", "plan.virtual_pipeline=2", "training.global_batch_size=96"],
        "plan.schedule: interleaved needs micro-batches in multiples of 4 stages (got 6), "
        "set training.global_batch_size to a multiple of 64",
    ),
    (
        ["plan.recompute={granularity: full, num_layers: 9}"],
        "plan.recompute.num_layers: 9 layers are more than a stage has (8), write less",
    ),
]

# The same, for the example with its four stages of sixteen devices written out.
STAGE_MISTAKES = [
    (
        ["plan.stages.1.tensor_parallel=2"],
        "plan.stages.1.devices: tensor_parallel 2 x context_parallel 1 x data_parallel 16 = 32 (got 16), "
        "make them equal",
    ),
    (
        ["plan.stages.1.expert_tensor_parallel=4"],
        "plan.stages.1.expert_parallel: expert_parallel 8 x expert_tensor_parallel 4 = 32 does not divide the "
        "16 devices, choose a divisor",
    ),
    (
        ["plan.stages.3.chunks=[{first_layer: 24, layers: 4}, {first_layer: 28, layers: 4, head: true}]"],
        "plan.stages: stages of 1 and of 2 chunks, give all the same number",
    ),
    (
        ["plan.stages.0.chunks.0.embedding=false"],
        "plan.stages: the embedding belongs to the first chunk alone, set embedding: true there",
    ),
    (
        ["plan.stages.1.chunks.0.head=true"],
        "plan.stages: the head belongs to the last chunk alone, set head: true there",
    ),
    (
        ["plan.stages.1.first_device=15"],
        "plan.stages: stages 0 and 1 share device 15, start at 16 or later",
    ),
    (
        ["plan.stages.3.first_device=64"],
        "plan.stages: stage 3 ends at device 80, the cluster has 64, use fewer",
    ),
    (
        ["plan.stages.1.chunks.0.first_layer=9"],
        "plan.stages: a chunk starts at layer 9, layer 8 is next, correct it",
    ),
    (
        ["plan.stages.3.chunks.0.layers=9"],
        "plan.stages: the stages hold 33 layers, the model has 32, make them equal",
    ),
    (
        ["plan.stages.3.chunks.0.mtp_layers=1"],
        "plan.stages: the stages hold 1 MTP layers, the run trains 0, change them or training.mtp",
    ),
    (
        [
            *("model.attention.num_heads=10", "model.attention.num_kv_heads=10", "plan.data_parallel=null"),
            *("plan.stages.0.tensor_parallel=4", "plan.stages.0.data_parallel=4"),
        ],
        "plan.stages: stage 0: tensor_parallel 4 does not divide num_heads 10, choose 2 or 5",
    ),
    (
        ["plan.expert_parallel=4"],
        "plan.expert_parallel: 4 contradicts the stages (8), remove one: the size or plan.stages",
    ),
    (
        [
            *("plan.stages.0.context_parallel=2", "plan.stages.0.data_parallel=8", "plan.data_parallel=null"),
            "training.sequence_length=4098",
        ],
        "plan.stages: stage 0: sequence_length 4098 is not divisible by 4, change one of them",
    ),
    (
        ["training.global_batch_size=250"],
        "plan.stages: stage 0: global_batch_size 250 is not divisible by micro_batch_size x data_parallel = 16, "
        "change one of them",
    ),
    (
        ["plan.tensor_parallel=2"],
        "plan.tensor_parallel: 2 contradicts the stages (1), remove one: the size or plan.stages",
    ),
    (
        ["plan.context_parallel=2"],
        "plan.context_parallel: 2 contradicts the stages (1), remove one: the size or plan.stages",
    ),
    (
        ["plan.data_parallel=4"],
        "plan.data_parallel: 4 contradicts the stages (16), remove one: the size or plan.stages",
    ),
    (
        ["plan.expert_tensor_parallel=2"],
        "plan.expert_tensor_parallel: 2 contradicts the stages (1), remove one: the size or plan.stages",
    ),
    (
        ["plan.virtual_pipeline=2", "plan.schedule=interleaved"],
        "plan.virtual_pipeline: 2 contradicts the stages (1), remove one: the size or plan.stages",
    ),
    (
        ["plan.pipeline_parallel=2"],
        "plan.pipeline_parallel: 2 contradicts the 4 stages, remove one of the two",
    ),
    (
        ["plan.stages.1.recompute={granularity: selective, modules: [mla_up_proj]}"],
        "plan.recompute.modules: mla_up_proj needs latent attention, which mixtral-8x7b lacks, remove it",
    ),
]
# Beyond the reach of a single problem: 10000 layers cannot fill 20000 virtual stages.
TOO_MANY = ["plan.virtual_pipeline=20000", "plan.schedule=interleaved", "plan.stage_layers=[1]"]
