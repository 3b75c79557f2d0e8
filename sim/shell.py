"""The phone's shell: a small POSIX sh over simulated commands and in-memory files.

It parses as a phone's `sh` does, so that text quoted wrongly goes as wrong here as there: single and double
quotes, backslashes, `;` `&&` `||` `!` pipes, `( ... )`, redirections, `$VAR` `$?`, `$(...)` and backticks,
field splitting, globbing. Nothing here starts a process or opens a file of the host: a command is a Python
function of `sim/tools.py` or `sim/android.py`, and a name that is not among them ends in "inaccessible or
not found", 127.

    shell = Shell(phone, Files())
    status = await shell.run("input text 'hello world' && echo done", out=buffer.extend, err=buffer.extend)

Departs from a phone's mksh: no `if`, loops, functions, arithmetic or here-documents (a syntax error or 127);
`cmd &` runs in the foreground; a pipeline's commands run one after the other.
"""

from __future__ import annotations

import glob
import inspect
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from sim.android import ANDROID
from sim.faults import BEFORE_BOOT
from sim.files import Files
from sim.grammar import ASSIGNMENT, MAX_DEPTH, Command, Part, Pipeline, ShellSyntaxError, Word, parse
from sim.tools import TOOLS

Write = Callable[[bytes], None]


class Exit(Exception):
    """`exit N`."""

    def __init__(self, status: int):
        self.status = status


@dataclass
class Process:
    """What a command gets: its arguments, its input, and where its output goes."""

    shell: Shell
    name: str
    args: list[str]
    stdin: bytes
    write: Write
    write_error: Write

    @property
    def phone(self):
        return self.shell.phone

    @property
    def files(self) -> Files:
        return self.shell.files

    def path(self, name: str) -> str:
        return name if name.startswith("/dev/") else Files.normal(name, self.shell.cwd)

    def out(self, text: str | bytes) -> None:
        self.write(text.encode() if isinstance(text, str) else text)

    def err(self, text: str) -> None:
        self.write_error(text.encode())

    def fail(self, text: str, status: int = 1) -> int:
        self.err(f"{self.name}: {text}\n")
        return status


