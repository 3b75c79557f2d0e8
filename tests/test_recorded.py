"""Learning from journals: what is taken, what is refused, and that the same comes out twice, of whole programs too."""

import copy
import csv
import dataclasses
import json
import shutil
import signal
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_experiment import begin
from test_learner import play, small
from test_run import Program

from args import Args, parse, prepare
from journal import Journal
from recorded import NoPool, alone, feed, read
from replay import Trajectory
from run_distrl import Experiment, main
from run_folder import UsageError, load_checkpoint, make_folder, read_args, write_args

FLAGS = """--eval-episodes 1 --horizon 3 --learning-starts 4 --critic-warmup 2 --batch-trajectories 2 --eval-every 0
    --updates-per-trajectory 0.5 --latency 0 --publish-every 1""".split()


def write(path: Path, policy, outcomes, *, seed=0, split="train", change=lambda trajectory: trajectory) -> Path:
    """A journal of one trajectory an outcome (True, False, None)."""
    path.parent.mkdir(exist_ok=True)
    with Journal(path) as journal:
        for number, success in enumerate(outcomes):
            trajectory = change(play(policy, success, seed=seed + number))
            journal.append(
                instruction=trajectory.instruction, family=trajectory.family, success=success, reward=0.0,
                length=len(trajectory), policy_version=1, worker=7, split=split, reason="said",
                data=trajectory.to_bytes(),
            )  # fmt: skip
    return path


def settings(offline=(), replay=None) -> Args:
    """An offline run that updates early."""
    args = Args()
    args.recorded.offline, args.recorded.replay, args.tasks.total_trajectories = tuple(offline), replay, 0
    algorithm = dict(learning_starts=2, critic_warmup=2, batch_trajectories=2, updates_per_trajectory=1.5)
    args.algorithm = dataclasses.replace(args.algorithm, replay_capacity=30, **algorithm)
    return args


def experiment(args: Args, folder: Path, policy) -> Experiment:
    """As `run_in` makes one for recorded trajectories alone."""
    folder.mkdir(exist_ok=True)
    policy = copy.deepcopy(policy)
    recording = read(args, policy, folder)
    run = Experiment(args, folder, [], [], policy)
    run.recording, run.pool, run.version = recording, NoPool(), 1
    if args.run.resume:
        run.load()
    return run


def stop_after(run: Experiment, number: int) -> None:
    """Ask it to stop when it has taken that many more trajectories."""
    take, left = run.take, iter(range(number - 1, -1, -1))

    def counted(trajectory, id):
        take(trajectory, id)
        run.stopping = next(left) == 0

    run.take = counted


def weights(run: Experiment) -> list[bytes]:
    modules = (run.policy, run.learner.critic, run.learner.trajectory_critic)
    return [p.detach().numpy().tobytes() for module in modules for p in module.parameters()]


# ---------------------------------------------------------------------- what is taken


def test_offline_mixes_journals_and_leaves_out_what_has_no_verdict_and_evaluations(tmp_path):
    policy = small()
    one = write(tmp_path / "one" / "journal.sqlite", policy, [True, False, None, True, False])
    write(one, policy, [True], seed=9, split="final")  # id 6: a held-out task must not be learnt
    two = write(tmp_path / "two.sqlite", policy, [False, True], seed=20)
    args = settings([one.parent, two])
    recording = read(args, policy, tmp_path)
    assert sorted(recording.order) == sorted([(one, i) for i in (1, 2, 4, 5)] + [(two, i) for i in (1, 2)])
    assert recording.unknown == 1 and recording.summary()["without_verdict"] == 1 and recording.alone
    assert read(args, policy, tmp_path).order == recording.order != sorted(recording.order)
    args.run.seed = 2
    assert read(args, policy, tmp_path).order != recording.order
    args.tasks.total_trajectories = 10
    assert not alone(args)


def test_offline_learns_from_each_once_and_keeps_a_copy_with_its_origin(tmp_path):
    policy = small()
    source = write(tmp_path / "source.sqlite", policy, [True, False] * 6)
    run = experiment(settings([source]), tmp_path / "run", policy)
    run.args.policy.max_staleness = 1
    run.version = 99  # versions of another run make no trajectory stale
    feed(run)
    assert run.trajectories == run.offline == run.learner.seen == 12 and run.stale == 0
    # due: (11 seen - 2) * 1.5; the step size has fallen to 0 with the twelfth
    assert (run.learner.critic_steps, run.learner.updates) == (2, 14) and len(run.pace) == 16
    with Journal(run.journal_path, readonly=True) as kept, Journal(source, readonly=True) as journal:
        for (path, id), (_, data) in zip(run.recording.order, kept.blobs(range(1, 13)), strict=True):
            trajectory, original = Trajectory.from_bytes(data), Trajectory.from_bytes(journal.get(id).data)
            assert trajectory.info["recorded"] == f"{path} {id}" and trajectory.info["worker"] == 0
            assert [x.tobytes() for x in trajectory.logprobs] == [x.tobytes() for x in original.logprobs]
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    assert rows[-1]["trajectories"] == "12" and rows[-1]["losses/policy_loss"] and not rows[-1]["stats/phone_idle"]


