"""replay.py: trajectories as bytes and in batches; the file alone. Names give the case of the fault."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from alone import run_alone

import replay
from replay import NotEnoughData, PrioritizedReplay, Trajectory, pad_batch


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


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
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
    (dict(token_ids=[1, [1.9], 3], logprobs=[-1.0] * 3), r"1's token_ids must be whole numbers below .*got \[1.9\]"),
    (dict(token_ids=[1, 2, 2**31], logprobs=[-1.0] * 3), "action 2's token_ids"),
    (dict(token_ids=[np.nan, 2, 3], logprobs=[-1.0] * 3), "action 0's token_ids"),
    (dict(token_ids=[1, -100, 3], logprobs=[-1.0] * 3), "action 1's token_ids"),
    (dict(token_ids=[1, 2, 3], logprobs=[-1.0, 0.5, -1.0]), "action 1's log-probs must be finite and <= 0"),
    (dict(token_ids=[1, 2, 3], logprobs=[-1.0, -1.0, np.nan]), "action 2's log-probs"),
    (dict(token_ids=[1, 2, 3], logprobs=[-np.inf, -1.0, -1.0]), "action 0's log-probs"),
    (dict(actions=["a", None, "c"]), "must be str, got None"),
    (dict(info={"image": np.zeros(3)}), "info must be JSON-able"),
    (dict(policy_version=[1, 2.5, 3]), r"policy_version must be of int64, got \[1.0, 2.5, 3.0\]"),
    (dict(invalid=["False", "0", ""]), "invalid must be of bool"),
    (dict(invalid=[0, 0.3, 1]), "invalid must be of bool"),
    (dict(rewards=np.array([1j, 1, 1])), "rewards must be of float32"),
    (dict(rewards=["1", "0", "0"]), "rewards must be of float32"),
    (dict(terminated="False"), "terminated must be True or False, got 'False'"),
    (dict(truncated=None), "truncated must be True or False, got None"),
    (dict(success="failure"), "success must be True, False or None, got 'failure'"),
    (dict(success=float("nan")), "success must be True, False or None, got nan"),
])
def test_bad_trajectories_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        trajectory(**change)


def test_a_trajectory_has_arrays_of_its_own():
    """The caller may play the next episode into the same buffers."""
    buffers = dict(features=np.ones((4, 8), np.float16), rewards=np.ones(3, np.float32), invalid=np.zeros(3, bool),
                   policy_version=np.ones(3, np.int64))  # fmt: skip
    logprobs, ids = np.full(1, -1.0, np.float32), np.array([7], np.int32)
    one = trajectory(**buffers, logprobs=[logprobs] * 3, token_ids=[ids] * 3, info={"of": {1: (2, 3)}})
    before = one.to_bytes()
    for buffer in (*buffers.values(), logprobs, ids):
        buffer[:] = 1 - buffer.astype(int)
    assert one.to_bytes() == before and one.return_ == 3.0
    assert Trajectory.from_bytes(before).info == one.info == {"of": {"1": [2, 3]}}


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
    huge, buffer = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(huge, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("features.npy", huge.getvalue())
    with pytest.raises(ValueError, match="not a trajectory"):
        Trajectory.from_bytes(buffer.getvalue())


def test_damaged_headers_of_large_members_are_refused():
    """numpy reads a member's header before the checksum of one above 4 KiB is looked at."""
    data = bytearray(trajectory(width=1408).to_bytes())
    start = data.index(b"features.npy") + len(b"features.npy")
    for place in (*range(start, start + 60), *range(data.index(b"PK\x01\x02"), len(data))):
        data[place] ^= 1
        try:
            Trajectory.from_bytes(bytes(data))  # what it says may not matter, a date say
        except ValueError:
            pass
        data[place] ^= 1


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


THEN = """
import doctest
done = doctest.testmod(sys.modules["replay"])
assert done.attempted >= 4 and not done.failed and weights.shape == (4,)
"""


def test_copied_alone_the_readmes_lines_run_with_numpy_only(tmp_path):
    from test_readme import BLOCKS

    lines, = (block for block in BLOCKS if "from replay import" in block)
    done = run_alone([Path(replay.__file__)], ["numpy"], lines, THEN, tmp_path)
    assert done.returncode == 0, done.stderr
