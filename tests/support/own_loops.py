"""The training loop of `conformance new loop`, right and with mistakes that users make."""

from collections.abc import Iterable

from tests.support.suite_runs import ROOT

SOURCE = (ROOT / "frameworks" / "torch" / "template" / "my_training.py").read_text("utf-8")
_ZERO, _TRAIN, _SCHEDULED = (
    "        self.optimizer.zero_grad()\n",
    "        self.network.train()\n",
    "if self.scheduler and self.scaler.get_scale() >= scale:",
)
_FORWARD = "        with torch.autocast(self.recipe.device"
_MEAN_OF_MEANS = (
    (
        "        self.network, self.recipe = network, recipe\n",
        "        self.network, self.recipe, self.count = network, recipe, 0\n",
    ),
    (
        "self.scaler.scale(losses.sum() / items).backward()",
        "self.scaler.scale(losses.mean()).backward()\n        self.count += 1",
    ),
    (
        "        scale, norm = self.scaler.get_scale(), None\n",
        "        scale, norm = self.scaler.get_scale(), None\n"
        "        for parameter in self.network.parameters():\n"
        "            if parameter.grad is not None:\n"
        "                parameter.grad /= self.count\n"
        "        self.count = 0\n",
    ),
)
_NOTHING_OPTIONAL = (SOURCE[SOURCE.index("    def predict") :], "")
MISTAKES: dict[str, tuple[tuple[str, str], ...]] = {
    "mean-of-means": _MEAN_OF_MEANS,
    "last-window-divided-by-k": (("losses.sum() / items", "losses.mean() / self.recipe.accumulation"),),
    "clip-before-unscale": (("            self.scaler.unscale_(self.optimizer)\n", ""),),
    "misplaced-zero-grad": ((_ZERO, ""), (_FORWARD, f"{_ZERO}{_FORWARD}")),
    "schedule-steps-on-a-skip": ((_SCHEDULED, "if self.scheduler:"),),
    "evaluation-mode-left-on": ((_TRAIN, ""),),
    "scaler-not-saved": ((', "scaler": self.scaler}', "}"),),
}
"""Lines of the loop and what stands in their place, by mistake."""

RIGHT: dict[str, tuple[tuple[str, str], ...]] = {
    "as-written": (),
    "divides-in-step": tuple(
        (old, new.replace("losses.mean()", "losses.sum()").replace("self.count += 1", "self.count = items"))
        for old, new in _MEAN_OF_MEANS
    ),
    "ignores-nothing": (
        (
            "        self.scaler = torch.amp",
            "        decay = recipe.average\n"
            "        self.average = decay and torch.optim.swa_utils.AveragedModel(\n"
            "            network, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(decay))\n"
            "        self.scaler = torch.amp",
        ),
        (
            "            losses = self.network(inputs, targets)\n",
            "            if self.recipe.recompute:\n"
            "                again = torch.utils.checkpoint.checkpoint\n"
            "                losses = again(self.network, inputs, targets, use_reentrant=False)\n"
            "            else:\n"
            "                losses = self.network(inputs, targets)\n",
        ),
        ("self.scaler.update()", "self.scaler.update(self.recipe.static_scale)"),
        (
            "        self.scaler.step(self.optimizer)\n",
            "        applied = []\n"
            "        hook = self.optimizer.register_step_post_hook(lambda *_: applied.append(True))\n"
            "        self.scaler.step(self.optimizer)\n"
            "        hook.remove()\n",
        ),
        (
            _SCHEDULED,
            "if self.average and applied:\n"
            "            self.average.update_parameters(self.network)\n"
            "        if self.scheduler and applied:",
        ),
        _NOTHING_OPTIONAL,
    ),
    "three-methods": (_NOTHING_OPTIONAL,),
}
"""The same for loops that are right."""


def replace_lines(*changes: Iterable[tuple[str, str]]) -> str:
    """The source of the loop with these lines replaced.

    Raises:
        ValueError: a line is not there, or is there several times.
    """
    text = SOURCE
    for old, new in (pair for change in changes for pair in change):
        if text.count(old) != 1:
            raise ValueError(f"the loop has {text.count(old)} times {old!r}")
        text = text.replace(old, new)
    return text
