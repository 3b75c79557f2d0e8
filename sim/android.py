"""The phone's own commands: `input`, `screencap`, `wm`, `dumpsys`, `uiautomator`, `am`, `pm`, `monkey`,
`settings`.

They print what Android 13 prints, as far as the tools that drive phones read it: unmodified adbutils finds
window size, rotation, foreground app and hierarchy here. `input` and `screencap` take their time
(`Phone.delay`), the other commands none.

Departs from a phone: `dumpsys` knows the services in `DUMPS` only; `am broadcast` (but for the keyboard's), `pm grant`
and `settings` (but for the rotation) store or print, nothing follows from them; `setprop debug.distrl.seed N` restarts
the phone's randomness from N.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sim.catalog import LAUNCHER, LAUNCHER_ACTIVITY
from sim.display import dump_display, dump_window, screencap, uiautomator, wm
from sim.keyboard import LATIN_IME, broadcast, dump_input_method, ime
from sim.tools import split_options

if TYPE_CHECKING:
    from sim.shell import Process

NAMED_KEYS = """HOME 3 BACK 4 CALL 5 ENDCALL 6 STAR 17 POUND 18 DPAD_UP 19 DPAD_DOWN 20
    DPAD_LEFT 21 DPAD_RIGHT 22 DPAD_CENTER 23 VOLUME_UP 24 VOLUME_DOWN 25 POWER 26 CAMERA 27 CLEAR 28
    COMMA 55 PERIOD 56 TAB 61 SPACE 62
    ENTER 66 DEL 67 MENU 82 NOTIFICATION 83 SEARCH 84 PAGE_UP 92 PAGE_DOWN 93 ESCAPE 111 FORWARD_DEL 112
    MOVE_HOME 122 MOVE_END 123 VOLUME_MUTE 164 APP_SWITCH 187 SLEEP 223 WAKEUP 224""".split()
KEYS = dict(zip(NAMED_KEYS[::2], map(int, NAMED_KEYS[1::2]), strict=True))
KEYS |= {str(n): 7 + n for n in range(10)} | {chr(65 + n): 29 + n for n in range(26)}
CHROME = "com.android.chrome"
SOURCES = "touchscreen keyboard mouse touchpad dpad stylus trackball gamepad touchnavigation".split()


def key_code(name: str) -> int:
    """`66`, `ENTER` or `KEYCODE_ENTER` (but `KEYCODE_3` is the digit); what Android does not know is 0."""
    return int(name) if name.isdigit() else KEYS.get(name.upper().removeprefix("KEYCODE_"), 0)


async def input_(p: Process):
    args = list(p.args)
    while args and (args[0] in SOURCES or args[0] == "-d"):
        del args[: 2 if args[0] == "-d" else 1]
    kind, *rest = args or [""]
    try:
        if p.phone.faults.locked and not (kind == "keyevent" and {"224", "WAKEUP", "KEYCODE_WAKEUP"} & set(rest)):
            pass  # the lock screen takes it
        elif kind == "tap":
            x, y = (float(n) for n in rest)
            p.phone.tap(*p.phone.display.to_phone(x, y))
        elif kind in ("swipe", "draganddrop"):
            x0, y0, x1, y1, *ms = (float(n) for n in rest)
            ends = (*p.phone.display.to_phone(x0, y0), *p.phone.display.to_phone(x1, y1))
            p.phone.swipe(*ends, ms[0] if ms else 300)
        elif kind == "text":
            type_text(p, rest[0])
        elif kind in ("keyevent", "keycombination"):
            codes = [key_code(name) for name in rest if not name.startswith("--")]
            if not codes:
                raise ValueError("no key")
            for code in codes:
                p.phone.key(code)
                if code == KEYS["WAKEUP"]:
                    p.phone.faults.wake()
        elif kind in ("press", "roll"):
            pass
        else:
            return p.fail(f"Unknown command: {kind}\nUsage: input [<source>] <command> [<arg>...]", 255)
    except UnicodeEncodeError:
        p.err(
            "\nException occurred while executing 'text':\njava.lang.NullPointerException: Attempt to get "
            "length of null array\n\tat com.android.server.input.InputShellCommand.sendText\n"
        )
        return 255
    except (ValueError, IndexError, OverflowError) as error:
        p.err(f"Error: Invalid arguments for command: {kind} ({error})\n")
        return 255
    await asyncio.sleep(p.phone.delay())


def type_text(p: Process, text: str) -> None:
    """Android's `input text`: `%s` is a space, a newline is ENTER, other than ASCII throws."""
    text.encode("ascii")
    for number, line in enumerate(text.replace("%s", " ").split("\n")):
        if number:
            p.phone.key(KEYS["ENTER"])
        if line:
            p.phone.type_text(line)


