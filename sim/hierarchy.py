"""A screen in the XML that `uiautomator dump` writes: what is visible, in reading order.

hierarchy_xml(screen, widgets, keyboard=False)
"""

from __future__ import annotations

import re

from sim.ui import CLASS_NAMES, HEIGHT, KEYBOARD_TOP, STATUS_BAR, WIDTH, Screen, Widget

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _quoted(value: str) -> str:
    """Always in double quotes, as uiautomator does."""
    value = _NOT_XML.sub(".", value)
    for sign, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("\n", "&#10;")):
        value = value.replace(sign, entity)
    return f'"{value}"'


def _node(
    index: int,
    package: str,
    bounds,
    *,
    kind="",
    text="",
    desc="",
    id="",
    tap=False,
    checkable=False,
    checked=False,
    focused=False,
    scrollable=False,
    ends="/>",
) -> str:
    def flag(name: str, on: bool) -> str:
        return f'{name}="{"true" if on else "false"}" '

    x0, y0, x1, y1 = bounds
    values = {
        "text": text,
        "resource-id": f"{package}:id/{id}" if id else "",
        "package": package,
        "class": CLASS_NAMES.get(kind, "android.widget.FrameLayout"),
        "content-desc": desc,
    }
    named = "".join(f"{name}={_quoted(value)} " for name, value in values.items())
    flags = (
        flag("checkable", checkable)
        + flag("checked", checked)
        + flag("clickable", tap)
        + flag("enabled", True)
        + flag("focusable", kind == "field")
        + flag("focused", focused)
        + flag("scrollable", scrollable)
        + flag("long-clickable", False)
        + flag("password", False)
        + flag("selected", checked and kind == "tab")
    )
    return f'<node index="{index}" {named}{flags}bounds="[{x0},{y0}][{x1},{y1}]"{ends}'


def visible(widgets: list[Widget], keyboard: bool) -> list[Widget]:
    """Those whose middle is on the screen and not under the keyboard, in reading order."""
    bottom = KEYBOARD_TOP if keyboard else HEIGHT
    shown = [w for w in widgets if STATUS_BAR <= (w.bounds[1] + w.bounds[3]) / 2 < bottom]
    return sorted(shown, key=lambda w: ((w.bounds[1] + w.bounds[3]) // 2, w.bounds[0]))


def hierarchy_xml(screen: Screen, widgets: list[Widget], keyboard: bool) -> str:
    """The focused window as uiautomator prints it; a field's hint stands for its text while that is empty."""
    bottom = KEYBOARD_TOP if keyboard else HEIGHT
    nodes = []
    for index, w in enumerate(visible(widgets, keyboard)):
        x0, y0, x1, y1 = w.bounds
        bounds = (max(0, x0), max(STATUS_BAR, y0), min(WIDTH, x1), min(bottom, y1))
        text = "" if w.kind == "switch" else w.text or w.hint  # Android 11: a switch's state is its mark alone
        nodes.append(
            _node(
                index,
                screen.package,
                bounds,
                kind=w.kind,
                text=text,
                desc=w.desc,
                id=w.id,
                tap=w.on_tap is not None or w.kind == "field",
                checkable=w.checked is not None,
                checked=bool(w.checked),
                focused=bool(w.id) and w.id == screen.focused,
            )
        )
    scrolls = screen.content_height > HEIGHT - STATUS_BAR
    root = _node(0, screen.package, (0, 0, WIDTH, HEIGHT), scrollable=scrolls, ends=">")
    head = "<?xml version='1.0' encoding='UTF-8' standalone='yes' ?>"
    return f'{head}<hierarchy rotation="0">{root}{"".join(nodes)}</node></hierarchy>'
