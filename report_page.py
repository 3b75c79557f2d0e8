"""A run as one HTML page that needs no other file and no network: `report.html`.

    page(run, draw_curves(run)[1], screens=60)    # run: of run_data.read_run; screens: of so many trajectories

The page's frame and style are `report_page.html`, the script of its browser of trajectories `report_page.js`: both lie
beside this file and are put into every page, so copy them with it. Every string is escaped or is JSON; the page's
Content-Security-Policy lets no script run but that one, and loads nothing.
"""

import base64
import hashlib
import html
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from journal import JournalError
from report_trajectories import embed
from run_data import Run, headline, phase_of, wilson_interval

MEANING = {  # column of metrics.csv: (what it is, what is healthy)
    "charts/success_rate": ("training episodes judged a success, the last 200", "rises"),
    "charts/episodic_return": ("their mean reward, penalties included", "rises"),
    "charts/episodic_length": ("their mean number of steps", "falls as success rises; 15 to 20: nothing ends"),
    "charts/trajectories_per_minute": ("training trajectories of the last minute", "steady"),
    "charts/SPS": ("environment steps a second, all workers", "steady"),
    "losses/policy_loss": ("the actor's loss", "no meaningful level"),
    "losses/value_loss": ("cross-entropy of V_step", "below 0.69, a coin's"),
    "losses/trajectory_value_loss": ("cross-entropy of V_traj", "below 0.69, a coin's"),
    "losses/entropy": ("exact entropy of the policy, nats a token", "falls slowly; 0 is a collapse"),
    "losses/invalid_penalty": ("the invalid-action term of the loss", "near 0"),
    "losses/grad_norm": ("the policy's gradient before it is clipped at 1", "no lasting growth"),
    "stats/policy_lag_mean": ("publications of the weights between acting and arriving", "a few, not growing"),
    "stats/policy_lag_max": ("the same, of the oldest step in the last 200 trajectories", "a few, not growing"),
    "stats/rho_mean": ("importance ratio new / old policy; 1: on-policy", "0.9 to 1.2"),
    "stats/rho_max": ("the largest ratio of the batch", "spikes come from one improbable text"),
    "stats/rho_clipfrac": ("share of ratios above --rho-clip", "about 0.5"),
    "stats/ess": ("effective sample size of the ratios, share of the batch", "above 0.4"),
    "stats/trust_dropped": ("share of steps left out by --ratio-trust", "below 0.2"),
    "stats/cloned": ("DigiRL and cloning: share of steps that are cloned", "neither 0 nor 1 for long"),
    "stats/nan_skips": ("optimiser steps left out: something was not finite", "0"),
    "stats/server_batch": ("requests that the policy server answers at once", "1 to a few"),
    "stats/learner_idle": ("share of time the learner waited for data", "below 0.5; near 1: more workers"),
    "stats/phone_idle": ("share of the phones' time that they wait for the policy", "below 0.1"),
    "stats/worker_restarts": ("workers that died or fell silent and were replaced", "0"),
    "stats/phone_restarts": ("phones restarted after three outages in a row", "0"),
    "stats/server_restarts": ("policy servers that died or fell silent and were replaced", "0"),
    "stats/judge_unknown": ("training episodes that the judge could not decide: kept, never trained on", "0"),
    "stats/judge_calls": ("calls of a paid judge, all that were made", "as budgeted"),
    "stats/judge_usd": ("their price in US dollars", "as budgeted"),
    "stats/trivial_success": ("training episodes done before the first action: in no rate, never trained on", "near 0"),
    "stats/unsupported_text": ("texts that a phone could not type: not ASCII, and no ADBKeyBoard on it", "0"),
    "stats/stale_dropped": ("trajectories older than --max-staleness: kept, not trained on", "0"),
    "stats/invalid_actions": ("share of the policy's texts that are no action", "near 0"),
    "stats/replay_size": ("trajectories in the replay", "grows to a plateau"),
    "stats/priority_ess": ("effective share of the replay under DPER's priorities; 1: drawn uniformly", "not near 0"),
    "eval/success_rate": ("held-out tasks, greedy actions", "rises; +- 12 points is noise"),
    "eval/n": ("episodes of that evaluation with a verdict", ""),
    "eval/trajectories": ("training trajectories when it was asked for", ""),
    "step": ("updates of the policy", ""),
    "wall_seconds": ("seconds of training", ""),
    "trajectories": ("training trajectories that have come in", ""),
    "env_steps": ("environment steps, all workers, evaluations included", ""),
}
FAULTS = """judge_unknown trivial_success judge_calls judge_usd worker_restarts phone_restarts server_restarts
    stale_dropped nan_skips unsupported_text invalid_actions""".split()
