"""--device: refused in one sentence, touched only when the actors exist, and nothing left on the CPU.

There is no GPU where these tests run. A second device is emulated instead: its tensors are wrappers around CPU ones,
and an operation that mixes them with plain tensors of one dimension or more is an error, as it is on a GPU.
"""

import subprocess
import sys
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from test_learner import config, play, small
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import autoui
import devices
from args import Args, PolicyArgs
from autoui import AutoUINetwork
from learner import Learner
from lora import Receiver
from policy_check import check_policy
from run_folder import UsageError

ROOT = Path(__file__).resolve().parent.parent
THERE = torch.device("meta")  # a device type that every torch has; real meta tensors hold no numbers


class Elsewhere(torch.Tensor):
    """A tensor on the emulated device."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=THERE, requires_grad=False,
        )  # fmt: skip

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    kwargs = dict(kwargs)
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    there = [x for x in tensors if isinstance(x, Elsewhere)]
    if any(x.device == THERE and not isinstance(x, Elsewhere) for x in tensors):
        raise RuntimeError(f"{func}: a tensor that was made past the emulation, without numbers")
    target, copies = kwargs.get("device"), func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
    mixed = [x for x in tensors if not isinstance(x, Elsewhere) and x.ndim]
    if func is torch.ops.aten.index.Tensor and isinstance(args[0], Elsewhere):  # a GPU takes indices from the CPU, too
        mixed = []
    if there and mixed and not copies:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, found {THERE} and cpu")
    wrapped = (target == THERE) if target is not None else bool(there)
    if target is not None:
        kwargs["device"] = torch.device("cpu")
    if copies and func is torch.ops.aten.copy_.default:
        wrapped = isinstance(args[0], Elsewhere)
    inner = tree_map(lambda x: x.inner if isinstance(x, Elsewhere) else x, (args, kwargs))
    found = func(*inner[0], **inner[1])
    if not func._schema.returns:  # _foreach and _fused ones, in place
        return None
    if func._schema.name.split("::")[1].split(".")[0].endswith("_") and there:  # in place
        return args[0]
    return tree_map(lambda x: Elsewhere(x) if isinstance(x, torch.Tensor) and wrapped else x, found)


class Factories(TorchDispatchMode):
    """Makes tensors that are asked for on the emulated device there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


@contextmanager
def second_device():
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    with pytest.MonkeyPatch.context() as patch:
        no_mode = lambda mode=True: torch.no_grad() if mode else nullcontext()  # noqa: E731
        patch.setattr(torch, "inference_mode", no_mode)  # wrappers cannot be made in the real one
        patch.setattr(AutoUINetwork, "sample", AutoUINetwork.sample.__wrapped__)
        patch.setattr(autoui, "flatten_parameters", lambda network: None)  # wrappers have no addresses
        patch.setattr(sys.modules["torch.optim.adam"], "_device_dtype_check_for_fused", lambda *_, **__: None)
        for make in (torch.tensor, torch.as_tensor):  # these ask no mode

            def made(data, *, device=None, make=make, **how):
                tensor = make(data, **how)
                return tensor if device is None else tensor.to(device)

            patch.setattr(torch, make.__name__, made)
        with Factories():
            yield
    torch.__future__.set_swap_module_params_on_conversion(before)


def learner_of(policy) -> Learner:
    learner = Learner(policy, config(batch_trajectories=4, critic_warmup=1), seed=3)
    for id in range(1, 7):
        learner.add(play(policy, id % 2 == 0, steps=1 + id % 4, seed=id), id=id)
    learner.REFRESH_EVERY = 1
    return learner


def test_the_emulated_device_refuses_what_a_gpu_refuses():
    with second_device():
        there = torch.ones(3, device=THERE)
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.ones(3)
        assert (there + torch.tensor(1.0)).cpu().tolist() == [2.0] * 3


