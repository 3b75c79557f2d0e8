"""The flags of run_distrl.py, a sentence each, and what can be refused before anything starts.

    args = Args(); args.phones.num_workers = 8
    train_tasks, eval_tasks, folder = prepare(args)       # UsageError: the flag, its value, what to do
"""

from __future__ import annotations

import math
import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from evaluation import folder_of
from evaluator import JudgeConfig
from judge_clients import DEFAULT_MODELS, url_problem
from phone_check import SIMULATED, check_phones
from policy_check import check_policy
from recorded import alone
from run_folder import UsageError, check_range, held, make_folder, read_args, write_args
from tasks import Task, generate_tasks, load_tasks, overlap

SHOW_ALL = "--help-all"


class Expert:
    """Marks a flag that few runs set: `--help` leaves it out, `--help-all` does not."""

    def __class_getitem__(cls, kind):
        import tyro

        return Annotated[kind, tyro.conf.Suppress] if {"-h", "--help"} & set(sys.argv) else kind


@dataclass
class RunArgs:
    exp_name: str = "distrl"
    """name of this experiment, part of the run folder's name"""
    seed: int = 1
    """seed of the phones, the task order, the sampling and the networks"""
    runs_dir: Path = Path("runs")
    """where run folders go"""
    resume: Path | None = None
    """go on with this run folder, with its flags; beside it only --check and a larger --max-judge-calls count"""
    serial: bool = False
    """worker, policy and learner in one process, one phone, latency 0, no time limit: repeatable, easy to debug"""
    eval: Path | None = None
    """play --eval-tasks with the policy of this run, checkpoint or file, learn nothing, stop"""
    sync: bool = False
    """lock-step, the baseline: all workers finish a round of one episode each, then the learner does all its updates"""
    keep_screens: Expert[float] = 0.1
    """share of the episodes whose screens are kept, as small JPEGs (about 60 kB an episode), for report.html"""
    track: bool = False
    """log to Weights and Biases as well (offline when no key is set)"""


@dataclass
class PhoneArgs:
    num_workers: int = 32
    """phones, and workers: one each; with --devices, at most as many as there are"""
    latency: float = 0.7
    """simulated phones: scale of the heavy-tailed time an input takes (1: about 1 s); 0: none"""
    dialogs: float = 0.8
    """simulated phones: probability of a permission dialog when an app starts: what the warm start fails at"""
    failed_loads: Expert[float] = 0.3
    """simulated phones: probability that a page fails to load"""
    slow_loads: Expert[float] = 0.1
    """simulated phones: probability that a page loads slowly"""
    adb_port: Expert[int] = 0
    """simulated phones: port of the adb server that we start; 0: a free one"""
    devices: tuple[str, ...] = ()
    """train on these phones, not simulated ones: serials of `adb devices` (ip:port ones are connected), or all"""
    adb_server: tuple[str, ...] = ()
    """adb servers, HOST:PORT, whose phones are used; workers are spread over them; default: the one on this machine"""
    avd: str | None = None
    """launch an Android emulator of this AVD for each worker, and end them afterwards"""
    reset: Literal["home", "snapshot"] = "home"
    """before an episode: stop and clear the apps used (on a real phone: stop), or load the emulator's snapshot"""
    ray_address: Expert[str | None] = None
    """spread the workers over this Ray cluster, auto: the one that this machine is in; each node uses its own phones"""
    workers_per_node: Expert[int] = 8
    """with --ray-address: workers, and phones at most, on each node of the cluster; takes --num-workers' place"""
    allow_offline: Expert[bool] = False
    """train on tasks of the web although a phone says that it has no network"""
    check: bool = False
    """print a table of what this run needs and whether it is there, then stop; exit code 1 when something is missing"""

    @property
    def simulated(self) -> bool:
        return not (self.devices or self.adb_server or self.avd)