PARTS = {  # of a step's seconds: colour, meaning
    "policy": ("#2563eb", "waiting for the policy: its queue, its network, the screen's feature"),
    "input": ("#ea580c", "the phone does the action: tap, swipe, typing, key"),
    "screen": ("#15803d", "the screenshot, and waiting until the screen rests"),
    "judge": ("#9333ea", "asking what is on the screen, and the judge"),
    "reset": ("#a16207", "the phone made ready for the episode, shared by its steps"),
    "other": ("#6b7280", "the rest"),
}


def cell(value: Any, css: str = "") -> str:
    """One escaped <td>."""
    if isinstance(value, float):
        value = f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    elif isinstance(value, list | tuple):
        value = ", ".join(f"{x:.4g}" if isinstance(x, float) else str(x) for x in value)
    return f'<td class="{css}">{html.escape(str(value))}</td>'


def table(head: list[str], rows: list[list[str]]) -> str:
    """`rows` hold finished cells; scrolls by itself where it is wider than the page."""
    titles = "".join(f"<th>{html.escape(title)}</th>" for title in head)
    head_row = f"<tr>{titles}</tr>" if any(head) else ""
    lines = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{head_row}{lines}</table></div>'


def images(pictures: list[tuple[str, bytes]], large: int) -> str:
    """A grid of (title, PNG); the first `large` are two columns wide."""
    return '<div class="panels">' + "".join(
        f'<img{" class=large" if number < large else ""} alt="{html.escape(title)}" '
        f'src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for number, (title, png) in enumerate(pictures)
    ) + "</div>"


def bar(rate: float) -> str:
    """A cell with a rate as a bar."""
    return f'<td class="bar"><div><span style="width:{100 * rate:.0f}%"></span></div></td>'


def family_table(run: Run) -> str:
    """Success by task family (all its episodes), then of all greedy and all sampled ones; while nothing is evaluated,
    of the last training episodes."""
    results, rows = run.results, []
    if not results.get("families"):
        return training_table(run)
    lines = sorted(results["families"].items())
    for mode in ("greedy", "sampled"):
        before, after = (phase_of(results, mode, phase) for phase in ("warmup", "final"))
        if after:
            rates = {"warmup": before.get("success_rate"), "final": after.get("success_rate")}
            lines.append((f"all, {mode} actions", after | rates))
    for name, value in lines:
        before, after, n = value.get("warmup"), value.get("final"), value.get("n") or 0
        low, high = value.get("ci95") or wilson_interval((after or 0) * n, n)
        change = "" if before is None or after is None else f"{100 * (after - before):+.0f} points"
        interval = f"{low:.0%} to {high:.0%}" if n else ""
        rates = ["" if rate is None else f"{rate:.1%}" for rate in (before, after)]
        rows.append([cell(name), *(cell(rate, "number") for rate in rates), bar(after or 0),
                     *(cell(x, "number quiet") for x in (interval, change, n))])  # fmt: skip
    head = ["family", "before", "after", "", "95 % interval", "change", "n"]
    if all(value.get("warmup") is None for _, value in lines):  # a policy that was evaluated alone
        rows, head = [[row[0], *row[2:5], row[6]] for row in rows], ["family", "success", *head[3:5], "n"]
    return table(head, rows)


