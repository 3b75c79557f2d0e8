"""Input methods: the soft keyboard, and ADBKeyBoard, which types any text that a broadcast brings.

    setprop debug.distrl.adbkeyboard 1            # as if ADBKeyBoard were installed
    ime enable ID && ime set ID && am broadcast -a ADB_INPUT_B64 --es msg bmHDr3Zl

A keyboard that was set is bound after a moment, and deaf until then.

Departs from a phone: another input method draws the same keyboard.
"""

from __future__ import annotations

import base64
import binascii
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.shell import Process

LATIN_IME = "com.android.inputmethod.latin/.LatinIME"
ADB_IME = "com.android.adbkeyboard/.AdbIME"
BINDING, _UP_AT = 0.15, "debug.distrl.keyboard.up"  # s
_CURRENT, _ENABLED = "settings.secure/default_input_method", "debug.distrl.adbkeyboard.enabled"


def _bound(p: Process) -> bool:
    return time.monotonic() >= float(p.phone.props.get(_UP_AT, 0.0))


def _known(p: Process) -> list[str]:
    return [LATIN_IME, ADB_IME] if p.phone.props.get("debug.distrl.adbkeyboard") == "1" else [LATIN_IME]


def ime(p: Process):
    verb, *rest = p.args or [""]
    props, name = p.phone.props, (rest or [""])[-1]
    if verb == "list":
        enabled = [LATIN_IME] + [ADB_IME] * (props.get(_ENABLED) == "1")
        p.out("".join(f"{i}\n" for i in _known(p) if "-a" in rest or i in enabled))
    elif name not in _known(p):
        return p.fail(f"Unknown input method {name} cannot be selected for user #0", 255)
    elif verb == "enable":
        props[_ENABLED] = "1" if name == ADB_IME else props.get(_ENABLED, "0")
    elif verb == "set":
        if name == ADB_IME and props.get(_ENABLED) != "1":
            return p.fail(f"Unknown input method {name} cannot be selected for user #0", 255)
        props[_CURRENT] = name
        props[_UP_AT] = str(time.monotonic() + BINDING)
        p.out(f"Input method {name} selected for user #0\n")
    else:
        return p.fail(f"Unknown command: {verb}", 255)


def broadcast(p: Process, action: str, args: list[str]) -> None:
    """`am broadcast`: the keyboard listens while it is the one that is set."""
    heard = p.phone.props.get(_CURRENT) == ADB_IME and _bound(p)
    if action == "ADB_INPUT_B64" and heard and "msg" in args[:-1]:
        try:
            p.phone.type_text(base64.b64decode(args[args.index("msg") + 1], validate=True).decode())
        except (binascii.Error, UnicodeDecodeError):
            pass  # the keyboard's own log says so on a phone
    p.out(f"Broadcasting: Intent {{ act={action} }}\nBroadcast completed: result=0\n")


def dump_input_method(p: Process) -> str:
    shown = "true" if p.phone.keyboard else "false"
    current = p.phone.props.get(_CURRENT, LATIN_IME)
    bound = "true" if _bound(p) else "false"
    return (
        f"Input method manager service state:\n  mCurMethodId={current}\n"
        f"  mShowRequested={shown} mInputShown={shown}\n"
        f"  mCurId={current} mHaveConnection={bound} mBoundToMethod={bound}\n"
    )
