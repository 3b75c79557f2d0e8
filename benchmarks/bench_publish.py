"""Publishing weights to another process: shared memory against a file and a multiprocessing queue.

    python benchmarks/bench_publish.py                  # 990 MB, as Auto-UI's base size
    python benchmarks/bench_publish.py --small          # 20 MB

Ours is `SharedWeights.publish`: what the learner waits for. Its measure is the memcpy, numpy's copy of as many bytes
between two arrays that exist. The file (torch.save, then torch.load) and the queue (torch.multiprocessing's would share
memory by itself, so pickled arrays through multiprocessing.Queue) are timed until the weights can be used on the other
side, and so is ours with a `read` in a real child process. Ratios in one run, in turns, the best of `--repeats`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
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
    """A child process: fetches each version that it is told of, says so."""
    arrays = [np.zeros(shape, np.float32) for shape in sizes]
    version = weights.read(arrays)
    connection.send(version)
    while connection.recv() is not None:
        version = weights.read(arrays, newer_than=version)
        connection.send(version)


def load_reader(path: str, connection) -> None:
    """A child process that loads the file each time it is told to."""
    connection.send(0)
    while connection.recv() is not None:
        connection.send(len(torch.load(path, weights_only=True)))


def queue_reader(messages, connection) -> None:
    """A child process that takes weights out of a queue."""
    connection.send(0)
    while (state := messages.get()) is not None:
        connection.send(len(state))
        del state


def child(target, *arguments):
    """A process and our end of its pipe, once it is up."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    ours.recv()
    return process, ours


def measure(megabytes: int, repeats: int) -> dict[str, float]:
    """Least seconds of each way."""
    sizes = shapes(megabytes)
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in sizes])
    flat = np.random.default_rng(0).random(ends[-1], np.float32)
    copy = np.zeros_like(flat)
    arrays = [a.reshape(shape) for a, shape in zip(np.split(flat, ends[:-1]), sizes, strict=True)]
    weights = SharedWeights(CONTEXT, flat.size)
    for _ in range(2):  # both buffers' pages exist from the second version on
        weights.publish(arrays)
    times: dict[str, float] = {}

    def keep(name: str, began: float) -> None:
        times[name] = min(times.get(name, float("inf")), time.perf_counter() - began)

    with tempfile.TemporaryDirectory() as folder:
        path, messages = str(Path(folder) / "weights.pt"), CONTEXT.Queue()
        ways = {
            "shared": child(reader, weights, sizes),
            "file": child(load_reader, path),
            "queue": child(queue_reader, messages),
        }
        state = {str(i): torch.from_numpy(array) for i, array in enumerate(arrays)}
        for _ in range(repeats):
            began = time.perf_counter()
            np.copyto(copy, flat)
            keep("memcpy", began)
            began = time.perf_counter()
            weights.publish(arrays)
            keep("publish", began)
            began = time.perf_counter()
            weights.publish(arrays)
            ways["shared"][1].send(1)
            assert ways["shared"][1].recv() == weights.version
            keep("publish + read", began)
            began = time.perf_counter()
            torch.save(state, path)
            keep("save", began)
            ways["file"][1].send(1)
            assert ways["file"][1].recv() == len(arrays)
            keep("save + load", began)
            began = time.perf_counter()
            messages.put(arrays)
            assert ways["queue"][1].recv() == len(arrays)
            keep("queue", began)
        for name in ("shared", "file"):
            ways[name][1].send(None)
        messages.put(None)
        for process, _ in ways.values():
            process.join(10)
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