def _app(p: Process) -> str:
    """The activity in front, under a dialog that has the focus."""
    screen = p.phone.stack[-1]
    return f"{screen.package}/{screen.activity}"


def dump_activity(p: Process) -> str:
    app = _app(p)
    if "top" in p.args:
        return f"TASK 12: id=12\n  ACTIVITY {app} 2b992b pid=4242\n"
    return (
        f"ACTIVITY MANAGER ACTIVITIES (dumpsys activity activities)\nDisplay #0:\n"
        f"  mResumedActivity: ActivityRecord{{2b992b u0 {app} t12}}\n"
        f"  topResumedActivity=ActivityRecord{{2b992b u0 {app} t12}}\n"
        f"    * Hist #0: ActivityRecord{{2b992b u0 {app} t12}}\n"
    )


def dump_package(p: Process) -> str:
    package = p.args[1] if len(p.args) > 1 else ""
    if package not in p.phone.packages():
        return f"Unable to find package: {package}\n"
    return (
        f"Packages:\n  Package [{package}] (7a3c5d):\n    userId=10077\n"
        f"    versionCode=1 minSdk=24 targetSdk=33\n"
        f"    versionName=1.0\n    pkgFlags=[ HAS_CODE ]\n    firstInstallTime=2023-11-14 09:41:00\n"
        f"    lastUpdateTime=2023-11-14 09:41:00\n"
    )


def dump_connectivity(p: Process) -> str:
    validated = "" if p.phone.faults.on("no-network") else "&VALIDATED"
    return (
        "NetworkProviders for:\n  WIFI\nActive default network: 100\n\nCurrent Networks:\n"
        "  NetworkAgentInfo{network{100} handle{1} ni{WIFI CONNECTED} "
        f"nc{{[ Transports: WIFI Capabilities: INTERNET&TRUSTED{validated} ]}}}}\n"
    )


DUMPS = {
    "window": dump_window,
    "display": dump_display,
    "activity": dump_activity,
    "package": dump_package,
    "input_method": dump_input_method,
    "connectivity": dump_connectivity,
    "power": lambda p: "Power Manager State:\n  mWakefulness=Awake\n  mHoldingDisplaySuspendBlocker=true\n",
    "battery": lambda p: (
        "Current Battery Service state:\n  AC powered: true\n  status: 2\n  health: 2\n"
        "  present: true\n  level: 100\n  scale: 100\n  voltage: 4200\n  temperature: 250\n"
    ),
}


def dumpsys(p: Process):
    if not p.args or p.args[0] == "-l":
        p.out("Currently running services:\n" + "".join(f"  {name}\n" for name in sorted(DUMPS)))
    elif p.args[0] in DUMPS:
        p.out(DUMPS[p.args[0]](p))
    else:
        p.out(f"Can't find service: {p.args[0]}\n")


START_VALUES = ("-a", "-d", "-t", "-c", "-f", "--user", "--display", "--activity-brought-to-front")
START_EXTRAS = ("--es", "-e", "--ez", "--ei", "--el", "--ef", "--eu")  # each with a key and a value


