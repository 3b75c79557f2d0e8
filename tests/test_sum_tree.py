"""replay.SumTree: exact sums, what may be drawn, bad input. Names give the case of the fault."""

import math

import numpy as np
import pytest

from replay import SumTree

SIZES = [1, 2, 3, 5, 6, 7, 16, 17, 1000, 4096, 4097, 5000, 70_001]  # one to three levels, ragged edges


@pytest.mark.parametrize("size", SIZES)
def test_d1_capacity_need_not_be_a_power_of_two(size):
    tree = SumTree(size)
    tree.set(np.arange(size), 1.0)
    assert tree.total == size
    assert np.array_equal(tree.find(np.arange(size) + 0.5), np.arange(size))
    assert np.array_equal(tree.find(np.arange(size)), np.arange(size))
    assert tree.find(size).tolist() == [size - 1]  # the right edge


@pytest.mark.parametrize("size", SIZES)
def test_find_agrees_with_the_cumulative_sum(size):
    rng = np.random.default_rng(size)
    tree, masses = SumTree(size), rng.integers(0, 5, size)  # whole numbers: sums are exact
    masses[rng.integers(size)] = 3
    tree.set(np.arange(size), masses)
    edges = masses.cumsum()
    x = np.concatenate([rng.random(500) * edges[-1], edges[:-1][:500]])
    x = x[x < edges[-1]]
    assert np.array_equal(tree.find(x), edges.searchsorted(x, side="right"))
    assert np.array_equal(tree.get(np.arange(size)), masses)


@pytest.mark.parametrize("size", [6, 5000, 70_001])
def test_d2_no_drift_and_the_same_tree_whatever_its_history(size):
    rng = np.random.default_rng(0)
    tree = SumTree(size)
    for _ in range(400):
        n = min(size, 512)
        tree.set(rng.integers(0, size, n), 10.0 ** rng.uniform(-6, 6, n))
    tree.set(np.arange(size), 1e-6)
    assert tree.total == pytest.approx(size * 1e-6, rel=1e-12)
    masses = rng.random(size)
    for part in np.array_split(rng.permutation(size), 97):
        tree.set(part, masses[part])
    fresh = SumTree(size)
    fresh.set(np.arange(size), masses)
    assert all(np.array_equal(a, b) for a, b in zip(tree._levels, fresh._levels, strict=True))
    assert tree.total == fresh.total


@pytest.mark.parametrize("size", [4, 100, 5000, 70_001])
def test_d3_an_entry_without_mass_is_never_drawn(size):
    rng = np.random.default_rng(1)
    tree, masses = SumTree(size), np.zeros(size)
    masses[1::2] = 1 / 3
    tree.set(np.arange(size), masses)
    for _ in range(40):
        assert masses[tree.sample(rng, 256)].all()
    edge = np.nextafter(tree.total, [0.0, np.inf])
    assert masses[tree.find([0.0, *edge, tree.total])].all()
    tree.set(np.arange(size), 0.0)
    lone = size // 2  # all but one are empty, with empty entries on both sides
    tree.set(lone, 0.1)
    assert (tree.find(np.linspace(0, tree.total, 99)) == lone).all()


def test_d3_right_edge_of_every_row_with_masses_that_do_not_add_up_exactly():
    rng = np.random.default_rng(2)
    tree, masses = SumTree(70_001), rng.random(70_001) ** 9 * (rng.random(70_001) < 0.3)
    tree.set(np.arange(70_001), masses)
    edges = masses.cumsum()
    for x in (edges, np.nextafter(edges, 0), np.nextafter(edges, np.inf)):
        assert masses[tree.find(np.minimum(x, tree.total))].all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 1e300])
def test_d4_bad_masses_are_refused(bad):
    tree = SumTree(5000)
    tree.set(np.arange(5000), 2.0)
    with pytest.raises(ValueError, match=r"masses must be in \[0, 1e\+200\]"):
        tree.set([1, 2, 3], [1.0, bad, 1.0])
    assert tree.total == 10_000 and tree.get([1, 2, 3]).tolist() == [2, 2, 2]


