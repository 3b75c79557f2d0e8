"""The grammar of the phone's shell: a line of text to pipelines of commands, quoting kept word by word.

    parse("input text 'a b' && echo $?")     # [Pipeline(";", [Command(...)]), Pipeline("&&", [Command(...)])]

A word stays a list of `Part`s, for what is quoted must neither be split nor globbed once it is expanded
(`sim.shell.Shell.expand`). A line that does not parse raises `ShellSyntaxError` with mksh's words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_DEPTH = 16  # of nested $( ), ( ) and sh -c: deeper is refused, as no one types that


class ShellSyntaxError(ValueError):
    """The line cannot be parsed; nothing of it runs."""


class Part(NamedTuple):
    """A piece of a word: literal text, a variable's name, or the source of a command substitution."""

    kind: str  # "text" | "var" | "sub"
    text: str
    quoted: bool


Word = list[Part]


@dataclass
class Command:
    words: list[Word] = field(default_factory=list)
    redirects: list[tuple[str, str, Word]] = field(default_factory=list)  # fd, operator, target
    body: list | None = None  # ( list ): a subshell


@dataclass
class Pipeline:
    joint: str  # what stands before it: ";", "&&" or "||"
    commands: list[Command]
    negated: bool = False


OPERATORS = ("&&", "||", ";;", "&>", "|&", ";", "&", "|", "(", ")")
REDIRECT = re.compile(r"(\d?)(>>|>&|>\||<<|<&|>|<)")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def _closing(source: str, start: int) -> int:
    """The index of the `)` that ends the substitution whose text begins at `start`."""
    depth, i = 1, start
    while i < len(source):
        c = source[i]
        if c == "\\":
            i += 1
        elif c in "'\"`":
            i += 1
            while i < len(source) and source[i] != c:
                i += 2 if source[i] == "\\" and c != "'" else 1
        elif c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    raise ShellSyntaxError("syntax error: unexpected end of file, ')' is missing")


def _dollar(source: str, i: int, quoted: bool) -> tuple[Part, int]:
    """The expansion that begins with the `$` or backtick at `i`, and the index behind it."""
    if source[i] == "`":
        j = i + 1
        while j < len(source) and source[j] != "`":
            j += 2 if source[j] == "\\" else 1
        if j >= len(source):
            raise ShellSyntaxError("no closing quote")
        return Part("sub", re.sub(r"\\([$`\\])", r"\1", source[i + 1 : j]), quoted), j + 1
    rest = source[i + 1 : i + 2]
    if rest == "(":
        if source[i + 2 : i + 3] == "(":
            raise ShellSyntaxError("syntax error: '$((' is not supported here")
        end = _closing(source, i + 2)
        return Part("sub", source[i + 2 : end], quoted), end + 1
    if rest == "{":
        end = source.find("}", i)
        name = source[i + 2 : end]
        if end < 0 or not (NAME.fullmatch(name) or name in "?$#"):
            raise ShellSyntaxError(f"${{{name}}}: bad substitution")
        return Part("var", name, quoted), end + 1
    if rest and (rest in "?$#@*!-" or rest.isdigit()):
        return Part("var", rest, quoted), i + 2
    match = NAME.match(source, i + 1)
    if match:
        return Part("var", match[0], quoted), match.end()
    return Part("text", "$", True), i + 1