def test_offline_takes_a_verdict_that_was_given_later(tmp_path):
    policy = small()
    source = write(tmp_path / "source.sqlite", policy, [None, True])
    with Journal(source) as journal:
        journal.set_verdict(1, False, 0.0)
    run = experiment(settings([source]), tmp_path / "run", policy)
    feed(run)
    with Journal(run.journal_path, readonly=True) as kept:
        assert sorted(row.success for row in kept.rows()) == [False, True]


def cut_after(number: int, source: Path, folder: Path, policy) -> Args:
    """A run that was stopped then; the flags to resume it."""
    cut = experiment(settings([source]), folder, policy)
    stop_after(cut, number)
    feed(cut)
    cut.save()
    cut.journal.close()
    args = settings([source])
    args.run.resume = folder
    return args


def test_offline_interrupted_and_resumed_ends_with_the_same_weights(tmp_path):
    policy = small()
    source = write(tmp_path / "source.sqlite", policy, [True, False] * 6)
    whole = experiment(settings([source]), tmp_path / "whole", policy)
    feed(whole)
    resumed = experiment(cut_after(7, source, tmp_path / "cut", policy), tmp_path / "cut", policy)
    assert resumed.trajectories == 7 and weights(resumed) != weights(whole)
    feed(resumed)
    assert weights(resumed) == weights(whole)
    assert resumed.pace == whole.pace and resumed.trajectories == 12


def test_offline_killed_and_resumed_ends_with_the_same_weights_and_stores_nothing_twice(tmp_path):
    policy = small()
    source = write(tmp_path / "source.sqlite", policy, [True, False] * 6)
    whole = experiment(settings([source]), tmp_path / "whole", policy)
    feed(whole)
    cut = experiment(settings([source]), tmp_path / "cut", policy)
    take = cut.take
    stop_after(cut, 5)
    feed(cut)
    cut.save()
    cut.stopping = False
    cut.take = take
    stop_after(cut, 3)
    feed(cut)  # these are in no checkpoint
    cut.journal.close()
    args = settings([source])
    args.run.resume = tmp_path / "cut"
    resumed = experiment(args, tmp_path / "cut", policy)
    assert (resumed.trajectories, len(resumed.played)) == (5, 3)
    feed(resumed)
    assert weights(resumed) == weights(whole) and resumed.pace == whole.pace
    with Journal(resumed.journal_path, readonly=True) as kept:
        assert kept.count() == resumed.trajectories == 12


def test_offline_resumed_keeps_to_its_order_when_the_journal_has_grown(tmp_path):
    policy = small()
    source = write(tmp_path / "source.sqlite", policy, [True, False, None] * 4)
    whole = experiment(settings([source]), tmp_path / "whole", policy)
    feed(whole)
    args = cut_after(5, source, tmp_path / "cut", policy)
    write(source, policy, [True] * 3, seed=50)
    resumed = experiment(args, tmp_path / "cut", policy)
    feed(resumed)
    assert resumed.trajectories == 8 and weights(resumed) == weights(whole)
    assert resumed.recording.summary() == whole.recording.summary()


def test_offline_resumed_needs_the_journals_only_for_what_it_has_not_copied(tmp_path):
    policy = small()
    source = write(tmp_path / "source.sqlite", policy, [True, False] * 6)
    args = cut_after(12, source, tmp_path / "all", policy)
    unfinished = cut_after(5, source, tmp_path / "cut", policy)
    whole = experiment(settings([source]), tmp_path / "whole", policy)
    feed(whole)
    source.unlink()
    resumed = experiment(args, tmp_path / "all", policy)
    feed(resumed)
    assert resumed.trajectories == 12 and weights(resumed) == weights(whole)
    with pytest.raises(UsageError, match=r"--offline .*source\.sqlite: journal .*: no such file"):
        experiment(unfinished, tmp_path / "cut", policy)


# ---------------------------------------------------------------------- what is refused


