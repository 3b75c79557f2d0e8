"""aride.py's targets: where a trajectory ends, what must not leak, extreme and bad input."""

import inspect
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from test_aride import actor, always, batch, cast, close, never, t
from torch._subclasses import FakeTensorMode

import aride
from baselines import authors_rewards

# ---- ends of trajectories, padding

def test_c2_terminated_and_truncated():
    base = dict(rewards=t([[0.0, 0, 1]]), values=t([[0.1, 0.2, 0.3]]), log_rho=torch.zeros(1, 3), gamma=0.5,
                lam=1.0, mask=torch.ones(1, 3, dtype=torch.bool))
    end = torch.tensor([[False, False, True]])
    for f in (aride.retrace, aride.vtrace):
        close(f(**base, next_values=t([[0.2, 0.3, 9]]), terminated=end), t([[0.25, 0.5, 1.0]]))
        close(f(**base, next_values=t([[0.2, 0.3, 0.4]]), terminated=never(end)), t([[0.30, 0.60, 1.20]]))


@pytest.mark.parametrize("kind", ["retrace", "vtrace"])
def test_trajectories_that_share_a_row_do_not_leak(kind):
    f = getattr(aride, kind)
    arguments = batch(B=2, T=4, lengths=[4, 4])  # row 0 terminated, row 1 truncated
    apart = f(**arguments)
    row = {k: x.reshape(1, 8) if isinstance(x, torch.Tensor) else x for k, x in arguments.items()}
    for order in (slice(None), slice(None, None, -1)):
        packed = {k: x.reshape(2, 4)[[0, 1][order]].reshape(1, 8) if isinstance(x, torch.Tensor) else x
                  for k, x in row.items()}
        truncated = torch.zeros(2, 4, dtype=torch.bool)
        truncated[1, 3] = True
        truncated = truncated[[0, 1][order]].reshape(1, 8)
        close(f(**packed, truncated=truncated).reshape(2, 4)[[0, 1][order]], apart)
        ours = {k: packed[k] for k in ("rewards", "values", "next_values", "terminated", "mask", "gamma")}
        got = aride.advantages(**ours, targets=f(**packed, truncated=truncated), truncated=truncated)
        theirs = {k: arguments[k] for k in ours}
        close(got.reshape(2, 4)[[0, 1][order]], aride.advantages(**theirs, targets=apart))


@pytest.mark.parametrize("kind", ["retrace", "vtrace"])
def test_padding_on_either_side_changes_nothing_whatever_it_holds(kind):
    f = getattr(aride, kind)
    arguments = batch(B=3, T=4, lengths=[4, 4, 4])
    for bad in (0.0, math.inf, -math.inf, math.nan):
        padded = {}
        for name, x in arguments.items():
            if isinstance(x, torch.Tensor):
                fill = bad if x.is_floating_point() else False
                edge = torch.full((3, 3), fill, dtype=x.dtype)
                x = torch.cat([edge, x, edge], 1)
            padded[name] = x
        got = f(**padded)
        close(got[:, 3:-3], f(**arguments))
        assert (got[:, :3] == 0).all() and (got[:, -3:] == 0).all()


def test_a_hole_in_the_mask_separates():
    arguments = batch(B=1, T=5, lengths=[5])
    arguments["mask"][0, 2] = False
    left = {k: x[:, :2] if isinstance(x, torch.Tensor) else x for k, x in arguments.items()}
    for f in (aride.retrace, aride.vtrace):
        close(f(**arguments)[:, :2], f(**left))
    got = aride.discounted_returns(rewards=t([[1.0, 1, 8, 1, 1]]), mask=arguments["mask"], gamma=0.5)
    close(got, t([[1.5, 1, 0, 1.5, 1]]))


def test_c19_monte_carlo_return():
    rewards = t([[0.0, 0, 0, 0, 1]])
    got = aride.discounted_returns(rewards=rewards, mask=always(rewards), gamma=0.95)
    close(got[0, [0, 4]], t([0.81450625, 1.0]))
    ends = torch.tensor([[False, True, False, False, True]])
    got = aride.discounted_returns(rewards=t([[0.0, 2, 0, 0, 1]]), mask=always(rewards), gamma=0.5, ends=ends)
    close(got, t([[1, 2, 0.25, 0.5, 1]]))