def training_table(run: Run) -> str:
    """Success by family of the last 500 training episodes."""
    groups = defaultdict(list)
    for entry in run.training()[-500:]:
        if entry.success is not None:
            groups[entry.family].append(entry.success)
    rows = []
    for family, outcomes in sorted(groups.items()):
        low, high = wilson_interval(sum(outcomes), n := len(outcomes))
        rows.append([cell(family), cell(f"{sum(outcomes) / n:.1%}", "number"), bar(sum(outcomes) / n),
                     cell(f"{low:.0%} to {high:.0%}", "number quiet"), cell(n, "number quiet")])  # fmt: skip
    head = ["family", "training", "", "95 % interval", "n"]
    why = "Not evaluated" if run.results else "No results yet"
    return f"<p>{why}: the last 500 training episodes.</p>" + table(head, rows) if rows else ""


def worst_tasks(run: Run, number: int = 15) -> str:
    """The instructions that fail most in the last evaluation, those of the worst families first."""
    splits = [entry.split for entry in run.entries if entry.split != "train"]
    split = "final" if "final" in splits else splits[-1] if splits else "train"
    tasks, families = defaultdict(list), defaultdict(list)
    found = [phase_of(run.results, mode, "final") for mode in ("greedy", "sampled")] if split == "final" else []
    last = sum((value.get("n") or 0) + (value.get("unjudged") or 0) for value in found)
    played = [entry for entry in run.entries if entry.split == split]
    for entry in played[-last:]:  # those before were stopped in their midst, or are of an earlier policy
        if entry.success is not None:
            tasks[entry.instruction, entry.family].append(entry)
            families[entry.family].append(entry.success)

    def rate(outcomes) -> float:
        return sum(outcomes) / len(outcomes)

    ranked = sorted((rate([entry.success for entry in entries]), rate(families[family]), -len(entries), task, family)
                    for (task, family), entries in tasks.items())  # fmt: skip
    rows = []
    for task_rate, family_rate, _, task, family in ranked[:number]:
        if task_rate == 1:
            break
        entries = tasks[task, family]
        failed = [entry for entry in entries if not entry.success]
        link = f'<td class="text"><a href="#trajectories" data-task="{html.escape(task)}">{html.escape(task)}</a></td>'
        rows.append([link, cell(f"{family} ({family_rate:.0%})", "quiet"),
                     cell(f"{len(entries) - len(failed)} of {len(entries)}", "number"),
                     cell(failed[-1].reason, "quiet text")])  # fmt: skip
    if not rows:
        return ""
    failing = sum(any(not entry.success for entry in entries) for entries in tasks.values())
    note = (f"{failing} of {len(tasks)} tasks of “{html.escape(split)}” failed at least once; the worst, those of the "
            "worst families first. A click shows its trajectories.")  # fmt: skip
    return f"<p>{note}</p>" + table(["task", "family (its success)", "successes", "why the last one failed"], rows)


def timing(run: Run, spent: dict[str, Counter]) -> str:
    """Where a step's seconds go."""
    text = ""
    for kind, name in (("training", "Training"), ("evaluation", "Evaluation")):
        seconds = spent.get(kind, {})
        if not (number := seconds.get("steps")):
            continue
        parts = {part: seconds[part] / number for part in PARTS if seconds.get(part)}
        total = sum(parts.values()) or 1e-9
        strips = "".join(
            f'<span style="width:{100 * value / total:.2f}%;background:{PARTS[part][0]}" title="{part}"></span>'
            for part, value in parts.items()
        )
        rows = []
        for part, value in parts.items():
            key = f'<span class="key" style="background:{PARTS[part][0]}"></span>'
            rows.append([f'<td class="number">{key}{part}</td>', cell(f"{value:.3f} s", "number"),
                         cell(f"{value / total:.0%}", "number"), cell(PARTS[part][1], "quiet")])  # fmt: skip
        text += (f"<p>{name}: {total:.2f} s a step over {number:,} steps, as one phone sees it.</p>"
                 f'<div class="time">{strips}</div>{table(["", "a step", "share", ""], rows)}')  # fmt: skip
    _, idle = run.series("stats/learner_idle")
    if idle:
        text += f"<p>The learner waited for data {idle[-1]:.0%} of the training time and computed in the rest.</p>"
    return text


