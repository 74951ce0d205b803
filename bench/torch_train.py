#!/usr/bin/env python3
"""Trains one reference workload with PyTorch on the CPU and measures it.

usage: torch_train.py WORKLOAD [--threads N] [--seconds S] [--set SETTING=NUMBER]... [--batch N] [--length N]

The workloads are those of `gulliver bench`: the same models, shapes, loss and optimizers, one batch of
random numbers used for every step, two steps to warm up. Prints JSON lines: `first_step` as soon as the
first step is done, then `workload`.
"""
import argparse
import json
import resource
import time

import torch
from torch import nn
from torch.nn import functional as F


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = shortcut(inside, outside, stride)

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of extent one, beside a shortcut."""

    def __init__(self, inside, planes, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, planes, 1, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU(),
            nn.Conv2d(planes, planes, 3, stride, 1, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU(),
            nn.Conv2d(planes, 4 * planes, 1, bias=False),
            nn.BatchNorm2d(4 * planes),
        )
        self.shortcut = shortcut(inside, 4 * planes, stride)

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def shortcut(inside, outside, stride):
    if stride == 1 and inside == outside:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))


def resnet18():
    """For 32x32 images of ten classes."""
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inside = 64
    for stage, width in enumerate((64, 128, 256, 512)):
        layers += [BasicBlock(inside, width, 2 if stage else 1), BasicBlock(width, width, 1)]
        inside = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def resnet50():
    """For 224x224 images of a thousand classes."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, (planes, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(Bottleneck(inside, planes, 2 if stage and block == 0 else 1))
            inside = 4 * planes
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class GPTBlock(nn.Module):
    """Attention and two linear layers, each normalised before and added to the stream."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """A causal language model with learned positions and tied embeddings."""

    def __init__(self, vocab, width, heads, layers, context):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(GPTBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, vocab, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, x):
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        return self.out(self.norm(self.blocks(h))).flatten(0, 1)


class LSTM(nn.Module):
    """A recurrent language model."""

    def __init__(self, vocab, width, layers):
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.rnn = nn.LSTM(width, width, layers, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, x):
        return self.out(self.rnn(self.tokens(x))[0]).flatten(0, 1)


class PointNet(nn.Module):
    """A classifier of point clouds, without learned transforms."""

    def __init__(self):
        super().__init__()
        point = lambda i, o: nn.Sequential(nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU())
        cloud = lambda i, o: nn.Sequential(nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU())
        self.points = nn.Sequential(point(3, 64), point(64, 128), point(128, 1024))
        self.classify = nn.Sequential(cloud(1024, 512), cloud(512, 256), nn.Linear(256, 40))

    def forward(self, x):
        return self.classify(self.points(x).amax(2))


def mlp(*sizes):
    layers = []
    for inside, outside in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def text(vocab, batch, length):
    return torch.randint(vocab, (batch, length)), torch.randint(vocab, (batch * length,))


# Vocabulary, width, heads, layers, context; samples and tokens of a batch.
GPTS = {
    "gpt-nano": ((65, 128, 4, 4, 64), (16, 64)),
    "gpt-mini": ((65, 384, 6, 6, 256), (4, 256)),
    "gpt2": ((50257, 768, 12, 12, 1024), (1, 256)),
}


def gpt(name, sets=(), batch=None, length=None):
    """A row of the workloads, with other settings than its own."""
    settings, (samples, tokens) = GPTS[name]
    settings = dict(zip(("vocab", "width", "heads", "layers", "context"), settings))
    for setting, value in sets:
        if setting not in settings:
            raise SystemExit(f"error: --set {setting}: a GPT has {', '.join(settings)}")
        settings[setting] = value
    data = lambda: text(settings["vocab"], batch or samples, length or tokens)
    return lambda: GPT(**settings), data, "adam"


def setting(text):
    name, _, value = text.partition("=")
    return name, int(value)


def labelled(classes, *shape):
    return torch.randn(*shape), torch.randint(classes, (shape[0],))


# Model, one batch, optimizer.
WORKLOADS = {
    "mlp": (lambda: mlp(784, 1024, 1024, 10), lambda: labelled(10, 64, 784), "adam"),
    "mlp-tiny": (lambda: mlp(64, 32, 10), lambda: labelled(10, 32, 64), "adam"),
    "resnet18": (resnet18, lambda: labelled(10, 32, 3, 32, 32), "momentum"),
    "resnet50": (resnet50, lambda: labelled(1000, 4, 3, 224, 224), "momentum"),
    **{name: gpt(name) for name in GPTS},
    "lstm": (lambda: LSTM(1000, 512, 2), lambda: text(1000, 20, 35), "momentum"),
    "pointnet": (PointNet, lambda: labelled(40, 16, 3, 1024), "adam"),
}

OPTIMIZERS = {
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
}


def quantile(ordered, share):
    return ordered[round((len(ordered) - 1) * share)]


def main():
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description="Trains one reference workload with PyTorch on the CPU.")
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--set", dest="sets", type=setting, action="append", default=[], help="of a GPT")
    parser.add_argument("--batch", type=int, help="of a GPT")
    parser.add_argument("--length", type=int, help="tokens of a sample of a GPT")
    arguments = parser.parse_args()
    changes = (arguments.sets, arguments.batch, arguments.length)
    if any(changes) and arguments.workload not in GPTS:
        parser.error("--set, --batch and --length are for GPTs")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    make, data, rule = gpt(arguments.workload, *changes) if any(changes) else WORKLOADS[arguments.workload]
    model, (x, y) = make(), data()
    optimizer = OPTIMIZERS[rule](model.parameters())

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    step()
    first = time.perf_counter() - start
    print(json.dumps({"event": "first_step", "workload": arguments.workload, "seconds": first}), flush=True)
    step()
    times, before = [], 0.0
    begin = time.perf_counter()
    while not times or before < arguments.seconds:
        loss = step()
        now = time.perf_counter() - begin
        times.append(now - before)
        before = now
    times.sort()
    result = {
        "event": "workload",
        "workload": arguments.workload,
        "version": torch.__version__,
        "threads": arguments.threads,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "batch": x.shape[0],
        "steps": len(times),
        "samples_per_second": len(times) * x.shape[0] / before,
        "step_seconds": quantile(times, 0.5),
        "step_seconds_low": quantile(times, 0.1),
        "step_seconds_high": quantile(times, 0.9),
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "first_step_seconds": first,
        "loss": loss.item(),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
