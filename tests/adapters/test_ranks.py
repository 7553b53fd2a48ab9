"""Ranks as a field of the recipe: how batches are dealt, what a view of a rank group is, and which modes have them."""

from pathlib import Path

import numpy as np
import pytest

from conformance.checks.subject import Subject
from fixtures.data import digits_batch, exact_batch
from fixtures.models import digits_convolution, exact_linear, exact_stack
from fixtures.recipe import SGD, Adam, Ranks, Recipe
from frameworks.base import RankGroupTrainer, observed, split_across_ranks, with_ranks
from frameworks.contract import Capability, Unsupported
from frameworks.reference import ReferenceFramework

EXACT = Recipe(SGD(2.0**-4))


@pytest.mark.parametrize(
    ("size", "count", "sizes"), [(8, 2, [4, 4]), (7, 2, [4, 3]), (1, 4, [1, 0, 0, 0]), (0, 2, [0, 0])]
)
def test_batches_are_dealt_in_parts_as_equal_as_can_be(size: int, count: int, sizes: list[int]) -> None:
    batch = exact_batch(8).part(0, size)
    parts = split_across_ranks(batch, count)
    assert [len(part) for part in parts] == sizes
    assert np.array_equal(np.concatenate([part.inputs for part in parts]), batch.inputs)


@pytest.mark.parametrize(("count", "replicas"), [(0, 1), (4, 3), (2, 0)])
def test_ranks_that_hold_no_whole_number_of_replicas_are_refused(count: int, replicas: int) -> None:
    with pytest.raises(ValueError, match=f"{count} ranks cannot hold {replicas} replicas"):
        Ranks(count, "full", replicas)


def test_label_of_ranks_names_the_mesh() -> None:
    assert [Ranks(2).label, Ranks(4, "full", 2).label] == ["replicated-2", "full-2x2"]
    assert Ranks(2, "gradients", reduce="bfloat16").label == "gradients-2-bfloat16"


def test_the_view_of_a_company_is_a_run_of_the_whole_batch() -> None:
    reference = ReferenceFramework("cpu")
    alone, spread = (
        reference.trainer(exact_linear(), EXACT.replace(ranks=ranks)) for ranks in (None, Ranks(2, "full"))
    )
    assert isinstance(spread, RankGroupTrainer)
    assert alone.update((exact_batch(8),)) == spread.update((exact_batch(8),))
    for name, value in alone.parameters().items():
        assert np.array_equal(spread.parameters()[name], value)


def test_the_view_saves_the_losses_of_an_open_window(tmp_path: Path) -> None:
    recipe = EXACT.replace(accumulation=2, ranks=Ranks(2))
    saved, loaded = (ReferenceFramework("cpu").trainer(exact_stack(), recipe) for _ in range(2))
    first, second = exact_batch(8).into(2)
    saved.accumulate(first, 8)
    saved.save(tmp_path)
    loaded.restore(tmp_path)
    assert loaded.accumulate(second, 8) == saved.accumulate(second, 8)
    assert loaded.apply() == saved.apply()
    (tmp_path / "window.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"window\.npy cannot be loaded"):
        loaded.restore(tmp_path)


def test_a_mode_with_ranks_trains_everything_with_them_and_nothing_else_does() -> None:
    for mode, ranks in (("emulated", None), ("ranks", Ranks(2))):
        subject = Subject(ReferenceFramework("cpu", mode), 0)
        assert subject.seeded(Recipe()).ranks == ranks
        assert subject.seeded(Recipe(ranks=Ranks(4))).ranks == Ranks(4)


def test_every_capability_of_ranks_is_seen_to_act() -> None:
    attempts = with_ranks({}, ReferenceFramework("cpu").rank_group, None)
    assert {capability: observed(attempt) for capability, attempt in attempts.items()} == {
        capability: True for capability in Capability if capability.startswith("ranks.")
    }


def test_a_company_without_ranks_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"recipe\.ranks is required, e\.g\. Recipe\(ranks=Ranks\(2\)\)"):
        ReferenceFramework("cpu").rank_group(exact_linear(), Recipe(Adam()))


def test_trainer_of_ranks_that_an_adapter_does_not_name_is_refused() -> None:
    class WithoutRanks(ReferenceFramework):
        def supported(self):  # type: ignore[no-untyped-def]
            return [c for c in super().supported() if not c.startswith("ranks.")]

    with pytest.raises(Unsupported, match=r"ranks\.full"):
        WithoutRanks("cpu").trainer(exact_linear(), Recipe(ranks=Ranks(2, "full")))


def test_a_rank_without_samples_goes_through_a_convolution() -> None:
    batch = digits_batch(1, image=True)
    losses = [
        ReferenceFramework("cpu").trainer(digits_convolution(), EXACT.replace(ranks=ranks)).update((batch,)).loss
        for ranks in (None, Ranks(2))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
