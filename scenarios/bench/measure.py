"""What `simmoe calibrate` wants to know of one node, measured with PyTorch alone.

Run it on the node with one process an accelerator:

    torchrun --nproc-per-node 8 measure.py --out measured            # benchmarks and a small MoE step
    torchrun --nproc-per-node 2 measure.py --out measured --device cpu

(On a CPU preload an allocator that keeps what is freed, such as jemalloc with MALLOC_CONF=dirty_decay_ms:-1: else each
large tensor costs a page fault for every 4 KiB.)
It writes gemm.csv (matrix products of one accelerator), nccl.log (collectives in the format of nccl-tests) and
traces/rankN.json.gz (a few profiled steps of a Mixture-of-Experts transformer, expert parallelism over all ranks). On a
cluster, prefer nccl-tests itself and a trace of your own training run; then give calibrate those.
"""

import argparse
import csv
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")


class Device:
    """Where everything runs: one accelerator of this process, or one core."""

    def __init__(self, kind: str, local_rank: int) -> None:
        self.cuda = kind == "cuda"
        self.where = torch.device("cuda", local_rank) if self.cuda else torch.device("cpu")
        self.name = torch.cuda.get_device_name(local_rank) if self.cuda else "cpu"
        if self.cuda:
            torch.cuda.set_device(self.where)
        else:
            torch.set_num_threads(1)

    def wait(self) -> None:
        """Until everything that was launched is done."""
        if self.cuda:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object], least: float = 0.1) -> float:
        """The median time of some work, repeated for a while [s]."""
        for _ in range(2):
            work()
        self.wait()
        times: list[float] = []
        begin = time.perf_counter()
        while len(times) < 5 or (time.perf_counter() - begin < least and len(times) < 200):
            start = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]


# ---------------------------------------------------------------- benchmarks


def measure_products(path: Path, device: Device, dtype: str) -> None:
    """Products of the shapes that transformers have, on one accelerator."""
    sizes = (512, 1024, 2048, 4096, 8192) if device.cuda else (128, 256, 512, 1024)
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["m", "n", "k", "dtype", "seconds"])
        for m in sizes:
            for n in sizes:
                for k in sizes:
                    left = torch.randn(m, k, device=device.where, dtype=DTYPES[dtype])
                    right = torch.randn(k, n, device=device.where, dtype=DTYPES[dtype])
                    rows.writerow([m, n, k, dtype, f"{device.seconds(lambda a=left, b=right: a @ b, 0.03):.9f}"])