@dataclass
class TaskArgs:
    tasks: Path | None = None
    """instruction file to train on, one a line; default: our generator of the same families"""
    eval_tasks: Path | None = None
    """instruction file to evaluate on, repeated or cut to --eval-episodes; default: the generator's held-out ones"""
    allow_overlap: Expert[bool] = False
    """go on although instructions to evaluate on are trained on too"""
    skip_unknown_tasks: Expert[bool] = False
    """leave out lines that no rule understands, instead of stopping"""
    horizon: Expert[int | None] = None
    """steps before an episode is cut; default: 15, Web Shopping 20"""
    total_trajectories: int = 4000
    """stop training after this many trajectories ..."""
    train_minutes: float = 10.0
    """... or this many minutes, whichever comes first (evaluations come on top); 0: no limit"""
    eval_episodes: int = 256
    """episodes of each evaluation before and after training, greedy and sampled each"""
    eval_repeats: Expert[int] = 1
    """times that each of them is played after training in each way: how often a verdict changes is the noise"""
    eval_train: Expert[int] = 0
    """training tasks of General and of Web Shopping, so many each, that are played greedily after training as well"""
    eval_every: Expert[int] = 1000
    """training trajectories between small evaluations on the way (64 tasks, greedy); 0: none"""


@dataclass
class PolicyArgs:
    policy: Path | None = None
    """start from: a run, our .safetensors, Auto-UI's folder, DigiRL's or DistRL's .bin, .pt; default: the warm start"""
    init_fusion: Expert[bool] = False
    """take a plain T5 in --policy, too: it gets image layers that leave its output as it is at the start"""
    precision: str = "fp32"
    """fp32, or bf16: weights stay float32 in the learner, all matrix products are in bf16 (fp16 overflows in T5)"""
    lora: int = 0
    """rank of LoRA adapters on q, k, v, o (alpha twice that; needs peft), all that is trained and published; 0: off"""
    device: Expert[str] = "cpu"
    """cpu, cuda or cuda:N: where the learner computes, and the policy server; under torchrun, cuda: a GPU each"""
    server_device: Expert[str] = ""
    """where the policy server computes, when not where the learner does"""
    screen_features: str = "thumbnail"
    """thumbnail, or a local folder of BLIP-2 (opt-2.7b): its vision feature, as Auto-UI needs it"""
    critic_encoder: Expert[Path | None] = None
    """local folder of a RoBERTa, the critics' frozen text encoder; default: a trained mean of token embeddings"""
    publish_every: Expert[int] = 4
    """updates between two publications of the weights"""
    max_staleness: int = 50
    """do not train on what is older on arrival than this many publications (it stays in the journal); 0: no bound"""


@dataclass
class JudgeArgs:
    judge: Literal["rules", "gemini", "openai"] = "rules"
    """who says what is done: our rules on the UI state, Gemini, or any OpenAI-compatible server of a vision model"""
    judge_model: str = ""
    """model's name there; default for gemini: gemini-2.5-flash"""
    judge_url: str = ""
    """server's address (vLLM, Ollama, llama.cpp, a proxy); default: the judge's public one"""
    judge_rpm: float = 0.0
    """judge calls a minute, all workers together; 0: no limit"""
    max_judge_calls: int = 0
    """pause the run after this many judge calls (--resume takes a larger number); 0: no limit"""
    judge_votes: Expert[int] = 1
    """answers asked for a screen; more than half must agree, else there is no verdict"""
    validity_judge: Expert[bool] = False
    """ask the judge about each action too: what it calls invalid counts as text that is no action"""


