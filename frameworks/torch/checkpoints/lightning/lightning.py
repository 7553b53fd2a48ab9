"""Lightning, by the checkpoints of Trainer: two groups, AdamW, a schedule, an average and callbacks."""

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

FORMS = ("trainer",)


class Module(lightning.LightningModule):
    """A model that keeps its losses and its average."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.save_hyperparameters()
        self.model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        self.losses: list[float] = []

    def training_step(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean()
        self.losses.append(float(loss.detach()))
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_batch_end(self, *_: Any) -> None:
        """Average."""
        self.average.update_parameters(self.model)

    def configure_optimizers(self) -> tuple[list[Any], list[Any]]:
        """Return the optimizer and its schedule, by epochs."""
        groups = [{"params": self.model[0].parameters()}, {"params": self.model[2].parameters(), "lr": 0.02}]
        optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def train(folder: Path, form: str, *, writes: bool) -> dict[str, list[float]]:
    """Train two epochs of two updates with a checkpoint after the first, or go on from it; return the numbers."""
    saver = ModelCheckpoint(folder / form, "{epoch}", "loss", save_top_k=-1)
    stopper = EarlyStopping("loss", patience=5, check_on_train_epoch_end=True)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=2, callbacks=[saver, stopper], **quiet)
    module = Module(0 if writes else 1)
    rows = torch.utils.data.DataLoader(torch.linspace(-1, 1, 24).reshape(8, 3), 4)
    trainer.fit(module, rows, ckpt_path=None if writes else folder / form / "epoch=0.ckpt")
    (folder / form / "epoch=1.ckpt").unlink()
    counts = {"counts": [trainer.global_step, trainer.current_epoch], "best": [float(stopper.best_score)]}
    rates = [group["lr"] for group in trainer.optimizers[0].param_groups]
    weights = torch.cat([p.flatten() for p in module.parameters()]).tolist()
    return {"losses": module.losses[-2:], "rates": rates, "weights": weights, **counts}
