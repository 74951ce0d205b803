"""Layers of many equal models side by side, as Wang et al. describe (Horizontally Fused Training Array, MLSys 2021):
grouped convolutions, batched matrix products, batch norm over members times channels.

Images and clouds are [samples, members * channels, ...]; everything else is [members * samples, ..., features].
"""
import copy

import torch
from torch import nn
from torch.nn import functional as F

import torch_models


class Unsupported(Exception):
    """The form cannot express the workload; the message is for people."""


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


class GroupedConvTranspose(nn.Module):
    """A transposed convolution per member, as groups of one."""

    def __init__(self, layers):
        super().__init__()
        first = layers[0]
        self.weight = nn.Parameter(joined(layers, "weight").detach().flatten(0, 1))
        self.bias = None if first.bias is None else nn.Parameter(joined(layers, "bias").detach().flatten())
        self.shape = (first.stride, first.padding, first.output_padding, len(layers) * first.groups, first.dilation)

    def forward(self, x):
        return F.conv_transpose2d(x, self.weight, self.bias, *self.shape)


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
    """GPT of all members."""

    def __init__(self, models):
        super().__init__()
        self.tokens = joined([model.tokens for model in models], "weight")
        self.positions = joined([model.positions for model in models], "weight")
        self.blocks = fused([model.blocks for model in models])
        self.norm = fused([model.norm for model in models])

    def forward(self, x):
        members, _, width = self.tokens.shape
        h = (embedded(self.tokens, x) + self.positions[:, None, : x.shape[1]]).flatten(0, 1)
        h = self.norm(self.blocks(h))
        return torch.bmm(h.view(members, -1, width), self.tokens.transpose(1, 2)).flatten(0, 1)


class FusedBert(nn.Module):
    """BERT of all members."""

    def __init__(self, models):
        super().__init__()
        for name in ("tokens", "positions", "types"):
            setattr(self, name, joined([getattr(model, name) for model in models], "weight"))
        for name in ("norm", "blocks", "dense", "dense_norm"):
            setattr(self, name, fused([getattr(model, name) for model in models]))
        self.bias = nn.Parameter(joined(models, "bias").detach().unsqueeze(1))

    def forward(self, x, mask):
        members, _, width = self.tokens.shape
        h = embedded(self.tokens, x) + self.positions[:, None, : x.shape[1]] + self.types[:, None, :1]
        h = self.norm(h.flatten(0, 1))
        for block in self.blocks:
            h = block(h, mask)
        h = self.dense_norm(F.gelu(self.dense(h))).view(members, -1, width)
        return torch.baddbmm(self.bias, h, self.tokens.transpose(1, 2)).flatten(0, 1)


def embedded(tables, x):
    """Tokens [members * samples, length] as [members, samples, length, width]. One table holds those of all members,
    each of whom finds its own at an offset."""
    members, vocab, _ = tables.shape
    offsets = (torch.arange(members) * vocab).view(members, 1, 1)
    return F.embedding(x.view(members, -1, x.shape[1]) + offsets, tables.flatten(0, 1))


def in_turn(x, members):
    """From [samples, members * features] to [members * samples, features]."""
    return x.view(len(x), members, -1).transpose(0, 1).flatten(0, 1)


# What stands for a layer of each kind.
FUSED = {
    nn.Linear: BatchedLinear,
    nn.Conv1d: GroupedConv,
    nn.Conv2d: GroupedConv,
    nn.ConvTranspose2d: GroupedConvTranspose,
    nn.BatchNorm1d: WideBatchNorm,
    nn.BatchNorm2d: WideBatchNorm,
    nn.LayerNorm: BatchedLayerNorm,
    nn.Flatten: SideBySideFlatten,
    torch_models.PointNet: FusedPointNet,
    torch_models.GPT: FusedGPT,
    torch_models.Bert: FusedBert,
}
# What does the same to all members at once.
SAME = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Tanh, nn.Identity, nn.MaxPool2d, nn.AdaptiveAvgPool2d)
# What only calls its children, whose `forward` does for both layouts.
CONTAINERS = (
    nn.Sequential,
    nn.ModuleList,
    torch_models.BasicBlock,
    torch_models.Bottleneck,
    torch_models.InvertedResidual,
    torch_models.GPTBlock,
    torch_models.BertBlock,
    torch_models.Dcgan,
)


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
