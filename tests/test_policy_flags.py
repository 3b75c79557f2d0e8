"""The policy's flags: what is refused before anything starts, and a whole run on published networks."""

import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from test_checkpoints import folder_of, plain_t5, trainer_file
from test_critics import roberta  # noqa: F401  (a fixture)
from test_screen_features import blip2

from args import Args, prepare
from journal import Journal
from loaders import load_policy, load_screen_features, load_text_encoder
from policy import AutoUIPolicy
from policy_check import check_policy, check_transformers
from replay import Trajectory
from run_folder import UsageError
from screen_features import FEATURE_DIM

ROOT = Path(__file__).resolve().parent.parent


def args_of(tmp_path, **flags) -> Args:
    args = Args()
    args.run.runs_dir = tmp_path / "runs"
    for name, value in flags.items():
        setattr(args.policy, name, value)
    return args


def vision(path: Path, hidden: int = FEATURE_DIM) -> Path:
    """A small BLIP-2 whose features differ between screens."""
    model = blip2(hidden)
    with torch.no_grad():
        for p in model.vision_model.parameters():
            p.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(p.numel()))
    model.save_pretrained(path)
    return path


def test_each_flag_is_refused_with_its_value_and_a_remedy(tmp_path, monkeypatch, roberta):  # noqa: F811
    monkeypatch.setattr("policy_check.find_spec", lambda name: None)  # as if peft were not installed
    policy, wrong = tmp_path / "t5", vision(tmp_path / "wrong", 16)
    policy.mkdir()
    plain_t5(policy)
    (tmp_path / "empty").mkdir()
    cases = [
        (dict(precision="fp16"), "--precision fp16: use bf16 or fp32.*overflows"),
        (dict(precision="int8"), "--precision int8: use bf16 or fp32$"),
        (dict(lora=-1), "--lora -1: at least 0"),
        (dict(lora=8), "--lora 8 needs peft: pip install peft"),
        (dict(init_fusion=True), "--init-fusion needs --policy"),
        (dict(screen_features=str(tmp_path)), "--screen-features needs --policy"),
        (dict(policy=policy, screen_features="nowhere"), "--screen-features nowhere: .*No such file"),
        (dict(policy=policy, screen_features=str(wrong)), "gives 16 numbers, Auto-UI takes 1408.*opt-2.7b"),
        (dict(policy=policy, screen_features=str(policy)), "not BLIP-2 but 't5'"),
        (dict(policy=policy, screen_features=str(roberta)), "not BLIP-2 but 'roberta'"),
        (dict(critic_encoder=tmp_path / "empty"), "--critic-encoder .*empty: its config.json cannot be read"),
        (dict(critic_encoder=policy), "--critic-encoder .*: not a RoBERTa but 't5'"),
    ]
    for flags, message in cases:
        with pytest.raises(UsageError, match=message):
            prepare(args_of(tmp_path, **flags))
    monkeypatch.setattr("policy_check.find_spec", lambda name: True)
    with pytest.raises(UsageError, match="--lora with --init-fusion"):
        prepare(args_of(tmp_path, policy=policy, lora=8, init_fusion=True))
    assert not (tmp_path / "runs").exists()


def test_what_only_loading_can_tell_is_refused_with_the_flag(tmp_path, roberta):  # noqa: F811
    policy, folder = tmp_path / "t5", vision(tmp_path / "blip2")
    policy.mkdir()
    plain_t5(policy)
    with pytest.raises(UsageError, match="--policy .*plain T5 has no image layers: --init-fusion"):
        load_policy(args_of(tmp_path, policy=policy))
    assert load_policy(args_of(tmp_path, policy=policy, init_fusion=True))[0].config["d_model"] == 24
    (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="--screen-features .*blip2"):
        load_screen_features(args_of(tmp_path, screen_features=str(folder)))
    (tmp_path / "cut").mkdir()
    for file in roberta.iterdir():
        (tmp_path / "cut" / file.name).write_bytes(file.read_bytes())
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(UsageError, match="--critic-encoder .*cut: its .safetensors file is not whole.*copy it again"):
        load_text_encoder(args_of(tmp_path, critic_encoder=tmp_path / "cut"))
    weights.unlink()
    with pytest.raises(UsageError, match="--critic-encoder .*cut"):
        load_text_encoder(args_of(tmp_path, critic_encoder=tmp_path / "cut"))


def test_a_run_named_as_the_policy_is_the_one_that_it_ended_with(tmp_path):
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    (run / "journal.sqlite").touch()
    with pytest.raises(UsageError, match="--policy .*policy.safetensors: no such file"):
        check_policy(args_of(tmp_path, policy=run).policy)
    AutoUIPolicy.small(seed=3).save(run / "policy.safetensors")
    args = args_of(tmp_path, policy=run)
    check_policy(args.policy)
    policy, path = load_policy(args)
    assert path == run / "policy.safetensors"
    assert torch.equal(policy.network.shared.weight, AutoUIPolicy.small(seed=3).network.shared.weight)


@pytest.mark.parametrize("found", ["4.57.1", "5.15.9", "6.0.0", "6.0.0.dev0", None])
def test_F13_another_transformers_is_one_error_before_anything_starts(tmp_path, monkeypatch, found):
    def version(name):
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr("policy_check.version", version)
    with pytest.raises(UsageError, match=f"transformers {found or 'none'} is installed, 5.16 up to below 6 .*pip inst"):
        prepare(args_of(tmp_path))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("found", [None, "5.16", "5.16.0", "5.24.0rc1", "5.99.9"])
def test_F13_what_requirements_txt_allows_is_taken(monkeypatch, found):
    if found:
        monkeypatch.setattr("policy_check.version", lambda name: found)
    check_transformers()  # None: the one that is installed


@pytest.mark.slow
@pytest.mark.parametrize("serial", [True, False])
def test_a_run_on_published_networks(tmp_path, roberta, serial):  # noqa: F811
    """DigiRL's file, BLIP-2, RoBERTa, bf16; with LoRA where peft is installed. Random weights: it must only work."""
    from importlib.util import find_spec

    weights = folder_of(tmp_path / "digirl", "t5_v1_0")
    torch.save(trainer_file(weights, "model."), tmp_path / "digirl" / "trainer.pt")
    flags = f"""--policy {tmp_path}/digirl/trainer.pt --screen-features {vision(tmp_path / "blip2")} --precision bf16
        --critic-encoder {roberta} --lora {4 if find_spec("peft") else 0} --total-trajectories 4 --eval-episodes 1
        --horizon 2 --latency 0 --learning-starts 1 --critic-warmup 1 --updates-per-trajectory 1 --publish-every 1
        --batch-trajectories 2 --eval-every 0 --runs-dir {tmp_path}/runs""".split()
    flags += ["--serial"] if serial else ["--num-workers", "2"]
    command = [sys.executable, "run_distrl.py", *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stderr == "", (done.stdout, done.stderr)
    assert "left out: critic (2 tensors), trajectory_critic (1 tensors)" in done.stdout
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "results.json").read_text())["updates"] > 0
    with Journal(run / "journal.sqlite", readonly=True) as journal:
        trajectories = [Trajectory.from_bytes(data) for _, data in journal.blobs(row.id for row in journal.rows())]
    features = np.concatenate([t.features for t in trajectories]).astype(np.float32)
    assert len(trajectories) >= 6 and features.shape[1] == FEATURE_DIM and features.std() > 0.01
    assert max(int(t.policy_version.max()) for t in trajectories) > 1  # what was published was acted on