def test_c4_a_single_terminal_step():
    one = t([[1.0]])
    step = dict(rewards=one, values=t([[0.3]]), next_values=t([[9.0]]), terminated=one.bool(),
                mask=one.bool(), gamma=0.5)
    targets = aride.retrace(**step, log_rho=torch.zeros(1, 1), lam=1.0)
    advantage = aride.advantages(**step, targets=targets)
    close(targets, t([[1.0]]))
    close(advantage, t([[0.7]]))
    assert actor(logprob=t([[-1.0]]), advantage=advantage)[2].abs().item() == pytest.approx(0.7)


def test_advantage_uses_the_corrected_value_of_the_next_state():
    arguments = batch(B=4, T=6)
    targets = aride.retrace(**arguments)
    step = {k: arguments[k] for k in ("rewards", "values", "next_values", "terminated", "mask", "gamma")}
    got = aride.advantages(**step, targets=targets)
    for b, i in arguments["mask"].nonzero().tolist():
        last = i == int(arguments["mask"][b].sum()) - 1
        after = arguments["next_values"][b, i] if last else targets[b, i + 1]
        after = 0.0 if arguments["terminated"][b, i] else after
        want = arguments["rewards"][b, i] + 0.9 * after - arguments["values"][b, i]
        assert float(got[b, i]) == pytest.approx(float(want), abs=2e-6)
    one_step = aride.advantages(**step, targets=arguments["values"])
    close(one_step, aride.td_errors(**step))
    # On-policy with lambda 1 both corrections agree: A_t = V_ret(s_t) - V(s_t).
    arguments.update(lam=1.0, log_rho=torch.zeros(4, 6))
    targets = aride.retrace(**arguments)
    close(aride.advantages(**step, targets=targets), (targets - arguments["values"]) * arguments["mask"])


def test_targets_and_advantages_carry_no_gradient_yet_can_be_used_in_a_loss():
    arguments = batch()
    for name in ("values", "next_values", "log_rho", "rewards"):
        arguments[name] = arguments[name].clone().requires_grad_()
    weight = torch.ones(5, 9, requires_grad=True)
    for f in (aride.retrace, aride.vtrace):
        targets = f(**arguments)
        assert not targets.requires_grad and not targets.is_inference()
        (weight * targets).sum().backward()
    assert arguments["values"].grad is None and weight.grad.isfinite().all()


def test_half_precision_inputs_are_widened():
    arguments = batch()
    half = cast(arguments, torch.bfloat16)
    got = aride.retrace(**half)
    assert got.dtype == torch.float32
    close(got, aride.retrace(**cast(half, torch.float32)))


@pytest.mark.parametrize("kind", ["retrace", "vtrace"])
def test_no_call_sees_another_one_before_it_or_in_another_thread(kind):
    f = getattr(aride, kind)
    calls = [batch(B=32, T=7, seed=seed) for seed in range(8)]  # one shape: they share what can be shared
    want = [f(**cast(arguments, torch.float64)) for arguments in calls]
    first = f(**calls[0])
    spoiled = {k: x.masked_fill(~calls[1]["mask"], math.nan) if x.is_floating_point() else x
               for k, x in calls[1].items() if isinstance(x, torch.Tensor)}
    close(f(**calls[1] | spoiled).double(), want[1])
    with pytest.raises(ValueError, match="rewards"):
        f(**calls[0] | {"rewards": torch.full((32, 7), math.nan)})
    close(first.double(), want[0])  # still what it was
    with ThreadPoolExecutor(4) as pool:
        for i, got in enumerate(pool.map(lambda i: f(**calls[i % 8]), range(400))):
            close(got.double(), want[i % 8])


@pytest.mark.parametrize("kind", ["retrace", "vtrace"])
def test_any_mix_of_precisions_and_the_smallest_shapes(kind):
    f = getattr(aride, kind)
    arguments = batch(dtype=torch.float64)
    want = f(**arguments)
    for name in ("rewards", "values", "next_values", "log_rho"):
        got = f(**arguments | {name: arguments[name].float()})
        assert got.dtype == (torch.float32 if name == "values" else torch.float64)
        close(got.double(), want)
    for shape in ((1, 1), (3, 1), (0, 4), (2, 0)):
        x, flags = torch.ones(shape), torch.ones(shape, dtype=torch.bool)
        got = f(rewards=x, values=x, next_values=x, log_rho=x, terminated=flags, mask=flags, gamma=0.9, lam=0.8)
        assert torch.equal(got, x)  # r, and nothing after it


