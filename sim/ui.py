"""What an app of the simulated phone is made of: widgets with bounds and text, on a screen.

A `Screen` is one activity's content. `widgets()` lists what is on it, pure in the screen's state;
the phone (`sim.phone`) draws the list, sends taps to the topmost widget under the finger, gives the
keyboard to the focused field, and prints the list in uiautomator's format. Coordinates are pixels of
a 270 x 480 screen; the status bar is y 0..16.

    class Hello(Screen):
        package, activity = "org.example", ".Main"
        def widgets(self):
            return [Widget("button", (20, 40, 120, 80), "Hi", on_tap=self.phone.back)]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.phone import Phone

WIDTH, HEIGHT, STATUS_BAR, KEYBOARD_TOP = 270, 480, 16, 330

# A widget's kind -> the class name uiautomator prints.
CLASS_NAMES = {
    "text": "android.widget.TextView",
    "button": "android.widget.Button",
    "icon": "android.widget.ImageButton",
    "field": "android.widget.EditText",
    "image": "android.widget.ImageView",
    "row": "android.widget.LinearLayout",
    "switch": "android.widget.Switch",
    "card": "android.view.ViewGroup",
    "tab": "android.widget.TextView",
    "box": "android.view.View",
}


@dataclass
class Widget:
    kind: str  # a key of CLASS_NAMES
    bounds: tuple[int, int, int, int]  # x0, y0, x1, y1 in px, on screen (after scrolling)
    text: str = ""
    desc: str = ""
    id: str = ""  # uiautomator's text, content-desc and resource-id
    on_tap: Callable[[], None] | None = None
    on_submit: Callable[[str], None] | None = None  # fields: what ENTER does with the field's text
    colour: str = ""  # background; "" is the kind's own (texts, rows, tabs: what is behind)
    ink: str = "#202124"  # text colour
    checked: bool | None = None  # switches and tabs: on; None: cannot be checked
    hint: str = ""  # drawn grey while text is empty; IS the dump's text then
    size: int = 12  # text height in px
    glyph: str = ""  # icons and images: a letter or a sign drawn large in the middle
    align: str = ""  # "left" or "centre"; "" is the kind's own (buttons, tabs: centre)
    select_all: bool = True  # fields: focusing selects the text, so the first typed text replaces it


class Screen:
    """One activity's content; a subclass per app state.

    A field's text is `fields[id]` once it was focused or set there (that wins over the widget's text).
    `focused` is the id of the field that has the keyboard, or None; set it through `phone.focus(id)`.
    Taps go to the last widget in the list under the finger that has `on_tap` or is a field; a "box"
    without `on_tap` swallows them (so a panel hides what is below it from the finger too).
    """

    package = ""
    activity = ""
    background = "#ffffff"
    content_height = 0  # px under the status bar; more than 464 scrolls; the phone clamps self.scroll
    modal = False  # True: drawn over the darkened screen below, which is dead until this one is gone
    initial_focus: str | None = None  # the field focused when the screen first appears

    def __init__(self, phone: Phone):
        self.phone = phone
        self.scroll = 0
        self.fields: dict[str, str] = {}  # field id -> its text
        self.focused: str | None = None
        self.selected = False  # the focused field's text is selected: the next typed text replaces it

    def widgets(self) -> list[Widget]:
        """What is on the screen, bottom first, y already less `self.scroll`."""
        return []

    def shown(self) -> list[Widget]:
        """The widgets, fields with the text that is in them: what is drawn, tapped and dumped."""
        return [
            replace(w, text=self.fields[w.id]) if w.kind == "field" and w.id in self.fields else w
            for w in self.widgets()
        ]

    def on_back(self) -> bool:
        """BACK was pressed here. True: handled (a menu closed, say)."""
        return False


def inside(box: tuple[int, int, int, int], x: int, y: int) -> bool:
    """Whether a point lies in a box; its right and lower edges are outside."""
    return box[0] <= x < box[2] and box[1] <= y < box[3]


def top_bar(
    title: str, colour: str, ink: str = "#ffffff", back: Callable[[], None] | None = None
) -> list[Widget]:
    """A 40 px coloured title bar under the status bar, with a back arrow when `back` is given."""
    x = 40 if back else 12
    bar = [Widget("box", (0, 16, WIDTH, 56), colour=colour)]
    if back:
        bar.append(Widget("icon", (4, 20, 36, 52), desc="Navigate up", glyph="back", ink=ink, on_tap=back))
    return bar + [Widget("text", (x, 16, WIDTH - 40, 56), title, ink=ink, size=16)]
