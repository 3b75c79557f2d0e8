"""replay.PrioritizedReplay: what leaves, what is drawn, resuming, memory. Names give the case of the fault."""

import io
import json
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from test_replay import filled, trajectory

import replay
from replay import NotEnoughData, PrioritizedReplay, SumTree, Trajectory


def frequencies(buffer, draws=4000, **how):
    ids, _, _ = buffer.sample(draws, **how)
    return {int(i): float((ids == i).mean()) for i in buffer.ids}


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


@pytest.mark.parametrize("bad", [{"id": 2**63}, {"priority": [1.0, 2.0]}, {"priority": float("nan")}])
def test_what_is_refused_evicts_nothing(bad):
    replay = PrioritizedReplay(np.int64(8), alpha=np.float32(0.5))
    json.dumps({k: v for k, v in replay.state_dict().items() if k != "rng"})
    for _ in range(4):
        replay.add(trajectory(2))
    with pytest.raises((ValueError, TypeError, OverflowError)):
        replay.add(trajectory(2), **bad)
    assert len(replay) == 4 and replay.num_transitions == 8 and len(replay.sample(3)[1]) == 3


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
import json
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
once, saved = rss() - empty, len(json.dumps(buffer.state_dict()))
grow(buffer, 40_000)
print(once, rss() - empty, saved, len(json.dumps(buffer.state_dict())), len(buffer))
"""


def test_d19_the_process_stays_flat_at_three_times_the_capacity():
    done = subprocess.run([sys.executable, "-c", RSS], cwd=Path(replay.__file__).parent, check=True,
                          capture_output=True, text=True)
    once, thrice, small, large, held = map(int, done.stdout.split())
    assert held == 2000 and once > 20_000 * 1408 * 2  # the features alone
    assert thrice < 1.1 * once, (once, thrice)
    assert large < 1.1 * small  # of a checkpoint


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
