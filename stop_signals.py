"""Ctrl-C, SIGTERM and a closed terminal: each asks the run to stop, save itself and go; again, the first two kill it.

    on_stop_signals(lambda: setattr(experiment, "stopping", True))

A terminal that closes sends SIGHUP, often twice (the shell does, then the kernel), and takes the output away: nothing
that is printed afterwards may end the run before it is saved. Under `nohup` a run stays deaf to it. Who reads the
output may go, too: in `run_distrl.py | tee log`, Ctrl-C ends `tee` as well. That asks the run to stop like a signal.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import suppress


class _Output:
    """stdout, which is written to nowhere once its reader has gone; `gone` is called then."""

    def __init__(self, stream, gone: Callable[[], None]):
        self._stream, self._gone = stream, gone

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._try(self._stream.write, text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, do: Callable, *given):
        try:
            return do(*given)
        except BrokenPipeError:
            self._gone()
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            return do(*given)


def on_stop_signals(stop: Callable[[], None]) -> None:
    """From now on those signals call `stop`, and so does an output that nobody reads. Only in the main thread."""
    sys.stdout = _Output(sys.stdout, stop)

    def asked(signum: int, _) -> None:
        stop()
        signal.signal(signum, signal.SIG_DFL)
        with suppress(OSError):  # nobody reads
            os.write(1, b"\nStopping: saving the run (again to kill).\n")  # print may have been interrupted itself

    def hung_up(signum: int, _) -> None:
        stop()
        signal.signal(signum, signal.SIG_IGN)
        for output in (1, 2):
            with suppress(OSError):  # closed, as a service may have it
                if not stat.S_ISREG(os.fstat(output).st_mode):  # a log file stays
                    os.dup2(os.open(os.devnull, os.O_WRONLY), output)

    signal.signal(signal.SIGINT, asked)
    signal.signal(signal.SIGTERM, asked)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hung_up)
