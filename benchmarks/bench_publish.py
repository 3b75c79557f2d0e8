"""Publishing weights to another process: shared memory against a file and a multiprocessing queue.

    python benchmarks/bench_publish.py                  # 990 MB, as Auto-UI's base size
    python benchmarks/bench_publish.py --small          # 20 MB

Ours is `SharedWeights.publish`: what the learner waits for. Its measure is the memcpy, numpy's copy of as many bytes
between two arrays that exist. The file (torch.save, then torch.load) and the queue (torch.multiprocessing's would share
memory by itself, so pickled arrays through multiprocessing.Queue, a message each) are timed until the weights can be
used on the other side, and so is ours with a `read` in a real child process. Ratios in one run, in turns, the best of
`--repeats`. Each way gives its memory back before the next one: three times the weights at most, and the processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from bench_sampling import machine, verdict  # which also adds the product's folder to the path

from shared_weights import SharedWeights

CONTEXT = multiprocessing.get_context("forkserver")


def shapes(megabytes: int) -> list[tuple[int, ...]]:
    """Float32 arrays of a T5-like mixture, `megabytes` MB together: one large embedding, matrices, norms."""
    left, made = megabytes * 250_000, []
    for shape in [(left // 4 // 768, 768)] + [(2048, 768), (768, 768), (768,)] * 10_000:
        if np.prod(shape) > left:
            break
        made.append(shape)
        left -= int(np.prod(shape))
    return [*made, (left,)] if left else made


def reader(weights: SharedWeights, sizes, connection) -> None:
    """A child process that reads the newest version each time it is told to."""
    arrays = [np.zeros(shape, np.float32) for shape in sizes]
    weights.read(arrays)  # their pages exist from here on
    connection.send(0)
    while connection.recv() is not None:
        connection.send(weights.read(arrays))


def load_reader(path: str, connection) -> None:
    """A child process that loads the file each time it is told to."""
    connection.send(0)
    while connection.recv() is not None:
        connection.send(len(torch.load(path, weights_only=True)))


def queue_reader(messages, number: int, connection) -> None:
    """A child process that takes `number` arrays out of a queue each time it is told to."""
    connection.send(0)
    while connection.recv() is not None:
        connection.send(len([messages.get() for _ in range(number)]))


@contextmanager
def child(target, *arguments):
    """`ask()` lets the process do its work once and returns its answer."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    ours.recv()

    def ask():
        ours.send(1)
        return ours.recv()

    yield ask
    ours.send(None)
    process.join(30)


def made(sizes) -> list[np.ndarray]:
    """Random arrays, side by side in memory, as many bytes as `shapes` gives."""
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in sizes])
    flat = np.random.default_rng(0).random(ends[-1], np.float32)
    return [a.reshape(shape) for a, shape in zip(np.split(flat, ends[:-1]), sizes, strict=True)]


def seconds(call, *arguments, times: int = 1) -> float:
    """The least that a call takes."""
    least = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        call(*arguments)
        least = min(least, time.perf_counter() - began)
    return least


def shared_memory(sizes) -> dict[str, float]:
    """Ours, and the memcpy that it is measured by."""
    arrays = made(sizes)
    flat = arrays[0].base
    copy = np.ones_like(flat)
    times = {"memcpy": seconds(np.copyto, copy, flat, times=3)}
    del copy
    weights = SharedWeights(CONTEXT, flat.size)
    times["publish"] = seconds(weights.publish, arrays, times=5)  # both buffers' pages exist from the third on
    del arrays, flat
    with child(reader, weights, sizes) as read:
        assert read() == weights.version
        times["publish + read"] = times["publish"] + seconds(read, times=3)
    return times


def file(sizes) -> dict[str, float]:
    """Through a file."""
    state = {str(i): torch.from_numpy(array) for i, array in enumerate(made(sizes))}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "weights.pt")
        with child(load_reader, path) as load:
            save = seconds(torch.save, state, path)
            return {"save": save, "save + load": save + seconds(load)}


def queue(sizes) -> dict[str, float]:
    """Through a queue."""
    arrays, messages = made(sizes), CONTEXT.Queue()

    def send() -> None:
        for array in arrays:
            messages.put(array)
        assert take() == len(arrays)

    with child(queue_reader, messages, len(arrays)) as take:
        return {"queue": seconds(send)}


def measure(megabytes: int, repeats: int) -> dict[str, float]:
    """Least seconds of each way."""
    sizes, times = shapes(megabytes), {}
    for _ in range(repeats):
        for way in (shared_memory, file, queue):
            for name, took in way(sizes).items():
                times[name] = min(times.get(name, float("inf")), took)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="20 MB, 2 repeats")
    parser.add_argument("--megabytes", type=int, default=990)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    # Modules are imported once, by the fork server, which looks for them in its own path.
    os.environ["PYTHONPATH"] = os.pathsep.join(str(Path(__file__).resolve().parents[i]) for i in (0, 1))
    CONTEXT.set_forkserver_preload(["bench_sampling", "shared_weights"])
    megabytes, repeats = (20, 2) if args.small else (args.megabytes, args.repeats)
    times = measure(megabytes, repeats)
    print(machine())
    print(f"{'way':16}{'ms':>9}{'memcpys':>9}{'publishes':>11}   {megabytes} MB")
    for name, seconds in times.items():
        print(f"{name:16}{1e3 * seconds:>9.1f}{seconds / times['memcpy']:>9.2f}{seconds / times['publish']:>11.2f}")
    verdict("publish, in memcpys", times["publish"] / times["memcpy"], 1.2, at_most=True)
    for name in ("save + load", "queue"):
        verdict(f"{name}, against publish + read", times[name] / times["publish + read"], 1.0)


if __name__ == "__main__":
    main()