def parse_intent(args: list[str]) -> dict[str, str]:
    """The parts of `am start`'s intent that a phone here looks at: action, data, component, package."""
    names = {"-a": "act", "-d": "dat", "-n": "cmp", "-p": "pkg"}
    intent: dict[str, str] = {}
    i = 0
    while i < len(args):
        arg = args[i]
        if arg in names:
            if i + 1 >= len(args):
                raise ValueError(f'Argument expected after "{arg}"')
            intent[names[arg]] = args[i + 1]
            i += 2
        elif arg in START_EXTRAS:
            i += 3
        elif arg in START_VALUES:
            i += 2
        elif arg.startswith("-"):
            i += 1
        else:
            intent["dat" if ":" in arg else "cmp" if "/" in arg else "pkg"] = arg
            i += 1
    return intent


def view(phone, url: str, package: str) -> str:
    """`am start -a VIEW -d URL`: the browser goes there, whatever dialog may stand before it."""
    error = phone.start_activity(package)
    if error or package != CHROME:
        return error
    while True:
        bars = [w for w in phone.stack[-1].widgets() if w.id == "url_bar" and w.on_submit]
        if bars or len(phone.stack) == 1:
            break
        phone.back()
    if bars:
        bars[0].on_submit(url.split("://", 1)[-1].removeprefix("www.").rstrip("/"))
    return ""


def am(p: Process):
    verb, *rest = p.args or [""]
    if verb in ("start", "start-activity"):
        try:
            intent = parse_intent(rest)
        except ValueError as error:
            return p.fail(f"Error: {error}", 255)
        shown = " ".join(f"{key}={value}" for key, value in intent.items())
        p.out(f"Starting: Intent {{ {shown} }}\n")
        if "dat" in intent and "cmp" not in intent:
            error = view(p.phone, intent["dat"], intent.get("pkg", CHROME))
        else:
            error = p.phone.start_activity(intent.get("cmp") or intent.get("pkg", ""))
        if error:
            p.err(error.rstrip("\n") + "\n")
            return 1
        if "-W" in rest:
            p.out(
                f"Status: ok\nLaunchState: COLD\nActivity: {p.phone.focus_component()}\n"
                "TotalTime: 100\nComplete\n"
            )
    elif verb == "force-stop" and rest:
        p.phone.force_stop(rest[-1])
    elif verb in ("kill", "kill-all"):
        pass  # only background processes die of it, and those show nothing
    elif verb == "broadcast":
        broadcast(p, parse_intent(rest).get("act", ""), rest)
    elif verb == "get-current-user":
        p.out("0\n")
    else:
        return p.fail(f"Unknown command: {verb}", 255)


def pm(p: Process):
    verb, *rest = p.args or [""]
    options, words = split_options(rest, "") if verb != "list" else ({}, rest)
    package = words[-1] if words else ""
    if verb == "list" and rest[:1] == ["packages"]:
        third, system = "-3" in rest, "-s" in rest
        names = p.phone.packages(third_party=third)
        if system:
            others = set(p.phone.packages(third_party=True))
            names = [name for name in names if name not in others]
        wanted = next((word for word in rest[1:] if not word.startswith("-")), "")
        where = {name: f"/data/app/{name}/base.apk=" if "-f" in rest else "" for name in names}
        p.out("".join(f"package:{where[name]}{name}\n" for name in sorted(names) if wanted in name))
    elif verb == "path":
        if package not in p.phone.packages():
            return 1
        p.out(f"package:/data/app/{package}/base.apk\n")
    elif verb == "resolve-activity":
        if "android.intent.category.HOME" not in words:
            return p.fail("only the home app is resolved here", 255)
        p.out("priority=0 preferredOrder=0 match=0x108000 specificIndex=-1 isDefault=true\n"
              f"{LAUNCHER}/{LAUNCHER_ACTIVITY}\n")
    elif verb == "clear":
        if not p.phone.clear(package):
            p.out("Failed\n")
            return 1
        p.out("Success\n")
    elif verb == "uninstall":
        if not p.phone.uninstall(package):
            p.out("Failure [DELETE_FAILED_INTERNAL_ERROR]\n")
            return 1
        p.out("Success\n")
    elif verb in ("grant", "revoke", "enable", "disable-user"):
        if not any(word in p.phone.packages() for word in words):
            return p.fail(
                f"java.lang.IllegalArgumentException: Unknown package: {words[0] if words else ''}", 255
            )
    else:
        return p.fail(f"Unknown command: {verb}", 255)