class Shell:
    """One shell session on a phone: variables, directory and last status; files and phone are shared."""

    def __init__(self, phone, files: Files, depth: int = 0):
        self.phone, self.files, self.depth = phone, files, depth
        self.cwd, self.status = "/", 0
        self.variables = {
            "HOME": "/",
            "PATH": "/product/bin:/system/bin",
            "SHELL": "/system/bin/sh",
            "USER": "shell",
            "HOSTNAME": phone.props.get("ro.product.device", "phone"),
            "ANDROID_DATA": "/data",
            "PWD": "/",
            "EXTERNAL_STORAGE": "/sdcard",
            "TMPDIR": "/data/local/tmp",
        }

    def child(self) -> Shell:
        shell = Shell(self.phone, self.files, self.depth + 1)
        shell.cwd, shell.status, shell.variables = self.cwd, self.status, dict(self.variables)
        return shell

    async def run(self, source: str, out: Write, err: Write, stdin: bytes = b"") -> int:
        """Runs a command line to its end and returns its exit status; `exit` ends it early."""
        try:
            return await self.execute(source, out, err, stdin)
        except Exit as done:
            self.status = done.status
            return done.status

    async def execute(self, source: str, out: Write, err: Write, stdin: bytes = b"") -> int:
        """As `run`, but an `exit` goes on to the caller: what an interactive session needs."""
        try:
            if self.depth > MAX_DEPTH:
                raise ShellSyntaxError("syntax error: nested too deeply")
            items = parse(source)
        except ShellSyntaxError as error:
            err(f"/system/bin/sh: {error}\n".encode())
            self.status = 1
            return 1
        return await self._list(items, out, err, stdin)

    async def _list(self, items: list[Pipeline], out: Write, err: Write, stdin: bytes) -> int:
        for item in items:
            if (item.joint == "&&" and self.status != 0) or (item.joint == "||" and self.status == 0):
                continue
            data = stdin
            for command in item.commands[:-1]:
                buffer = bytearray()
                await self.child()._guarded(command, data, buffer.extend, err)
                data = bytes(buffer)
            # The last command of a real pipeline runs in a subshell of its own; alone it runs in this one.
            shell = self if len(item.commands) == 1 else self.child()
            status = await (self._command if shell is self else shell._guarded)(
                item.commands[-1], data, out, err
            )
            self.status = int(status == 0) if item.negated else status
        return self.status

    async def _guarded(self, command: Command, stdin: bytes, out: Write, err: Write) -> int:
        try:
            return await self._command(command, stdin, out, err)
        except Exit as done:
            return done.status

    async def _command(self, command: Command, stdin: bytes, out: Write, err: Write) -> int:
        try:
            stdin, out, err, opened = await self._redirect(command.redirects, stdin, out, err)
        except OSError as error:
            err(f"/system/bin/sh: can't open {error.filename}: {error.strerror}\n".encode())
            return 1
        leaving = None
        try:
            if command.body is not None:
                status = await self.child()._list(command.body, out, err, stdin)
            else:
                status = await self._simple(command.words, stdin, out, err)
        except Exit as done:  # of a body, the subshell ends; else this one does, once its output is written
            status, leaving = done.status, done if command.body is None else None
        for path, data, append in opened:
            try:
                self.files.write(path, bytes(data), append=append)
            except OSError as error:
                err(f"/system/bin/sh: {error.filename}: {error.strerror}\n".encode())
                status = 1
        if leaving:
            raise leaving
        return status

    async def _redirect(self, redirects, stdin: bytes, out: Write, err: Write):
        opened = []
        for fd, operator, word in redirects:
            target = " ".join(await self.expand(word, err))
            if operator == "<":
                stdin = self.files.read(
                    target if target.startswith("/dev/") else Files.normal(target, self.cwd)
                )
                continue
            if operator == ">&":
                sink = out if target == "1" else err
            elif target in ("/dev/tty", "/dev/stdout"):
                sink = out
            elif target == "/dev/stderr":
                sink = err
            else:
                path = target if target == "/dev/null" else Files.normal(target, self.cwd)
                append, buffer = operator == ">>", bytearray()
                self.files.write(path, b"", append=append)  # created, or emptied, before the command runs
                opened.append((path, buffer, append))
                sink = buffer.extend
            if fd in ("", "1", "&"):
                out = sink
            if fd in ("2", "&"):
                err = sink
        return stdin, out, err, opened

    async def _simple(self, words: list[Word], stdin: bytes, out: Write, err: Write) -> int:
        assignments, index = {}, 0
        self.substituted = 0  # the status of a command made of assignments alone is its last substitution's
        for word in words:
            if word[0].kind != "text" or word[0].quoted or not (match := ASSIGNMENT.match(word[0].text)):
                break
            rest = [
                Part("text", word[0].text[match.end() :], True),
                *(p._replace(quoted=True) for p in word[1:]),
            ]
            assignments[match[0][:-1]] = "".join(await self.expand(rest, err))
            index += 1
        argv = [text for word in words[index:] for text in await self.expand(word, err)]
        if not argv:
            self.variables.update(assignments)
            return self.substituted
        name, *args = argv
        command = TOOLS.get(base := name.removeprefix("/system/bin/")) or ANDROID.get(base)
        if command is None:
            err(f"/system/bin/sh: {name}: inaccessible or not found\n".encode())
            return 127
        if base in ANDROID and base not in BEFORE_BOOT and not self.phone.faults.booted:
            err(f"cmd: Can't find service: {base}\n".encode())
            return 20
        process = Process(self, base, args, stdin, out, err)
        saved = {key: self.variables.get(key) for key in assignments}
        self.variables.update(assignments)
        try:
            status = command(process)
            if inspect.isawaitable(status):
                status = await status
        except OSError as error:
            status = process.fail(f"{error.filename}: {error.strerror}")
        except ValueError as error:
            status = process.fail(f"bad argument: {error}")
        except Exit:
            raise
        except Exception as error:  # a fault of the simulated world must not look like a lost connection
            traceback.print_exc()
            status = process.fail(f"the simulator failed: {error!r}", 255)
        for key, value in saved.items():
            self.variables.pop(key, None) if value is None else self.variables.__setitem__(key, value)
        return status or 0

    async def expand(self, word: Word, err: Write) -> list[str]:
        """The fields a word becomes: variables and substitutions, splitting, `~` and globs."""
        fields: list[tuple[str, str, bool]] = []  # text, glob pattern, whether it has a live glob
        text, pattern, live, started = "", "", False, False
        for position, (kind, source, quoted) in enumerate(word):
            value = source
            if kind == "var":
                value = self.value(source)
            elif kind == "sub":
                buffer, shell = bytearray(), self.child()
                self.substituted = await shell.run(source, buffer.extend, err)
                value = buffer.decode(errors="replace").rstrip("\n")
            elif position == 0 and not quoted and re.match(r"~(/|$)", source):
                value = self.variables["HOME"].rstrip("/") + source[1:] or "/"
            if kind == "text" or quoted:
                pieces = [value]
                started = True
            else:
                pieces = re.split(r"[ \t\n]+", value)
            for number, piece in enumerate(pieces):
                if number > 0 and (started or text):
                    fields.append((text, pattern, live))
                    text, pattern, live, started = "", "", False, False
                text += piece
                started = started or piece != ""
                pattern += glob.escape(piece) if quoted else piece
                live = live or (not quoted and any(c in piece for c in "*?["))
        if started:
            fields.append((text, pattern, live))
        return [
            found
            for text, pattern, live in fields
            for found in ((self.files.glob(pattern, self.cwd) if live else []) or [text])
        ]

    def value(self, name: str) -> str:
        special = {"?": str(self.status), "$": "4711", "#": "0", "0": "sh", "PWD": self.cwd}
        return special.get(name, self.variables.get(name, ""))
