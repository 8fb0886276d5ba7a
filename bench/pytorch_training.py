"""One training run in PyTorch, as its users write it, on the work of `paceline bench train`: prints one JSON object.

    python bench/pytorch_training.py --mode eager|compile|huggingface
    python -m torch.distributed.run --nproc-per-node 2 bench/pytorch_training.py --mode ddp

eager, compile and ddp run a plain LLaMA (fused scaled-dot-product attention, fused AdamW, clipping at 1.0); huggingface
runs transformers' LlamaForCausalLM with its default attention. Each sees random tokens, all of them targets.
"""

import argparse
import json
import os
import resource
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class RotaryAttention(nn.Module):
    def __init__(self, width, heads, kv_heads, length):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.query = nn.Linear(width, heads * self.head_dim, bias=False)
        self.key = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.output = nn.Linear(heads * self.head_dim, width, bias=False)
        frequency = 10000.0 ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
        self.register_buffer("cosine", angle.cos().float())
        self.register_buffer("sine", angle.sin().float())

    def rotate(self, x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * self.cosine - second * self.sine, second * self.cosine + first * self.sine), dim=-1)

    def forward(self, x):
        batch, length, _ = x.shape
        split = lambda projection, count: projection(x).view(batch, length, count, self.head_dim).transpose(1, 2)
        query = self.rotate(split(self.query, self.heads))
        key = self.rotate(split(self.key, self.kv_heads))
        value = split(self.value, self.kv_heads)
        group = self.heads // self.kv_heads
        mixed = F.scaled_dot_product_attention(
            query, key.repeat_interleave(group, 1), value.repeat_interleave(group, 1), is_causal=True
        )
        return self.output(mixed.transpose(1, 2).reshape(batch, length, -1))


class GatedFeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.attention_norm = nn.RMSNorm(o.dim, eps=1e-5)
        self.attention = RotaryAttention(o.dim, o.heads, o.kv_heads, o.sequence_length)
        self.mlp_norm = nn.RMSNorm(o.dim, eps=1e-5)
        self.mlp = GatedFeedForward(o.dim, o.ffn)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embedding = nn.Embedding(o.vocab, o.dim)
        self.layers = nn.ModuleList(Layer(o) for _ in range(o.layers))
        self.norm = nn.RMSNorm(o.dim, eps=1e-5)
        self.head = nn.Linear(o.dim, o.vocab, bias=False)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def huggingface_model(o):
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(vocab_size=o.vocab, hidden_size=o.dim, intermediate_size=o.ffn, num_hidden_layers=o.layers,
                    num_attention_heads=o.heads, num_key_value_heads=o.kv_heads,
                    max_position_embeddings=o.sequence_length, tie_word_embeddings=False, use_cache=False)
    )  # fmt: skip


def product_peak():
    a, b = torch.full((2048, 1024), 0.5), torch.full((1024, 1024), 0.25)
    best = float("inf")
    for _ in range(12):
        start = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - start)
    return 2 * 2048 * 1024 * 1024 / best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["eager", "compile", "huggingface", "ddp"], required=True)
    defaults = {"layers": 6, "dim": 384, "heads": 6, "kv-heads": 2, "ffn": 1024, "vocab": 8192, "sequence-length": 256,
                "micro-batch": 8, "steps": 12, "warmup": 3}  # fmt: skip
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    o = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    torch.manual_seed(0)
    if o.mode == "ddp":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
        torch.distributed.init_process_group("gloo")

    if o.mode == "huggingface":
        model = huggingface_model(o)
        loss_of = lambda batch: model(input_ids=batch[:, :-1].contiguous(), labels=batch[:, :-1].contiguous(),
                                      shift_labels=batch[:, 1:].contiguous()).loss  # fmt: skip
    else:
        model = Llama(o)
        run = torch.compile(model) if o.mode == "compile" else model
        run = nn.parallel.DistributedDataParallel(model) if o.mode == "ddp" else run
        loss_of = lambda batch: run(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=True)

    def step():
        batch = torch.randint(0, o.vocab, (o.micro_batch, o.sequence_length + 1))
        start = time.perf_counter()
        loss_of(batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start

    for _ in range(o.warmup):
        step()
    peak = product_peak()
    seconds = statistics.median(step() for _ in range(o.steps))
    peak = max(peak, product_peak()) * ranks
    if int(os.environ.get("RANK", "0")) == 0:
        parameters = sum(p.numel() for p in model.parameters())
        flops = 6 * (parameters - o.vocab * o.dim) + 6 * o.layers * o.sequence_length * o.dim
        tokens_per_s = o.micro_batch * o.sequence_length * ranks / seconds
        print(json.dumps({
            "tokens_per_s": tokens_per_s, "model_tflops": tokens_per_s * flops / 1e12, "gemm_peak_tflops": peak / 1e12,
            "mfu": tokens_per_s * flops / peak,
            "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }), flush=True)  # fmt: skip
    if o.mode == "ddp":
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