@dataclass
class AlgorithmArgs:
    algo: Literal["aride", "digirl", "digirl_paper", "filtered_bc", "vtrace"] = "aride"
    """A-RIDE, or a baseline: DigiRL as its code or as its paper has it, cloning of successes, plain V-trace (IMPALA)"""
    top_quantile: Expert[float | None] = None
    """share of the replay that the policy learns from, highest R - V_traj first; default: 1, or a baseline's 0.1"""
    gamma: float = 0.9
    """discount of future rewards; the authors' 0.5 leaves a thousandth of a success ten steps on"""
    retrace_lambda: float = 0.5
    """lambda of the actor's Retrace targets: 1 looks on to the episode's end, 0 two steps on (the critics': 1)"""
    target: Expert[Literal["retrace", "vtrace", "one_step"]] = "retrace"
    """off-policy value target: the paper's Retrace, V-trace, or none: the advantage r + gamma V(s') - V(s) as it is"""
    learning_rate: float = 2e-4
    """Adam step size of the policy, reached in 80 updates; it falls linearly to 0 at the end of training"""
    batch_trajectories: int = 16
    """whole trajectories an update; fewer, and more updates, lost success"""
    updates_per_trajectory: Expert[float] = 0.5
    """the learner waits for new data beyond this ratio"""
    learning_starts: Expert[int] = 96
    """trajectories before the first update"""
    critic_warmup: Expert[int] = 200
    """updates of the critics alone before the first one of the policy: an untrained critic ruins it"""
    entropy_coef: float = 0.003
    """beta, weight of the entropy bonus; 0 may end in a policy that tries nothing new"""
    invalid_coef: Expert[float] = 0.003
    """lambda, weight of the invalid-action penalty"""
    rho_clip: Expert[float] = 1.0
    """upper clip of the importance ratio in the actor loss"""
    ratio_trust: Expert[float] = 0.5
    """steps whose ratio has left 1 +- this are not pushed further; 0: no bound"""
    negative_scale: Expert[float] = 0.1
    """factor on negative advantages: pushing one action down raises any other"""
    replay_capacity: int = 2000
    """transitions kept for training (the journal keeps all): older ones are of a policy that is gone"""
    priority_alpha: Expert[float] = 0.5
    """DPER: exponent of the priorities; 0 draws uniformly"""
    priority_weights: Expert[tuple[float, float, float]] = (50.0, 1.0, 0.01)
    """DPER: weights of mean |td error|, mean rho and mean entropy (the authors' values)"""


@dataclass
class RecordedArgs:
    offline: tuple[Path, ...] = ()
    """learn from these runs or journals before phones play; with --total-trajectories 0, from them alone"""
    replay: Expert[Path | None] = None
    """repeat this run's learning from its journal, without phones; its own flags hold, but for those given"""


@dataclass
class Args:
    run: RunArgs = field(default_factory=RunArgs)
    phones: PhoneArgs = field(default_factory=PhoneArgs)
    tasks: TaskArgs = field(default_factory=TaskArgs)
    policy: PolicyArgs = field(default_factory=PolicyArgs)
    judge: JudgeArgs = field(default_factory=JudgeArgs)
    algorithm: AlgorithmArgs = field(default_factory=AlgorithmArgs)
    recorded: RecordedArgs = field(default_factory=RecordedArgs)


def parse(description: str) -> Args:
    """The command line; `--help` and `--help-all` print and exit. UsageError: --replay or --eval of what is none."""
    import tyro

    if {"-h", "--help", SHOW_ALL} & set(sys.argv):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `--help | head` is no error
    words = [word.partition("=") for word in sys.argv[1:]]
    other = {SHOW_ALL: "--help", "--episodes": "--eval-episodes"}
    line = ["".join((other.get(word[0], word[0]), *word[1:])) for word in words]
    given = {word[0].replace("_", "-") for word in words}
    described = f"{description}\nFlags that few runs set are shown by {SHOW_ALL}."
    args = tyro.cli(tyro.conf.OmitArgPrefixes[Args], description=described, args=line)
    base = args.recorded.replay or folder_of(args.run.eval)
    if args.run.eval and (args.recorded.replay or args.recorded.offline):
        raise UsageError("--eval plays, and learns nothing: leave out --replay and --offline")
    if base and not args.run.resume:
        run = read_args(base, Args, "--replay" if args.recorded.replay else "--eval")
        train = run.tasks.tasks
        if args.run.eval and "--policy" in given and args.run.eval.suffix != ".pt":
            raise UsageError(f"--eval {args.run.eval} is the policy: leave out --policy {args.policy.policy}")
        if args.run.eval:  # a new one: its numbers, and its judge, are not that run's
            run.tasks.eval_repeats, run.tasks.eval_train = TaskArgs.eval_repeats, TaskArgs.eval_train
            run.judge = run.judge if "--judge" not in given else JudgeArgs()
            own = base / "policy.safetensors"
            if run.policy.policy and not run.policy.policy.exists() and own.is_file():
                run.policy.policy = own  # of the same size as what it began with
        run.run.resume, run.run.track, run.run.runs_dir, run.recorded = None, False, RunArgs.runs_dir, RecordedArgs()
        args = tyro.cli(tyro.conf.OmitArgPrefixes[Args], description=described, args=line, default=run)
        idle = [(args.phones, name) for name in SIMULATED if not args.phones.simulated]
        idle += [(args.algorithm, name) for name in unused(args.algorithm)]
        for group, name in idle:  # that run's: beside what is new here they would say nothing
            if f"--{name.replace('_', '-')}" not in given:
                setattr(group, name, getattr(type(group), name))
        if args.run.eval and "--tasks" in given and "--eval-tasks" not in given:  # the file to evaluate on
            args.tasks.tasks, args.tasks.eval_tasks = train, args.tasks.tasks
    elif args.run.eval:
        if not args.run.eval.exists():
            raise UsageError(f"--eval {args.run.eval}: no such file or folder: give a run, a checkpoint or a policy")
        args.policy.policy = args.run.eval
        if not args.tasks.eval_tasks:
            args.tasks.tasks, args.tasks.eval_tasks = None, args.tasks.tasks
    return args


