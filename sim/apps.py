"""Which screen an app opens with: package -> Screen class, the system's apps and the Google and web apps."""

from __future__ import annotations

from sim import system_apps
from sim.catalog import CHROME, GOOGLE, MAPS, PLAY_STORE, YOUTUBE
from sim.chrome import Chrome
from sim.google_apps import GoogleApp, YouTube
from sim.maps import Maps
from sim.play_store import PlayStore
from sim.ui import Screen

SCREENS: dict[str, type[Screen]] = {
    **system_apps.SCREENS,
    CHROME: Chrome,
    GOOGLE: GoogleApp,
    YOUTUBE: YouTube,
    MAPS: Maps,
    PLAY_STORE: PlayStore,
}


def first_screen(package: str) -> type[Screen]:
    """What the app shows when it starts; a third-party app has a plain branded screen."""
    return SCREENS.get(package, system_apps.ThirdPartyApp)
