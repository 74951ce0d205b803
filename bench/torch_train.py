#!/usr/bin/env python3
"""Trains one reference workload with PyTorch on the CPU and measures it.

usage: torch_train.py WORKLOAD [--variant NAME] [--threads N] [--seconds S] [--set SETTING=NUMBER]... [--batch N]
       [--length N]

The workloads are those of `lab bench`: the same models, shapes, loss and optimizers, one batch of
random numbers used for every step, two or three steps to warm up. A variant is a way to make PyTorch faster. Prints
JSON lines: `first_step` as soon as the first step is done, then `workload`.
"""
import argparse
import json
import resource
import sys
import time
from typing import Callable, NamedTuple

sys.dont_write_bytecode = True

import torch
from torch.nn import functional as F

from torch_models import GPT, LSTM, Bert, Dcgan, PointNet, cnn, mlp, mobilenet_v2, resnet18, resnet50

# The label of what does not count.
IGNORED = -100


def classified(model, batch, loss):
    """The one objective of most models; labels come last in their batches."""
    *inputs, y = batch
    return [lambda: loss.cross_entropy(model(*inputs), y)]


def discriminated(model, batch, loss):
    """Two networks against each other: to tell images from made ones, and to make ones that pass."""
    real, noise = batch
    fake = model.generator(noise)

    def judged(images, answer):
        logits = model.discriminator(images).flatten()
        return loss.binary_cross_entropy_with_logits(logits, torch.full_like(logits, answer))

    return [lambda: judged(real, 1.0) + judged(fake.detach(), 0.0), lambda: judged(fake, 1.0)]


class Workload(NamedTuple):
    """What is trained, on what and how."""

    model: Callable
    # One batch; of another number of samples, if that is said.
    data: Callable
    # The optimizer; each objective has its own.
    rule: str
    # The objectives of a model, a batch and the losses to use (`F`): functions to be called in turn, each after
    # the update of the one before.
    objectives: Callable = classified
    # What the names of the weights start with that each objective trains.
    trained: tuple = ("",)


class Variant(NamedTuple):
    """A way to run the same training; the default is PyTorch as it comes."""

    # How the optimizer updates many weights at once: "fused" or "foreach".
    optimizer: str = ""
    # Weights and images with their channels innermost.
    channels_last: bool = False
    # The mode of `torch.compile` for model and loss.
    compiled: str = ""
    # The optimizer is compiled, too.
    compiled_optimizer: bool = False


VARIANTS = {
    "plain": Variant(),
    "fused": Variant("fused"),
    "foreach": Variant("foreach"),
    "channels-last": Variant("fused", channels_last=True),
    "compile": Variant("fused", compiled="default"),
    "compile-all": Variant(compiled="default", compiled_optimizer=True),
    "compile-autotune": Variant("fused", compiled="max-autotune-no-cudagraphs"),
    "compile-channels-last": Variant("fused", channels_last=True, compiled="default"),
}


class Training:
    """A model at work; `loss` is `F`, or gives a vector of losses where that gives one."""

    def __init__(self, workload, model, batch, loss=F, variant=VARIANTS["plain"]):
        if variant.channels_last:
            model = model.to(memory_format=torch.channels_last)
            batch = [x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x for x in batch]
        self.workload, self.model, self.batch, self.loss = workload, model, batch, loss
        named = list(model.named_parameters())
        self.weights = [[weight for name, weight in named if name.startswith(start)] for start in workload.trained]
        how = {variant.optimizer: True} if variant.optimizer else {}
        self.optimizers = [OPTIMIZERS[workload.rule](weights, **how) for weights in self.weights]
        self.updates = [optimizer.step for optimizer in self.optimizers]
        self.compiled = None
        if variant.compiled:
            objectives = workload.objectives(model, batch, loss)
            assert len(objectives) == 1, "compiled objectives are made once, so no update may lie between two of them"
            self.compiled = [torch.compile(objective, mode=variant.compiled) for objective in objectives]
        if variant.compiled_optimizer:
            self.updates = [torch.compile(update) for update in self.updates]

    def step(self):
        """Trains once; the loss of every objective before its update."""
        losses = []
        objectives = self.compiled or self.workload.objectives(self.model, self.batch, self.loss)
        for objective, weights, optimizer, update in zip(objectives, self.weights, self.optimizers, self.updates):
            optimizer.zero_grad()
            losses.append(objective())
            # The sum, so that each of several models has the gradient it has alone.
            total = losses[-1].sum() if losses[-1].dim() else losses[-1]
            # Of two networks only the one that is trained needs gradients.
            total.backward(inputs=weights if len(objectives) > 1 else None)
            update()
        return losses


def text(vocab, batch, length):
    return torch.randint(vocab, (batch, length)), torch.randint(vocab, (batch * length,))