def cmd(p: Process):
    """`cmd package ...` is `pm ...`, `cmd activity ...` is `am ...`."""
    service, *rest = p.args or [""]
    table = {"package": pm, "activity": am, "input": input_, "window": wm, "settings": settings}
    if service not in table:
        return p.fail(f"Can't find service: {service}", 20)
    p.args = rest
    return table[service](p)


def monkey(p: Process):
    if "-p" not in p.args[:-1]:
        return p.fail("needs -p PACKAGE and a number of events", 252)
    if p.phone.start_activity(p.args[p.args.index("-p") + 1]):
        p.out("** No activities found to run, monkey aborted.\n")
        return 252
    p.out(
        "Events injected: 1\n## Network stats: elapsed time=10ms (0ms mobile, 0ms wifi, 10ms not connected)\n"
    )


def getprop(p: Process):
    props = p.phone.props | {"ro.boottime.init": str(10**9 + p.phone.faults.boots)}
    props |= {} if p.phone.faults.booted else {"sys.boot_completed": ""}
    if p.args:
        p.out(props.get(p.args[0], p.args[1] if len(p.args) > 1 else "") + "\n")
    else:
        p.out("".join(f"[{name}]: [{value}]\n" for name, value in sorted(props.items())))


def setprop(p: Process):
    if len(p.args) != 2:
        return p.fail("usage: setprop NAME VALUE")
    name, value = p.args
    if name == "debug.distrl.seed":
        if not value.lstrip("-").isdigit():
            return p.fail(f"{name} must be a whole number, not {value!r}")
        p.phone.reseed(int(value))
    if name.startswith("ro.") and name in p.phone.props:
        return p.fail(f"failed to set property '{name}' to '{value}'")
    p.phone.props[name] = value


SETTINGS = {
    "system/screen_brightness": "128",
    "system/screen_brightness_mode": "0",
    "global/airplane_mode_on": "0",
    "secure/default_input_method": LATIN_IME,
}


def settings(p: Process):
    verb, space, *rest = p.args + ["", ""]
    stored = p.phone.props  # under a name of their own, so that they die with the phone
    if verb == "get":
        key = f"{space}/{rest[0]}"
        p.out(stored.get(f"settings.{key}", SETTINGS.get(key, "null")) + "\n")
    elif verb == "put" and len(rest) >= 3:
        stored[f"settings.{space}/{rest[0]}"] = rest[1]
    elif verb == "delete":
        stored.pop(f"settings.{space}/{rest[0]}", None)
    else:
        return p.fail(f"Invalid command: {' '.join(p.args)}", 255)


def accepted(p: Process):
    return 0


def reboot(p: Process):
    """The connection goes with it: `Device` watches for it."""
    p.phone.faults.reboot()
    p.phone.home()


ANDROID = {
    "input": input_,
    "screencap": screencap,
    "wm": wm,
    "dumpsys": dumpsys,
    "uiautomator": uiautomator,
    "am": am,
    "pm": pm,
    "cmd": cmd,
    "monkey": monkey,
    "getprop": getprop,
    "setprop": setprop,
    "settings": settings,
    "ime": ime,
    "reboot": reboot,
    "svc": accepted,
    "logcat": accepted,
}
