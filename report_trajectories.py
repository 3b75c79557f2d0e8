"""Trajectories for a person's eyes: what a page that shows 10,000 of them must hold, and one of them as a GIF.

    index, chunks, screens, spent = embed(run, 60)     # JSON-able; see `embed`
    gif(run, 123, Path("123.gif"))

Each step has the touch as [y, x, y of the lift, x of the lift] in [0, 1], a short label, the prompt, the action's whole
text, its log-prob under the policy that acted, V and the advantage that the last update which drew the trajectory gave
it. Screens are those that the run kept (`--keep-screens`); of other trajectories the cells that a small policy sees.

Everything here was written by models and phones: it leaves as JSON in base64, never as markup.
"""

import base64
import gzip
import io
import json
import zipfile
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from action_text import Action, parse_action
from journal import Entry, Journal, JournalError
from run_data import Run
from screen_features import COLUMNS, FEATURE_DIM, ROWS

CHUNK = 100  # trajectories that a page unpacks at once
OUTCOMES = {True: "success", False: "failure", None: "unjudged"}


def short(action: Action) -> str:
    """An action in a few words."""
    if action.kind == "DUAL_POINT":
        (y, x), (y2, x2) = action.touch, action.lift
        return f"tap {x:.2f}, {y:.2f}" if action.is_tap else f"swipe {x:.2f}, {y:.2f} to {x2:.2f}, {y2:.2f}"
    if action.kind == "INVALID":
        return "no action: " + action.reason
    kind = action.kind.removeprefix("STATUS_TASK_").replace("_", " ").lower()
    return f"{kind} {action.text}".strip()


TYPES = {"text": np.uint8, "lengths": np.int32, "logprobs": np.float32, "rewards": np.float32, "invalid": bool,
         "policy_version": np.int64}  # fmt: skip


