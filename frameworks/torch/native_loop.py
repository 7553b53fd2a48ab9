"""Native training loops in PyTorch alone, as in its tutorials on training, attention and automatic mixed
precision."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.native_loop import RATE, own, parts

PADDING = -100
MODES = ("eager",)


class Attention(nn.Module):
    """Self-attention of (N, T, D)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.output = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        shape = (n, length, self.heads, width // self.heads)
        q, k, v = (part(x).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value))
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.output(y.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Encoder(nn.Module):
    """Token ids to a score for each of four labels at every position."""

    def __init__(self, width: int = 32, heads: int = 4, blocks: int = 2, length: int = 16) -> None:
        super().__init__()
        self.tokens = nn.Embedding(4096, width)
        self.positions = nn.Embedding(length, width)
        self.register_buffer("places", torch.arange(length))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions(self.places))))


def perceptron() -> nn.Module:
    """784-512-256-128-10 with ReLU."""
    return nn.Sequential(
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"digits-mlp": perceptron, "encoder": Encoder}


def start_from(model: nn.Module, fixture: str, weights: Mapping[str, Array]) -> None:
    """Copies the fixture's weights into the model; PyTorch stores the weight of a linear layer as (outputs, inputs)."""
    with torch.no_grad():
        for part, path in parts(fixture).items():
            module = model.get_submodule(part)
            for (_, parameter), value in zip(module.named_parameters(), own(weights, path).values(), strict=True):
                parameter.copy_(torch.from_numpy(value.T if isinstance(module, nn.Linear) else value))


def make(fixture: str, mixed: bool, weights: Mapping[str, Array], batch: Batch, device: str) -> Callable[[], float]:
    """A step on the batch, which returns its loss; with `mixed` in float16 under a `GradScaler`."""
    model = MODELS[fixture]().to(device)
    start_from(model, fixture, weights)
    labels = batch.targets["output"]
    if batch.mask is not None:
        labels = np.where(batch.mask > 0, labels, PADDING)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    scaler = torch.amp.GradScaler(device)
    model.train()

    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten(), ignore_index=PADDING)

    def plain_step() -> float:
        inputs, targets = torch.from_numpy(batch.inputs).to(device), torch.from_numpy(labels).to(device)
        optimizer.zero_grad()
        loss = loss_of(inputs, targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    def mixed_step() -> float:
        inputs, targets = torch.from_numpy(batch.inputs).to(device), torch.from_numpy(labels).to(device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = loss_of(inputs, targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return mixed_step if mixed else plain_step
