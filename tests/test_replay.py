"""replay.py: trajectories as bytes, the sum tree, the buffer. Names give the case of the fault."""

import io
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import replay
from replay import NotEnoughData, PrioritizedReplay, SumTree, Trajectory, pad_batch


def trajectory(steps=3, seed=0, width=8, **changes):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, steps)
    fields = dict(
        instruction="search for \u201cpizza\u201d \ud83d", family="web_search",  # a lone surrogate too
        prompts=[f"Previous Actions:  {i}\n" for i in range(steps + 1)],
        features=rng.standard_normal((steps + 1, width)), actions=[f'"TYPE" {{{i}}}' for i in range(steps)],
        token_ids=[rng.integers(0, 500, n) for n in lengths], logprobs=[-rng.random(n) for n in lengths],
        rewards=np.r_[np.zeros(steps - 1), 1.0], invalid=rng.random(steps) < 0.3,
        policy_version=np.arange(steps) + 7, terminated=True, truncated=False, success=True,
        info={"worker": 3, "seconds": 0.5, "notes": [None, "x"]})
    return Trajectory(**fields | changes)


def filled(lengths, capacity=1000, **arguments):
    buffer = PrioritizedReplay(capacity, **arguments)
    for seed, steps in enumerate(lengths):
        buffer.add(trajectory(steps, seed=seed))
    return buffer


def frequencies(buffer, draws=4000, **how):
    ids, _, _ = buffer.sample(draws, **how)
    return {int(i): float((ids == i).mean()) for i in buffer.ids}


# ---- Trajectory

def test_trajectory_survives_its_bytes():
    for success, steps in ((True, 5), (False, 1), (None, 3)):
        a = trajectory(steps, success=success, terminated=False, truncated=True)
        b = Trajectory.from_bytes(a.to_bytes())
        for name, x in vars(a).items():
            y = getattr(b, name)
            if name in ("token_ids", "logprobs"):
                for i, j in zip(x, y, strict=True):
                    assert i.dtype == j.dtype and np.array_equal(i, j)
            elif isinstance(x, np.ndarray):
                assert x.dtype == y.dtype and np.array_equal(x, y)
            else:
                assert x == y
        assert len(b) == steps and b.return_ == 1 and a.to_bytes() == b.to_bytes()
    assert len(trajectory(20, width=1408).to_bytes()) < 21 * 1408 * 2 + 6000


def test_types_are_those_of_the_journal():
    t = trajectory()
    assert (t.features.dtype, t.rewards.dtype, t.invalid.dtype, t.policy_version.dtype) == (
        np.float16, np.float32, bool, np.int64)
    assert t.token_ids[0].dtype == np.int32 and t.logprobs[0].dtype == np.float32


def test_d16_scalar_types():
    torch = pytest.importorskip("torch")
    scalars = [-0.5, np.float32(-0.5), torch.tensor(-0.5)]
    t = trajectory(3, token_ids=[1, np.int64(2), torch.tensor(3)], logprobs=scalars,
                   rewards=[0.0, np.float32(0), torch.tensor(1.0)])
    assert all(x.dtype == np.float32 and x.tolist() == [-0.5] for x in t.logprobs)
    buffer = filled([1, 1, 1])
    assert buffer.update_priorities(buffer.ids, [2.0, np.float32(2), torch.tensor(2.0)]) == 3