def open_data(data: bytes) -> tuple[dict, dict[str, np.ndarray]]:
    """(the texts, the flat arrays) of `Trajectory.to_bytes`. Its tokens and features stay packed, and no header of an
    array is read (numpy evaluates each as Python): a page of 10,000 asks for a quarter of what `from_bytes` costs.

    Raises ValueError for any other bytes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            arrays = {}
            for name, kind in TYPES.items():
                packed = archive.read(f"{name}.npy")
                arrays[name] = np.frombuffer(packed, kind, offset=10 + int.from_bytes(packed[8:10], "little"))
        return json.loads(arrays["text"].tobytes()), arrays
    except (zipfile.BadZipFile, zlib.error, LookupError, EOFError, OSError) as error:
        raise ValueError(f"{len(data)} bytes are not a trajectory: {error}") from error


def steps(text: dict, arrays: dict[str, np.ndarray], learnt: tuple[int, str] | None) -> dict:
    """All steps of a trajectory as lists, T long each, and what is known of the whole episode."""
    info = text["info"]
    lengths = arrays["lengths"]
    ends = np.cumsum(lengths)
    sums = np.add.reduceat(arrays["logprobs"].astype(np.float64), ends - lengths)
    updates, (values, advantages) = (learnt[0], json.loads(learnt[1])) if learnt else (None, (None, None))
    actions = [parse_action(action) for action in text["actions"]]
    fit = advantages is not None and len(advantages) == len(actions)  # else it was settled since, and cut
    return {
        "prompts": text["prompts"][:-1], "actions": text["actions"], "labels": [short(a)[:80] for a in actions],
        "touches": [[*a.touch, *a.lift] if a.kind == "DUAL_POINT" else None for a in actions],
        "logprobs": [round(float(x), 3) for x in sums], "tokens": lengths.tolist(),
        "rewards": [round(float(r), 3) for r in arrays["rewards"]], "invalid": arrays["invalid"].astype(int).tolist(),
        "versions": arrays["policy_version"].tolist(), "values": values if fit else None,
        "advantages": advantages if fit else None, "updates": updates if fit else None,
        "greedy": bool(info.get("greedy")), "seconds": round(float(info.get("seconds") or 0), 1),
        "serial": str(info.get("serial", "")), "recorded": str(info.get("recorded", "")),
        "terminated": bool(text["terminated"]),
    }  # fmt: skip


def pictures(text: dict, data: bytes) -> tuple[list[str], bool]:
    """(data URLs of the T+1 screens, True: real ones; False: the cells of a thumbnail)."""
    if kept := text["info"].get("screens"):
        return [f"data:image/jpeg;base64,{screen}" for screen in kept[: len(text["prompts"])]], True
    features = np.load(io.BytesIO(data), allow_pickle=False)["features"]
    if features.shape[1] != FEATURE_DIM or np.abs(features).max() > 1:  # BLIP-2's are no picture
        return [], False
    cells = ((features.astype(np.float32).reshape(-1, ROWS, COLUMNS, 4)[..., :3] + 1) * 127.5).astype(np.uint8)
    urls = []
    for screen in cells:
        file = io.BytesIO()
        Image.fromarray(screen).save(file, "PNG")
        urls.append(f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}")
    return urls, False


def embed(run: Run, screens: int, cache: dict[int, tuple] | None = None) -> tuple[dict, list[str], dict, dict]:
    """What a page needs to show a run's trajectories.

    -> index: {"columns", "rows": a list a trajectory, newest first, strings as numbers of the lists beside it}
       chunks: gzipped JSON in base64, the `steps` of `CHUNK` rows each
       pictures: id -> (data URLs, are they screens) of up to `screens` trajectories, of every kind some
       spent: "training" or "evaluation" -> part -> seconds, with "steps" and "outages"
    `cache`: given again, what was read before is not read again, for a page that is made again and again.
    """
    cache = {} if cache is None else cache
    wanted = {entry.id: (entry.success, run.learnt.get(entry.id)) for entry in run.entries}
    if missing := [entry for entry in run.entries if cache.get(entry.id, (None,))[0] != wanted[entry.id]]:
        with Journal(run.folder / "journal.sqlite", readonly=True) as journal:
            for id, data in journal.blobs(entry.id for entry in missing):
                cache[id] = (wanted[id], *_packed(data, wanted[id][1]))
    spent: dict[str, Counter] = defaultdict(Counter)
    for entry in run.entries:
        spent["training" if entry.split == "train" else "evaluation"].update(cache[entry.id][2])
    newest = run.entries[::-1]
    packed = [cache[entry.id][1] for entry in newest]
    chunks = [
        base64.b64encode(gzip.compress(f"[{','.join(packed[k : k + CHUNK])}]".encode(), 6, mtime=0)).decode()
        for k in range(0, len(packed), CHUNK)
    ]
    return _index(newest, {e.id for e in newest if cache[e.id][3]}), chunks, _chosen(run, newest, cache, screens), spent


def _packed(data: bytes, learnt: tuple[int, str] | None) -> tuple[str, dict, bool]:
    """(steps as JSON, where its seconds went, whether it has screens); an unreadable one has no steps."""
    try:
        text, arrays = open_data(data)
        told = steps(text, arrays, learnt)
    except (ValueError, KeyError) as error:
        return json.dumps({"error": str(error)}), {}, False
    info = text["info"]
    parts = {name: float(value) for name, value in info.get("parts", {"policy": info.get("policy_seconds", 0)}).items()}
    rest = max(0.0, float(info.get("seconds") or 0) - sum(parts.values()))
    more = {"other": rest, "steps": len(text["actions"]), "outages": int(bool(info.get("outage")))}
    return json.dumps(told), parts | more, bool(info.get("screens"))


def _index(entries: list[Entry], with_screens: set[int]) -> dict:
    tables: dict[str, dict[str, int]] = {name: {} for name in ("instruction", "family", "split", "reason")}
    rows = []
    for entry in entries:
        numbers = {name: table.setdefault(getattr(entry, name), len(table)) for name, table in tables.items()}
        rows.append([entry.id, round(entry.created), numbers["instruction"], numbers["family"], OUTCOMES[entry.success],
                     numbers["split"], entry.policy_version, entry.length, entry.worker, numbers["reason"],
                     round(entry.reward, 3), int(entry.id in with_screens)])  # fmt: skip
    columns = "id created instruction family outcome split version length worker reason reward screens".split()
    return {"columns": columns, "rows": rows, "chunk": CHUNK} | {name: list(table) for name, table in tables.items()}


def _chosen(run: Run, newest: list[Entry], cache: dict, number: int) -> dict[int, tuple[list[str], bool]]:
    """Screens of the newest trajectories of every family, outcome and split in turn, those with real screens first."""
    places: Counter = Counter()
    ranked = []
    for entry in newest:
        kind = entry.family, entry.success, entry.split == "train", cache[entry.id][3]
        ranked.append((not cache[entry.id][3], places[kind], -entry.id))
        places[kind] += 1
    ids = [-id for *_, id in sorted(ranked)[:number]]
    found = {}
    if ids:
        with Journal(run.folder / "journal.sqlite", readonly=True) as journal:
            for id, data in journal.blobs(ids):
                try:
                    found[id] = pictures(open_data(data)[0], data)
                except (ValueError, KeyError):
                    continue
    return {id: pair for id, pair in found.items() if pair[0]}


def frames(data: bytes, verdict: str = "", width: int = 270) -> list[Image.Image]:
    """The steps as pictures: the screen, on it the touch that was made there, below it the task and the action.

    Raises ValueError when there is nothing to show.
    """
    text, arrays = open_data(data)
    told = steps(text, arrays, None)
    urls, real = pictures(text, data)
    if not urls:
        raise ValueError("no screens were kept, and its features are no picture: --keep-screens 1 keeps all")
    found = []
    for number, url in enumerate(urls):
        screen = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")
        height = round(width * (screen.height / screen.width if real else 16 / 9))
        screen = screen.resize((width, height), Image.Resampling.BILINEAR if real else Image.Resampling.NEAREST)
        last = number == len(told["labels"])
        if not last and told["touches"][number]:
            draw_touch(screen, told["touches"][number])
        picture = Image.new("RGB", (width, height + 66), "white")
        picture.paste(screen)
        line = f"end: {verdict}" if last else f"{number + 1}. {told['labels'][number]}"
        _write(picture, height + 4, [*_wrap(text["instruction"], width, 2), *_wrap(line, width, 2)])
        found.append(picture)
    return found


def draw_touch(screen: Image.Image, touch: list[float]) -> None:
    """A ring where it was touched; a line from there to where a swipe was lifted."""
    draw, (width, height) = ImageDraw.Draw(screen), screen.size
    (x, y), (x2, y2) = [(touch[i + 1] * width, touch[i] * height) for i in (0, 2)]
    if abs(x2 - x) + abs(y2 - y) > 0.04 * height:
        draw.line((x, y, x2, y2), fill="#ea580c", width=5)
        draw.ellipse((x2 - 5, y2 - 5, x2 + 5, y2 + 5), fill="#ea580c")
    for radius, colour, wide in ((15, "white", 7), (14, "#ea580c", 4)):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=wide)


def _wrap(text: str, width: int, lines: int) -> list[str]:
    """The text in lines that fit, the last of them cut."""
    font, out = ImageFont.load_default(12), [""]
    for word in " ".join(text.split()).split(" "):
        longer = f"{out[-1]} {word}".strip()
        if font.getlength(longer) <= width - 10 or not out[-1]:
            out[-1] = longer
        else:
            out.append(word)
    return out[:lines] if len(out) <= lines else [*out[: lines - 1], out[lines - 1][:-1] + "\u2026"]


def _write(picture: Image.Image, top: int, lines: list[str]) -> None:
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(12)
    for number, line in enumerate(lines):
        draw.text((5, top + 15 * number), line, fill="#202124", font=font)


def gif(run: Run, id: int, path: Path) -> None:
    """One trajectory as an animated GIF, 1.2 s a step. Raises KeyError, ValueError: there is none, or no screens."""
    try:
        with Journal(run.folder / "journal.sqlite", readonly=True) as journal:
            entry = journal.get(id)
    except JournalError as error:
        raise ValueError(str(error)) from error
    found = frames(entry.data, f"{OUTCOMES[entry.success]}: {entry.reason}")
    found[0].save(path, save_all=True, append_images=found[1:], duration=[1200] * (len(found) - 1) + [3000], loop=0)
