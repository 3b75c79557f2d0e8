"""Weights in shared memory: whole, in order, and refused when they do not fit."""

import multiprocessing
import time

import numpy as np
import pytest

from shared_weights import SharedWeights, _coalesced

CONTEXT = multiprocessing.get_context("forkserver")
SIZE = 500_000
WANTED = 20  # versions that each reader must have seen


def poll(weights: SharedWeights, results) -> None:
    """Reads; reports the first (version, smallest, largest) that it saw."""
    array, version, seen = np.zeros(SIZE, np.float32), 0, []
    results.send("ready")
    while len(seen) < WANTED:
        newer = weights.read([array], newer_than=version)
        if newer != version:
            seen.append((newer, float(array.min()), float(array.max())))
            version = newer
    results.send(seen)


def test_e12_no_reader_sees_half_an_update():
    weights, readers = SharedWeights(CONTEXT, SIZE), []
    for _ in range(4):
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=poll, args=(weights, theirs), daemon=True)
        process.start()
        readers.append((process, ours))
    assert [ours.recv() for _, ours in readers] == ["ready"] * 4
    version, deadline = 0, time.monotonic() + 60
    while not all(ours.poll() for _, ours in readers):
        assert time.monotonic() < deadline, "a reader saw too few versions"
        version += 1
        assert weights.publish([np.full(SIZE, version, np.float32)]) == version
    for process, ours in readers:
        seen = ours.recv()
        process.join(10)
        assert len(seen) == WANTED and all(low == high == version for version, low, high in seen)
        assert [v for v, _, _ in seen] == sorted({v for v, _, _ in seen})


def test_read_keeps_the_arrays_when_nothing_is_newer():
    weights, array = SharedWeights(CONTEXT, 3), np.full(3, 7, np.float32)
    assert weights.read([array]) == 0 and (array == 7).all()
    weights.publish([np.arange(2, dtype=np.float32), np.float32([5])])
    assert weights.read([array]) == 1 and array.tolist() == [0, 1, 5]
    array[:] = 9
    assert weights.read([array], newer_than=1) == 1 and (array == 9).all()


def test_arrays_of_another_size_and_old_versions_are_refused():
    weights = SharedWeights(CONTEXT, 3)
    with pytest.raises(ValueError, match="4 numbers in 1 arrays, but the shared buffers hold 3"):
        weights.publish([np.zeros(4, np.float32)])
    weights.publish([np.zeros(3, np.float32)], version=41)  # a resumed run goes on counting
    with pytest.raises(ValueError, match="not newer than the published 41"):
        weights.publish([np.zeros(3, np.float32)], version=41)
    for version in (43, 44, 50):  # whatever is skipped
        weights.publish([np.full(3, version, np.float32)], version=version)
        array = np.zeros(3, np.float32)
        assert weights.read([array], newer_than=41) == weights.version == version and (array == version).all()


def test_what_would_be_copied_is_not_read_into():
    shared = SharedWeights(CONTEXT, 6)
    shared.publish([np.ones(6, np.float32)], 1)
    for array in (np.zeros((3, 2), np.float32).T, np.zeros(6)):
        with pytest.raises(ValueError, match="want contiguous float32 arrays"):
            shared.read([array])


def test_arrays_that_lie_side_by_side_are_copied_as_one():
    flat, apart = np.arange(9, dtype=np.float32), np.float32([9, 10, 11])
    arrays = [flat[:4].reshape(2, 2), flat[4:5], flat[5:], apart, flat[:0]]
    assert [len(array) for array in _coalesced(arrays)] == [9, 3, 0]
    assert [len(array) for array in _coalesced([flat[5:], flat[:5]])] == [4, 5]  # the other way round
    weights, target = SharedWeights(CONTEXT, 12), np.zeros(12, np.float32)
    weights.publish(arrays)
    there = [target[:7], target[7:].reshape(1, 5)]
    assert weights.read(there) == 1 and target.tolist() == list(range(12))