@pytest.mark.parametrize("change, message", [
    (dict(actions=[]), "0 actions.*needs an action and an end"),
    (dict(terminated=False), "cut short is truncated"),
    (dict(prompts=["a"] * 3), r"3 actions need 4 prompts, got \(3,\)"),
    (dict(features=np.zeros((3, 8))), "3 actions need 4 features"),
    (dict(features=np.zeros(4)), r"need 4 features, got \(4,\)"),
    (dict(features=0.0), r"need 4 features, got \(\)"),
    (dict(features=np.full((4, 8), 1e6)), "features holds NaN, infinities or more than float16"),
    (dict(rewards=[0.0, 1.0]), r"3 actions need 3 rewards, got \(2,\)"),
    (dict(rewards=[0.0, np.nan, 1.0]), "rewards holds NaN"),
    (dict(invalid=[[True]] * 3), "need 3 invalid"),
    (dict(policy_version=7), r"need 3 policy_version, got \(\)"),
    (dict(token_ids=[[1], [2]]), "need 3 token_ids"),
    (dict(token_ids=[[1], [2], [3]], logprobs=[[-1.0], [-1.0], [-1.0, -2.0]]), "action 2 needs one"),
    (dict(token_ids=[[1], [], [3]], logprobs=[[-1.0], [], [-1.0]]), "action 1 needs one log-prob a"),
    (dict(token_ids=[1, 2, 3], logprobs=[-1.0, 0.5, -1.0]), "action 1's log-probs must be finite and <= 0"),
    (dict(token_ids=[1, 2, 3], logprobs=[-1.0, -1.0, np.nan]), "action 2's log-probs"),
    (dict(token_ids=[1, 2, 3], logprobs=[-np.inf, -1.0, -1.0]), "action 0's log-probs"),
    (dict(actions=["a", None, "c"]), "must be str, got None"),
    (dict(info={"image": np.zeros(3)}), "info must be JSON-able"),
])
def test_bad_trajectories_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        trajectory(**change)


