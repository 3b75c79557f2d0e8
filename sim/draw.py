"""Drawing a simulated phone's screen with Pillow, fast enough to be no part of a step's time.

Text masks, icon tiles and the keyboard are drawn once and kept; a frame is rectangles and pastes.
`render(layers, keyboard=...)` gives an RGB image of 270 x 480, `encode_png` its PNG, under 8 ms together.

    image = render([Layer("#ffffff", widgets, focused="url_bar")], keyboard=True)
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from PIL import Image, ImageDraw, ImageFont

from sim.ui import HEIGHT, KEYBOARD_TOP, STATUS_BAR, WIDTH, Screen, Widget

BLUE, GREY = "#1a73e8", "#80868b"
ENTER_KEY = (222, 444, 268, 478)  # the keyboard's two keys that can be tapped: submit, and
HIDE_KEY = (2, 444, 48, 478)  # put the keyboard away
_OWN_COLOUR = {"button": "#e3ecfb", "field": "#e8eaed", "card": "#f8f9fa", "image": "#dadce0"}
_SCRIM = [value * 2 // 5 for value in range(256)] * 3


@dataclass(frozen=True)
class Layer:
    """One window: background colour (None: darken what is below), widgets, the focused field's id."""

    background: str | None
    widgets: Sequence[Widget]
    focused: str | None = None
    selected: bool = False

    @classmethod
    def of(cls, screen: Screen) -> Layer:
        background = None if screen.modal else screen.background
        return cls(background, screen.shown(), screen.focused, screen.selected)


@lru_cache(maxsize=32)
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


@lru_cache(maxsize=8192)
def _length(text: str, size: int) -> float:
    return _font(size).getlength(text)


@lru_cache(maxsize=4096)
def _text_mask(text: str, size: int) -> Image.Image:
    """The text as coverage, [ascent + descent, width] in 8 bits."""
    font = _font(size)
    ascent, descent = font.getmetrics()
    mask = Image.new("L", (max(1, int(font.getlength(text)) + 2), ascent + descent))
    ImageDraw.Draw(mask).text((0, 0), text, fill=255, font=font)
    return mask


def _clip(text: str, size: int, width: int) -> str:
    """The longest beginning of text that fits, with three dots where something was cut."""
    if _length(text, size) <= width:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _length(text[:middle] + "...", size) <= width else (low, middle - 1)
    return text[:low].rstrip() + "..."


