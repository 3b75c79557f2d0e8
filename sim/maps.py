"""Maps of the simulated phone: a map, the places a query finds, and the way to one of them.

    phone.launch("com.google.android.apps.maps"); phone.tap(130, 40); phone.type_text("pizza"); phone.key(66)
"""

from __future__ import annotations

from functools import partial

from sim.sites import GREY, LINE, stable, suggestion_rows, titled, uncovered
from sim.ui import HEIGHT, STATUS_BAR, WIDTH, Screen, Widget


def ground(phone, name: str) -> list[Widget]:
    """A map: land, a park, water, and roads."""
    chance = stable(phone, "map", name)
    roads = [(0, y, WIDTH, y + 7) for y in range(70 + chance.randrange(30), HEIGHT, 84)]
    roads += [(x, STATUS_BAR, x + 7, HEIGHT) for x in range(20 + chance.randrange(40), WIDTH, 76)]
    park, water = chance.randrange(10, 120), chance.randrange(120, 260)
    return [
        Widget("box", (0, STATUS_BAR, WIDTH, HEIGHT), colour="#e8eaed", desc="Map"),
        Widget("box", (park, 90, park + 120, 190), colour="#b7e1b5"),
        Widget("box", (0, water, 90, water + 150), colour="#9cc9f5"),
        *(Widget("box", road, colour="#ffffff") for road in roads),
    ]


class Maps(Screen):
    """Maps' start: the map under a search field. With a query, the places found."""

    package = "com.google.android.apps.maps"
    activity = "com.google.android.maps.MapsActivity"

    def __init__(self, phone, query: str = ""):
        super().__init__(phone)
        self.query = query.strip()
        self.fields["search_omnibox"] = self.query
        if self.query:
            self.content_height = 150 + 4 * 92

    def find(self, text: str) -> None:
        if text.strip():
            self.phone.load(lambda: Maps(self.phone, text), site="maps.google.com")

    def show(self, name: str, note: str) -> None:
        self.phone.start(Place(self.phone, name, note))

    def route(self, name: str) -> None:
        self.phone.start(Directions(self.phone, name))

    def places(self) -> list[tuple[str, str]]:
        """(name, rating and street) of four places."""
        chance = stable(self.phone, "places", self.query.lower())
        streets = chance.sample(("Main Street", "Oak Avenue", "Harbor Road", "5th Street", "Mill Lane",
                                 "Park Row"), 4)
        return [
            (f"{titled(self.query)} - {street}",
             f"{chance.randrange(36, 50) / 10} stars ({chance.randrange(20, 900)})")
            for street in streets
        ]

    def widgets(self):
        field = Widget("field", (10, 22, 260, 58), self.fields["search_omnibox"], id="search_omnibox",
                       hint="Search here", on_submit=self.find, colour="#ffffff")
        if self.focused == "search_omnibox":
            return [*suggestion_rows(64, self.fields["search_omnibox"], (" nearby", " open now"), self.find),
                    field]
        found = ground(self.phone, self.query)
        if not self.query:
            found += [
                Widget("box", (122, 222, 148, 248), colour="#4285f4", desc="My location"),
                Widget("card", (0, 424, WIDTH, HEIGHT)),
                Widget("text", (20, 434, 250, 470), "Latest in the area", size=14),
            ]
            return [*found, field]
        sheet = 140 - self.scroll
        found += [
            Widget("box", (0, max(sheet, 64), WIDTH, HEIGHT), colour="#ffffff"),
            Widget("text", (12, sheet + 4, 250, sheet + 26), "Results", size=15),
        ]
        for row, (name, note) in enumerate(self.places()):
            y = sheet + 30 + 92 * row
            open_place = partial(self.show, name, note)
            found += [
                Widget("row", (0, y, WIDTH, y + 90), on_tap=open_place),
                Widget("text", (12, y + 4, 258, y + 38), name, id="place", size=13, on_tap=open_place),
                Widget("text", (12, y + 44, 140, y + 80), note, ink="#b06000", size=11),
                Widget("button", (148, y + 42, 258, y + 80), "Directions", colour="#1a73e8", ink="#ffffff",
                       on_tap=partial(self.route, name)),
                Widget("box", (0, y + 89, WIDTH, y + 90), colour=LINE),
            ]
        top = [Widget("box", (0, STATUS_BAR, WIDTH, 62), colour="#e8eaed"), field]
        return uncovered(found, 64) + top


class Place(Maps):
    """One place, from its row."""

    def __init__(self, phone, name: str, note: str):
        super().__init__(phone)
        self.name, self.note = name, note

    def widgets(self):
        return [
            *ground(self.phone, self.name),
            Widget("icon", (116, 110, 156, 150), desc="Pin", glyph="pin", ink="#ea4335"),
            Widget("box", (0, 250, WIDTH, HEIGHT), colour="#ffffff"),
            Widget("text", (14, 258, 256, 302), self.name, size=17),
            Widget("text", (14, 304, 256, 326), self.note, ink="#b06000"),
            Widget("button", (14, 340, 130, 380), "Directions", colour="#1a73e8", ink="#ffffff",
                   on_tap=partial(self.route, self.name)),
            Widget("button", (140, 340, 256, 380), "Call", colour=GREY),
            Widget("text", (14, 396, 256, 420), "Open until 9 PM", ink="#137333"),
        ]


class Directions(Maps):
    """The route from here to a place."""

    def __init__(self, phone, name: str):
        super().__init__(phone)
        self.name, self.started = name, False

    def _start(self) -> None:
        self.started = True
        self.phone.changed()

    def widgets(self):
        chance = stable(self.phone, "route", self.name)
        minutes = chance.randrange(4, 58)
        return [
            *ground(self.phone, self.name),
            *(Widget("box", box, colour="#1a73e8") for box in ((60, 190, 72, 340), (60, 190, 200, 202))),
            Widget("icon", (176, 164, 220, 208), desc="Pin", glyph="pin", ink="#ea4335"),
            Widget("box", (0, STATUS_BAR, WIDTH, 118), colour="#1a73e8"),
            Widget("card", (14, 22, 256, 62), "Your location", colour="#ffffff", size=14),
            Widget("card", (14, 68, 256, 112), self.name, id="destination", colour="#ffffff", size=13),
            Widget("box", (0, 370, WIDTH, HEIGHT), colour="#ffffff"),
            Widget("text", (14, 378, 50, 412), f"{minutes}", ink="#137333", size=24),
            Widget("text", (52, 384, 92, 412), "min", ink="#137333", size=15),
            Widget("text", (96, 384, 256, 412), f"({minutes * 0.4:.1f} miles)", ink="#5f6368"),
            Widget("text", (14, 416, 130, 470),
                   "Head north on Main Street" if self.started else "Fastest route, usual traffic",
                   ink="#5f6368", size=11),
            Widget("button", (140, 422, 256, 464), "Start", colour="#0b57d0", ink="#ffffff", size=14,
                   on_tap=self._start),
        ]