def test_vtrace_clips_weight_and_product_apart():
    step = dict(rewards=t([[0.0, 1]]), values=t([[0.1, 0.2]]), next_values=t([[0.2, 0.0]]), gamma=0.9, lam=1.0,
                log_rho=t([[3.0, 4.0]]).log(), terminated=torch.tensor([[False, True]]), mask=always(t([[1.0, 1]])))
    for rho_clip, c_clip in ((1.0, 1.0), (2.0, 0.5), (0.5, 2.0), (3.5, math.inf), (math.inf, math.inf)):
        rho, c = [min(rho_clip, 3.0), min(rho_clip, 4.0)], min(c_clip, 3.0)
        td = [0.9 * 0.2 - 0.1, 1 - 0.2]
        want = t([[0.1 + rho[0] * td[0] + 0.9 * c * rho[1] * td[1], 0.2 + rho[1] * td[1]]])
        close(aride.vtrace(**step, rho_clip=rho_clip, c_clip=c_clip), want)
    for clips in ({"rho_clip": 0.0}, {"c_clip": -1.0}, {"c_clip": math.nan}):
        with pytest.raises(ValueError, match="rho_clip and c_clip must be above 0"):
            aride.vtrace(**step, **clips)


# ---- bad input

def test_c20_every_argument_of_every_function_is_given_by_its_name():
    public = {name: f for name, f in inspect.getmembers(aride, inspect.isfunction)
              if f.__module__ == "aride" and not name.startswith("_") and name != "step_values"}
    assert len(public) >= 11 and {"retrace", "actor_loss", "value_loss", "trajectory_priorities"} <= public.keys()
    for name, f in public.items():
        kinds = {p.kind for p in inspect.signature(f).parameters.values()}
        assert kinds == {inspect.Parameter.KEYWORD_ONLY}, name


def test_c20_boolean_masks_and_shapes_in_the_error():
    arguments = batch()
    with pytest.raises(ValueError, match="mask must be torch.bool, got torch.float32: pass torch.as_tensor.mask..bool"):
        aride.retrace(**arguments | {"mask": arguments["mask"].float()})
    with pytest.raises(ValueError, match="terminated must be torch.bool"):
        aride.vtrace(**arguments | {"terminated": arguments["terminated"].int()})
    with pytest.raises(ValueError, match=r"rewards \(5, 8\)"):
        aride.retrace(**arguments | {"rewards": arguments["rewards"][:, :-1]})
    with pytest.raises(ValueError, match=r"\[B, T\]"):
        aride.retrace(**{k: x[0] if isinstance(x, torch.Tensor) else x for k, x in arguments.items()})
    one = torch.ones(1, 2)
    losses = (lambda: actor(mask=one),
              lambda: aride.value_loss(logits=torch.ones(1, 2, 2), targets=one, mask=one),
              lambda: aride.trajectory_value_loss(logits=torch.ones(1, 3), outcomes=one[0, :1], mask=one))
    for loss in losses:
        with pytest.raises(ValueError, match="mask.* torch.bool.*torch.float32"):
            loss()


@pytest.mark.parametrize("name", ["rewards", "values", "next_values", "log_rho"])
def test_a_true_nan_is_refused_with_its_place(name):
    for place in ((1, 0), (1, 3)):
        arguments = batch(lengths=[9] * 5)
        x = arguments[name] = arguments[name].clone()
        x[place] = math.nan
        for f in (aride.retrace, aride.vtrace):
            with pytest.raises(ValueError, match=rf"{name} \(5, 9\) has 1 NaN .* \[1, {place[1]}\]: nan"):
                f(**arguments)


def test_a_nan_value_of_a_terminal_next_state_is_ignored():
    arguments = batch(lengths=[9] * 5)
    arguments["next_values"] = arguments["next_values"].masked_fill(arguments["terminated"], math.nan)
    assert aride.retrace(**arguments).isfinite().all()


@pytest.mark.parametrize("log_rho", [-math.inf, -90.0, 90.0, math.inf])
def test_extreme_ratios_stay_finite(log_rho):
    arguments = batch() | {"log_rho": torch.full((5, 9), log_rho)}
    for f in (aride.retrace, aride.vtrace):
        assert f(**arguments).isfinite().all()


@pytest.mark.parametrize("at", ["rewards", "values", "next_values", "log_rho", "gamma"])
def test_masked_infinities_are_harmless_wherever_they_stand(at):
    arguments = batch(B=2, T=6, lengths=[6, 6])
    arguments["gamma"] = torch.full((2, 6), 0.9)
    arguments["mask"][:, [0, 3]] = False
    for f in (aride.retrace, aride.vtrace):
        want = f(**arguments)
        for bad in (math.inf, -math.inf, math.nan):
            assert torch.equal(f(**arguments | {at: arguments[at].masked_fill(~arguments["mask"], bad)}), want)


