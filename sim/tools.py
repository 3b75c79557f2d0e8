"""The small Unix tools of the phone's shell: `echo`, `cat`, `ls`, `rm`, `grep`, `test` and their like.

A tool is a function of a `sim.shell.Process` (arguments, input, output, files); it returns its exit status,
None for 0. They do what scripts that drive phones use them for, not every option of toybox."""

from __future__ import annotations

import asyncio
import posixpath
import re
import shlex
import stat
import time
from typing import TYPE_CHECKING

from sim.files import EPOCH

if TYPE_CHECKING:
    from sim.shell import Process

MAX_SLEEP = 30.0  # s: a command that a model wrote must not hold a phone for ever


def split_options(args: list[str], valued: str = "") -> tuple[dict[str, str], list[str]]:
    """`-rf a -m1 b` -> ({"r": "", "f": "", "m": "1"}, ["a", "b"]); letters in `valued` take a value."""
    options: dict[str, str] = {}
    words = []
    i = 0
    while i < len(args):
        arg = args[i]
        i += 1
        if arg == "--":
            words += args[i:]
            break
        if not arg.startswith("-") or arg == "-":
            words.append(arg)
            continue
        for j, letter in enumerate(arg[1:], 1):
            if letter in valued:
                options[letter] = arg[j + 1 :] or (args[i] if i < len(args) else "")
                i += not arg[j + 1 :]
                break
            options[letter] = ""
    return options, words


def inputs(p: Process, names: list[str]) -> bytes:
    return b"".join(p.stdin if name == "-" else p.files.read(p.path(name)) for name in names or ["-"])


def echo(p: Process):
    args, end = p.args, "\n"
    escapes = False
    while args and re.fullmatch(r"-[neE]+", args[0]):
        end = "" if "n" in args[0] else end
        escapes = escapes or "e" in args[0]
        args = args[1:]
    p.out(unescape(" ".join(args)) + end if escapes else " ".join(args) + end)


def unescape(text: str) -> str:
    known = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    return re.sub(r"\\([ntr\\])", lambda match: known[match[1]], text)


def printf(p: Process):
    if not p.args:
        return p.fail("needs a format", 1)
    values = iter(p.args[1:])

    def one(match):
        if match[0] == "%%":
            return "%"
        value = next(values, "")
        return value if match[1] == "s" else str(int(value or 0))

    try:
        p.out(re.sub(r"%%|%([sd])", one, unescape(p.args[0])))
    except ValueError:
        return p.fail("%d: expected a number")


def cat(p: Process):
    p.out(inputs(p, p.args))


def head(p: Process):
    options, names = split_options(p.args, "nc")
    data = inputs(p, names)
    if "c" in options:
        p.out(data[: int(options["c"] or 0)])
    else:
        p.out(b"".join(data.splitlines(keepends=True)[: int(options.get("n") or 10)]))


def tail(p: Process):
    options, names = split_options(p.args, "n")
    count = int(options.get("n") or 10)
    p.out(b"".join(inputs(p, names).splitlines(keepends=True)[-count:] if count else b""))


def wc(p: Process):
    options, names = split_options(p.args)
    data = inputs(p, names)
    counts = {"l": data.count(b"\n"), "w": len(data.split()), "c": len(data)}
    p.out(" ".join(str(n) for key, n in counts.items() if not options or key in options) + "\n")


def grep(p: Process):
    options, words = split_options(p.args, "em")
    patterns = [options["e"]] if "e" in options else words[:1]
    names = words if "e" in options else words[1:]
    if not patterns:
        return p.fail("needs a pattern", 2)
    pattern = patterns[0]
    if "F" in options:
        pattern = re.escape(pattern)
    elif "E" not in options:  # basic: + ? | ( ) { } are plain, their escaped forms are not
        pattern = re.sub(r"\\([+?|(){}])|([+?|(){}])", lambda m: m[1] or "\\" + m[2], pattern)
    try:
        regex = re.compile(
            rf"\b(?:{pattern})\b" if "w" in options else pattern, re.I if "i" in options else 0
        )
    except re.error as error:
        return p.fail(f"bad pattern {patterns[0]!r}: {error}", 2)
    lines = inputs(p, names).decode(errors="replace").splitlines()
    hits = [(n, line) for n, line in enumerate(lines, 1) if bool(regex.search(line)) != ("v" in options)]
    hits = hits[: int(options.get("m") or len(hits))]
    if "c" in options:
        p.out(f"{len(hits)}\n")
    elif "q" not in options:
        for n, line in hits:
            shown = "\n".join(m[0] for m in regex.finditer(line)) if "o" in options else line
            p.out(f"{n}:{shown}\n" if "n" in options else f"{shown}\n")
    return 0 if hits else 1


def ls(p: Process):
    options, names = split_options(p.args)
    status = 0
    for name in names or ["."]:
        entry = p.files.stat(p.path(name))
        if entry is None:
            status = p.fail(f"{name}: No such file or directory")
            continue
        shown = {name: entry} if entry.data is not None or "d" in options else p.files.list(p.path(name))
        if len(names) > 1 and entry.data is None:
            p.out(f"{name}:\n")
        for inner, item in shown.items():
            date = time.strftime("%Y-%m-%d %H:%M", time.gmtime(item.mtime))
            long = f"{stat.filemode(item.mode)} 1 shell shell {item.size:>8} {date} {inner}\n"
            p.out(long if "l" in options else f"{inner}\n")
    return status


def rm(p: Process):
    options, names = split_options(p.args)
    status = 0
    for name in names:
        try:
            p.files.remove(p.path(name), recursive="r" in options or "R" in options)
        except FileNotFoundError as error:
            if "f" not in options:
                status = p.fail(f"{name}: {error.strerror}")
    return status


