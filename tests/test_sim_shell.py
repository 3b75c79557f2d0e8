"""The shell of a simulated phone, by itself."""

import asyncio

import pytest

from sim.faults import Faults
from sim.files import Files
from sim.shell import Shell


class NoPhone:
    props, faults = {"ro.product.device": "none"}, Faults()


def sh(source: str) -> tuple[str, int]:
    out = bytearray()
    status = asyncio.run(Shell(NoPhone(), Files()).run(source, out.extend, out.extend))
    return out.decode(), status


@pytest.mark.parametrize(
    ("source", "out", "status"),
    [
        ("false && echo a || echo b; echo $?", "b\n0\n", 0),
        ("true || echo a && echo b", "b\n", 0),
        ("! false; echo $?", "0\n", 0),
        ("echo a b | grep -c a", "1\n", 0),
        ("printf 'x\\ny\\n' | grep y | cat", "y\n", 0),
        ("echo hi > /sdcard/f && echo more >> /sdcard/f; cat /sdcard/f", "hi\nmore\n", 0),
        ("nope 2>/dev/null; echo $?", "127\n", 0),
        ("nope > /sdcard/log 2>&1; grep -o inaccessible /sdcard/log", "inaccessible\n", 0),
        ("(cd /sdcard; exit 4); echo $? $(pwd)", "4 /\n", 0),
        ("A=1; B=\"$A 2\"; echo \"$B\" ${A}3 '$A'", "1 2 13 $A\n", 0),
        ("cd /sdcard; touch a.txt b.txt; echo *.txt '*' /x*", "a.txt b.txt * /x*\n", 0),
        ("[ -f /sdcard/a ] || test -d /sdcard && echo d", "d\n", 0),
        ("echo a # b", "a\n", 0),
        ("echo a#b 2 3>/dev/null", "a#b 2\n", 0),
        ("x=$(false) ; echo $?", "1\n", 0),
        ("exit 3; echo no", "", 3),
        ("exec echo 'it is'; echo no", "it is\n", 0),
        ("(exec echo hi > /sdcard/f; echo no); cat /sdcard/f; exec false", "hi\n", 1),
        ("echo 'a", "/system/bin/sh: no closing quote\n", 1),
        ("echo a; (x", "/system/bin/sh: syntax error: unexpected end of file, ')' is missing\n", 1),
        ("input text (x)", "/system/bin/sh: syntax error: unexpected '('\n", 1),
        ("echo a ; ; echo b", "/system/bin/sh: syntax error: unexpected ';'\n", 1),
        ("echo a &&", "/system/bin/sh: syntax error: unexpected end of file\n", 1),
        ("", "", 0),
    ],
)  # fmt: skip
def test_shell(source, out, status):
    assert sh(source) == (out, status)


def test_deep_nesting_is_refused_and_ends():
    assert sh("echo " + "$(echo " * 40 + "x" + ")" * 40)[0].count("nested too deeply") == 1
    assert sh("(" * 5000 + "true" + ")" * 5000)[1] == 1


def test_setprop_starts_the_randomness_anew():
    phone = NoPhone()
    phone.props, phone.reseed, seeds = dict(phone.props), lambda seed: seeds.append(seed), []
    out = bytearray()
    line = "setprop debug.distrl.seed 12; setprop debug.distrl.seed x || getprop debug.distrl.seed"
    assert asyncio.run(Shell(phone, Files()).run(line, out.extend, out.extend)) == 0
    assert seeds == [12]
    assert out.decode() == "setprop: debug.distrl.seed must be a whole number, not 'x'\n12\n"
