#!/usr/bin/env python3
"""Trains many members of one reference workload with PyTorch on the CPU, in one of three forms, and measures it.

usage: torch_arrays.py WORKLOAD --form FORM [--members N] [--threads N] [--seconds S]
       torch_arrays.py WORKLOAD --form FORM [--members N] --check

- solo: one model, as people write it; members would come one after the other.
- vmap: `torch.func`: members' weights stacked, `vmap` of the gradient of one member.
- hfta: one model with wider layers, as Wang et al. describe (Horizontally Fused Training Array, MLSys 2021):
  grouped convolutions, batched matrix products, batch norm over members times channels.

Models, batches, losses and optimizers are those of torch_train.py; all members train on one batch. Prints JSON lines:
`first_step` as soon as the first step is done, then `workload`. A loss that is not finite or does not fall is a
failure. `--check` instead trains two steps, and each member alone with the same weights: losses must agree.
"""
import argparse
import json
import resource
import sys
import time

sys.dont_write_bytecode = True

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from torch_fused import Unsupported, fused
from torch_train import IGNORED, OPTIMIZERS, WORKLOADS, Training, quantile

CHECKED_STEPS = 2
CHECKED_SAMPLES = 4
TOLERANCE = 1e-6


# Every form is a class with `parameters` of one member and `step`, which trains once and returns the losses
# before, [objectives, members].


class Solo:
    """One model."""

    def __init__(self, workload, models, batch):
        self.training = Training(workload, *models, batch)
        self.parameters = count(self.training.model.parameters())

    def step(self):
        return torch.stack([loss.detach().reshape(1) for loss in self.training.step()])


class Objectives(nn.Module):
    """A model that is called for the loss of an objective, by its number."""

    def __init__(self, workload, model):
        super().__init__()
        self.objectives, self.model = workload.objectives, model

    def forward(self, number, *batch):
        return self.objectives(self.model, batch, F)[number]()


class Vmap:
    """Stacked weights under `vmap`. Batch norm keeps no running statistics, which `vmap` cannot update. Attention
    is that of plain products: `vmap` would do the fused one member by member, which takes longer. Recurrent layers
    it does member by member."""

    def __init__(self, workload, models, batch):
        for model in models:
            torch.func.replace_all_batch_norm_modules_(model)
        self.batch, members = batch, [Objectives(workload, model) for model in models]
        self.weights, self.buffers = torch.func.stack_module_state(members)
        self.parameters = count(self.weights.values()) // len(models)

        def gradients(number):
            def loss(trained, others, buffers, *batch):
                return torch.func.functional_call(members[0], (trained, others, buffers), (number, *batch))

            return torch.func.vmap(torch.func.grad_and_value(loss), in_dims=(0, 0, 0, *[None] * len(batch)))

        self.parts = []
        for number, start in enumerate(workload.trained):
            trained = {name: weight for name, weight in self.weights.items() if name.startswith(f"model.{start}")}
            others = {name: weight for name, weight in self.weights.items() if name not in trained}
            self.parts.append((gradients(number), trained, others, OPTIMIZERS[workload.rule](trained.values())))

    def step(self):
        losses = []
        for gradients, trained, others, optimizer in self.parts:
            # What is differentiated inside need not be recorded outside.
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                found, loss = gradients(trained, others, self.buffers, *self.batch)
            for name, gradient in found.items():
                trained[name].grad = gradient
            optimizer.step()
            losses.append(loss)
        return torch.stack(losses)


class Hfta:
    """One model with the layers of all members side by side."""

    def __init__(self, workload, models, batch):
        members = len(models)
        # As fused layers want it.
        batch = [torch.cat([x] * members, 1 if x.dim() > 2 else 0) for x in batch]
        self.training = Training(workload, fused(models), batch, PerMember(members))
        self.parameters = count(self.training.model.parameters()) // members

    def step(self):
        return torch.stack([loss.detach() for loss in self.training.step()])


class PerMember:
    """Losses by the names they have in `F`, as a vector of those of each member."""

    def __init__(self, members):
        self.members, self.counted = members, None

    def cross_entropy(self, logits, y):
        # All batches are the same.
        self.counted = self.counted or (y != IGNORED).sum().item() // self.members
        return F.cross_entropy(logits, y, reduction="none").view(self.members, -1).sum(1) / self.counted

    def binary_cross_entropy_with_logits(self, logits, answers):
        rows = F.binary_cross_entropy_with_logits(logits, answers, reduction="none")
        return rows.view(self.members, -1).mean(1)


FORMS = {"solo": Solo, "vmap": Vmap, "hfta": Hfta}


def count(weights):
    return sum(weight.numel() for weight in weights)


def member(make, seed):
    """The model of a member; its weights depend on the seed alone."""
    torch.manual_seed(seed)
    return make()


def trainer(form, seeds, name, *samples):
    """The members of these seeds in a form, ready to train; on so many samples, if that is said."""
    workload = WORKLOADS[name]
    models = [member(workload.model, seed) for seed in seeds]
    torch.manual_seed(0)
    return FORMS[form](workload, models, workload.data(*samples))


def check(form, members, workload):
    """Fails unless every member has the losses it has alone, up to the loss after some steps. In double precision, as
    a step makes a lot of rounding errors: batch norm and Adam divide by what may be next to nothing."""
    torch.set_default_dtype(torch.float64)

    def losses(form, seeds):
        array = trainer(form, seeds, workload, CHECKED_SAMPLES)
        return torch.stack([array.step() for _ in range(CHECKED_STEPS + 1)])

    together = losses(form, range(members))
    alone = torch.cat([losses("solo", [seed]) for seed in range(members)], 2)
    if together.shape != alone.shape:
        sys.exit(f"error: losses have shape {list(together.shape)}, not {list(alone.shape)}")
    off = ((together - alone).abs() / alone.abs().clamp(min=1)).max().item()
    # The members must differ, or a mix-up of two would not be seen.
    apart = (alone[-1].amax(1) - alone[-1].amin(1)).min().item()
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
    # What one of two networks gains the other loses.
    falls = len(first) > 1 or bool((last < first).all())
    if not (falls and bool(last.isfinite().all() and first.isfinite().all())):
        sys.exit(f"error: losses do not fall: {first.tolist()} first, {last.tolist()} after {len(times) + 2} steps")
    times.sort()
    samples = len(WORKLOADS[arguments.workload].data()[0])
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
        "first_loss": first.sum(0).tolist(),
        "loss": last.sum(0).tolist(),
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