def longer(trajectory: Trajectory) -> Trajectory:
    """The same, eleven times over."""
    repeated = {name: getattr(trajectory, name) * 11 for name in ("actions", "token_ids", "logprobs")}
    repeated |= {name: np.tile(getattr(trajectory, name), 11) for name in ("rewards", "invalid", "policy_version")}
    steps = len(repeated["actions"])
    return dataclasses.replace(
        trajectory, **repeated, prompts=["p"] * (steps + 1), features=np.zeros((steps + 1, 1408))
    )


CASES = {
    "no such file": lambda folder, policy: [folder / "none.sqlite"],
    "journal.sqlite: no such file": lambda folder, policy: [folder],
    "not a journal": lambda folder, policy: [text(folder / "text.sqlite")],
    "of another program": lambda folder, policy: [foreign(folder / "foreign.sqlite")],
    "named twice": lambda folder, policy: [write(folder / "a.sqlite", policy, [True])] * 2,
    "no training trajectory with a verdict": lambda folder, policy: [write(folder / "a.sqlite", policy, [None])],
    r"trajectory 1: .* not of this policy's tokenizer \(\d+ words\)": lambda folder, policy: [
        write(folder / "a.sqlite", policy, [True], change=lambda t: dataclasses.replace(t, actions=["x"] * len(t)))
    ],
    r"up to 40001\) are not of": lambda folder, policy: [
        write(folder / "a.sqlite", policy, [True],
              change=lambda t: dataclasses.replace(t, token_ids=[x * 0 + 40001 for x in t.token_ids]))
    ],
    "features are 768 numbers, ours 1408": lambda folder, policy: [
        write(folder / "a.sqlite", policy, [True],
              change=lambda t: dataclasses.replace(t, features=np.zeros((len(t) + 1, 768))))
    ],
    "33 steps do not fit --replay-capacity 30": lambda folder, policy: [
        write(folder / "a.sqlite", policy, [True], change=longer)
    ],
    "recorded with blip2 features": lambda folder, policy: [
        beside(write(folder / "b" / "journal.sqlite", policy, [True]), {"policy": {"screen_features": "/blip2"}})
    ],
    "trajectory 1: 13 bytes are not a trajectory": lambda folder, policy: [
        broken(write(folder / "a.sqlite", policy, [True, True]))
    ],
}  # fmt: skip


def text(path: Path) -> Path:
    path.write_text("instruction,success\n" * 99)
    return path


def foreign(path: Path) -> Path:
    sqlite3.connect(path).execute("CREATE TABLE mine (x)").connection.close()
    return path


def beside(journal: Path, config: dict) -> Path:
    (journal.parent / "config.json").write_text(json.dumps(config))
    return journal


def broken(path: Path) -> Path:
    with Journal(path) as journal:
        journal.set_verdict(1, True, 1.0, data=b"no trajectory")
    return path


@pytest.mark.parametrize("message", CASES)
def test_what_cannot_be_learnt_from_is_refused_with_its_name(tmp_path, message):
    policy = small()
    given = CASES[message](tmp_path, policy)
    with pytest.raises(UsageError, match=message) as refused:
        read(settings(given), policy, tmp_path)
    assert str(refused.value).startswith(f"--offline {given[-1]}: ") and "\n" not in str(refused.value)