def mkdir(p: Process):
    options, names = split_options(p.args, "m")
    for name in names:
        p.files.mkdir(p.path(name), parents="p" in options)


def touch(p: Process):
    for name in p.args:
        p.files.write(p.path(name), b"", append=True)


def _target(p: Process, source: str, target: str) -> str:
    path = p.path(target)
    return posixpath.join(path, posixpath.basename(source)) if p.files.is_dir(path) else path


def cp(p: Process):
    _, words = split_options(p.args)
    if len(words) != 2:
        return p.fail("needs a source and a target")
    p.files.write(_target(p, words[0], words[1]), p.files.read(p.path(words[0])))


def mv(p: Process):
    status = cp(p)
    if not status:
        p.files.remove(p.path(split_options(p.args)[1][0]))
    return status


def cd(p: Process):
    path = p.path(p.args[0] if p.args else p.shell.variables["HOME"])
    if not p.files.is_dir(path):
        return p.fail(f"{p.args[0]}: No such file or directory", 2)
    p.shell.cwd = path


def test(p: Process):
    args = list(p.args)
    if p.name == "[":
        if not args or args.pop() != "]":
            return p.fail("missing ]", 2)
    try:
        return 0 if _truth(p, args) else 1
    except ValueError as error:
        return p.fail(str(error), 2)


def _truth(p: Process, args: list[str]) -> bool:
    if args[:1] == ["!"]:
        return not _truth(p, args[1:])
    if len(args) <= 1:
        return bool(args and args[0])
    if len(args) == 2:
        entry = p.files.stat(p.path(args[1])) if args[0] in ("-e", "-f", "-d", "-s") else None
        tests = {
            "-n": args[1] != "",
            "-z": args[1] == "",
            "-e": entry is not None,
            "-f": entry is not None and entry.data is not None,
            "-d": entry is not None and entry.data is None,
            "-s": entry is not None and entry.size > 0,
        }
        if args[0] not in tests:
            raise ValueError(f"unknown operator {args[0]}")
        return tests[args[0]]
    if len(args) == 3:
        left, operator, right = args
        if operator in ("=", "==", "!="):
            return (left == right) == (operator != "!=")
        numbers = ("-eq", "-ne", "-lt", "-le", "-gt", "-ge")
        if operator in numbers:
            try:
                a, b = int(left), int(right)
            except ValueError:
                raise ValueError(f"{left} {operator} {right}: not a number") from None
            return (a == b, a != b, a < b, a <= b, a > b, a >= b)[numbers.index(operator)]
    raise ValueError(f"cannot understand: {' '.join(args)}")


def date(p: Process):
    shown = next((arg[1:] for arg in p.args if arg.startswith("+")), "%a %b %e %H:%M:%S UTC %Y")
    p.out(time.strftime(shown.replace("%N", "000000000"), time.gmtime(EPOCH)) + "\n")


async def sleep(p: Process):
    try:
        seconds = float(p.args[0]) if p.args else 0.0
    except ValueError:
        return p.fail(f"bad time '{p.args[0]}'")
    await asyncio.sleep(min(max(seconds, 0.0), MAX_SLEEP))


async def sh(p: Process):
    """`sh -c 'line'`, `eval line` (here: in this shell)."""
    if p.name == "eval":
        return await p.shell.execute(" ".join(p.args), p.write, p.write_error, p.stdin)
    if p.args[:1] == ["-c"] and len(p.args) > 1:
        source = p.args[1]
    else:
        source = inputs(p, p.args[:1]).decode(errors="replace")
    return await p.shell.child().run(source, p.write, p.write_error, p.stdin)


async def replace_shell(p: Process):
    """`exec command`: the shell ends with it."""
    from sim.shell import Exit

    if p.args:
        raise Exit(await p.shell.execute(shlex.join(p.args), p.write, p.write_error, p.stdin))


def leave(p: Process):
    from sim.shell import Exit  # the shell's tables are made of this module

    number = p.args[0] if p.args else str(p.shell.status)
    raise Exit(int(number) & 255 if number.isdigit() else 2)


def export(p: Process):
    for word in p.args:
        name, equals, value = word.partition("=")
        if equals:
            p.shell.variables[name] = value


def which(p: Process):
    from sim.android import ANDROID

    found = [name for name in p.args if name in TOOLS or name in ANDROID]
    p.out("".join(f"/system/bin/{name}\n" for name in found))
    return 0 if found else 1


TOOLS = {
    "echo": echo,
    "printf": printf,
    "cat": cat,
    "head": head,
    "tail": tail,
    "wc": wc,
    "grep": grep,
    "ls": ls,
    "rm": rm,
    "mkdir": mkdir,
    "touch": touch,
    "cp": cp,
    "mv": mv,
    "cd": cd,
    "test": test,
    "[": test,
    "date": date,
    "sleep": sleep,
    "sh": sh,
    "eval": sh,
    "exec": replace_shell,
    "exit": leave,
    "export": export,
    "which": which,
    "env": lambda p: p.out("".join(f"{k}={v}\n" for k, v in sorted(p.shell.variables.items()))),
    "pwd": lambda p: p.out(p.shell.cwd + "\n"),
    "whoami": lambda p: p.out("shell\n"),
    "id": lambda p: p.out("uid=2000(shell) gid=2000(shell) groups=2000(shell)\n"),
    "uname": lambda p: p.out("Linux\n"),
    "sync": lambda p: 0,
    "true": lambda p: 0,
    ":": lambda p: 0,
    "false": lambda p: 1,
}
