"""A run's folder: made, or refused with a sentence; its arguments and checkpoints, written so that a kill harms none.

    folder = make_folder(Path("runs"), "sim__distrl__1__20260101-120000", args)     # with its config.json
    save_checkpoint(folder, 120, state)                                             # checkpoints/00000120.pt
    args = read_args(folder, Args); state = load_checkpoint(folder)                 # --resume

`args` is a dataclass of dataclasses of plain values. A checkpoint is read with `weights_only=True`: tensors, numbers
and strings. It is written beside its final name, flushed, then renamed: a crash leaves the one before whole. One that
cannot be read all the same (a disk that failed) is passed over for the one before; the journal has what came since.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import pickle
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

LEAST_FREE = 500e6  # bytes on the disk that a run may need beside its checkpoints
KEPT = 2  # newest checkpoints kept
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a disk says that takes no more


class UsageError(Exception):
    """Something the user can mend; printed as one line, exit code 2."""


class RunStopped(Exception):
    """The run cannot go on now, but can be resumed; printed as one line, exit code 1."""


def check_range(flags: dict, names: str, low: float, high: float = sys.float_info.max) -> None:
    """Each of the flags is None or in [low, high] (a tuple: each number of it), or a UsageError names it. By default
    any number that is finite."""
    for name in names.split():
        values = flags[name] if isinstance(flags[name], tuple) else (flags[name],)
        if not all(value is None or low <= value <= high for value in values):
            wanted = f"at least {low}" if high >= sys.float_info.max else f"{low} to {high}"
            raise UsageError(f"--{name.replace('_', '-')} {' '.join(map(str, values))}: {wanted} is needed")


def make_folder(runs_dir: Path, name: str, args) -> Path:
    """A new folder with config.json in it: `name`, or `name-2` and so on when another run has just taken it."""
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(runs_dir).free
        if free < LEAST_FREE:
            least = f"{LEAST_FREE / 1e6:.0f} MB"
            raise UsageError(f"--runs-dir {runs_dir}: only {free / 1e6:.0f} MB free, a run needs {least}")
        for number in itertools.count(1):
            folder = runs_dir / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir()
                break
            except FileExistsError:
                continue
        write_args(folder, args)
    except OSError as error:
        why = f"cannot write there ({error.strerror}): name another folder"
        raise UsageError(f"--runs-dir {runs_dir}: {why}") from error
    return folder


@contextlib.contextmanager
def held(folder: Path, flag: str = "--resume") -> Iterator[None]:
    """Nobody else may be at work in the folder meanwhile; the kernel lets go of it however this process ends.

    UsageError: another process is; `flag` is what asked for the folder.
    """
    import fcntl  # who copies policy.py has this file too, perhaps on another system

    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(open(folder / ".lock", "w"))  # closed on exec: no child has it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"{flag} {folder}: another process is at work in it: wait, or stop it") from error
        except OSError:  # not writable, which is told elsewhere, or a file system without locks
            pass
        yield


def go_on(args, folder: Path) -> str:
    """What to do with a run that was cut short, for a person."""
    if args.run.eval:
        return f"Begin it again, with the same flags: python run_distrl.py --eval {shlex.quote(str(args.run.eval))}"
    return f"Go on with: python run_distrl.py --resume {shlex.quote(str(folder))}"


def check_room(folder: Path, checkpoint: int) -> None:
    """UsageError unless the folder can be written to, and the disk has room for checkpoints of so many bytes: those
    kept, one being written, the rest."""
    for path in (folder, folder / "checkpoints", folder / "journal.sqlite"):
        if path.exists() and not os.access(path, os.W_OK):
            raise UsageError(f"{path}: no right to write there: make it writable (chmod u+w), or run as its owner")
    taken = sum(path.stat().st_size for path in folder.glob("checkpoints/*"))  # of a run to be resumed
    needed, free = int(LEAST_FREE) + (KEPT + 1) * checkpoint - taken, shutil.disk_usage(folder).free
    if free < needed:
        what = f"{KEPT + 1} checkpoints of {checkpoint:,} bytes, and the journal"
        raise UsageError(f"--runs-dir {folder.parent}: {needed:,} bytes are needed ({what}), {free:,} are free")


def write_args(folder: Path, args) -> None:
    """config.json, whole or not at all."""
    config = json.dumps(dataclasses.asdict(args), indent=2, default=lambda path: str(path.absolute()))
    partial = folder / "config.json.partial"
    partial.write_text(config + "\n")
    os.replace(partial, folder / "config.json")


def read_args(folder: Path, cls: type, flag: str = "--resume"):
    """The arguments, of type `cls`, that `make_folder` wrote; `flag` is what asked for them."""
    try:
        config = json.loads((folder / "config.json").read_text())
        config = {"judge": {}, "recorded": {}} | config  # older runs lack these
        args = cls(**{field.name: field.default_factory(**config[field.name]) for field in dataclasses.fields(cls)})
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"not a run's folder ({type(error).__name__}: {error}): give the one that holds its config.json"
        raise UsageError(f"{flag} {folder}: {why}") from error
    for group in vars(args).values():
        for name, value in vars(group).items():
            kind = Path if "Path" in type(group).__annotations__[name] else lambda value: value
            if value is not None:
                setattr(group, name, tuple(map(kind, value)) if isinstance(value, list | tuple) else kind(value))
    return args


def save_checkpoint(folder: Path, number: int, state: dict) -> Path:
    """Write checkpoints/NUMBER.pt; only the newest two are kept."""
    import torch

    folder = folder / "checkpoints"
    path = folder / f"{number:08d}.pt"
    partial = path.with_suffix(".tmp")
    try:
        folder.mkdir(exist_ok=True)
        with partial.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        for old in [*sorted(folder.glob("*.pt"))[:-KEPT], *folder.glob("*.tmp")]:  # the latter: of a killed session
            old.unlink()
    except (OSError, RuntimeError) as error:  # torch raises RuntimeError when the disk is full
        with contextlib.suppress(OSError):  # that disk may take nothing at all, and what went wrong is to be told
            partial.unlink(missing_ok=True)
        why = str(error).splitlines()[0]
        raise RunStopped(f"{path} cannot be written ({why}): is the disk full? The one before is whole") from error
    return path


def load_checkpoint(folder: Path) -> dict | None:
    """The newest checkpoint that can be read, None when there is none yet. UsageError: there are, and none can be."""
    import torch

    damaged = []
    for path in sorted((folder / "checkpoints").glob("*.pt"), reverse=True):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            damaged.append(f"{path.name} cannot be read ({why})")
            continue
        for what in damaged:
            print(f"  {what}: going on from the one before, {path.name}", flush=True)
        return state
    if damaged:
        remedy = "remove it to train anew on the journal's trajectories"
        raise UsageError(f"--resume {folder}: {'; '.join(damaged)}: {remedy}")
    return None