COMPILED = """
import torch, aride
torch.set_num_threads(1)
z, e, m = torch.zeros(1, 4), torch.tensor([[False, False, False, True]]), torch.ones(1, 4, dtype=torch.bool)
step = dict(values=z, next_values=z, log_rho=z, terminated=e, mask=m, gamma=.5, lam=1.)
for f in (lambda r: 2 * aride.retrace(rewards=r, **step), lambda r: 2 * aride.vtrace(rewards=r, **step),
          lambda r: 2 * aride.discounted_returns(rewards=r, mask=m, gamma=.5)):
    r = torch.tensor([[0., 0., 0., 1.]])
    assert torch.equal(torch.compile(f, backend="aot_eager")(r), f(r)), f(r)
    assert f(r).tolist() == [[.25, .5, 1., 2.]]
"""


def test_the_scan_is_kept_out_of_torch_compile():
    """Which would run its steps on the columns as they were: [0, 0, .5, 1] in the place of [.125, .25, .5, 1]."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True, timeout=300, cwd=Path(aride.__file__).parent)


def test_the_workspace_that_is_kept_is_small_and_of_real_tensors():
    aride._scratch.cache_clear()
    with FakeTensorMode(), suppress(Exception):
        aride.retrace(**batch(B=2, T=3, lengths=[3, 3]))
    for B, T in ((2, 2000), (2000, 100)):
        aride.retrace(**batch(B=B, T=T, lengths=[T] * B))
    assert aride._scratch.cache_info().currsize == 0
    for _ in range(2):
        aride.retrace(**batch(B=2, T=3, lengths=[3, 3]))
    assert aride._scratch.cache_info().currsize == 1


def test_gamma_and_lam_are_checked_and_named():
    arguments = batch(B=2, T=3, lengths=[3, 3])
    for changes in ({"gamma": 1.1}, {"gamma": math.nan}, {"lam": -0.1}, {"lam": 2.0}):
        with pytest.raises(ValueError, match=r"(gamma|lam) must be in \[0, 1\], got"):
            aride.retrace(**arguments | changes)
    with pytest.raises(ValueError, match=r"gamma \(3,\)"):
        aride.vtrace(**arguments | {"gamma": torch.full((3,), 0.9)})
    for beyond in (1.5, -0.5, math.inf):  # one a step, too; what is under the mask does not count
        gamma, mask = torch.tensor([[0.9, 0.9, beyond], [0.9] * 3]), arguments["mask"].clone()
        with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\], got tensor"):
            aride.retrace(**arguments | {"gamma": gamma})
        mask[0, 2] = False
        aride.retrace(**arguments | {"gamma": gamma, "mask": mask})
    with pytest.raises(ValueError, match=r"gamma \(2, 3\) has 6 NaN"):
        aride.vtrace(**arguments | {"gamma": torch.full((2, 3), math.nan)})
    bad = torch.tensor([[0.9, math.nan, 0.9], [0.9] * 3])
    one_step = {k: arguments[k] for k in ("rewards", "values", "next_values", "terminated", "mask")} | {"gamma": bad}
    for call in (lambda: aride.td_errors(**one_step), lambda: aride.advantages(**one_step, targets=arguments["values"]),
                 lambda: aride.discounted_returns(rewards=arguments["rewards"], mask=arguments["mask"], gamma=bad)):
        with pytest.raises(ValueError, match=r"gamma \(2, 3\) has 1 NaN .*\[0, 1\]"):
            call()
    step = {k: arguments[k] for k in ("rewards", "values", "next_values", "terminated", "mask", "gamma")}
    returns = {"rewards": step["rewards"], "mask": step["mask"]}
    for gamma in (1.1, -0.1, math.nan):
        for f, given in ((aride.discounted_returns, returns), (authors_rewards, returns), (aride.td_errors, step),
                         (aride.advantages, step | {"targets": step["values"]})):
            with pytest.raises(ValueError, match=r"gamma must be in \[0, 1\], got"):
                f(**given | {"gamma": gamma})
    with pytest.raises(ValueError, match=r"targets \(2, 3\) has 1 NaN .*\[0, 1\]"):
        aride.advantages(**step, targets=t([[0.0, math.nan, 0], [0, 0, 0]]))
