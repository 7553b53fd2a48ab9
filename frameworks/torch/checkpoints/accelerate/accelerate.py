"""Accelerate's save_state and load_state: AdamW with two groups, a schedule, an average and the random state."""

from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

FORMS = ("automatic", "pickle")


def train(folder: Path, form: str, *, writes: bool) -> dict[str, list[float]]:
    """Save after an epoch of four updates, or load; train for another epoch and return its numbers."""
    torch.manual_seed(not writes)
    is_automatic = form == "automatic"
    configuration = ProjectConfiguration(str(folder), automatic_checkpoint_naming=is_automatic)
    accelerator = Accelerator(cpu=True, project_config=configuration, step_scheduler_with_optimizer=False)
    plain = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    groups = [{"params": plain[0].parameters()}, {"params": plain[2].parameters(), "lr": 0.02}]
    adamw = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.1)
    steps = torch.optim.lr_scheduler.StepLR(adamw, 3, 0.5)
    loader = torch.utils.data.DataLoader(torch.linspace(-1, 1, 24).reshape(8, 3), 2, shuffle=True)
    model, optimizer, schedule, rows = accelerator.prepare(plain, adamw, steps, loader)
    average = AveragedModel(plain, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    accelerator.register_for_checkpointing(average)

    def update(x: torch.Tensor) -> float:
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        return float(loss.detach())

    if writes:
        [*map(update, rows)]
        accelerator.save_state(None if is_automatic else str(folder), safe_serialization=is_automatic)
    else:
        accelerator.load_state(None if is_automatic else str(folder))
    numbers = {"losses": [*map(update, rows)], "rates": list(schedule.get_last_lr())}
    models = {"weights": model, "averages": average.module}
    return numbers | {name: torch.cat([p.flatten() for p in m.parameters()]).tolist() for name, m in models.items()}
