"""Retrace and V-trace targets: `aride.py` against a plain torch loop, torchrl and rlax.

    python benchmarks/bench_targets.py                                    # B = 256, T = 10, 20 and 128, a minute
    python benchmarks/bench_targets.py --lengths 10 --seconds 0.2         # a quick look

Everyone gets the same float32 batch: rewards at the end, values in [0, 1], log-ratios, ends and a full mask. All run
in this process, one thread, a few calls each in turn; what counts is the fastest call of each. A ratio is a time over
that of ours. Before the timing every V-trace must equal ours in float64, every Retrace too, within 2e-5, and ours in
float32 within 2e-6. torchrl's V-trace also returns advantages (ours: `advantages`, not timed), and its lambda-returns,
plain and vectorised, are timed on-policy, where they are Retrace's. rlax is jitted and compiled before the timing.
Peers that are not installed are named and left out: `pip install -r benchmarks/requirements.txt`.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread for every contestant: before torch is imported
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import argparse  # noqa: E402
import importlib.metadata  # noqa: E402
import platform  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import aride  # noqa: E402

GAMMA, LAM = 0.9, 0.8
Call = Callable[[], object]  # -> targets [B, T]


def make_batch(B: int, T: int) -> dict[str, torch.Tensor]:
    """B full trajectories of T steps in float64, half of them terminated at their last step."""
    g = torch.Generator().manual_seed(0)
    values = torch.rand(B, T + 1, generator=g, dtype=torch.float64)
    last = (torch.arange(T) == T - 1).expand(B, T)
    rewards = (torch.rand(B, T, generator=g) < 0.5).double() * last
    log_rho = torch.randn(B, T, generator=g, dtype=torch.float64)
    return dict(rewards=rewards, values=values[:, :-1].contiguous(), next_values=values[:, 1:].contiguous(),
                log_rho=log_rho, terminated=last & (torch.arange(B) % 2 == 0)[:, None],
                mask=torch.ones(B, T, dtype=torch.bool))


def single(batch: dict) -> dict:
    return {k: x.float() if x.is_floating_point() else x for k, x in batch.items()}


def torch_loop(batch: dict, retrace: bool, lam: float) -> torch.Tensor:
    """The recursion as one writes it: a loop over T on columns, new tensors at each step."""
    rho = batch["log_rho"].exp().clamp(max=1.0)
    td = batch["rewards"] + GAMMA * batch["next_values"] * ~batch["terminated"] - batch["values"]
    T = td.shape[1]
    correction, out = torch.zeros_like(td[:, 0]), []
    for t in range(T - 1, -1, -1):
        if retrace:
            after = GAMMA * lam * rho[:, t + 1] if t + 1 < T else torch.zeros_like(correction)
            correction = td[:, t] + after * correction
        else:
            correction = rho[:, t] * td[:, t] + GAMMA * lam * rho[:, t] * correction
        out.append(correction)
    return batch["values"] + torch.stack(out[::-1], 1)


def torchrl_calls(batch: dict) -> dict[str, tuple[Call, dict]]:
    from torchrl.objectives.value import functional

    x = {k: v.unsqueeze(-1) for k, v in batch.items()}  # torchrl: [B, T, 1]
    done = torch.zeros_like(x["mask"])
    done[:, -1] = True
    zero = torch.zeros_like(x["log_rho"])
    given = dict(reward=x["rewards"], done=done, terminated=x["terminated"], next_state_value=x["next_values"])
    off = dict(kind="vtrace", lam=1.0)
    on = dict(kind="retrace", lam=LAM, log_rho=torch.zeros_like(batch["log_rho"]))
    return {
        "vtrace_advantage_estimate": (lambda: functional.vtrace_advantage_estimate(
            GAMMA, x["log_rho"], zero, x["values"], **given)[1].squeeze(-1), off),
        "td_lambda_return_estimate": (lambda: functional.td_lambda_return_estimate(
            gamma=GAMMA, lmbda=LAM, **given).squeeze(-1), on),
        "vec_td_lambda_return_estimate": (lambda: functional.vec_td_lambda_return_estimate(
            gamma=GAMMA, lmbda=LAM, **given).squeeze(-1), on),
    }


def rlax_calls(batch: dict) -> dict[str, tuple[Call, dict]]:
    import jax
    import jax.numpy as jnp
    import rlax

    x = {k: jnp.asarray(v.numpy()) for k, v in batch.items()}
    discount = GAMMA * ~x["terminated"]

    @jax.jit
    def vtrace(v, after, r, discount, log_rho):
        return v + jax.vmap(lambda *a: rlax.vtrace(*a, lambda_=LAM))(v, after, r, discount, jnp.exp(log_rho))

    @jax.jit
    def retrace(after, r, discount, log_rho, v):
        c = LAM * jnp.minimum(1.0, jnp.exp(log_rho))
        # rlax's general off-policy return takes Q(s, a), E Q(s, .) and c of the next steps: all of them are V here.
        return jax.vmap(rlax.general_off_policy_returns_from_q_and_v)(v[:, 1:], after, r, discount, c[:, 1:])

    return {
        "jitted vtrace": (lambda: vtrace(x["values"], x["next_values"], x["rewards"], discount,
                                         x["log_rho"]).block_until_ready(), dict(kind="vtrace", lam=LAM)),
        "jitted general_off_policy_returns": (lambda: retrace(
            x["next_values"], x["rewards"], discount, x["log_rho"], x["values"]).block_until_ready(),
            dict(kind="retrace", lam=LAM)),
    }


def build_all(B: int, T: int) -> tuple[dict[str, Call], float]:
    """Every contestant's call, checked against ours in float64, and our largest error; says why one is left out."""
    exact = make_batch(B, T)
    batch = single(exact)

    def ours(arguments, kind, lam, **changes):
        return getattr(aride, kind)(**arguments | changes, gamma=GAMMA, lam=lam)

    calls: dict[str, tuple[Call, dict]] = {}
    for kind in ("retrace", "vtrace"):
        calls[f"ours, {kind}"] = (lambda kind=kind: ours(batch, kind, LAM), dict(kind=kind, lam=LAM))
        calls[f"plain torch loop, {kind}"] = (lambda kind=kind: torch_loop(batch, kind == "retrace", LAM),
                                              dict(kind=kind, lam=LAM))
    for package, build in (("torchrl", torchrl_calls), ("rlax", rlax_calls)):
        try:
            version = importlib.metadata.version(package)
            calls |= {f"{package} {version}, {name}": call for name, call in build(batch).items()}
        except importlib.metadata.PackageNotFoundError:
            print(f"  {package}: not installed")
        except (ImportError, RuntimeError) as error:  # compiled for another torch, say
            print(f"  {package} {version} does not load here ({error})")
    worst = 0.0
    for name, (call, what) in calls.items():
        error = float(np.abs(np.asarray(call()) - ours(exact, **what).numpy()).max())
        worst = max(worst, error) if name.startswith("ours") else worst
        if not error < (2e-6 if name.startswith("ours") else 2e-5):
            raise SystemExit(f"{name} is {error} away from {what['kind']} in float64")
    return {name: call for name, (call, _) in calls.items()}, worst