def test_damaged_bytes_are_refused():
    data = trajectory().to_bytes()
    rng = np.random.default_rng(0)
    for cut in (0, 1, 30, len(data) // 2, len(data) - 1):
        with pytest.raises(ValueError, match=f"{cut} bytes are not a trajectory"):
            Trajectory.from_bytes(data[:cut])
    for _ in range(200):
        broken = bytearray(data)
        broken[rng.integers(len(data))] ^= 1 << rng.integers(8)
        try:
            assert Trajectory.from_bytes(bytes(broken)).to_bytes() == data  # a bit that zip does not read
        except ValueError as error:
            assert "are not a trajectory" in str(error)
    with pytest.raises(ValueError, match="not a trajectory"):
        Trajectory.from_bytes(b"\x80\x04\x95 a pickle")


def test_pad_batch():
    a = trajectory(2, token_ids=[[1, 2], [3]], logprobs=[[-0.1, -0.2], [-0.5]], invalid=[True, False])
    b = trajectory(3, seed=1, terminated=False, truncated=True)
    batch = pad_batch([a, b])
    assert batch["mask"].tolist() == [[True, True, False], [True, True, True]]
    assert batch["terminated"].tolist() == [[False, True, False], [False] * 3]
    assert batch["truncated"].tolist() == [[False] * 3, [False, False, True]]
    assert batch["rewards"].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert batch["invalid"][0].tolist() == [True, False, False]
    assert batch["policy_version"].tolist() == [[7, 8, 0], [7, 8, 9]]
    assert batch["behavior_logprob"][0] == pytest.approx([-0.3, -0.5, 0])
    assert {name: x.dtype.name for name, x in batch.items()} == dict(
        mask="bool", terminated="bool", truncated="bool", invalid="bool", rewards="float32",
        behavior_logprob="float32", policy_version="int64")
    with pytest.raises(NotEnoughData):
        pad_batch([])


def test_c6_a_log_prob_is_the_sum_over_tokens():
    one = trajectory(1, token_ids=[range(5)], logprobs=[[-0.1] * 5])
    assert pad_batch([one, trajectory(8)])["behavior_logprob"][0, 0] == pytest.approx(-0.5)


# ---- SumTree

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


def test_duplicates_last_wins():
    tree = SumTree(5000)
    tree.set([7, 4000, 7, 7], [1.0, 2.0, 3.0, 5.0])
    assert tree.get(7) == [5] and tree.total == 7


# ---- PrioritizedReplay

def test_whole_trajectories_leave_oldest_first():
    buffer = filled([3, 4, 2], capacity=10)
    assert buffer.ids.tolist() == [0, 1, 2] and buffer.num_transitions == 9
    buffer.add(trajectory(4))
    assert buffer.ids.tolist() == [1, 2, 3] and buffer.num_transitions == 10 and buffer.evicted == 1
    buffer.add(trajectory(9))
    assert buffer.ids.tolist() == [4] and buffer.num_transitions == 9 and buffer.evicted == 4
    assert set(frequencies(buffer)) == {4}
    with pytest.raises(ValueError, match="11 steps exceeds the capacity of 10"):
        buffer.add(trajectory(11))
    assert len(filled([2] * 9, max_trajectories=4)) == 4


def test_d17_d15_the_size_never_exceeds_the_capacity_and_refreshes_add_nothing():
    rng = np.random.default_rng(0)
    buffer = PrioritizedReplay(8)
    for _ in range(60):
        buffer.add(trajectory(int(rng.integers(1, 6))))
        assert buffer.num_transitions <= 8 and len(buffer) <= 8
        assert buffer.num_transitions == sum(map(len, buffer.get(buffer.ids)[1]))
        assert np.count_nonzero(buffer._tree.get(np.arange(8))) == len(buffer)
    for priority in (1.0, 2.0):
        before = len(buffer)
        buffer.update_priorities(buffer.ids, np.full(before, priority))
        assert np.count_nonzero(buffer._tree.get(np.arange(8))) == len(buffer) == before


def test_d11_episodes_come_out_whole_and_unmixed_also_after_wrapping():
    buffer = PrioritizedReplay(8)
    for i in range(7):
        buffer.add(trajectory(3, seed=i, prompts=[f"{i}"] * 4))
    ids, drawn, _ = buffer.sample(200)
    assert all(len(t) == 3 and t.prompts == [f"{i}"] * 4 for i, t in zip(ids, drawn, strict=True))
    assert set(ids) == {5, 6}


def test_d12_d13_not_enough_data_is_an_error_at_once():
    buffer = PrioritizedReplay(100, min_trajectories=2)
    for _ in range(2):
        with pytest.raises(NotEnoughData, match=r"[01] trajectories, 2 needed"):
            buffer.sample(4)
        buffer.add(trajectory(1))
    assert len(buffer.sample(64)[1]) == 64  # more than are held: with replacement
    with pytest.raises(ValueError, match=r"min_trajectories 3 must be in \[1, 2\]"):
        PrioritizedReplay(100, min_trajectories=3, max_trajectories=2)
    zero = PrioritizedReplay(10, eps=0)
    zero.add(trajectory(1), priority=0)
    with pytest.raises(NotEnoughData, match="every priority is 0"):
        zero.sample(1)


def test_d7_new_ones_enter_at_the_current_maximum_once_transformed():
    buffer = filled([1, 1], eps=0.01, alpha=0.6)
    buffer.update_priorities([0, 1], [2.7, 0.3])
    slot = buffer._slot[buffer.add(trajectory(1))]
    assert buffer._tree.get(slot)[0] == pytest.approx((2.7 + 0.01) ** 0.6, rel=1e-15)
    buffer.update_priorities([0, 2], [0.5, 0.4])
    buffer.add(trajectory(1))
    assert buffer._priorities[:4].tolist() == [0.5, 0.3, 0.4, 0.5]  # the current one, not the highest ever
    assert PrioritizedReplay(9).add(trajectory(1), id=5) == 5


def test_d10_eps_before_alpha():
    buffer = PrioritizedReplay(10, eps=0.01, alpha=0.6)
    buffer.add(trajectory(1), priority=0.0)
    assert buffer._tree.total == pytest.approx(0.0630957, abs=1e-7)


def test_d8_every_item_is_drawn_alike():
    for how in ({}, {"uniform": True}, {"top": 1.0}):
        got = frequencies(filled([1, 2, 3, 4], seed=1), draws=40_000, **how)
        assert all(0.24 < share < 0.26 for share in got.values())


def test_d14_priorities_decide_what_is_drawn():
    for alpha, share in ((1.0, 100 / 101), (0.5, 10 / 11), (0.0, 0.5)):
        buffer = filled([1, 9], alpha=alpha, eps=0)
        buffer.update_priorities([0, 1], [100.0, 1.0])
        draws = np.concatenate([buffer.sample(8)[0] for _ in range(125)])
        assert (draws == 0).mean() == pytest.approx(share, abs=0.03)
        if alpha == 1:
            assert (draws == 0).mean() > 0.95
        assert frequencies(buffer, uniform=True)[0] == pytest.approx(0.5, abs=0.01)


def test_d9_importance_weights():
    buffer = filled([1] * 4, alpha=1.0, eps=0)
    buffer.update_priorities(range(4), [1.0, 2, 3, 4])
    for beta, want in ((1.0, [1, 0.5, 0.333333, 0.25]), (0.4, [1, 0.757858, 0.644394, 0.574349]),
                       (0.0, [1] * 4)):
        ids, _, weights = buffer.sample(64, beta=beta)
        assert weights.dtype == np.float32
        assert dict(zip(ids.tolist(), weights, strict=True)) == pytest.approx(dict(enumerate(want)), abs=1e-6)
    assert (buffer.sample(64, beta=1.0, uniform=True)[2] == 1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_d4_one_bad_priority_changes_nothing(bad):
    buffer = filled([1, 1, 1])
    before = json.dumps(buffer.state_dict())
    with pytest.raises(ValueError, match="priorities"):
        buffer.update_priorities([0, 1, 2], [3.0, bad, 3.0])
    with pytest.raises(ValueError, match="values"):
        buffer.update_priorities([0], [3.0], values=[np.nan])
    with pytest.raises(ValueError, match="priorities"):
        buffer.add(trajectory(1), priority=bad)
    with pytest.raises(ValueError, match="value must be finite"):
        buffer.add(trajectory(1), value=np.nan)
    with pytest.raises(ValueError, match="3 ids need as many"):
        buffer.update_priorities([0, 1, 2], [1.0])
    with pytest.raises(ValueError, match="trajectory 2 is in the buffer already"):
        buffer.add(trajectory(1), id=2)
    for how in (dict(batch=0), dict(batch=1, top=0.0), dict(batch=1, top=1.1)):
        with pytest.raises(ValueError, match="batch must be"):
            buffer.sample(**how)
    assert json.dumps(buffer.state_dict()) == before


def test_priorities_for_evicted_trajectories_are_ignored_and_counted():
    buffer = filled([4, 4], capacity=10, eps=0, alpha=1.0)
    ids, _, _ = buffer.sample(8)
    buffer.add(trajectory(4))
    buffer.add(trajectory(2))  # 0 is gone, and its slot may be another's
    assert buffer.ids.tolist() == [1, 2, 3]
    assert buffer.update_priorities([0, 1, 0, 1], [9.0, 5.0, 9.0, 7.0]) == 2  # of a repeated id the last
    assert buffer.stale_updates == 2
    assert buffer._tree.total == 7 + 1 + 1
    held, trajectories = buffer.get([0, 3, 99, 1])
    assert held.tolist() == [3, 1] and [len(t) for t in trajectories] == [2, 4]


def test_the_top_filter_compares_return_and_value_within_the_buffer():
    buffer = PrioritizedReplay(100)
    for i in range(10):
        buffer.add(trajectory(2, rewards=[0.0, float(i % 2)]), value=0.5)
    assert set(buffer.sample(200, top=0.5)[0]) == {1, 3, 5, 7, 9}
    buffer.update_priorities(buffer.ids, np.ones(10), values=[*[0.9] * 7, 0.1, 0.9, 0.9])
    assert set(buffer.sample(200, top=0.1)[0]) == {7}  # the surprise: a success V_traj did not expect
    buffer.update_priorities([7], [0.2])  # without values: they stay
    assert set(buffer.sample(200, top=0.1, uniform=True)[0]) == {7}
    assert set(buffer.sample(200)[0]) == set(range(10))


def run(buffer, rounds, seed):
    """A stretch of a learner's life: draws, refreshes, new trajectories. What was drawn."""
    rng, log = np.random.default_rng(seed), []
    for i in range(rounds):
        ids, drawn, weights = buffer.sample(4, beta=0.4)
        log += [ids.tolist(), [len(t) for t in drawn], weights.tolist()]
        buffer.update_priorities(ids, rng.random(4) * 50, values=rng.random(4))
        log.append(buffer.sample(3, uniform=True, top=0.5)[0].tolist())
        buffer.add(trajectory(int(rng.integers(1, 5)), seed=i))
    return log + [json.dumps(buffer.state_dict())]


@pytest.mark.parametrize("rounds", [0, 1, 40])
def test_resuming_goes_on_bit_for_bit(rounds):
    torch = pytest.importorskip("torch")
    buffer = filled([2, 3], capacity=30, seed=4)
    journal = {}
    original, buffer.add = buffer.add, lambda t, **k: journal.setdefault(original(t, **k), t)
    journal |= dict(zip(buffer.ids.tolist(), buffer.get(buffer.ids)[1], strict=True))
    run(buffer, rounds, seed=0)
    state = json.loads(json.dumps(buffer.state_dict()))
    data = io.BytesIO()
    torch.save(buffer.state_dict(), data)
    data.seek(0)
    assert torch.load(data, weights_only=True) == state
    resumed = PrioritizedReplay(30, seed=99)
    resumed.add(trajectory(1))  # what it held is dropped
    resumed.load_state_dict(state, lambda id: Trajectory.from_bytes(journal[id].to_bytes()))
    assert resumed.ids.tolist() == buffer.ids.tolist() and len(resumed) == len(buffer)
    del buffer.add
    assert run(resumed, 40, seed=1) == run(buffer, 40, seed=1)


def test_resuming_refuses_another_buffer_or_journal():
    buffer = filled([2, 3], capacity=30)
    state = buffer.state_dict()
    with pytest.raises(ValueError, match="'capacity': 30.*build it alike"):
        PrioritizedReplay(31).load_state_dict(state, lambda id: trajectory(2))
    other = filled([4], capacity=30)
    with pytest.raises(ValueError, match="fetch gave 4 steps, not 5: another journal"):
        other.load_state_dict(state, lambda id: trajectory(2))
    with pytest.raises(KeyError):
        other.load_state_dict(state, {}.__getitem__)
    assert other.ids.tolist() == [0] and other.num_transitions == 4  # untouched


def test_seeds_decide():
    def drawn(seed):
        return filled([1] * 20, seed=seed).sample(20, uniform=True)[0].tolist(), filled(
            [1] * 20, seed=seed).sample(50)[0].tolist()

    a = PrioritizedReplay(9, seed=1)._rng.random(3).tolist()
    assert drawn(1) == drawn(1) and a != PrioritizedReplay(9, seed=2)._rng.random(3).tolist()


def test_d19_memory_is_flat():
    def held(buffer, n):
        for i in range(n):
            buffer.add(trajectory(10, seed=i % 7, width=1408))
        buffer.sample(8)
        return tracemalloc.get_traced_memory()[0]

    buffer = PrioritizedReplay(300)
    held(buffer, 5)
    tracemalloc.start()
    try:
        once, size = held(buffer, 30), len(json.dumps(buffer.state_dict()))
        assert held(buffer, 60) < 1.1 * once and len(json.dumps(buffer.state_dict())) < 1.1 * size
    finally:
        tracemalloc.stop()


def test_a_collector_may_add_while_the_learner_draws():
    buffer, errors = filled([2, 3, 1], capacity=40), []
    ready, made = threading.Barrier(3), [trajectory(i % 5 + 1, seed=i) for i in range(20)]

    def collect():
        ready.wait()
        for i in range(300):
            buffer.add(made[i % 20])

    def learn():
        ready.wait()
        for _ in range(300):
            ids, drawn, _ = buffer.sample(8)
            buffer.update_priorities(ids, np.ones(8))
            errors.extend(t for t in drawn if t is None)
            json.dumps(buffer.state_dict())

    threads = [threading.Thread(target=f) for f in (collect, learn, learn)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
        assert not t.is_alive()
    assert not errors and buffer.added == 303 and buffer.num_transitions <= 40
    assert buffer._tree.total == pytest.approx(len(buffer) * (1 + 1e-6) ** 0.5)


RSS = """
import numpy as np
from replay import PrioritizedReplay, Trajectory
made = 0
def grow(buffer, steps):  # the journal's size: 10 steps, the features of a screen each
    global made
    for _ in range(steps // 10):
        made += 1
        buffer.add(Trajectory("go", "home", ["p"] * 11, np.full((11, 1408), made % 99), ["a"] * 10, [[1, 2]] * 10,
                              [[-1.0, -2.0]] * 10, [0.0] * 10, [False] * 10, [made] * 10, True, False))
        if made % 20 == 0:
            ids, _, _ = buffer.sample(16, beta=0.4)
            buffer.update_priorities(ids, np.ones(16))
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
buffer, empty = PrioritizedReplay(20_000), rss()
grow(buffer, 20_000)
once = rss() - empty
grow(buffer, 40_000)
print(once, rss() - empty, len(buffer))
"""


def test_d19_the_process_stays_flat_at_three_times_the_capacity():
    done = subprocess.run([sys.executable, "-c", RSS], cwd=Path(replay.__file__).parent, check=True,
                          capture_output=True, text=True)
    once, thrice, held = map(int, done.stdout.split())
    assert held == 2000 and once > 20_000 * 1408 * 2  # the features alone
    assert thrice < 1.1 * once, (once, thrice)


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


def test_d12_sampling_an_empty_buffer_or_tree_is_an_error():
    with pytest.raises(NotEnoughData, match="0 trajectories, 1 needed"):
        PrioritizedReplay(10).sample(1)
    with pytest.raises(ValueError, match="n must be >= 1 and the mass > 0, got 3 and 0.0"):
        SumTree(5).sample(np.random.default_rng(0), 3)
    with pytest.raises(ValueError, match="prefixes"):
        SumTree(5).find([])
    for beta in (-0.1, np.nan, np.inf):
        with pytest.raises(ValueError, match="beta >= 0"):
            filled([1]).sample(1, beta=beta)


def test_d9_weights_are_over_the_largest_of_what_can_be_drawn():
    buffer = filled([1] * 5, alpha=0.5, eps=0)
    buffer.update_priorities(range(5), [0.0, 4.0, 16.0, 4.0, 64.0])  # 0 cannot be drawn and does not count
    ids, _, weights = buffer.sample(500, beta=1.0)
    assert dict(zip(ids.tolist(), weights.tolist(), strict=True)) == {1: 1.0, 2: 0.5, 3: 1.0, 4: 0.25}
    ids, _, weights = buffer.sample(500, beta=0.5, top=1.0)
    assert dict(zip(ids.tolist(), weights.tolist(), strict=True)) == pytest.approx({1: 1, 2: 0.5**0.5, 3: 1, 4: 0.5})


def test_uniform_and_top_are_exact():
    buffer = PrioritizedReplay(1000, alpha=1.0)
    for i in range(20):
        buffer.add(trajectory(1, rewards=[float(i)]), value=float(i % 2) * 5, priority=10.0**i)
    score = np.array([i - i % 2 * 5 for i in range(20)])
    for top in (0.05, 0.25, 0.5, 1.0):
        want = set(np.flatnonzero(score >= np.quantile(score, 1 - top)))
        assert len(want) >= top * 20 and set(buffer.sample(4000, top=top, uniform=True)[0]) == want
        shares = frequencies(buffer, uniform=True, top=top)
        assert all(shares[i] == pytest.approx(1 / len(want), abs=1 / 4000) for i in want)
    assert frequencies(buffer)[19] == pytest.approx(0.9, abs=1e-3)  # by priority, of all


def test_all_priorities_can_be_refreshed_slice_by_slice():
    buffer = filled([1] * 10, capacity=10, alpha=1.0, eps=0)
    ids, done = buffer.ids, 0
    for start in range(0, 10, 3):
        buffer.add(trajectory(1))  # meanwhile the oldest leaves
        held, trajectories = buffer.get(ids[start : start + 3])
        done += buffer.update_priorities(held, np.full(len(trajectories), 3.0))
    assert done == 10 - 1 and buffer.stale_updates == 0
    assert buffer._priorities[buffer._live()].tolist()[:6] == [3.0] * 6


def test_d18_the_tree_belongs_to_the_learner():
    worker = Path(replay.__file__).with_name("worker.py").read_text()
    assert "SumTree" not in worker and "PrioritizedReplay" not in worker


ALONE = """
import sys
allowed = set(sys.stdlib_module_names) | {"replay", "numpy"}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
exec(README)
import doctest
done = doctest.testmod(sys.modules["replay"])
assert done.attempted >= 4 and not done.failed and weights.shape == (4,)
"""


def test_copied_alone_the_readmes_lines_run_with_numpy_only(tmp_path):
    from test_readme import BLOCKS

    lines, = (block for block in BLOCKS if "from replay import" in block)
    shutil.copy(replay.__file__, tmp_path)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", f"README = {lines!r}\n" + ALONE], cwd=tmp_path, env=environment,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