@lru_cache(maxsize=4096)
def _lines(text: str, size: int, width: int, height: int) -> tuple[str, ...]:
    """Text broken at spaces into the lines that fit a box; the last one is clipped."""
    most = max(1, height // (size + 4))
    lines, rest = [], text.replace("\n", " ").split(" ")
    while rest and len(lines) < most - 1:
        count = 1
        while count < len(rest) and _length(" ".join(rest[: count + 1]), size) <= width:
            count += 1
        lines.append(_clip(" ".join(rest[:count]), size, width))
        rest = rest[count:]
    return (*lines, _clip(" ".join(rest), size, width)) if rest else tuple(lines)


def _text(image: Image.Image, box, text: str, size: int, ink: str, centre: bool) -> None:
    x0, y0, x1, y1 = box
    if not text or x1 - x0 < 4:
        return
    lines = _lines(text, size, x1 - x0, y1 - y0)
    y = y0 + (y1 - y0 - len(lines) * (size + 4)) // 2
    for line in lines:
        mask = _text_mask(line, size)
        x = x0 + (x1 - x0 - mask.width) // 2 if centre else x0
        image.paste(ink, (x, y, x + mask.width, y + mask.height), mask)
        y += size + 4


@lru_cache(maxsize=512)
def _glyph(name: str, side: int) -> Image.Image:
    """A sign (by name) or a letter, as coverage of side x side."""
    scale = 4
    s = side * scale
    mask = Image.new("L", (s, s))
    draw = ImageDraw.Draw(mask)
    w = max(scale, s // 9)

    def at(*points):
        return [(x * s / 100, y * s / 100) for x, y in points]

    if name == "search":
        draw.ellipse(at((14, 14), (66, 66)), outline=255, width=w)
        draw.line(at((60, 60), (88, 88)), fill=255, width=w)
    elif name == "more":
        for y in (20, 50, 80):
            draw.ellipse(at((41, y - 9), (59, y + 9)), fill=255)
    elif name == "menu":
        for y in (25, 50, 75):
            draw.line(at((12, y), (88, y)), fill=255, width=w)
    elif name == "back":
        draw.line(at((90, 50), (14, 50)), fill=255, width=w)
        draw.line(at((50, 14), (14, 50), (50, 86)), fill=255, width=w, joint="curve")
    elif name == "add":
        draw.line(at((50, 12), (50, 88)), fill=255, width=w)
        draw.line(at((12, 50), (88, 50)), fill=255, width=w)
    elif name == "close":
        draw.line(at((18, 18), (82, 82)), fill=255, width=w)
        draw.line(at((18, 82), (82, 18)), fill=255, width=w)
    elif name == "check":
        draw.line(at((10, 52), (38, 80), (90, 22)), fill=255, width=w)
    elif name == "play":
        draw.polygon(at((24, 10), (24, 90), (90, 50)), fill=255)
    elif name == "pause":
        draw.rectangle(at((22, 12), (42, 88)), fill=255)
        draw.rectangle(at((58, 12), (78, 88)), fill=255)
    elif name == "apps":
        for x in (20, 50, 80):
            for y in (20, 50, 80):
                draw.ellipse(at((x - 10, y - 10), (x + 10, y + 10)), fill=255)
    elif name == "mic":
        draw.rounded_rectangle(at((38, 8), (62, 58)), radius=s // 9, fill=255)
        draw.arc(at((24, 28), (76, 74)), 0, 180, fill=255, width=w)
        draw.line(at((50, 72), (50, 94)), fill=255, width=w)
    elif name == "pin":
        draw.ellipse(at((24, 6), (76, 58)), fill=255)
        draw.polygon(at((27, 42), (73, 42), (50, 96)), fill=255)
        draw.ellipse(at((41, 23), (59, 41)), fill=0)
    elif name == "ring":
        draw.ellipse(at((8, 8), (92, 92)), outline=255, width=2 * w)
        draw.ellipse(at((36, 36), (64, 64)), fill=255)
    elif name == "gear":
        for box in (((42, 2), (58, 98)), ((2, 42), (98, 58))):
            draw.rectangle(at(*box), fill=255)
        draw.line(at((16, 16), (84, 84)), fill=255, width=3 * w // 2)
        draw.line(at((16, 84), (84, 16)), fill=255, width=3 * w // 2)
        draw.ellipse(at((18, 18), (82, 82)), fill=255)
        draw.ellipse(at((36, 36), (64, 64)), fill=0)
    elif name == "clock":
        draw.ellipse(at((6, 6), (94, 94)), outline=255, width=w)
        draw.line(at((50, 20), (50, 52), (72, 66)), fill=255, width=w)
    elif name == "mail":
        draw.rectangle(at((6, 20), (94, 82)), outline=255, width=w)
        draw.line(at((8, 24), (50, 58), (92, 24)), fill=255, width=w)
    elif name == "person":
        draw.ellipse(at((30, 8), (70, 48)), fill=255)
        draw.pieslice(at((10, 54), (90, 134)), 180, 360, fill=255)
    elif name == "chat":
        draw.rounded_rectangle(at((8, 14), (92, 70)), radius=s // 8, fill=255)
        draw.polygon(at((18, 64), (18, 92), (46, 68)), fill=255)
    else:
        size = int(s * (0.85 if len(name) < 2 else 0.6))
        draw.text((s / 2, s / 2), name, fill=255, font=_font(size), anchor="mm")
    return mask.resize((side, side), Image.Resampling.BOX)


@lru_cache(maxsize=512)
def _tile(side: int, colour: str, ink: str, glyph: str) -> Image.Image:
    """An app's icon: a rounded square with its sign."""
    tile = Image.new("RGBA", (side, side))
    draw = ImageDraw.Draw(tile)
    edge = "#9aa0a6" if colour == "#ffffff" else colour
    draw.rounded_rectangle((0, 0, side - 1, side - 1), radius=side // 5, fill=colour, outline=edge)
    inner = side * 3 // 5
    at = (side - inner) // 2
    tile.paste(ink, (at, at, at + inner, at + inner), _glyph(glyph, inner))
    return tile


def _icon(image: Image.Image, w: Widget) -> None:
    x0, y0, x1, y1 = w.bounds
    side = min(x1 - x0, y1 - y0 - (16 if w.text else 0))
    if side < 4:
        return
    x = x0 + (x1 - x0 - side) // 2
    y = y0 if w.text else y0 + (y1 - y0 - side) // 2
    if w.colour:
        tile = _tile(side, w.colour, w.ink, w.glyph or w.text[:1])
        image.paste(tile, (x, y), tile)
    elif w.glyph:
        inner = side * 11 // 16
        at = (side - inner) // 2
        image.paste(w.ink, (x + at, y + at, x + at + inner, y + at + inner), _glyph(w.glyph, inner))


def _field(image: Image.Image, draw: ImageDraw.ImageDraw, w: Widget, focused: bool, selected: bool) -> None:
    x0, y0, x1, y1 = w.bounds
    fill = "#cfe2ff" if focused else w.colour or _OWN_COLOUR["field"]
    draw.rounded_rectangle(
        (x0, y0, x1 - 1, y1 - 1),
        radius=min(8, (y1 - y0) // 3),
        fill=fill,
        outline=BLUE if focused else None,
        width=3 if focused else 1,
    )
    shown, room = w.text[-100:] if focused else w.text, x1 - x0 - 20
    if focused and _length(shown, w.size) > room:  # while typing, the end of a long text is what shows
        while _length(shown, w.size) > room:
            shown = shown[1:]
    text_end = x0 + 10 + min(room, int(_length(shown, w.size)))
    if focused and selected and shown:
        draw.rectangle((x0 + 9, y0 + 6, text_end + 1, y1 - 7), fill="#7baaf7")
    ink = "#202124" if focused and shown else w.ink if shown else GREY
    _text(
        image,
        (x0 + 10, y0, x1 - 8, min(y1, y0 + max(y1 - y0, w.size + 4))),
        shown or w.hint,
        w.size,
        ink,
        False,
    )
    if focused:
        draw.rectangle((text_end + 1, y0 + 6, text_end + 2, y1 - 7), fill=BLUE)


def _widget(image: Image.Image, draw: ImageDraw.ImageDraw, w: Widget, layer: Layer) -> None:
    x0, y0, x1, y1 = w.bounds
    colour = w.colour or _OWN_COLOUR.get(w.kind, "")
    if w.kind == "icon":
        _icon(image, w)
        if w.text:
            _text(image, (x0 - 3, y1 - 15, x1 + 3, y1), w.text, 10, _label_ink(layer.background), True)
    elif w.kind == "field":
        _field(image, draw, w, w.id == layer.focused, layer.selected)
    elif w.kind == "switch":
        y = (y0 + y1) // 2
        on = bool(w.checked)
        draw.rounded_rectangle(
            (x1 - 38, y - 10, x1 - 2, y + 10), radius=10, fill="#1e8e3e" if on else "#bdc1c6"
        )
        draw.ellipse(
            (x1 - 20, y - 8, x1 - 4, y + 8) if on else (x1 - 36, y - 8, x1 - 20, y + 8), fill="#ffffff"
        )
    else:
        if w.kind in ("button", "card", "image"):
            edge = "#dadce0" if w.kind == "card" else None
            draw.rounded_rectangle((x0, y0, x1 - 1, y1 - 1), radius=5, fill=colour, outline=edge)
        elif colour:
            draw.rectangle((x0, y0, x1 - 1, y1 - 1), fill=colour)
        if w.kind == "tab" and w.checked:
            draw.rectangle((x0, y1 - 4, x1 - 1, y1 - 1), fill=BLUE)
        if w.kind == "row":
            draw.line((x0, y1 - 1, x1, y1 - 1), fill="#e0e0e0")
        if w.glyph:
            side = max(8, min(x1 - x0, y1 - y0) * 3 // 5)
            x, y = (x0 + x1 - side) // 2, (y0 + y1 - side) // 2
            image.paste(w.ink, (x, y, x + side, y + side), _glyph(w.glyph, side))
        centre = w.align == "centre" or (not w.align and w.kind in ("button", "tab"))
        pad = {"row": 12, "card": 10}.get(w.kind, 0 if w.kind == "text" else 3)
        _text(image, (x0 + pad, y0, x1 - pad, y1), w.text, w.size, w.ink, centre)


def _label_ink(background: str | None) -> str:
    if background is None or len(background) != 7:
        return "#202124"
    r, g, b = bytes.fromhex(background[1:])
    return "#ffffff" if 2 * r + 5 * g + b < 1000 else "#202124"


@lru_cache(maxsize=1)
def _keyboard() -> Image.Image:
    """The soft keyboard, 270 x 150."""
    image = Image.new("RGB", (WIDTH, HEIGHT - KEYBOARD_TOP), "#b8c0cc")
    draw = ImageDraw.Draw(image)
    for row, keys in enumerate(("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")):
        left = (WIDTH - 27 * len(keys)) // 2
        for i, key in enumerate(keys):
            box = (left + 27 * i + 2, 4 + 28 * row, left + 27 * i + 25, 29 + 28 * row)
            draw.rounded_rectangle(box, radius=4, fill="#ffffff")
            _text(image, box, key, 13, "#202124", True)
    draw.rounded_rectangle((52, 117, 218, 145), radius=4, fill="#ffffff")
    for key, colour, glyph in ((HIDE_KEY, "#8d99a8", "close"), (ENTER_KEY, BLUE, "check")):
        x0, y0, x1, y1 = key[0], key[1] - KEYBOARD_TOP, key[2], key[3] - KEYBOARD_TOP
        draw.rounded_rectangle((x0, y0 + 2, x1, y1 - 2), radius=6, fill=colour)
        image.paste("#ffffff", ((x0 + x1) // 2 - 8, (y0 + y1) // 2 - 8), _glyph(glyph, 16))
    return image


@lru_cache(maxsize=1)
def _status_bar() -> Image.Image:
    image = Image.new("RGB", (WIDTH, STATUS_BAR), "#3c4043")
    _text(image, (6, 0, 60, STATUS_BAR), "9:41", 11, "#ffffff", False)
    ImageDraw.Draw(image).rounded_rectangle((244, 4, 262, 11), radius=2, fill="#ffffff")
    return image


def render(layers: Sequence[Layer], *, keyboard: bool = False) -> Image.Image:
    """The windows, bottom first -> RGB image, 270 x 480. The keyboard belongs to the topmost."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "#ffffff")
    for layer in layers:
        if layer.background is None:
            image = image.point(_SCRIM)
        else:
            image.paste(layer.background, (0, 0, WIDTH, HEIGHT))
        draw = ImageDraw.Draw(image)
        for widget in layer.widgets:
            x0, y0, x1, y1 = widget.bounds
            if y1 > STATUS_BAR and y0 < HEIGHT and x1 > x0 and y1 > y0:
                _widget(image, draw, widget, layer)
        if layer.background is not None:
            image.paste(_status_bar(), (0, 0))
    if keyboard:
        image.paste(_keyboard(), (0, KEYBOARD_TOP))
    return image


def encode_png(image: Image.Image) -> bytes:
    """An RGB image -> PNG bytes: no row filters, zlib level 1 (flat areas compress as well without)."""
    width, height = image.size
    raw, stride = image.tobytes(), 3 * width
    rows = b"".join(b"\0" + raw[i : i + stride] for i in range(0, height * stride, stride))

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows, 1))
        + chunk(b"IEND", b"")
    )