def measure_collectives(path: Path, device: Device, most_bytes: int) -> None:
    """Collectives over all ranks, as nccl-tests prints them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    hosts: list[str | None] = [None] * ranks
    dist.all_gather_object(hosts, socket.gethostname())
    numbers = {host: f"node{number}" for number, host in enumerate(dict.fromkeys(hosts))}
    lines = []
    for name in COLLECTIVES:
        lines.append(f"# {name}_perf")
        lines += [
            f"#  Rank {r:2d} Group  0 Pid {r:6d} on {numbers[host]} device {r:2d} [0x00] {device.name}"
            for r, host in enumerate(hosts)
        ]
        size = 1024
        while size <= most_bytes:
            seconds = collective_seconds(name, size, device)
            rate = size / seconds * 1e-9
            traffic = (2 if name == "all_reduce" else 1) * (ranks - 1) / ranks
            cells = f"{seconds * 1e6:.2f} {rate:.2f} {rate * traffic:.2f} N/A"
            lines.append(f"{size:12d} {size // 4:12d} float sum -1 {cells} {cells}")
            size *= 4
    if rank == 0:
        path.write_text("\n".join(lines) + "\n")


def collective_seconds(name: str, size: int, device: Device) -> float:
    """The slowest rank's time of one collective; `size` is the full buffer of a rank [B]."""
    ranks = dist.get_world_size()
    whole = torch.zeros(size // 4, device=device.where)
    part, other = torch.zeros(size // 4 // ranks, device=device.where), torch.zeros_like(whole)
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "alltoall": lambda: dist.all_to_all_single(other, whole),
    }
    for _ in range(3):
        calls[name]()
    device.wait()
    dist.barrier()
    times = []
    for _ in range(20):
        dist.barrier()
        start = time.perf_counter()
        calls[name]()
        device.wait()
        times.append(time.perf_counter() - start)
    found = torch.tensor(sorted(times)[len(times) // 2], device=device.where)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


# ---------------------------------------------------------------- a Mixture-of-Experts step


class Exchange(torch.autograd.Function):
    """All-to-all of equal parts; its gradient is the all-to-all back."""

    @staticmethod
    def forward(_context: object, tokens: Tensor) -> Tensor:
        """Send the n-th part to rank n."""
        received = torch.empty_like(tokens)
        dist.all_to_all_single(received, tokens.contiguous())
        return received

    @staticmethod
    def backward(_context: object, *gradients: Tensor) -> Tensor:
        """Send the gradients back."""
        received = torch.empty_like(gradients[0])
        dist.all_to_all_single(received, gradients[0].contiguous())
        return received


class Layer(nn.Module):
    """Attention and experts, one group of experts a rank; every expert gets the same number of tokens."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options, width, hidden = options, options.ffn, options.hidden
        self.local = options.experts // dist.get_world_size()
        self.attention_norm, self.moe_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.project = nn.Linear(hidden, hidden, bias=False)
        self.router = nn.Linear(hidden, options.experts, bias=False)
        self.up = nn.ParameterList(nn.Parameter(0.02 * torch.randn(hidden, 2 * width)) for _ in range(self.local))
        self.down = nn.ParameterList(nn.Parameter(0.02 * torch.randn(width, hidden)) for _ in range(self.local))

    def forward(self, stream: Tensor) -> Tensor:
        """Of shape (sequences, tokens, hidden)."""
        stream = stream + self.attend(self.attention_norm(stream))
        return stream + self.mix(self.moe_norm(stream).flatten(0, 1)).view_as(stream)

    def attend(self, x: Tensor) -> Tensor:
        """Causal self-attention."""
        batch, length, hidden = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.options.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        return self.project(y.transpose(1, 2).reshape(batch, length, hidden))

    def mix(self, x: Tensor) -> Tensor:
        """Router, dispatch, experts, combine."""
        options, ranks = self.options, dist.get_world_size()
        shares = torch.softmax(self.router(x), dim=-1)
        slots = torch.arange(x.shape[0] * options.top_k, device=x.device)
        chosen = (slots % options.experts).view(-1, options.top_k)  # forced balance: expert after expert
        weights = shares.gather(1, chosen).flatten()
        order = torch.argsort(chosen.flatten(), stable=True)
        sent = x.index_select(0, order // options.top_k)
        received = Exchange.apply(sent).view(ranks, self.local, -1, options.hidden)
        each = received.transpose(0, 1).reshape(self.local, -1, options.hidden)
        done = torch.stack([self.expert(number, tokens) for number, tokens in enumerate(each.unbind(0))])
        back = done.view(self.local, ranks, -1, options.hidden).transpose(0, 1).reshape(-1, options.hidden)
        combined = Exchange.apply(back) * weights.index_select(0, order).unsqueeze(1)
        return torch.zeros_like(x).index_add(0, order // options.top_k, combined)

    def expert(self, number: int, tokens: Tensor) -> Tensor:
        """A gated expert."""
        gate, value = (tokens @ self.up[number]).chunk(2, dim=-1)
        return (functional.silu(gate) * value) @ self.down[number]


class Transformer(nn.Module):
    """Embedding, layers, head; gradients of what all ranks hold lie in one buffer a layer, as in Megatron."""

    def __init__(self, options: argparse.Namespace, device: Device) -> None:
        super().__init__()
        self.embedding = nn.Embedding(options.vocabulary, options.hidden)
        self.layers = nn.ModuleList(Layer(options) for _ in range(options.layers))
        self.norm, self.head = nn.LayerNorm(options.hidden), nn.Linear(options.hidden, options.vocabulary, bias=False)
        self.to(device.where, DTYPES[options.dtype])
        groups = [[p for n, p in part.named_parameters() if not n.startswith(("up.", "down."))] for part in self.layers]
        groups[0] += self.embedding.parameters()
        groups[-1] += [*self.norm.parameters(), *self.head.parameters()]
        groups.reverse()
        self.buffers_of_gradients = [self.buffer(group) for group in groups]
        for parameter in self.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    @staticmethod
    def buffer(group: list[nn.Parameter]) -> Tensor:
        """One buffer whose parts are the gradients of some parameters."""
        whole = torch.zeros(sum(p.numel() for p in group), device=group[0].device, dtype=group[0].dtype)
        for parameter, part in zip(group, whole.split([p.numel() for p in group]), strict=True):
            parameter.grad = part.view_as(parameter)
        return whole

    def forward(self, tokens: Tensor) -> Tensor:
        """The loss of predicting each token from those before it."""
        stream = self.embedding(tokens)
        for layer in self.layers:
            stream = layer(stream)
        logits = self.head(self.norm(stream))
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def measure_steps(folder: Path, device: Device, options: argparse.Namespace) -> None:
    """Profile a few steps and write one trace a rank."""
    torch.manual_seed(0)
    model = Transformer(options, device)
    update = torch.optim.Adam(model.parameters(), fused=True)
    tokens = torch.randint(options.vocabulary, (options.batch, options.sequence), device=device.where)

    def step() -> None:
        model(tokens).backward()
        for buffer in model.buffers_of_gradients:
            dist.all_reduce(buffer)
        update.step()
        for parameter in model.parameters():
            parameter.grad.zero_()

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.cuda else [])]
    folder.mkdir(parents=True, exist_ok=True)
    trace = str(folder / f"rank{dist.get_rank()}.json.gz")
    plan = schedule(wait=0, warmup=options.warmup, active=options.steps)
    begin = 0.0
    with profile(
        activities=activities, schedule=plan, record_shapes=True, on_trace_ready=lambda p: p.export_chrome_trace(trace)
    ) as profiler:
        for number in range(options.warmup + options.steps):
            if number == options.warmup:
                device.wait()
                dist.barrier()
                begin = time.perf_counter()
            step()
            device.wait()
            profiler.step()
    if dist.get_rank() == 0:
        print(f"a profiled step takes {(time.perf_counter() - begin) / options.steps:.4f} s")


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("measured"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=tuple(DTYPES), help="default: bf16 on accelerators, else fp32")
    parser.add_argument("--only", choices=("products", "collectives", "steps"), help="leave the others out")
    parser.add_argument("--most-bytes", type=int, default=0, help="of a collective; default: 1 GiB, on a CPU 16 MiB")
    for name, size in {
        "layers": 2,
        "hidden": 512,
        "heads": 8,
        "ffn": 1024,
        "experts": 8,
        "top-k": 2,
        "vocabulary": 4096,
        "sequence": 512,
        "batch": 2,
        "steps": 3,
        "warmup": 5,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=size, help=f"of the step; default {size}")
    options = parser.parse_args()
    options.dtype = options.dtype or ("bf16" if options.device == "cuda" else "fp32")
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    device = Device(options.device, dist.get_rank() % max(1, torch.cuda.device_count()))
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only in {None, "products"} and dist.get_rank() == 0:
        measure_products(options.out / "gemm.csv", device, options.dtype)
    dist.barrier()
    if options.only in {None, "collectives"}:
        most = options.most_bytes or (2**30 if device.cuda else 2**24)
        measure_collectives(options.out / "nccl.log", device, most)
    if options.only in {None, "steps"}:
        measure_steps(options.out / "traces", device, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