def masked_text(vocab, batch, length):
    """Tokens, which of them are real, and those to be found again, a few."""
    x, y = text(vocab, batch, length)
    real = torch.randint(length // 2 + 1, length + 1, (batch, 1))
    return x, torch.arange(length) < real, y.where(torch.rand(y.shape) < 0.15, IGNORED)


# Vocabulary, width, heads, layers, context; samples and tokens of a batch.
GPTS = {
    "gpt-nano": ((65, 128, 4, 4, 64), (16, 64)),
    "gpt-mini": ((65, 384, 6, 6, 256), (4, 256)),
    "gpt2": ((50257, 768, 12, 12, 1024), (1, 256)),
    "transformer-lm": ((33278, 128, 2, 2, 32), (32, 32)),
}


def gpt(name, sets=(), batch=None, length=None):
    """A row of the workloads, with other settings than its own."""
    settings, (samples, tokens) = GPTS[name]
    settings = dict(zip(("vocab", "width", "heads", "layers", "context"), settings))
    for setting, value in sets:
        if setting not in settings:
            raise SystemExit(f"error: --set {setting}: a GPT has {', '.join(settings)}")
        settings[setting] = value
    data = lambda n=batch or samples: text(settings["vocab"], n, length or tokens)
    return Workload(lambda: GPT(**settings), data, "adam")


def setting(text):
    name, _, value = text.partition("=")
    return name, int(value)


def labelled(classes, *shape):
    return torch.randn(*shape), torch.randint(classes, (shape[0],))


def images_and_noise(batch=16):
    return torch.randn(batch, 3, 64, 64), torch.randn(batch, 100, 1, 1)


WORKLOADS = {
    "mlp": Workload(lambda: mlp(784, 1024, 1024, 10), lambda n=64: labelled(10, n, 784), "adam"),
    "mlp-tiny": Workload(lambda: mlp(64, 32, 10), lambda n=32: labelled(10, n, 64), "adam"),
    "resnet18": Workload(resnet18, lambda n=32: labelled(10, n, 3, 32, 32), "momentum"),
    "resnet50": Workload(resnet50, lambda n=4: labelled(1000, n, 3, 224, 224), "momentum"),
    **{name: gpt(name) for name in GPTS},
    "lstm": Workload(lambda: LSTM(1000, 512, 2), lambda n=20: text(1000, n, 35), "momentum"),
    "pointnet": Workload(PointNet, lambda n=16: labelled(40, n, 3, 1024), "adam"),
    "cnn": Workload(cnn, lambda n=32: labelled(10, n, 1, 28, 28), "adam"),
    "mobilenet_v2": Workload(mobilenet_v2, lambda n=32: labelled(10, n, 3, 32, 32), "momentum"),
    "dcgan": Workload(Dcgan, images_and_noise, "adam-dcgan", discriminated, ("discriminator.", "generator.")),
    "bert-small": Workload(
        lambda: Bert(30522, 512, 8, 8, 2048, 512), lambda n=4: masked_text(30522, n, 64), "adam"
    ),
}

OPTIMIZERS = {
    "adam": lambda weights, **how: torch.optim.Adam(weights, lr=1e-3, **how),
    "adam-dcgan": lambda weights, **how: torch.optim.Adam(weights, lr=2e-4, betas=(0.5, 0.999), **how),
    "momentum": lambda weights, **how: torch.optim.SGD(weights, lr=0.01, momentum=0.9, **how),
}


def quantile(ordered, share):
    return ordered[round((len(ordered) - 1) * share)]


def main():
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description="Trains one reference workload with PyTorch on the CPU.")
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--variant", choices=VARIANTS, default="plain")
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
    workload = gpt(arguments.workload, *changes) if any(changes) else WORKLOADS[arguments.workload]
    model, batch = workload.model(), workload.data()
    variant = VARIANTS[arguments.variant]
    samples, step = len(batch[0]), Training(workload, model, batch, variant=variant).step
    step()
    first = time.perf_counter() - start
    print(json.dumps({"event": "first_step", "workload": arguments.workload, "seconds": first}), flush=True)
    # A compiled optimizer is compiled again once its states exist.
    for _ in range(2 if variant.compiled else 1):
        step()
    times, before = [], 0.0
    begin = time.perf_counter()
    while not times or before < arguments.seconds:
        losses = step()
        now = time.perf_counter() - begin
        times.append(now - before)
        before = now
    times.sort()
    result = {
        "event": "workload",
        "workload": arguments.workload,
        "version": torch.__version__,
        "variant": arguments.variant,
        "threads": arguments.threads,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "batch": samples,
        "steps": len(times),
        "samples_per_second": len(times) * samples / before,
        "step_seconds": quantile(times, 0.5),
        "step_seconds_low": quantile(times, 0.1),
        "step_seconds_high": quantile(times, 0.9),
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "first_step_seconds": first,
        "loss": sum(loss.item() for loss in losses),
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