def resumed(args: Args) -> Args:
    """The flags of the run that --resume names, with a new --max-judge-calls, which is written there.

    UsageError: no run, one that is over or is not resumed, other flags, or a number that does not suit it.
    """
    folder, budget, check = args.run.resume, args.judge.max_judge_calls, args.phones.check
    args = read_args(folder, Args)
    given = [word.partition("=")[0].replace("_", "-") for word in sys.argv[1:] if word.startswith("--")]
    if other := [flag for flag in given if flag not in ("--resume", "--check", "--max-judge-calls")]:
        raise UsageError(f"--resume {folder} goes on with the run's own flags: leave out {' '.join(other)}")
    if (folder / "results.json").is_file() and not (args.run.eval or check):
        raise UsageError(f"--resume {folder}: the run is over: --eval {folder}, or --policy {folder} to train on")
    if args.run.eval and not check:
        raise UsageError(f"--resume {folder}: an evaluation is not resumed: begin it again with --eval {args.run.eval}")
    if budget or "--max-judge-calls" in given:
        if 0 < budget < args.judge.max_judge_calls:
            had = args.judge.max_judge_calls
            raise UsageError(f"--max-judge-calls {budget}: the run has {had}: give more, or 0: no limit")
        args.judge.max_judge_calls = budget
        check_range(vars(args.judge), "max_judge_calls", 0)
        judge_config(args.judge)
        try:
            if not check and os.environ.get("RANK", "0") == "0":  # of torchrun's processes the first
                with held(folder):
                    write_args(folder, args)
        except OSError as error:
            raise UsageError(f"--resume {folder}: cannot write there ({error.strerror}): make it writable") from error
    args.run.resume, args.phones.check = folder, check
    return args


def check_flags(args: Args) -> tuple[list[Task], list[Task]]:
    """Everything that can be refused before anything is started. Returns the tasks to train and to evaluate on."""
    if not args.run.resume:  # else it was, with the defaults of then
        check_phones(args.phones)
    flags = {name: value for group in vars(args).values() for name, value in vars(group).items()}
    if re.search(r"[/\\\0]", args.run.exp_name) or len(args.run.exp_name) > 100:
        raise UsageError(f"--exp-name {args.run.exp_name!r}: a name of at most 100 characters without / is needed")
    check_range(flags, "num_workers workers_per_node eval_episodes horizon publish_every batch_trajectories", 1)
    check_range(flags, "replay_capacity", args.tasks.horizon or 20)  # the longest trajectory must fit
    check_range(flags, "dialogs failed_loads slow_loads gamma retrace_lambda negative_scale priority_alpha", 0, 1)
    check_range(flags, "keep_screens", 0, 1)
    check_range(flags, "adb_port", 0, 65535)
    check_range(flags, "seed", 0, 2**31 - 1)  # seeds of episodes are many times as large
    check_range(flags, "latency total_trajectories eval_every max_staleness learning_rate", 0)
    check_range(flags, "train_minutes rho_clip ratio_trust", 0, math.inf)
    check_range(flags, "updates_per_trajectory learning_starts critic_warmup lora eval_train", 0)
    check_range(flags, "entropy_coef invalid_coef priority_weights judge_rpm max_judge_calls", 0)
    check_range(flags, "judge_votes eval_repeats", 1)
    check_range(flags, "top_quantile", 0.001, 1)
    judge_config(args.judge)
    if args.phones.ray_address and not alone(args):
        from ray_pool import check_ray

        check_ray(args)
    if args.run.serial and args.policy.server_device:
        raise UsageError(f"--server-device {args.policy.server_device}: --serial has no policy server: leave it out")
    if args.run.serial:
        args.phones.num_workers, args.tasks.train_minutes = 1, 0.0
        if args.phones.simulated:
            args.phones.latency = 0.0
    check_policy(args.policy)
    if alone(args):  # a run that is shared needs no instruction files
        train, test = [], []
    else:
        number = args.tasks.eval_episodes
        alone_policy = args.run.eval and not folder_of(args.run.eval)  # nobody says what it was trained on
        train = read_tasks("--tasks", args.tasks.tasks, args)
        train = train or ([] if alone_policy else generate_tasks("train", 8000, args.run.seed))
        test = read_tasks("--eval-tasks", args.tasks.eval_tasks, args) or generate_tasks("test", number)
        test = [test[i % len(test)] for i in range(number)]
    if args.run.resume:
        return train, test
    check_unused(args.algorithm)
    if not args.tasks.allow_overlap and (both := overlap(train, test)["exact"]):
        raise UsageError(f"{both} of {len(test)} tasks to evaluate on are trained on too: take others for --tasks or "
                         "--eval-tasks, or go on with --allow-overlap")  # fmt: skip
    return train, test


