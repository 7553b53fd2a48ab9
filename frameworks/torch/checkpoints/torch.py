"""PyTorch, by torch.save and torch.distributed.checkpoint: two groups, AdamW, a schedule, a scaler and an average."""

from pathlib import Path

import torch
import torch.distributed.checkpoint as distributed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

FORMS = ("save", "distributed")


def train(folder: Path, form: str, *, writes: bool) -> dict[str, list[float]]:
    """Save after two updates, or load; return the numbers after two more."""
    torch.manual_seed(not writes)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 0.02}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))

    def update(number: int) -> float:
        x = torch.linspace(-1, 1, 12).reshape(4, 3) + 0.25 * number
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        average.update_parameters(model)
        return float(loss.detach())

    parts = {"schedule": schedule, "scaler": scaler, "average": average}
    if writes:
        update(0), update(1)
    state = {name: part.state_dict() for name, part in parts.items()}
    if form == "distributed":
        state["model"], state["optimizer"] = get_state_dict(model, optimizer)
    if writes and form == "distributed":
        distributed.save(state, checkpoint_id=folder)
    elif writes:
        torch.save({**state, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "run.pt")
    elif form == "distributed":
        distributed.load(state, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    else:
        state = torch.load(folder / "run.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    for name, part in () if writes else parts.items():
        part.load_state_dict(state[name])
    numbers = {"losses": [update(2), update(3)], "rates": list(schedule.get_last_lr()), "scale": [scaler.get_scale()]}
    models = {"weights": model, "averages": average.module}
    return numbers | {name: torch.cat([p.flatten() for p in m.parameters()]).tolist() for name, m in models.items()}