def test_flags_come_back_from_a_run_also_from_one_that_is_older_than_these(tmp_path):
    args = settings([tmp_path / "a", tmp_path / "b"])
    args.run.runs_dir = tmp_path
    write_args(tmp_path, args)
    assert read_args(tmp_path, Args) == args
    config = json.loads((tmp_path / "config.json").read_text())
    del config["recorded"], config["run"]["sync"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    args.recorded.offline = ()
    assert read_args(tmp_path, Args) == args


def test_replay_wants_one_runs_folder(tmp_path):
    policy = small()
    journal = write(tmp_path / "a" / "journal.sqlite", policy, [True])
    with pytest.raises(UsageError, match="choose one"):
        read(settings([journal], replay=journal.parent), policy, tmp_path)
    with pytest.raises(UsageError, match="give a run's"):
        read(settings(replay=journal), policy, tmp_path)
    with pytest.raises(UsageError, match="--replay .*config.json"):
        read(settings(replay=journal.parent), policy, tmp_path)


# ---------------------------------------------------------------------- whole programs


def here(*flags) -> int:
    """`python run_distrl.py ...` in this process, which has torch already. Its exit code."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["run_distrl.py", *map(str, flags)])
        try:
            return main()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of an asynchronous run and a serial one, of a small policy."""
    folder = tmp_path_factory.mktemp("recorded")
    small().save(folder / "policy.safetensors")
    flags = [*FLAGS, "--policy", folder / "policy.safetensors"]
    pool = Program(*flags, "--num-workers", 2, "--total-trajectories", 20, "--runs-dir", folder / "pool")
    assert here(*flags, "--serial", "--total-trajectories", 9, "--runs-dir", folder / "serial") == 0
    ended(pool, folder / "pool")
    found = {name: next((folder / name).iterdir()) for name in ("pool", "serial")}
    return found | {"policy": folder / "policy.safetensors"}


def ended(program: Program, runs_dir: Path) -> Path:
    """The folder of a program that has gone well."""
    code, out, err = program.end(240)
    assert code == 0 and err == "", (out, err)
    assert "Not evaluated: no phones were used" in out or "Success on held-out" in out
    (run,) = runs_dir.iterdir()
    return run


def test_replay_ends_with_the_weights_of_the_run_bit_for_bit_when_asked_twice(runs, tmp_path):
    dirs = [tmp_path / name for name in ("one", "two")]
    programs = [Program("--replay", runs["pool"], "--runs-dir", each) for each in dirs]
    one, two = (ended(program, each) for program, each in zip(programs, dirs, strict=True))
    first, second, original = ((run / "policy.safetensors").read_bytes() for run in (one, two, runs["pool"]))
    assert first == second == original != runs["policy"].read_bytes()
    results, before = (json.loads((run / "results.json").read_text()) for run in (one, runs["pool"]))
    assert results["success_rate"] is None and results["phones"] == "none"
    assert results["recorded"]["pace"] == "as recorded" and results["recorded"]["evaluation"].startswith("none")
    assert (results["trajectories"], results["updates"]) == (before["trajectories"], before["updates"])
    rows = list(csv.DictReader((one / "metrics.csv").open()))
    assert int(rows[-1]["trajectories"]) == results["trajectories"] and rows[-1]["losses/policy_loss"]
    assert (one / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (one / "report.html").read_text()  # without the evaluations of the run
    assert f"Not evaluated: {results['trajectories']} training trajectories" in page and "tasks of “final”" not in page


def test_replay_takes_no_values_and_advantages_of_the_run_for_its_own(runs, tmp_path):
    with Journal(runs["pool"] / "journal.sqlite", readonly=True) as journal:
        assert journal.learnt()
    run = again(runs["pool"], tmp_path / "none", learning_starts=1000)
    feed(run)
    with Journal(run.journal_path, readonly=True) as journal:
        assert run.learner.updates == 0 and not journal.learnt()


def again(source: Path, folder: Path, resume: bool = False, **changes) -> Experiment:
    """A replay of a run in this process, its algorithm's flags changed."""
    args = read_args(source, Args)
    args.recorded.replay, args.run.resume = source, folder if resume else None
    args.algorithm = dataclasses.replace(args.algorithm, **changes)
    return experiment(args, folder, small())


def saved(run: Experiment) -> bytes:
    run.policy.save(run.folder / "policy.safetensors")
    return (run.folder / "policy.safetensors").read_bytes()


def test_replay_interrupted_and_resumed_ends_with_the_same_weights(runs, tmp_path):
    cut = again(runs["pool"], tmp_path / "cut")
    stop_after(cut, 11)
    feed(cut)
    cut.save()
    assert cut.trajectories == 11 and cut.learner.updates > 0
    resumed = again(runs["pool"], tmp_path / "cut", resume=True)
    feed(resumed)
    assert saved(resumed) == (runs["pool"] / "policy.safetensors").read_bytes()


def test_replay_of_a_run_that_goes_on_meanwhile_keeps_to_its_own_copy_when_resumed(runs, tmp_path):
    source = Path(shutil.copytree(runs["serial"], tmp_path / "source"))
    cut = again(source, tmp_path / "cut")
    stop_after(cut, 3)
    feed(cut)
    cut.save()
    with Journal(source / "journal.sqlite") as journal:
        entry = journal.get(next(journal.rows("train")).id)._asdict()
        del entry["id"], entry["created"]
        journal.append(**entry)
    resumed = again(source, tmp_path / "cut", resume=True)
    feed(resumed)
    assert saved(resumed) == (runs["serial"] / "policy.safetensors").read_bytes()


def test_replay_of_a_serial_run_needs_no_checkpoint(runs, tmp_path):
    """Without the recorded pace updates come as soon as they are due, which is what --serial does."""
    shared = Path(shutil.copytree(runs["serial"], tmp_path / "shared"))
    shutil.rmtree(shared / "checkpoints")
    replayed = again(shared, tmp_path / "run")
    assert not replayed.recording.pace
    feed(replayed)
    assert saved(replayed) == (runs["serial"] / "policy.safetensors").read_bytes()


def test_replay_of_a_synchronous_run_drops_what_the_run_dropped(runs, tmp_path):
    """Its versions rise with rounds, before the first update too; a pace has those of updates alone."""
    flags = "--serial --sync --max-staleness 1 --updates-per-trajectory 1 --total-trajectories 9".split()
    assert here(*FLAGS, *flags, "--policy", runs["policy"], "--runs-dir", tmp_path / "sync") == 0
    (run,) = (tmp_path / "sync").iterdir()
    replayed = again(run, tmp_path / "again")
    assert replayed.recording.pace and replayed.recording.dropped is not None
    feed(replayed)
    results = json.loads((run / "results.json").read_text())
    assert (replayed.trajectories, replayed.stale) == (9, results["stale"]) and replayed.learner.updates > 0
    assert saved(replayed) == (run / "policy.safetensors").read_bytes()
    args = read_args(run, Args)
    args.recorded.replay, args.policy.max_staleness = run, 3  # another bound is another run
    assert experiment(args, tmp_path / "other", small()).recording.dropped is None


def test_replay_takes_the_runs_flags_but_for_those_given(runs, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["run_distrl.py", "--replay", str(runs["serial"]), "--learning-rate", "0"])
    args = parse("about")
    assert (args.algorithm.learning_rate, args.algorithm.learning_starts, args.tasks.horizon) == (0, 4, 3)
    assert args.recorded.replay == runs["serial"] and args.policy.policy == runs["policy"] and args.run.serial
    still = experiment(args, tmp_path / "run", small())
    feed(still)
    assert still.learner.updates > 0 and still.recording.pace
    assert all(map(torch.equal, still.policy.parameters(), small().parameters()))
    assert not again(runs["serial"], tmp_path / "more", updates_per_trajectory=2.0).recording.pace
    monkeypatch.setattr("sys.argv", ["run_distrl.py", "--replay", str(tmp_path)])
    with pytest.raises(UsageError, match="--replay .*: not a run's folder"):
        parse("about")


def test_offline_then_phones(runs, tmp_path):
    assert here(*FLAGS, "--policy", runs["policy"], "--runs-dir", tmp_path, "--offline", runs["pool"], "--serial",
                "--total-trajectories", 4) == 0  # fmt: skip
    (run,) = tmp_path.iterdir()
    results = json.loads((run / "results.json").read_text())
    recorded = results["recorded"]["trajectories"]
    assert recorded >= 20 - results["recorded"]["without_verdict"] and results["trajectories"] >= recorded + 4
    assert results["n"] + results["unjudged"] == 1 and "evaluation" not in results["recorded"]
    with Journal(run / "journal.sqlite", readonly=True) as journal:
        ids = [row.id for row in journal.rows("train")]
        marked = ["recorded" in Trajectory.from_bytes(data).info for _, data in journal.blobs(ids)]
    assert marked == [True] * recorded + [False] * 4
    assert sum(found["train"]["n"] for found in results["sets"].values()) <= 4  # its own, not the other run's
    state = load_checkpoint(run)["counters"]
    assert 0 < state["offline_seconds"] < state["train_seconds"]


@pytest.mark.parametrize(("seconds", "played"), [(30.0, True), (61.0, False)])
def test_minutes_of_training_are_those_on_phones(tmp_path, seconds, played):
    """However long it learnt from records before."""
    asked: list = []
    run = begin(make_folder(tmp_path, "run", Args()), small())
    tasks = run.args.tasks
    tasks.train_minutes, tasks.total_trajectories, tasks.eval_every = 1.0, 3, 0
    run.train_seconds, run.offline_seconds = 600.0 + seconds, 600.0
    run.args.run.serial, run.pool = True, SimpleNamespace(
        pump=lambda: asked.append(run.learner.progress) or setattr(run, "stopping", True), env_steps=0, error=None)
    run.train()
    assert bool(asked) == played and (not played or asked[0] == pytest.approx(0.5, abs=0.01))


def test_G2_a_bad_path_gets_one_line_and_leaves_no_folder(runs, tmp_path, capsys):
    """Without --offline a run begins on phones: tests/test_run.py."""
    flags = [*FLAGS, "--policy", runs["policy"], "--runs-dir", tmp_path / "runs"]
    assert here(*flags, "--offline", tmp_path / "nothing") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --offline {tmp_path}/nothing: ") and error.count("\n") == 1
    assert not list((tmp_path / "runs").iterdir())


def test_a_shared_run_needs_no_instruction_files(tmp_path):
    args = settings([tmp_path])
    args.tasks.tasks, args.run.runs_dir = tmp_path / "gone.txt", tmp_path / "runs"
    assert prepare(args)[:2] == ([], [])