def prepare(args: Args) -> tuple[list[Task], list[Task], Path]:
    """Checks all flags; returns the tasks and the run's folder, which is made when the run is new."""
    train, test = check_flags(args)
    if args.run.resume:
        return train, test, args.run.resume
    kind = "eval" if args.run.eval else "rec" if alone(args) else "sim" if args.phones.simulated else "adb"
    name = f"{kind}__{args.run.exp_name}__{args.run.seed}__{time.strftime('%Y%m%d-%H%M%S')}"
    return train, test, make_folder(args.run.runs_dir, name, args)


def unused(algorithm: AlgorithmArgs) -> dict[str, str]:
    """{flag: the one beside which it would change nothing}."""
    from baselines import UNUSED  # here, as it needs torch

    found = dict.fromkeys(UNUSED.get(algorithm.algo, "").split(), f"--algo {algorithm.algo}")
    if algorithm.target == "one_step":
        found.setdefault("retrace_lambda", "--target one_step")
    if not algorithm.priority_alpha:
        found.setdefault("priority_weights", "--priority-alpha 0")
    return found


def check_unused(algorithm: AlgorithmArgs) -> None:
    """Refuses flags that would change nothing beside the others."""
    for name, by in unused(algorithm).items():
        if getattr(algorithm, name) != getattr(AlgorithmArgs, name):
            raise UsageError(f"--{name.replace('_', '-')}: {by} does not use it: leave it out")


def judge_config(judge: JudgeArgs, folder: Path | None = None) -> JudgeConfig:
    """What a worker builds its judge from; its ledger is the folder's. UsageError: flags that do not go together."""
    given = [name for name, value in vars(judge).items() if name != "judge" and value != getattr(JudgeArgs, name)]
    if judge.judge == "rules" and given:
        name = given[0].replace("_", "-")
        raise UsageError(f"--{name}: rules need no model: leave it out, or add --judge gemini or openai")
    if problem := url_problem(judge.judge_url):
        raise UsageError(f"--judge-url{problem}")
    return JudgeConfig(
        judge.judge, judge.judge_model or DEFAULT_MODELS.get(judge.judge, ""), judge.judge_url, judge.judge_rpm,
        judge.max_judge_calls, judge.judge_votes, judge.validity_judge,
        ledger=str(folder / "judge.sqlite") if folder else ":memory:",
    )  # fmt: skip


def read_tasks(flag: str, path: Path | None, args: Args) -> list[Task]:
    """The instruction file's tasks; none without a file."""
    try:
        return load_tasks(path, args.tasks.skip_unknown_tasks) if path else []
    except OSError as error:
        raise UsageError(f"{flag} {path}: {error.strerror}: give a text file, one instruction a line") from error
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from error
