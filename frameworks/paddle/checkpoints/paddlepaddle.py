"""Paddle, by paddle.save and paddle.distributed.save_state_dict: two groups, AdamW, a schedule; a CPU has no scaler."""

from pathlib import Path

import paddle
from paddle import nn

FORMS = ("save", "distributed")


def train(folder: Path, form: str, *, writes: bool) -> dict[str, list[float]]:
    """Save after two updates, or load; return the numbers after two more."""
    paddle.seed(0 if writes else 1)
    with paddle.utils.unique_name.guard():  # the optimizer's state is by the names of parameters
        layers = nn.Linear(3, 4), nn.Linear(4, 1)
    model = nn.Sequential(layers[0], nn.Tanh(), layers[1])
    groups = [{"params": layers[0].parameters()}, {"params": layers[1].parameters(), "learning_rate": 0.2}]
    schedule = paddle.optimizer.lr.StepDecay(0.1, 3, 0.5)
    optimizer = paddle.optimizer.AdamW(schedule, parameters=groups, weight_decay=0.1)

    def update(number: int) -> float:
        x = paddle.linspace(-1, 1, 12).reshape([4, 3]) + 0.25 * number
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        schedule.step()
        return float(loss)

    def tensors() -> dict[str, paddle.Tensor]:
        state = {**model.state_dict(), **optimizer.state_dict()}
        return {name: value for name, value in state.items() if name != "LR_Scheduler"}

    if writes:
        update(0), update(1)
        if form == "save":
            paddle.save(model.state_dict(), str(folder / "run.pdparams"))
            paddle.save(optimizer.state_dict(), str(folder / "run.pdopt"))
        else:
            paddle.distributed.save_state_dict(
                {**tensors(), "epoch": paddle.to_tensor(schedule.last_epoch)}, str(folder)
            )
    elif form == "save":
        model.set_state_dict(paddle.load(str(folder / "run.pdparams")))
        optimizer.set_state_dict(paddle.load(str(folder / "run.pdopt")))
    else:
        update(0)  # makes the moments, into which the call loads
        state = {**tensors(), "epoch": paddle.to_tensor(0)}
        paddle.distributed.load_state_dict(state, str(folder))
        schedule.step(int(state["epoch"]))
    numbers = {"losses": [update(2), update(3)], "rate": [float(schedule.get_lr())]}
    return numbers | {name: value.flatten().tolist() for name, value in tensors().items()}
