#!/usr/bin/env python3
"""Trains many members of one reference workload with PyTorch on the CPU, in one of three forms, and measures it.

usage: torch_arrays.py WORKLOAD --form FORM [--members N] [--threads N] [--seconds S]
       torch_arrays.py WORKLOAD --form FORM [--members N] --check

- solo: one model, as people write it; members would come one after the other.
- vmap: `torch.func`: members' weights stacked, `vmap` of the gradient of one member.
- hfta: one model with wider layers, as Wang et al. describe (Horizontally Fused Training Array, MLSys 2021):
  grouped convolutions, batched matrix products, batch norm over members times channels.

Models, batches and optimizers are those of torch_train.py; all members train on one batch. Prints JSON lines:
`first_step` as soon as the first step is done, then `workload`. A loss that is not finite or does not fall is a
failure. `--check` instead trains two steps, and each member alone with the same weights: losses must agree.
"""
import argparse
import copy
import json
import resource
import sys
import time

sys.dont_write_bytecode = True

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import torch_train
from torch_train import OPTIMIZERS, WORKLOADS, quantile

CHECKED_STEPS = 2
TOLERANCE = 1e-4


class Unsupported(Exception):
    """The form cannot express the workload; the message is for people."""


# Every form is a class with `parameters` of one member and `step`, which trains once and returns the loss of
# every member before it.


class Solo:
    """One model."""

    def __init__(self, models, batch, rule):
        (self.model,), (self.x, self.y) = models, batch
        self.optimizer = OPTIMIZERS[rule](self.model.parameters())
        self.parameters = count(self.model.parameters())

    def step(self):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach().reshape(1)


class Vmap:
    """Stacked weights under `vmap`. Batch norm keeps no running statistics, which `vmap` cannot update. Attention
    is that of plain products: `vmap` would do the fused one member by member, which takes longer. Recurrent layers
    it does member by member."""

    def __init__(self, models, batch, rule):
        for model in models:
            torch.func.replace_all_batch_norm_modules_(model)
        self.batch = batch
        self.weights, buffers = torch.func.stack_module_state(models)
        self.optimizer = OPTIMIZERS[rule](self.weights.values())
        self.parameters = count(self.weights.values()) // len(models)

        def loss(weights, buffers, x, y):
            return F.cross_entropy(torch.func.functional_call(models[0], (weights, buffers), (x,)), y)

        self.gradients = torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(0, 0, None, None))
        self.buffers = buffers

    def step(self):
        with sdpa_kernel(SDPBackend.MATH):
            gradients, losses = self.gradients(self.weights, self.buffers, *self.batch)
        for name, gradient in gradients.items():
            self.weights[name].grad = gradient
        self.optimizer.step()
        return losses.detach()


class Hfta:
    """One model with the layers of all members side by side."""

    def __init__(self, models, batch, rule):
        self.members = len(models)
        self.model = fused(models)
        x, y = batch
        # Channels of members lie side by side; what has no channels yet has the samples of members in turn.
        convolves = any(isinstance(module, GroupedConv) for module in self.model.modules())
        self.x = x.repeat(1, self.members, *[1] * (x.dim() - 2)) if convolves else x.repeat(self.members, 1)
        self.y = y.repeat(self.members)
        self.optimizer = OPTIMIZERS[rule](self.model.parameters())
        self.parameters = count(self.model.parameters()) // self.members

    def step(self):
        self.optimizer.zero_grad()
        losses = F.cross_entropy(self.model(self.x), self.y, reduction="none").view(self.members, -1).mean(1)
        # The sum, so that each member has the gradient it has alone.
        losses.sum().backward()
        self.optimizer.step()
        return losses.detach()


FORMS = {"solo": Solo, "vmap": Vmap, "hfta": Hfta}


# Fused layers. Images and clouds are [samples, members * channels, ...]; everything else is
# [members * samples, ..., features].


def joined(layers, name):
    """A weight of all members, [members, ...]."""
    return nn.Parameter(torch.stack([getattr(layer, name).detach() for layer in layers]))