def tokenize(source: str) -> list[str | Word | tuple[str, str]]:
    """Operators as strings, redirections as (fd, operator), words as lists of parts."""
    tokens: list[str | Word | tuple[str, str]] = []
    word: Word | None = None

    def flush():
        nonlocal word
        if word is not None:
            tokens.append(word)
            word = None

    i, n = 0, len(source)
    while i < n:
        c = source[i]
        if c in " \t\r":
            flush()
            i += 1
        elif c == "\n":
            flush()
            tokens.append("\n")
            i += 1
        elif c == "#" and word is None:
            end = source.find("\n", i)
            i = n if end < 0 else end
        elif (word is None or c in "<>") and (match := REDIRECT.match(source, i)):
            flush()
            tokens.append((match[1], match[2]))
            i = match.end()
        elif c in ";&|()":
            flush()
            operator = next(op for op in OPERATORS if source.startswith(op, i))
            tokens.append(("&", ">") if operator == "&>" else operator)
            i += len(operator)
        elif c == "'":
            end = source.find("'", i + 1)
            if end < 0:
                raise ShellSyntaxError("no closing quote")
            word = [*(word or []), Part("text", source[i + 1 : end], True)]
            i = end + 1
        elif c == '"':
            word = [*(word or []), Part("text", "", True)]
            i += 1
            while i < n and source[i] != '"':
                if source[i] == "\\" and source[i + 1 : i + 2] and source[i + 1] in '$`"\\\n':
                    word.append(Part("text", source[i + 1].strip("\n"), True))
                    i += 2
                elif source[i] in "$`":
                    part, i = _dollar(source, i, True)
                    word.append(part)
                else:
                    end = i + 1
                    while end < n and source[end] not in '\\"$`':
                        end += 1
                    word.append(Part("text", source[i:end], True))
                    i = end
            if i >= n:
                raise ShellSyntaxError("no closing quote")
            i += 1
        elif c == "\\":
            if source[i + 1 : i + 2] != "\n":
                word = [*(word or []), Part("text", source[i + 1 : i + 2] or "\\", True)]
            i += 2
        elif c in "$`":
            part, i = _dollar(source, i, False)
            word = [*(word or []), part]
        else:
            end = i + 1
            while end < n and source[end] not in " \t\r\n;&|()<>'\"\\$`":
                end += 1
            word = [*(word or []), Part("text", source[i:end], False)]
            i = end
    flush()
    return tokens


class _Parser:
    def __init__(self, source: str):
        self.tokens = tokenize(source)
        self.at = 0

    def peek(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def unexpected(self) -> ShellSyntaxError:
        token = self.peek()
        shown = (
            token if isinstance(token, str) else "".join(token[:2]) if isinstance(token, tuple) else "word"
        )
        return ShellSyntaxError(f"syntax error: unexpected '{shown}'".replace("\n", "newline"))

    def parse(self, depth: int = 0) -> list[Pipeline]:
        """list := pipeline ((";" | "&" | newline | "&&" | "||") pipeline)*"""
        if depth > MAX_DEPTH:
            raise ShellSyntaxError("syntax error: nested too deeply")
        items, joint = [], ";"
        while True:
            while self.peek() == "\n":
                self.at += 1
            token = self.peek()
            if token is None or token == ")":
                if joint in ("&&", "||") or (token == ")" and depth == 0):
                    raise (
                        self.unexpected()
                        if token
                        else ShellSyntaxError("syntax error: unexpected end of file")
                    )
                return items
            items.append(self.pipeline(joint, depth))
            token = self.peek()
            if token in (";", "&", "\n"):
                joint = ";"
            elif token in ("&&", "||"):
                joint = token
            elif token is None or token == ")":
                joint = ";"
                continue
            else:
                raise self.unexpected()
            self.at += 1

    def pipeline(self, joint: str, depth: int) -> Pipeline:
        negated = False
        while self.peek() == [Part("text", "!", False)]:
            negated = not negated
            self.at += 1
        commands = [self.command(depth)]
        while self.peek() == "|":
            self.at += 1
            while self.peek() == "\n":
                self.at += 1
            commands.append(self.command(depth))
        return Pipeline(joint, commands, negated)

    def command(self, depth: int) -> Command:
        command = Command()
        while True:
            token = self.peek()
            if token == "(" and not command.words and command.body is None:
                self.at += 1
                command.body = self.parse(depth + 1)
                if self.peek() != ")":
                    raise ShellSyntaxError("syntax error: unexpected end of file, ')' is missing")
            elif isinstance(token, tuple):
                self.at += 1
                target = self.peek()
                if not isinstance(target, list) or token[1] in ("<<", "<&"):
                    raise (
                        self.unexpected()
                        if target
                        else ShellSyntaxError("syntax error: unexpected end of file")
                    )
                command.redirects.append((token[0], token[1], target))
            elif isinstance(token, list) and command.body is None:
                command.words.append(token)
            else:
                break
            self.at += 1
        if not command.words and not command.redirects and command.body is None:
            raise (
                self.unexpected() if self.peek() else ShellSyntaxError("syntax error: unexpected end of file")
            )
        return command


def parse(source: str) -> list[Pipeline]:
    return _Parser(source).parse()
