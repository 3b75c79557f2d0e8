"""Newest weights in shared memory: one writer publishes, any number of processes read, nobody locks.

Two buffers take turns. Publication t lives in buffer t % 2 and is announced only when it is whole; the writer touches
that buffer again only after it has announced t + 1. So a reader that copies buffer t % 2 and then still sees t holds
exactly that publication; when it sees a later one it copies again. No reader ever sees half an update, and a reader
that dies leaves nothing locked. Publishing costs one memcpy (0.95 at 990 MB, benchmarks/bench_publish.py). Each buffer
has the version of its weights beside it: versions rise, but may skip some (a resumed run, a node that was busy).

    weights = SharedWeights(multiprocessing.get_context("forkserver"), size)   # size: number of float32
    weights.publish([p.detach().numpy() for p in policy.parameters()])          # -> 1
    version = weights.read([p.detach().numpy() for p in copy.parameters()], newer_than=0)

The buffers travel to children as process arguments only: files of /dev/shm without a name, so that nothing is left to
unlink; where that has no room (pools.py warns), of the temporary folder, on a disk.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np


class SharedWeights:
    """A version and two float32 buffers of `size` numbers, shared by processes started from `context`."""

    def __init__(self, context, size: int):
        self.size = int(size)
        self._turn = context.RawValue(ctypes.c_int64, 0)  # publications
        self._versions = context.RawArray(ctypes.c_int64, 2)
        self._buffers = [context.RawArray(ctypes.c_float, self.size) for _ in range(2)]

    @property
    def version(self) -> int:
        """The newest whole version; 0 before the first publication."""
        return self._versions[self._turn.value % 2]

    def publish(self, arrays: Sequence[np.ndarray], version: int | None = None) -> int:
        """Copy the float32 `arrays`, in order, into the free buffer and announce them. Returns the new version."""
        version = self.version + 1 if version is None else int(version)
        if version <= self.version:
            raise ValueError(f"version {version} is not newer than the published {self.version}")
        self._check(arrays)
        turn = self._turn.value + 1
        buffer = np.frombuffer(self._buffers[turn % 2], dtype=np.float32)
        start = 0
        for array in _coalesced(arrays):
            buffer[start : start + array.size] = array
            start += array.size
        self._versions[turn % 2] = version
        self._turn.value = turn
        return version

    def read(self, arrays: Sequence[np.ndarray], newer_than: int = 0) -> int:
        """Fill `arrays` with the newest weights when there are newer ones. Returns the version that they now hold."""
        if self.version <= newer_than:
            return newer_than
        self._check(arrays)
        while True:
            turn = self._turn.value
            version, start = self._versions[turn % 2], 0
            buffer = np.frombuffer(self._buffers[turn % 2], dtype=np.float32)
            for array in _coalesced(arrays):
                array[:] = buffer[start : start + array.size]
                start += array.size
            if self._turn.value == turn:
                return version

    def _check(self, arrays: Sequence[np.ndarray]) -> None:
        if wrong := [a for a in arrays if a.dtype != np.float32 or not a.flags.c_contiguous]:  # a copy would be filled
            raise ValueError(f"want contiguous float32 arrays, got {wrong[0].dtype} with strides {wrong[0].strides}")
        total = sum(array.size for array in arrays)
        if total != self.size:
            raise ValueError(f"{total} numbers in {len(arrays)} arrays, but the shared buffers hold {self.size}")


def _coalesced(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arrays, flat, those that lie one after the other in memory as one: a long copy goes past the caches."""
    found: list[tuple[np.ndarray, int]] = []  # the first of a row, and how many numbers the row has
    end = None
    for array in arrays:
        flat = array.reshape(-1)
        if flat.ctypes.data == end:
            found[-1] = (found[-1][0], found[-1][1] + flat.size)
        else:
            found.append((flat, flat.size))
        end = flat.ctypes.data + flat.nbytes
    return [np.lib.stride_tricks.as_strided(flat, (size,)) for flat, size in found]