class BatchedLinear(nn.Module):
    """A linear layer per member, as one batched product."""

    def __init__(self, layers):
        super().__init__()
        self.weight = nn.Parameter(joined(layers, "weight").detach().transpose(1, 2).contiguous())
        self.bias = None if layers[0].bias is None else nn.Parameter(joined(layers, "bias").detach().unsqueeze(1))

    def forward(self, x):
        members, inside, outside = self.weight.shape
        rows = x.reshape(members, -1, inside)
        rows = torch.bmm(rows, self.weight) if self.bias is None else torch.baddbmm(self.bias, rows, self.weight)
        return rows.view(*x.shape[:-1], outside)


class GroupedConv(nn.Module):
    """A convolution per member, as groups of one."""

    def __init__(self, layers):
        super().__init__()
        first = layers[0]
        self.convolve = F.conv1d if isinstance(first, nn.Conv1d) else F.conv2d
        self.weight = nn.Parameter(joined(layers, "weight").detach().flatten(0, 1))
        self.bias = None if first.bias is None else nn.Parameter(joined(layers, "bias").detach().flatten())
        self.shape = (first.stride, first.padding, first.dilation, len(layers) * first.groups)

    def forward(self, x):
        return self.convolve(x, self.weight, self.bias, *self.shape)


class WideBatchNorm(nn.Module):
    """A batch norm per member, as one over members times channels."""

    def __init__(self, layers):
        super().__init__()
        self.members, self.features = len(layers), layers[0].num_features
        self.norm = type(layers[0])(self.members * self.features, layers[0].eps, layers[0].momentum)
        self.norm.weight = nn.Parameter(joined(layers, "weight").detach().flatten())
        self.norm.bias = nn.Parameter(joined(layers, "bias").detach().flatten())

    def forward(self, x):
        if x.dim() > 2:
            return self.norm(x)
        side_by_side = x.view(self.members, -1, self.features).transpose(0, 1).flatten(1)
        return in_turn(self.norm(side_by_side), self.members)


class BatchedLayerNorm(nn.Module):
    """A norm without weights, then gain and bias of each member."""

    def __init__(self, layers):
        super().__init__()
        self.features, self.eps = layers[0].normalized_shape, layers[0].eps
        self.weight = nn.Parameter(joined(layers, "weight").detach().unsqueeze(1))
        self.bias = nn.Parameter(joined(layers, "bias").detach().unsqueeze(1))

    def forward(self, x):
        rows = F.layer_norm(x, self.features, eps=self.eps).view(len(self.weight), -1, *self.features)
        return torch.addcmul(self.bias, rows, self.weight).view(x.shape)


class SideBySideFlatten(nn.Module):
    """From images to one row per member and sample."""

    def __init__(self, layers):
        super().__init__()
        self.members = len(layers)

    def forward(self, x):
        return in_turn(x.flatten(1), self.members)


class FusedPointNet(nn.Module):
    """PointNet of all members."""

    def __init__(self, models):
        super().__init__()
        self.members = len(models)
        self.points = fused([model.points for model in models])
        self.classify = fused([model.classify for model in models])

    def forward(self, x):
        return self.classify(in_turn(self.points(x).amax(2), self.members))


class FusedGPT(nn.Module):
    """GPT of all members. One table of tokens holds those of all, which every member finds at its own offset."""

    def __init__(self, models):
        super().__init__()
        self.tokens = joined([model.tokens for model in models], "weight")
        self.positions = joined([model.positions for model in models], "weight")
        self.blocks = fused([model.blocks for model in models])
        self.norm = fused([model.norm for model in models])

    def forward(self, x):
        members, vocab, width = self.tokens.shape
        samples, length = x.shape
        offsets = (torch.arange(members) * vocab).view(members, 1, 1)
        tokens = F.embedding(x.view(members, -1, length) + offsets, self.tokens.flatten(0, 1))
        h = tokens + self.positions[:, None, :length]
        h = self.norm(self.blocks(h.view(samples, length, width)))
        return torch.bmm(h.view(members, -1, width), self.tokens.transpose(1, 2)).flatten(0, 1)


def in_turn(x, members):
    """From [samples, members * features] to [members * samples, features]."""
    return x.view(len(x), members, -1).transpose(0, 1).flatten(0, 1)


