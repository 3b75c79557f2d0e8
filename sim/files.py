"""A phone's files, in memory: what `ls`, `cat`, `rm`, `screencap -p FILE` and adb's push and pull see.

    files = Files()
    files.write("/sdcard/a.txt", b"hello")
    files.read("/storage/emulated/0/a.txt")      # b"hello": the usual other names of /sdcard

Errors are Python's own `OSError`s with the path and the system's words, as the shell prints them. Times are
fixed (or what a push says), so that two runs list the same.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import posixpath
import stat
from dataclasses import dataclass

EPOCH = 1_699_954_860  # the phone's clock stands still at 9:41, s since 1970
CAPACITY = 64 << 20  # bytes a phone holds; beyond that a write fails as on a full disk
ALIASES = ("/storage/emulated/0", "/storage/self/primary", "/mnt/sdcard")
DIRECTORIES = (
    "/",
    "/data",
    "/data/app",
    "/data/local",
    "/data/local/tmp",
    "/dev",
    "/sdcard",
    "/sdcard/DCIM",
    "/sdcard/Download",
    "/sdcard/Movies",
    "/sdcard/Music",
    "/sdcard/Pictures",
    "/system",
    "/system/bin",
    "/vendor",
)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


@dataclass
class Entry:
    """A file, or a directory when `data` is None."""

    data: bytes | None = None
    mode: int = stat.S_IFDIR | 0o771
    mtime: int = EPOCH

    @property
    def size(self) -> int:
        return 4096 if self.data is None else len(self.data)


class Files:
    """Absolute path -> `Entry`. Paths are normalised here and nowhere else."""

    def __init__(self):
        self._entries = {path: Entry() for path in DIRECTORIES}
        self._used = 0

    @staticmethod
    def normal(path: str, cwd: str = "/") -> str:
        path = "/" + posixpath.normpath(posixpath.join(cwd, path)).lstrip("/")
        for alias in ALIASES:
            if path == alias or path.startswith(alias + "/"):
                return "/sdcard" + path[len(alias) :]
        return path

    def stat(self, path: str) -> Entry | None:
        return self._entries.get(self.normal(path))

    def is_dir(self, path: str) -> bool:
        entry = self.stat(path)
        return entry is not None and entry.data is None

    def read(self, path: str) -> bytes:
        if path == "/dev/null":
            return b""
        entry = self.stat(path)
        if entry is None:
            raise _error(errno.ENOENT, path)
        if entry.data is None:
            raise _error(errno.EISDIR, path)
        return entry.data

    def write(self, path: str, data: bytes, *, append=False, mode=0o644, mtime=EPOCH, parents=False) -> None:
        if path == "/dev/null":
            return
        name = self.normal(path)
        if self.is_dir(name):
            raise _error(errno.EISDIR, path)
        parent = posixpath.dirname(name)
        if not self.is_dir(parent):
            if not parents:
                raise _error(errno.ENOENT, path)
            self.mkdir(parent, parents=True)
        old = self._entries.get(name)
        if append and old:
            data = old.data + data
        used = self._used + len(data) - (old.size if old else 0)
        if used > CAPACITY:
            raise _error(errno.ENOSPC, path)
        self._entries[name] = Entry(bytes(data), stat.S_IFREG | (mode & 0o777), mtime)
        self._used = used

    def mkdir(self, path: str, *, parents: bool = False) -> None:
        name = self.normal(path)
        if name in self._entries:
            if parents and self.is_dir(name):
                return
            raise _error(errno.EEXIST, path)
        parent = posixpath.dirname(name)
        if parents:
            self.mkdir(parent, parents=True)
        elif not self.is_dir(parent):
            raise _error(errno.ENOENT, path)
        self._entries[name] = Entry()

    def remove(self, path: str, *, recursive: bool = False) -> None:
        name = self.normal(path)
        entry = self._entries.get(name)
        if entry is None:
            raise _error(errno.ENOENT, path)
        if name in DIRECTORIES:
            raise _error(errno.EACCES, path)
        if entry.data is None and not recursive:
            raise _error(errno.EISDIR, path)
        for inner in [p for p in self._entries if p == name or p.startswith(name + "/")]:
            gone = self._entries.pop(inner)
            self._used -= len(gone.data or b"")

    def list(self, path: str) -> dict[str, Entry]:
        """Name -> entry of what lies directly in a directory, sorted."""
        name = self.normal(path)
        if not self.is_dir(name):
            raise _error(errno.ENOTDIR if name in self._entries else errno.ENOENT, path)
        inside = [p for p in self._entries if p != "/" and posixpath.dirname(p) == name]
        return {posixpath.basename(p): self._entries[p] for p in sorted(inside)}

    def glob(self, pattern: str, cwd: str = "/") -> list[str]:
        """What an unquoted word with `*`, `?` or `[` becomes; empty when nothing matches."""
        full = posixpath.join(cwd, pattern)
        depth = full.count("/")
        found = [
            p for p in self._entries if p.count("/") == depth and p != "/" and fnmatch.fnmatchcase(p, full)
        ]
        found = sorted(p for p in found if not posixpath.basename(p).startswith("."))
        return found if pattern.startswith("/") else [posixpath.relpath(p, cwd) for p in found]