def fault_table(run: Run, spent: dict[str, Counter]) -> str:
    """Counts of the judge and of faults, with what each means; what should be 0 and is not, is marked."""
    splits = Counter("training" if entry.split == "train" else "evaluation"
                     for entry in run.entries if entry.success is None)  # fmt: skip
    rows, calls = [], run.results.get("judge_calls") or {}
    told = run.results | {"judge_calls": calls.get("calls"), "judge_usd": calls.get("usd")}
    for name in FAULTS:  # metrics.csv ends with training, results.json has the evaluation after it too
        column = f"stats/{name}"
        values = [x for x in (*run.series(column)[1][-1:], told.get(name)) if isinstance(x, int | float)]
        if values:
            rows.append((name, max(values), *MEANING[column]))
    counted = (("episodes without a verdict, evaluations", splits["evaluation"], "in no success rate", "0"),
               ("phone outages", sum(c["outages"] for c in spent.values()), "episodes that an outage of the phone "
                "ended: without a verdict, never trained on", "0"))  # fmt: skip
    rows += [row for row in counted if run.entries]
    cells = []
    for name, value, meaning, healthy in rows:
        look = "number look" if healthy == "0" and value else "number"
        cells.append([cell(name.replace("_", " ")), cell(float(value), look), cell(meaning, "quiet text"),
                      cell(healthy, "quiet")])  # fmt: skip
    return table(["", "count", "what it is", "healthy"], cells) if cells else ""


def metric_table(metrics: list[dict[str, float]]) -> str:
    """Every column of metrics.csv."""
    rows = []
    for name in dict.fromkeys(name for row in metrics for name in row):
        values = [row[name] for row in metrics if name in row]
        numbers = (values[-1], sum(values) / len(values), min(values), max(values))
        meaning, healthy = MEANING.get(name, ("", ""))
        rows.append([cell(name), *(cell(x, "number") for x in numbers), cell(meaning, "quiet text"),
                     cell(healthy, "quiet text")])  # fmt: skip
    return table(["metric", "last", "mean", "lowest", "highest", "what it is", "healthy"], rows)


def pairs(values: dict) -> str:
    """Names and values, one level deep."""
    rows = [[cell(key), cell(value)] for key, value in flatten(values)]
    return f'<div class="settings">{table(["", ""], rows)}</div>'


def flatten(values: dict) -> list[tuple[str, Any]]:
    """[("group.name", value), ...], one level deep."""
    return [(f"{key}.{name}".rstrip("."), value) for key, group in values.items()
            for name, value in (group if isinstance(group, dict) else {"": group}).items()]  # fmt: skip


BROWSER = """<div id="filters">
<label>task contains, or #id <input id="text" type="search" autocomplete="off"></label>
<label>family <select id="family"><option value="">all</option></select></label>
<label>outcome <select id="outcome"><option value="">all</option></select></label>
<label>split <select id="split"><option value="">all</option></select></label>
<label>policy version from <input id="from" type="number" min="0"></label>
<label>to <input id="to" type="number" min="0"></label>
<label class="check"><input id="screens" type="checkbox"> with screens</label>
<button id="clear" type="button">clear</button></div>
<p id="count" class="quiet" aria-live="polite"></p>
<div id="list"></div><button id="more" type="button" hidden></button>
<div id="shown" hidden><h3 id="name"></h3><div id="facts"></div><div id="strip"></div>
<div class="buttons"><button id="back" type="button">◀ step</button><button id="next" type="button">step ▶</button>
<span id="where" class="quiet"></span><button id="later" type="button">▲ newer</button>
<button id="earlier" type="button">▼ older</button></div><div id="step"></div></div>"""