def measure(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """The fastest call of each in microseconds; contestants take turns for about `seconds` each."""
    best, spent = {name: float("inf") for name in calls}, dict.fromkeys(calls, 0.0)
    while any(t < seconds for t in spent.values()):
        for name, call in calls.items():
            until = min(spent[name] + seconds / 40, seconds)
            while spent[name] < until:
                start = time.perf_counter()
                call()
                took = time.perf_counter() - start
                spent[name] += took
                best[name] = min(best[name], took * 1e6)
    return best


def verdict(measured: dict[int, dict[str, float]], error: float) -> str:
    """Which targets are met: 5 times as fast as the faster way of torchrl at T = 10 and 20, 2e-6 of float64."""
    found = [(f"largest error {error:.1e}, at most 2e-6", error <= 2e-6)]
    for T in sorted({10, 20} & measured.keys()):
        for kind, way in (("vtrace", "vtrace_"), ("retrace", "td_lambda_")):
            theirs = [us for name, us in measured[T].items() if name.startswith("torchrl") and way in name]
            if theirs:
                ratio = min(theirs) / measured[T][f"ours, {kind}"]
                found.append((f"T = {T}, {kind}: {ratio:.1f} x torchrl, at least 5", ratio >= 5))
    if len(found) == 1:
        found.append(("torchrl at T = 10 and 20", None))
    words = {True: "met", False: "MISSED", None: "not measured"}
    return "verdict: " + "; ".join(f"{what}: {words[met]}" for what, met in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[10, 20, 128], help="steps of a trajectory, T")
    parser.add_argument("--batch", type=int, default=256, help="trajectories, B")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring, for each contestant and length")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, one thread")
    measured, error = {}, 0.0
    for T in args.lengths:
        print(f"\nB = {args.batch}, T = {T}; fastest call")
        calls, worst = build_all(args.batch, T)
        best = measured[T] = measure(calls, args.seconds)
        error = max(error, worst)
        for name, microseconds in best.items():
            mine = best["ours, vtrace" if "vtrace" in name else "ours, retrace"]
            print(f"  {name:52} {microseconds:9.1f} us   {microseconds / mine:6.2f} x ours")
    print(f"\n{verdict(measured, error)}")


if __name__ == "__main__":
    main()
