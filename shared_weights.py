"""Newest weights in shared memory: one writer publishes, any number of processes read, nobody locks.

Two buffers take turns. Version v lives in buffer v % 2 and is announced only when it is whole; the writer touches that
buffer again only after it has announced v + 1. So a reader that copies buffer v % 2 and then still sees version v holds
exactly version v; when it sees a later one it copies again. No reader ever sees half an update, and a reader that dies
leaves nothing locked. Publishing costs one memcpy.

    weights = SharedWeights(multiprocessing.get_context("forkserver"), size)   # size: number of float32
    weights.publish([p.detach().numpy() for p in policy.parameters()])          # -> 1
    version = weights.read([p.detach().numpy() for p in copy.parameters()], newer_than=0)

The buffers travel to children as process arguments only (they are anonymous: no name to leak, nothing to unlink).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np


class SharedWeights:
    """A version and two float32 buffers of `size` numbers, shared by processes started from `context`."""

    def __init__(self, context, size: int):
        self.size = int(size)
        self._version = context.RawValue(ctypes.c_int64, 0)
        self._buffers = [context.RawArray(ctypes.c_float, self.size) for _ in range(2)]

    @property
    def version(self) -> int:
        """The newest whole version; 0 before the first publication."""
        return self._version.value

    def publish(self, arrays: Sequence[np.ndarray], version: int | None = None) -> int:
        """Copy the float32 `arrays`, in order, into the free buffer and announce them. Returns the new version."""
        version = self._version.value + 1 if version is None else int(version)
        if version <= self._version.value:
            raise ValueError(f"version {version} is not newer than the published {self._version.value}")
        # A resumed run starts above 1, so turns are taken by parity and an even gap would hit the buffer in use.
        if self._version.value and (version - self._version.value) % 2 == 0:
            raise ValueError(f"version {version} would overwrite the buffer of version {self._version.value}")
        buffer = np.frombuffer(self._buffers[version % 2], dtype=np.float32)
        self._check(arrays)
        start = 0
        for array in arrays:
            buffer[start : start + array.size] = array.reshape(-1)
            start += array.size
        self._version.value = version
        return version

    def read(self, arrays: Sequence[np.ndarray], newer_than: int = 0) -> int:
        """Fill `arrays` with the newest weights when there are newer ones. Returns the version that they now hold."""
        version = self._version.value
        if version <= newer_than:
            return newer_than
        self._check(arrays)
        while True:
            buffer = np.frombuffer(self._buffers[version % 2], dtype=np.float32)
            start = 0
            for array in arrays:
                array.reshape(-1)[:] = buffer[start : start + array.size]
                start += array.size
            if self._version.value == version:
                return version
            version = self._version.value

    def _check(self, arrays: Sequence[np.ndarray]) -> None:
        total = sum(array.size for array in arrays)
        if total != self.size:
            raise ValueError(f"{total} numbers in {len(arrays)} arrays, but the shared buffers hold {self.size}")
