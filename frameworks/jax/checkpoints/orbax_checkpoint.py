"""Orbax, by PyTreeCheckpointer and CheckpointManager: Optax with groups, AdamW, a schedule and an average."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp

FORMS = ("tree", "manager")


def train(folder: Path, form: str, *, writes: bool) -> dict[str, list[float]]:
    """Save after two updates, or load; return the numbers after two more."""
    seed = 0 if writes else 1
    keys = jax.random.split(jax.random.key(seed))
    weights = {"inner": jax.random.normal(keys[0], (3, 4)), "outer": jax.random.normal(keys[1], (4, 1))}
    rate = optax.piecewise_constant_schedule(0.1, {3: 0.5})
    groups = {"inner": optax.adamw(rate, weight_decay=0.1), "outer": optax.adamw(0.02)}
    optimizer, average = optax.multi_transform(groups, {"inner": "inner", "outer": "outer"}), optax.ema(0.5)
    state: dict[str, Any] = {"weights": weights, "optimizer": optimizer.init(weights), "average": average.init(weights)}
    state |= {"key": jax.random.key_data(jax.random.key(seed)), "epoch": seed}

    def find_loss(weights: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        return jnp.square(jnp.tanh(x @ weights["inner"]) @ weights["outer"] - x.sum(1, keepdims=True)).mean()

    def update(number: int) -> float:
        x = jnp.linspace(-1, 1, 12).reshape(4, 3) + 0.25 * number
        loss, gradients = jax.value_and_grad(find_loss)(state["weights"], x)
        updates, state["optimizer"] = optimizer.update(gradients, state["optimizer"], state["weights"])
        state["weights"] = optax.apply_updates(state["weights"], updates)
        _, state["average"] = average.update(state["weights"], state["average"])
        return float(loss)

    if writes:
        update(0), update(1)
    saver = ocp.PyTreeCheckpointer() if form == "tree" else ocp.CheckpointManager(folder)
    if writes and form == "tree":
        saver.save(folder / "run", state)
    elif writes:
        items = {"state": ocp.args.StandardSave(state), "about": ocp.args.JsonSave({"done": 2})}
        saver.save(2, args=ocp.args.Composite(**items))
        saver.wait_until_finished()
    elif form == "tree":
        state = saver.restore(folder / "run", item=state)
    else:
        wanted = {"state": ocp.args.StandardRestore(state), "about": ocp.args.JsonRestore()}
        state = saver.restore(saver.latest_step(), args=ocp.args.Composite(**wanted))["state"]
    saver.close()
    losses = [update(2), update(3)]
    return {
        "losses": losses,
        "state": [float(x) for leaf in jax.tree.leaves(state) for x in jnp.ravel(jnp.array(leaf))],
    }