# What stands for a layer of each kind.
FUSED = {
    nn.Linear: BatchedLinear,
    nn.Conv1d: GroupedConv,
    nn.Conv2d: GroupedConv,
    nn.BatchNorm1d: WideBatchNorm,
    nn.BatchNorm2d: WideBatchNorm,
    nn.LayerNorm: BatchedLayerNorm,
    nn.Flatten: SideBySideFlatten,
    torch_train.PointNet: FusedPointNet,
    torch_train.GPT: FusedGPT,
}
# What does the same to all members at once.
SAME = (nn.ReLU, nn.Identity, nn.AdaptiveAvgPool2d)
# What only calls its children, whose `forward` does for both layouts.
CONTAINERS = (nn.Sequential, torch_train.BasicBlock, torch_train.Bottleneck, torch_train.GPTBlock)


def fused(models):
    """The layers of equal models side by side, as one model with their weights."""
    first = models[0]
    if type(first) in FUSED:
        return FUSED[type(first)](models)
    if isinstance(first, SAME):
        return first
    if not isinstance(first, CONTAINERS):
        raise Unsupported(f"HFTA has no fused form of {type(first).__name__}")
    whole = copy.copy(first)
    whole._modules = {
        name: fused([getattr(model, name) for model in models]) for name, _ in first.named_children()
    }
    return whole


def count(weights):
    return sum(weight.numel() for weight in weights)


def member(make, seed):
    """The model of a member; its weights depend on the seed alone."""
    torch.manual_seed(seed)
    return make()


def trainer(form, seeds, workload):
    """The members of these seeds in a form, ready to train."""
    make, data, rule = WORKLOADS[workload]
    models = [member(make, seed) for seed in seeds]
    torch.manual_seed(0)
    return FORMS[form](models, data(), rule)


def check(form, members, workload):
    """Fails unless every member has the losses it has alone, up to the loss after some steps."""
    losses = lambda trainer: torch.stack([trainer.step() for _ in range(CHECKED_STEPS + 1)])
    together = losses(trainer(form, range(members), workload))
    alone = torch.cat([losses(trainer("solo", [seed], workload)) for seed in range(members)], 1)
    if together.shape != alone.shape:
        sys.exit(f"error: losses have shape {list(together.shape)}, not {list(alone.shape)}")
    off = ((together - alone).abs() / alone.abs().clamp(min=1)).max().item()
    # The members must differ, or a mix-up of two would not be seen.
    apart = (alone[-1].max() - alone[-1].min()).item()
    if not off < TOLERANCE or (members > 1 and not apart > 10 * off):
        sys.exit(f"error: {workload}, {form}: losses are {off:.2g} off those of members alone, {apart:.2g} apart")
    print(json.dumps({"event": "check", "workload": workload, "form": form, "members": members, "off": off}))


def run(arguments, start):
    seeds = range(1 if arguments.form == "solo" else arguments.members)
    array = trainer(arguments.form, seeds, arguments.workload)
    first = array.step()
    seconds = time.perf_counter() - start
    print(json.dumps({"event": "first_step", "workload": arguments.workload, "seconds": seconds}), flush=True)
    array.step()
    times, before = [], 0.0
    begin = time.perf_counter()
    while not times or before < arguments.seconds:
        last = array.step()
        now = time.perf_counter() - begin
        times.append(now - before)
        before = now
    if not bool(last.isfinite().all() and first.isfinite().all() and (last < first).all()):
        sys.exit(f"error: losses do not fall: {first.tolist()} first, {last.tolist()} after {len(times) + 2} steps")
    times.sort()
    samples = len(WORKLOADS[arguments.workload][1]()[0])
    result = {
        "event": "workload",
        "workload": arguments.workload,
        "version": torch.__version__,
        "form": arguments.form,
        "threads": arguments.threads,
        "members": len(seeds),
        "parameters": array.parameters,
        "batch": samples,
        "steps": len(times),
        "samples_per_second": len(times) * samples * len(seeds) / before,
        "step_seconds": quantile(times, 0.5),
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "first_loss": first.tolist(),
        "loss": last.tolist(),
    }
    print(json.dumps(result), flush=True)


def main():
    start = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--form", choices=FORMS, required=True)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--check", action="store_true", help="measures nothing; compares with members alone")
    arguments = parser.parse_args()
    if arguments.members < 1:
        parser.error("--members must be above zero")
    torch.set_num_threads(arguments.threads)
    try:
        if arguments.check:
            check(arguments.form, arguments.members, arguments.workload)
        else:
            run(arguments, start)
    except Unsupported as reason:
        sys.exit(f"error: unsupported: {reason}")


if __name__ == "__main__":
    main()