@pytest.mark.parametrize("algo", ["aride", "digirl", "filtered_bc", "vtrace"])
def test_an_update_there_is_the_one_here(algo):
    """Every tensor of an update is on the device; the numbers are the same."""
    here, moved = learner_of(small(seed=1)), learner_of(small(seed=1))
    here.config.algo = moved.config.algo = algo
    metrics = [here.update() for _ in range(2)]
    with second_device():
        moved.to(THERE)
        assert {p.device for p in moved.policy.parameters()} == {THERE} == {moved.critic.body[0].weight.device}
        assert [moved.update() for _ in range(2)] == [pytest.approx(row) for row in metrics]
        arrays = moved.policy.published()
        pairs = zip(here.policy.published(), arrays, strict=True)
        assert all(np.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_the_server_answers_there_with_what_was_published():
    policy, other = small(seed=1), small(seed=2)
    state = play(policy, True, steps=3)
    seen = state.prompts[:3], state.features[:3].astype(np.float32)
    wanted = other.act(*seen, greedy=True)
    with second_device():
        receiver = Receiver(policy.to(THERE))
        assert policy.device == THERE
        for array, newest in zip(receiver.arrays, other.published(), strict=True):
            array[:] = newest
        receiver.apply()
        answered = policy.act(*seen, greedy=True)
        sampled = policy.act(*seen, generator=torch.Generator().manual_seed(0))
    assert answered.texts == wanted.texts
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(answered.logprobs, wanted.logprobs, strict=True))
    assert sampled.texts == other.act(*seen, generator=torch.Generator().manual_seed(0)).texts


# ---------------------------------------------------------------------- what is refused


def test_a_gpu_that_is_not_there_is_one_sentence(monkeypatch):
    devices.check_device("--device", "cpu")
    for name in ("gpu", "cuda:", "cuda:x", "mps"):
        with pytest.raises(UsageError, match=f"--device {name}: use cpu, cuda or cuda:N"):
            devices.check_device("--device", name)
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: False)
    with pytest.raises(UsageError, match=r"--device cuda: torch .* is built without CUDA: install one"):
        devices.check_device("--device", "cuda")
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(UsageError, match="--server-device cuda:0: this machine has no GPU .*or leave out"):
        devices.check_device("--server-device", "cuda:0")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    devices.check_device("--device", "cuda:1")
    with pytest.raises(UsageError, match="--device cuda:2: this machine has cuda:0, cuda:1: name another"):
        devices.check_device("--device", "cuda:2")
    devices.check_device("--device", "cuda", learners=2)
    devices.check_device("--device", "cuda:1", learners=3)  # all on that one
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with pytest.raises(UsageError, match="--device cuda: 3 learners on this machine.* it has 2: torchrun"):
        check_policy(PolicyArgs(device="cuda"))
    check_policy(PolicyArgs(server_device="cuda"))  # there is one server
    assert not torch.cuda.is_initialized()


def test_each_learner_of_a_machine_has_a_gpu(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert devices.own_device("cuda") == torch.device("cuda:0") and devices.own_device("cpu").type == "cpu"
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert devices.own_device("cuda") == torch.device("cuda:3") and devices.own_device("cuda:1").index == 1


# ---------------------------------------------------------------------- the order of things


WATCH = """
import os, sys, torch, run_distrl, actor_pool

def first_touch():
    alive = [p for p in pools[0].pids if os.path.exists(f"/proc/{p}")]
    print("CUDA is initialised; workers and server:", len(alive), "ready:", pools[0].alive,
          pools[0]._context.get_start_method(), flush=True)
    raise RuntimeError("there is no GPU here")

pools = []
start = actor_pool.ActorPool.start
actor_pool.ActorPool.start = lambda pool, **how: (pools.append(pool), start(pool, **how))
torch.backends.cuda.is_built = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda._lazy_init = first_touch                  # what torch calls before it does anything on a GPU
sys.exit(run_distrl.main())
"""


@pytest.mark.slow
def test_E8_cuda_is_not_initialised_before_the_actors_exist_which_a_fork_server_starts(tmp_path):
    """The program itself, with a torch that claims to have a GPU and tells when it would be initialised."""
    policy = tmp_path / "policy.safetensors"
    small(seed=0).save(policy)
    flags = f"--device cuda --server-device cpu --policy {policy} --runs-dir {tmp_path} --num-workers 1 --latency 0"
    done = subprocess.run([sys.executable, "-c", WATCH, *flags.split()], cwd=ROOT, capture_output=True, text=True,
                          timeout=90)
    assert "CUDA is initialised; workers and server: 2 ready: 1 forkserver" in done.stdout, done.stdout + done.stderr
    assert "there is no GPU here" in done.stderr and "1 workers ready after" in done.stdout


def test_a_run_with_a_missing_gpu_starts_nothing(tmp_path, monkeypatch):
    from args import prepare

    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    args = Args()
    args.run.runs_dir, args.policy.device = tmp_path / "runs", "cuda"
    with pytest.raises(UsageError, match="--device cuda: this machine has no GPU"):
        prepare(args)
    assert not (tmp_path / "runs").exists()
