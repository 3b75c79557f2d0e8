"""Before a run starts: does its judge answer, and how many calls will it take at most?

    print(start_judge(args, folder))       # UsageError: what must be mended first; RunStopped: budget or quota spent
"""

from __future__ import annotations

from pathlib import Path

from args import Args, judge_config
from evaluator import JudgeConfig, check
from judge_clients import JudgeError, MissingClient
from judge_ledger import Ledger, Stopped
from run_folder import RunStopped, UsageError


def most_judge_calls(args: Args) -> tuple[int, int]:
    """(calls, trajectories) of a whole run at most: no screen seen twice, every action changes it, no retries."""
    tasks = args.tasks
    number = 2 * tasks.eval_episodes * tasks.eval_repeats + 2 * tasks.eval_train  # greedy and sampled; of each set
    if not args.run.eval:
        number += 2 * tasks.eval_episodes + tasks.total_trajectories  # before training, and that
        if tasks.eval_every:
            number += min(64, tasks.eval_episodes) * (tasks.total_trajectories // tasks.eval_every)
    steps = tasks.horizon or 20
    a_trajectory = (steps + 1) * args.judge.judge_votes + steps * args.judge.judge_votes * args.judge.validity_judge
    return number * a_trajectory, number


def ask_judge(config: JudgeConfig) -> str:
    """One real call. Returns "", or why there is no answer just now; what must be mended first is an error."""
    try:
        Ledger(config.ledger).go_on()
        check(config)
        return ""
    except MissingClient as error:
        raise UsageError(str(error)) from error
    except Stopped as stopped:
        raise RunStopped(stopped.reason) from stopped
    except JudgeError as error:
        what = {"model": f"--judge-model {config.model}: the judge does not know it: name another ({error})",
                "key": f"--judge {config.kind}: the key in the environment is not accepted ({error})",
                "refused": f"--judge {config.kind}, --judge-model {config.model}: a text with a screen is refused "
                           f"({error})"}
        if error.kind in what:
            raise UsageError(what[error.kind]) from error
        if error.kind == "quota":
            raise RunStopped(f"the judge's quota of the day is spent ({error}): wait for the next one") from error
        if error.kind == "unavailable" and not str(error).startswith("HTTP"):  # nobody there, or no way to it
            where = f"--judge-url {config.url}" if config.url else f"--judge {config.kind}"
            raise UsageError(f"{where}: {error}: is the server running, and the network there?") from error
        return str(error)


def start_judge(args: Args, folder: Path) -> str:
    """See that the judge answers before anything else starts. Returns what the start line says."""
    if args.judge.judge == "rules":
        return "judge: rules, no calls"
    config = judge_config(args.judge, folder)
    silent = ask_judge(config)
    more = f": {silent}: starting all the same; what it cannot judge stays without a verdict" if silent else " answers"
    print(f"  judge {config.name}{more}")
    calls, number = most_judge_calls(args)
    hours = f", {calls / config.rpm / 60:.1f} hours at --judge-rpm {config.rpm:g}" if config.rpm else ""
    bound = f", paused after {config.max_calls:,}" if config.max_calls else ""
    return f"judge: {config.name}, at most about {calls:,} calls for {number:,} trajectories{hours}{bound}"
