"""What a phone's screen holds, from the text of `dumpsys window` and the XML of `uiautomator dump`; `screencap`'s PNG.

    state = parse_ui(output_of_both)
    state.package, state.activity, state.texts      # "com.android.chrome", "...Main", ["All", "Images", ...]
    [node.center for node in state.nodes if node.text == "Install"]

A real phone's XML is not always XML: a line after it ("UI hierchary dumped to: ..."), emoji as two surrogate
references, control characters. All are put up with; a dump without a hierarchy is a ValueError.
"""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ElementTree
import zlib
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Node:
    """One visible node of `uiautomator dump`; `bounds` (x0, y0, x1, y1) in pixels."""

    text: str
    desc: str
    id: str
    cls: str
    bounds: tuple[int, int, int, int]
    clickable: bool
    focused: bool
    checked: bool
    package: str

    @property
    def center(self) -> tuple[int, int]:
        """(x, y) in pixels."""
        x0, y0, x1, y1 = self.bounds
        return (x0 + x1) // 2, (y0 + y1) // 2


@dataclass
class UiState:
    """The focused window: its `package` and `activity`, the app under it when a dialog has the focus (`app`,
    "" when unknown), and the visible nodes from top to bottom."""

    package: str
    activity: str
    nodes: list[Node]
    app: str = ""

    @cached_property
    def texts(self) -> list[str]:
        """Visible texts and content descriptions in reading order."""
        return [t for node in self.nodes for t in (node.text, node.desc) if t]


_FOCUS = re.compile(r"mCurrentFocus=Window\{\S+ (?:\S+ )?([\w.]+)/([\w.$]+)\}")
_LOCKED = re.compile(r"\b(?:m(?:Showing|Dreaming)Lockscreen|isKeyguardShowing)=true\b")
_RECORD = re.compile(r"ActivityRecord\{\S+ \S+ ([\w.]+)/")
_BOUNDS = re.compile(r"-?\d+")
_REFERENCES = re.compile(r"(?:&#(?:x[0-9A-Fa-f]+|\d+);)+")


def _mend_references(xml: str) -> str:
    """uiautomator writes an emoji as two surrogate references, and control characters as they are: not
    XML."""
    def mend(match: re.Match) -> str:
        codes = [int(word[1:], 16) if word[0] == "x" else int(word) for word in re.findall(r"\w+", match[0])]
        pairs = "".join(chr(code) for code in codes if code <= 0x10FFFF).encode("utf-16-le", "surrogatepass")
        text = pairs.decode("utf-16-le", "ignore")   # two surrogates are one character, one alone is none
        return "".join(f"&#{ord(c)};" for c in text if c in "\t\n\r" or c >= " " and c not in "\ufffe\uffff")
    return _REFERENCES.sub(mend, re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "", xml))


def parse_ui(dump: bytes) -> UiState:
    """The state in the output of `dumpsys window` (lines with mCurrentFocus and mFocusedApp, if any) followed
    by `uiautomator dump`; text around the XML does not matter. Raises ValueError where there is no
    hierarchy."""
    start, end = dump.find(b"<hierarchy"), dump.rfind(b"</hierarchy>")
    if start < 0 or end < 0:
        raise ValueError(f"no <hierarchy> in {dump[-200:]!r}")
    xml = dump[start:end + len(b"</hierarchy>")]
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError:
        try:
            root = ElementTree.fromstring(_mend_references(xml.decode("utf-8", "replace")))
        except ElementTree.ParseError as error:
            raise ValueError(f"broken hierarchy: {error}") from error
    nodes, width, height = [], 0, 0
    for element in root.iter("node"):
        get = element.attrib.get
        corners = _BOUNDS.findall(get("bounds", ""))
        if len(corners) != 4:
            continue
        x0, y0, x1, y1 = map(int, corners)
        if not nodes:
            width, height = x1, y1                   # the window
        outside = x1 <= max(x0, 0) or y1 <= max(y0, 0) or x0 >= width or y0 >= height
        if outside or get("visible-to-user") == "false":
            continue
        nodes.append(Node(get("text", ""), get("content-desc", ""), get("resource-id", ""), get("class", ""),
                          (x0, y0, x1, y1), get("clickable") == "true", get("focused") == "true",
                          get("checked") == "true", get("package", "")))
    package = nodes[0].package if nodes else ""
    nodes.sort(key=lambda node: (node.bounds[1], node.bounds[0]))
    focus, activity, app = parse_focus(dump[:start].decode("utf-8", "replace"))
    return UiState(focus or package, activity, nodes, app)


def parse_focus(text: str) -> tuple[str, str, str]:
    """(package, activity, package of the focused app), "" where unknown."""
    found, apps = _FOCUS.findall(text), _RECORD.findall(text)
    package, activity = found[-1] if found else ("", "")
    return package, package + activity if activity.startswith(".") else activity, apps[-1] if apps else ""


def is_locked(text: str) -> bool:
    """Does `dumpsys window` say that the lock screen is shown? Android versions name it differently."""
    return bool(_LOCKED.search(text))


def extract_png(data: bytes) -> bytes:
    """The PNG in `data`, from its signature to IEND, every chunk's checksum right; else a ValueError."""
    start = data.find(b"\x89PNG\r\n\x1a\n")
    if start < 0:
        raise ValueError(f"no PNG signature in {len(data)} bytes {data[:60]!r}")
    at, kind = start + 8, b""
    while kind != b"IEND":
        if at + 12 > len(data):
            raise ValueError(f"PNG cut off after {len(data) - start} bytes")
        size, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + size
        if end > len(data) or zlib.crc32(data[at + 4:end - 4]) != struct.unpack_from(">I", data, end - 4)[0]:
            raise ValueError(f"PNG chunk {kind!r} of {size} bytes is cut off or damaged")
        at = end
    return data[start:at]
