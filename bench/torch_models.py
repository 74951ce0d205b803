"""The models of the reference workloads in PyTorch. Those of `lab bench` have the same layers and parameters."""
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


class BertBlock(nn.Module):
    """Attention and two linear layers, each added to what came in and normalised after."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.proj, self.norm1 = nn.Linear(width, width), nn.LayerNorm(width, 1e-12)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm2 = nn.LayerNorm(width, 1e-12)

    def forward(self, x, mask):
        batch, length, width = x.shape
        split = lambda y: y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        query, key, value = (split(layer(x)) for layer in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(query, key, value, mask[:, None, None])
        x = self.norm1(x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """An encoder that predicts masked tokens, of samples that are not all as long."""

    def __init__(self, vocab, width, heads, layers, hidden, context):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.types, self.norm = nn.Embedding(2, width), nn.LayerNorm(width, 1e-12)
        self.blocks = nn.ModuleList(BertBlock(width, heads, hidden) for _ in range(layers))
        self.dense, self.dense_norm = nn.Linear(width, width), nn.LayerNorm(width, 1e-12)
        self.bias = nn.Parameter(torch.zeros(vocab))
        for layer in self.modules():
            if isinstance(layer, (nn.Linear, nn.Embedding)):
                nn.init.normal_(layer.weight, std=0.02)

    def forward(self, x, mask):
        h = self.norm(self.tokens(x) + self.positions.weight[: x.shape[1]] + self.types.weight[0])
        for block in self.blocks:
            h = block(h, mask)
        h = self.dense_norm(F.gelu(self.dense(h)))
        return F.linear(h, self.tokens.weight, self.bias).flatten(0, 1)


class InvertedResidual(nn.Module):
    """A depthwise convolution between two of extent one, of which the first makes it wider."""

    def __init__(self, inside, outside, stride, expand):
        super().__init__()
        wide = inside * expand
        layers = [] if expand == 1 else [conv_norm_clamp(inside, wide, 1, 1)]
        layers += [conv_norm_clamp(wide, wide, 3, stride, wide)]
        self.body = nn.Sequential(*layers, nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside))
        self.adds = stride == 1 and inside == outside

    def forward(self, x):
        return x + self.body(x) if self.adds else self.body(x)


def conv_norm_clamp(inside, outside, kernel, stride, groups=1):
    convolution = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside), nn.ReLU6())


def mobilenet_v2():
    """For 32x32 images of ten classes."""
    layers, inside = [conv_norm_clamp(3, 32, 3, 2)], 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expand, outside, blocks, stride in stages:
        for block in range(blocks):
            layers.append(InvertedResidual(inside, outside, 1 if block else stride, expand))
            inside = outside
    layers.append(conv_norm_clamp(inside, 1280, 1, 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 10))


class Dcgan(nn.Module):
    """A generator of 64x64 images and a discriminator."""

    def __init__(self, latent=100, width=64, channels=3):
        super().__init__()
        up = [nn.ConvTranspose2d(latent, 8 * width, 4, 1, 0, bias=False), nn.BatchNorm2d(8 * width), nn.ReLU()]
        for n in (8, 4, 2):
            up += [nn.ConvTranspose2d(n * width, n // 2 * width, 4, 2, 1, bias=False)]
            up += [nn.BatchNorm2d(n // 2 * width), nn.ReLU()]
        self.generator = nn.Sequential(*up, nn.ConvTranspose2d(width, channels, 4, 2, 1, bias=False), nn.Tanh())
        down = [nn.Conv2d(channels, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        for n in (1, 2, 4):
            down += [nn.Conv2d(n * width, 2 * n * width, 4, 2, 1, bias=False)]
            down += [nn.BatchNorm2d(2 * n * width), nn.LeakyReLU(0.2)]
        self.discriminator = nn.Sequential(*down, nn.Conv2d(8 * width, 1, 4, 1, 0, bias=False), nn.Flatten())
        for layer in self.modules():
            if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.normal_(layer.weight, 0.0, 0.02)
            elif isinstance(layer, nn.BatchNorm2d):
                nn.init.normal_(layer.weight, 1.0, 0.02)


def cnn():
    """For 28x28 images of ten classes."""
    layers = []
    for inside, outside in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(inside, outside, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 7 * 7, 10))


def mlp(*sizes):
    layers = []
    for inside, outside in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