def browser(run: Run, embedded: tuple, live: int) -> tuple[str, str]:
    """(its section, the page's data)."""
    index, chunks, pictures, _ = embedded

    def block(name: str, value: Any) -> str:
        text = json.dumps(value).replace("<", "\\u003c")  # no tag ends or begins in it
        return f'<script type="application/json" id="{name}">{text}</script>'

    real = sum(kept for _, kept in pictures.values())
    note = (f"The newest first. Screens of {len(pictures)} of {len(run.entries)} trajectories are in this page ({real} "
            "as the phone showed them, the others as the cells that the policy saw); a ring marks the touch, a line a "
            "swipe. Arrow keys step through. Log-prob: of the policy that acted. Value and advantage: as the last "
            "update that drew the trajectory had them.")  # fmt: skip
    parts = [block("index", index | {"live": live})]
    parts += [f'<script type="text/plain" id="steps-{number}">{text}</script>' for number, text in enumerate(chunks)]
    parts += [block(f"screens-{id}", {"urls": urls, "real": kept}) for id, (urls, kept) in pictures.items()]
    return f"<p>{note}</p>{BROWSER}", "\n".join(parts)


def assemble(title: str, heading: str, sections: list[tuple[str, str]], data: str = "", top: str = "") -> str:
    """A whole page of (title, HTML) sections; without `data` it has no script."""
    here = Path(__file__)
    script = here.with_suffix(".js").read_text(encoding="utf-8") if data else ""
    mark = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    names = {name: re.sub(r"\W+", "-", name.split(",")[0].lower()) for name, _ in sections}
    links = "".join(f'<a href="#{names[name]}">{html.escape(name)}</a>' for name, _ in sections)
    body = "".join(
        f'<section id="{names[name]}"><h2>{html.escape(name)}</h2>{content}</section>' for name, content in sections
    )
    filled = {
        "policy": f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{mark}'",
        "title": html.escape(title), "data": data, "script": f"<script>{script}</script>" if script else "",
        "body": f"<h1>{html.escape(heading)}</h1>{top}<nav>{links}</nav>{body}",
    }  # fmt: skip
    frame = here.with_suffix(".html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: filled[found[1]], frame)


def page(
    run: Run, curves: list[tuple[str, bytes]], screens: int = 60, live: int = 0, cache: dict | None = None
) -> str:  # fmt: skip
    """The whole page. curves: of `draw_curves`; live: seconds after which it loads itself again, 0: never; cache: of
    `embed`."""
    try:
        embedded = embed(run, screens, cache) if run.entries or live else None
    except JournalError as error:
        embedded = None
        run.notes.append(f"the trajectories cannot be shown: {error}")
    spent = embedded[3] if embedded else {}
    plain = {key: value for key, value in run.results.items() if key not in ("families", "greedy", "sampled")}
    view, data = browser(run, embedded, live) if embedded else ("", "")
    sections = (
        ("Curves", images(curves, 2) if run.metrics or run.training() else ""),
        ("Success by task family", family_table(run)),
        ("Worst tasks", worst_tasks(run)),
        ("Timing", timing(run, spent)),
        ("Judge and faults", fault_table(run, spent)),
        ("Trajectories", view),
        ("All metrics", metric_table(run.metrics) if run.metrics else ""),
        ("Result", f"<details><summary>results.json</summary>{pairs(plain)}</details>" if plain else ""),
        ("Settings", f"<details><summary>config.json</summary>{pairs(run.config)}</details>" if run.config else ""),
    )
    name = run.folder.resolve().name
    notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in run.notes)
    top = f'<p class="quiet">{html.escape(name)}{" – live" if live else ""}</p>{notes}'
    return assemble(name, headline(run), [section for section in sections if section[1]], data, top)