def test_bad_indices_and_prefixes_are_refused():
    tree = SumTree(10)
    tree.set([], [])
    for index in (-1, 10):
        with pytest.raises(IndexError, match=r"\[0, 10\)"):
            tree.set(index, 1.0)
    with pytest.raises(ValueError, match="the mass, > 0"):
        tree.find(0.0)
    tree.set(3, 1.0)
    for x in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match="prefixes"):
            tree.find(x)
    with pytest.raises(ValueError, match="capacity"):
        SumTree(0)


def test_indices_of_any_shape():
    tree = SumTree(5000)
    tree.set(np.arange(5000), 1.0)
    tree.set([[0, 1], [2, 3]], [[5.0, 5.0], [5.0, 5.0]])
    assert tree.get([0, 1, 2, 3]).tolist() == [5.0] * 4 and tree.total == 5016


def test_duplicates_last_wins():
    tree = SumTree(5000)
    tree.set([7, 4000, 7, 7], [1.0, 2.0, 3.0, 5.0])
    assert tree.get(7) == [5] and tree.total == 7


def test_d2_exact_after_ten_million_updates():
    rng, size, n = np.random.default_rng(0), 2**16, 8192
    tree, mirror = SumTree(size), np.zeros(size)
    pool = 10.0 ** rng.uniform(-6, 6, n)  # from 1e-6 to 1e6: differences would lose all digits of the small ones
    for i in range(10_000_000 // n + 1):
        start = i * 40_503 % size
        indices, masses = (np.arange(start, start + n) * 25_173) % size, np.roll(pool, i * 101)
        tree.set(indices, masses)
        mirror[indices] = masses
    assert np.array_equal(tree.get(np.arange(size)), mirror)
    assert tree.total == pytest.approx(math.fsum(mirror), rel=1e-12)
    tree.set(np.arange(size), 1e-6)
    assert tree.total == pytest.approx(size * 1e-6, rel=1e-12)


@pytest.mark.parametrize("size", [4097, 70_001])
def test_d2_a_parent_is_the_sum_of_its_row_whatever_rows_are_set_together(size):
    rng = np.random.default_rng(3)
    masses, want = rng.random(size), SumTree(size)
    want.set(np.arange(size), masses)
    tree, order, start = SumTree(size), rng.permutation(size), 0
    while start < size:
        part = order[start : start + int(rng.integers(1, 40))]
        tree.set(part, masses[part])
        start += len(part)
    assert np.array_equal(tree._sums, want._sums)


def test_d3_rounding_that_reaches_past_a_row_finds_the_last_mass_of_it():
    """A row's sum and the sums from its left are added in different orders: the edge can lie past the last mass."""
    rng, tree = np.random.default_rng(0), SumTree(70_001)
    for _ in range(1000):
        row = 16 * int(rng.integers(70_001 // 16))
        count = int(rng.integers(2, 16))  # the rest of the row, and all others, are empty
        tree.set(np.arange(row, row + count), rng.random(count))
        below = np.nextafter(tree.total, 0)
        assert tree.find([tree.total, below, below / 2]).tolist()[:2] == [row + count - 1] * 2
        tree.set(np.arange(row, row + count), 0.0)


def test_the_least_mass_is_exact_after_any_change():
    rng, tree = np.random.default_rng(0), SumTree(300)
    assert tree.least() == np.inf
    for _ in range(400):
        indices = rng.integers(0, 300, 8)  # now and then one is repeated
        tree.set(indices, rng.choice([0.0, 0.5, 1.0, *rng.random(3)], 8))
        if rng.random() < 0.7:  # it need not be asked for after each
            masses = tree.get(np.arange(300))
            assert tree.least() == masses[masses > 0].min(initial=np.inf)
