"""Train the adapter with which the embedded model reads the prompt `columns`.

A LoRA adapter (Hu et al. 2021, arXiv 2106.09685) on all matrices of the quantised
SmolLM2-135M-Instruct that llmopt runs, trained on lines of `columns_data`: the model reads the
letters of the best points, best first, and is to give each letter the share that it has among
better points. The loss is the cross-entropy of these shares over the 26 letters, at the last
place and, weighted less, at every earlier one from the fifth letter on. What stands there is not
quite a line of fewer elites: the frame is that of all twenty.

Two stages, from seed 0:

1. a network of two hidden layers learns from searches by normal and uniform draws, then from its
   own as well (minutes): it is the model ``"network"`` (``--retrain-network`` trains it again);
2. the adapter learns from searches, four fifths of them by that network (``--steps``), and is
   written in float16 for llama.cpp.

    pip install ".[train]"
    python -m llmopt.benchmarks.experiments.train_columns

Runtime: half an hour on two cores with AVX-512 BF16 instructions, 3 s for a step of 96 lines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import gguf
import numpy as np
import torch
import torch.nn.functional as F

from llmopt.benchmarks.experiments.columns_data import Columns, Lines, join, make_columns
from llmopt.client.local.embedded import ADAPTER, fetch_model
from llmopt.client.local.network import LEVELS, NETWORK, Network, features
from llmopt.prompt.columns.columns import ELITES, write_line

REPORT = Path(__file__).parents[1] / "results" / "columns_training.json"
POLICY_TEMPERATURE = 0.7
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
SHARD = 2000
"""Lines made at a time."""

BATCH, RANK, RATE = 96, 8, 2e-3
"""Lines of a step, rank of the adapter, largest learning rate."""


# -- the network --------------------------------------------------------------------------


def train_network(count: int, steps: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Train the small network, first on searches without one, then on its own as well."""
    first = make_columns([seed, 1], count // 2)
    policy = Network(_fit_network(first, steps // 2, seed), POLICY_TEMPERATURE)
    return _fit_network(join([first, make_columns([seed, 4], count, policy)]), steps, seed)


def _fit_network(data: Columns, steps: int, seed: int) -> dict[str, np.ndarray]:
    torch.manual_seed(seed)
    x = torch.from_numpy(features(*data.lines)).float()
    y = torch.from_numpy(data.targets)
    layers = [torch.nn.Linear(a, b) for a, b in ((ELITES + 2, 256), (256, 256), (256, LEVELS))]
    net = torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, steps)
    for _ in range(steps):
        chosen = torch.randint(len(x), (512,))
        loss = F.cross_entropy(net(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    arrays = {}
    for i, layer in enumerate(layers):
        arrays[f"w{i}"] = layer.weight.detach().numpy()
        arrays[f"b{i}"] = layer.bias.detach().numpy()
    return arrays


# -- the model ----------------------------------------------------------------------------


class Model(torch.nn.Module):
    """The Llama architecture as llama.cpp runs it, frozen, with an adapter to be trained."""

    def __init__(self, path: Path, rank: int) -> None:
        super().__init__()
        reader = gguf.GGUFReader(path)

        def read(name: str) -> Any:
            return reader.fields[f"llama.{name}"].contents()

        self.rank = rank
        self.layers = read("block_count")
        self.heads, self.groups = read("attention.head_count"), read("attention.head_count_kv")
        self.width = read("embedding_length")
        self.epsilon = read("attention.layer_norm_rms_epsilon")
        self.base = read("rope.freq_base")
        tokens = reader.fields["tokenizer.ggml.tokens"].contents()
        self.known = {token: i for i, token in enumerate(tokens)}
        self.letters = torch.tensor([self.known[f"Ġ{letter}"] for letter in ascii_lowercase])
        self.weights: dict[str, torch.Tensor] = {}
        for tensor in reader.tensors:
            array = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            weight = torch.from_numpy(array)
            self.weights[tensor.name] = weight if weight.ndim == 1 else weight.bfloat16()
        self.down, self.up = torch.nn.ParameterDict(), torch.nn.ParameterDict()
        for layer in range(self.layers):
            for name in MATRICES:
                high, low = self.weights[f"blk.{layer}.{name}.weight"].shape
                key = f"{layer}_{name}"
                self.down[key] = torch.nn.Parameter(torch.randn(rank, low) / math.sqrt(low))
                self.up[key] = torch.nn.Parameter(torch.zeros(high, rank))

    def tokens(self, lines: Lines) -> torch.Tensor:
        """Return ``(count, ELITES + 1)`` tokens of lines as the prompt writes them."""
        texts = (
            write_line(int(n), bool(leading), levels.tolist())
            for levels, leading, n in zip(*lines, strict=True)
        )
        rows = [[self.known[part] for part in text.replace(" ", " Ġ").split(" ")] for text in texts]
        return torch.tensor(rows)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return ``(count, length, LEVELS)`` scores of the letter after each token."""
        count, length = tokens.shape
        size = self.width // self.heads
        x = self.weights["token_embd.weight"][tokens].float()
        speeds = self.base ** (-torch.arange(0, size, 2).float() / size)
        angles = torch.arange(length)[:, None] * speeds
        mask = torch.full((length, length), -1e9).triu(1)

        def rotate(x: torch.Tensor) -> torch.Tensor:
            even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
            cos, sin = angles.cos(), angles.sin()
            return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

        def split(x: torch.Tensor, heads: int) -> torch.Tensor:
            return x.view(count, length, heads, size).transpose(1, 2)

        for layer in range(self.layers):
            h = self._norm(x, f"blk.{layer}.attn_norm.weight")
            q = rotate(split(self._times(h, layer, "attn_q"), self.heads))
            k = rotate(split(self._times(h, layer, "attn_k"), self.groups))
            v = split(self._times(h, layer, "attn_v"), self.groups).float()
            # Heads that share their keys lie beside each other.
            shared = self.heads // self.groups
            scores = q.reshape(count, self.groups, shared * length, size) @ k.transpose(-1, -2)
            scores = scores.view(count, self.groups, shared, length, length) / math.sqrt(size)
            weights = (scores + mask).softmax(-1).view(count, self.groups, shared * length, length)
            mixed = (weights @ v).view(count, self.heads, length, size).transpose(1, 2)
            mixed = mixed.reshape(count, length, self.width).bfloat16()
            x = x + self._times(mixed, layer, "attn_output").float()
            h = self._norm(x, f"blk.{layer}.ffn_norm.weight")
            h = F.silu(self._times(h, layer, "ffn_gate")) * self._times(h, layer, "ffn_up")
            x = x + self._times(h, layer, "ffn_down").float()
        head = self.weights["token_embd.weight"][self.letters]
        scores = self._norm(x, "output_norm.weight") @ head.T
        return scores.float()

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (self.width,), self.weights[name], self.epsilon).bfloat16()

    def _times(self, x: torch.Tensor, layer: int, name: str) -> torch.Tensor:
        key = f"{layer}_{name}"
        own = (x @ self.down[key].bfloat16().T) @ self.up[key].bfloat16().T
        return x @ self.weights[f"blk.{layer}.{name}.weight"].T + 2 * own

    def export(self, path: Path) -> None:
        """Write the adapter for llama.cpp, in float16."""
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", 2.0 * self.rank)
        writer.add_name("llmopt columns, for SmolLM2-135M-Instruct Q4_1")
        for key, down in self.down.items():
            layer, name = key.split("_", 1)
            for part, matrix in (("lora_a", down), ("lora_b", self.up[key])):
                array = matrix.detach().numpy().astype(np.float16)
                writer.add_tensor(f"blk.{layer}.{name}.weight.{part}", array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def place_losses(model: Model, data: Columns) -> torch.Tensor:
    """Return the ``(ELITES + 1,)`` mean cross-entropies after each token of the lines."""
    scores = model(model.tokens(data.lines)).log_softmax(-1)
    return -(torch.from_numpy(data.targets)[:, None] * scores).sum(-1).mean(0)


def place_weights() -> torch.Tensor:
    """Return how much each place counts: the last one most, those of few elites not at all."""
    weights = torch.zeros(ELITES + 1)
    weights[5:] = 0.3
    weights[10:] = 0.5
    weights[ELITES] = 3.0
    return weights / weights.sum()


def _batches(policy: Network) -> Iterator[Columns]:
    """Yield batches of fresh lines, the same ones in every training."""
    for shard in itertools.count(1):
        count = max(1, SHARD // BATCH) * BATCH
        data = make_columns([0, 2, shard], count, policy)
        for start in range(0, count, BATCH):
            yield data.take(slice(start, start + BATCH))


def train_adapter(args: argparse.Namespace) -> None:
    """Train the adapter and write it to ``args.out``."""
    torch.manual_seed(0)
    policy = Network.load(args.network, POLICY_TEMPERATURE)
    model = Model(fetch_model(), RANK)
    optimizer = torch.optim.AdamW(model.parameters(), RATE, (0.9, 0.98), weight_decay=0.0)
    held_out = make_columns([0, 3], 1000, policy)
    weights = place_weights()
    start = time.perf_counter()
    for step, batch in zip(range(args.steps), _batches(policy), strict=False):
        rate = RATE * min(1.0, (step + 1) / 15) * min(1.0, (1 - step / args.steps) / 0.6)
        for group in optimizer.param_groups:
            group["lr"] = rate
        losses = place_losses(model, batch)
        optimizer.zero_grad()
        (losses * weights).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 40 == 0:
            seconds = (time.perf_counter() - start) / (step + 1)
            fresh = _fresh_loss(model, held_out)
            print(f"step {step + 1}: {fresh:.4f} on fresh lines, {seconds:.1f} s", flush=True)
    model.export(args.out)
    by_network = np.log(Network.load(args.network)(*held_out.lines))
    network = -float((held_out.targets * by_network).sum(1).mean())
    marginal = -float((held_out.targets * np.log(held_out.targets.mean(0))).sum(1).mean())
    report = {
        "steps": args.steps,
        "batch": BATCH,
        "rank": RANK,
        "nats": {
            "uniform": round(math.log(LEVELS), 4),
            "best fixed distribution": round(marginal, 4),
            "network": round(network, 4),
            "adapter": round(_fresh_loss(model, held_out), 4),
        },
    }
    print(json.dumps(report))
    REPORT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def _fresh_loss(model: Model, data: Columns) -> float:
    with torch.no_grad():
        return float(place_losses(model, data)[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--network", type=Path, default=NETWORK)
    parser.add_argument("--retrain-network", action="store_true", help="stage 1 anew")
    parser.add_argument("--out", type=Path, default=ADAPTER)
    args = parser.parse_args()
    if args.retrain_network or not args.network.exists():
        weights = train_network(100_000, 8000)
        arrays: dict[str, Any] = {k: v.astype(np.float32) for k, v in weights.items()}
        np.savez(args.network, **arrays)
        print(f"wrote {args.network}")
    train_adapter(args)


if __name__ == "__main__":
    main()
