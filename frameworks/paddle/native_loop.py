"""Native training loops in Paddle's dynamic graph alone, as in its guides on training and automatic mixed
precision."""

from collections.abc import Callable, Mapping
from typing import Any

import paddle

from fixtures.arrays import Array
from fixtures.model import Batch
from frameworks.native_loop import RATE, own, parts

MODES = ("dygraph", "dygraph-forced-scaler")


class Block(paddle.nn.Layer):
    """A pre-norm block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (paddle.nn.LayerNorm(width, epsilon=1e-5) for _ in range(2))
        self.attention = paddle.nn.MultiHeadAttention(width, heads)
        linear = paddle.nn.Linear
        self.feed = paddle.nn.Sequential(linear(width, 2 * width), paddle.nn.GELU(), linear(2 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Encoder(paddle.nn.Layer):
    """Token ids to a score for each of four labels at every position."""

    def __init__(self, width: int = 32, heads: int = 4, blocks: int = 2, length: int = 16) -> None:
        super().__init__()
        self.tokens, self.positions = paddle.nn.Embedding(4096, width), paddle.nn.Embedding(length, width)
        self.blocks = paddle.nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = paddle.nn.LayerNorm(width, epsilon=1e-5), paddle.nn.Linear(width, 4)
        self.places = paddle.arange(length)

    def forward(self, ids: Any) -> Any:
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions(self.places))))


def perceptron() -> Any:
    """784-512-256-128-10 with ReLU."""
    linear, relu = paddle.nn.Linear, paddle.nn.ReLU
    return paddle.nn.Sequential(
        linear(784, 512), relu(), linear(512, 256), relu(), linear(256, 128), relu(), linear(128, 10)
    )


MODELS: dict[str, Callable[[], Any]] = {"digits-mlp": perceptron, "encoder": Encoder}
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}


def start_from(model: Any, fixture: str, weights: Mapping[str, Array]) -> None:
    """Copies the fixture's weights into the model."""
    layers = dict(model.named_sublayers())
    for part, path in parts(fixture).items():
        before, result, projection = part.partition(".attention.")
        layer = layers[f"{before}.attention.{PROJECTIONS[projection]}" if result else part]
        for parameter, value in zip(layer.parameters(), own(weights, path).values(), strict=True):
            parameter.set_value(value)


def make(fixture: str, mixed: bool, weights: Mapping[str, Array], batch: Batch, device: str) -> Callable[[], float]:
    """A step on the batch, which returns its loss; with `mixed` in float16 under a `GradScaler`."""
    del device
    model = MODELS[fixture]()
    start_from(model, fixture, weights)
    optimizer = paddle.optimizer.Adam(RATE, parameters=model.parameters())
    scaler = paddle.amp.GradScaler()

    def loss_of() -> Any:
        """The mean over the tokens inside the mask; Paddle's own mean divides by ignored labels below 0 too."""
        outputs, labels = model(paddle.to_tensor(batch.inputs)), paddle.to_tensor(batch.targets["output"])
        if batch.mask is None:
            return paddle.nn.functional.cross_entropy(outputs, labels)
        mask = paddle.to_tensor(batch.mask)
        return (paddle.nn.functional.cross_entropy(outputs, labels, reduction="none") * mask).sum() / mask.sum()

    def plain_step() -> float:
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return float(loss)

    def mixed_step() -> float:
        with paddle.amp.auto_cast(dtype="float16", level="O1"):
            loss = loss_of()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.clear_grad()
        return float(loss)

    return mixed_step if mixed else plain_step
