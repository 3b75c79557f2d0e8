"""The apps a simulated phone comes with: label, package, main activity, colour and glyph of the icon.

    APPS["com.android.chrome"].label                       # "Chrome"

Colours differ strongly between the sixteen system apps: the policy sees icons as a few coloured cells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LAUNCHER = "com.google.android.apps.nexuslauncher"
LAUNCHER_ACTIVITY = ".NexusLauncherActivity"
SYSTEM_UI = "com.android.systemui"
PERMISSIONS = "com.google.android.permissioncontroller"
PERMISSIONS_ACTIVITY = "com.android.permissioncontroller.permission.ui.GrantPermissionsActivity"
NOT_RESPONDING_ACTIVITY = "com.android.server.am.AppNotRespondingDialog"
SERVICES = ("android", SYSTEM_UI, PERMISSIONS, LAUNCHER)  # packages without an icon

CHROME, GOOGLE = "com.android.chrome", "com.google.android.googlequicksearchbox"
YOUTUBE, MAPS = "com.google.android.youtube", "com.google.android.apps.maps"
PLAY_STORE, SETTINGS = "com.android.vending", "com.android.settings"
CLOCK, CALENDAR = "com.google.android.deskclock", "com.google.android.calendar"
GMAIL, CONTACTS = "com.google.android.gm", "com.google.android.contacts"
FILES, PHOTOS = "com.google.android.apps.nbu.files", "com.google.android.apps.photos"
CAMERA, CALCULATOR = "com.android.camera2", "com.google.android.calculator"
MESSAGES, YT_MUSIC = "com.google.android.apps.messaging", "com.google.android.apps.youtube.music"


@dataclass(frozen=True)
class App:
    """One app. `home`: its icon is on the home screen; `system`: cannot be uninstalled."""

    label: str
    package: str
    activity: str = ".MainActivity"
    colour: str = "#607d8b"
    glyph: str = ""
    ink: str = "#ffffff"
    system: bool = False
    home: bool = False
    location: bool = False  # the permission it asks for is the location, not notifications


def _system(label, package, activity, colour, glyph, ink="#ffffff", home=False, location=False) -> App:
    return App(label, package, activity, colour, glyph, ink, True, home, location)


_SYSTEM_APPS = (
    _system("Chrome", CHROME, "com.google.android.apps.chrome.Main", "#fbbc04", "ring", "#1a73e8", home=True),
    _system(
        "YouTube",
        YOUTUBE,
        "com.google.android.apps.youtube.app.WatchWhileActivity",
        "#f20000",
        "play",
        home=True,
    ),
    _system("Maps", MAPS, "com.google.android.maps.MapsActivity", "#1e8e3e", "pin", home=True, location=True),
    _system(
        "Play Store",
        PLAY_STORE,
        "com.android.vending.AssetBrowserActivity",
        "#00d5b8",
        "play",
        "#004d40",
        home=True,
    ),
    _system("Settings", SETTINGS, "com.android.settings.Settings", "#6b7278", "gear", home=True),
    _system("Clock", CLOCK, "com.android.deskclock.DeskClock", "#1a1f7a", "clock", home=True),
    _system("Calendar", CALENDAR, "com.android.calendar.AllInOneActivity", "#3f8cff", "31", home=True),
    _system(
        "Gmail",
        GMAIL,
        "com.google.android.gm.ConversationListActivityGmail",
        "#ffc4d6",
        "mail",
        "#c5221f",
        home=True,
    ),
    _system(
        "Google",
        GOOGLE,
        "com.google.android.googlequicksearchbox.SearchActivity",
        "#ffffff",
        "G",
        "#4285f4",
        location=True,
    ),
    _system("Contacts", CONTACTS, "com.android.contacts.activities.PeopleActivity", "#7a4a2b", "person"),
    _system("Files", FILES, ".home.HomeActivity", "#8ef0ff", "F", "#01579b"),
    _system("Photos", PHOTOS, ".home.HomeActivity", "#a142f4", "P"),
    _system("Camera", CAMERA, "com.android.camera.CameraLauncher", "#16181a", "ring", location=True),
    _system("Calculator", CALCULATOR, "com.android.calculator2.Calculator", "#8a9a1b", "="),
    _system("Messages", MESSAGES, ".ui.ConversationListActivity", "#ff7a00", "chat"),
    _system("YT Music", YT_MUSIC, ".activities.MusicActivity", "#7d0c3f", "ring"),
)
_PREINSTALLED = (
    App("Amazon Alexa", "com.amazon.dee.app", colour="#31c4f3", glyph="a"),
    App("Amazon Music", "com.amazon.mp3", colour="#25d1da", glyph="m", ink="#0b2a4a"),
    App("Amazon Prime Video", "com.amazon.avod.thirdpartyclient", colour="#1b6fb5", glyph="pv"),
    App("Amazon Shopping", "com.amazon.mShop.android.shopping", colour="#f3d9a0", glyph="a", ink="#a05a00"),
    App("Facebook", "com.facebook.katana", colour="#1877f2", glyph="f"),
    App("Instagram", "com.instagram.android", colour="#d62e7b", glyph="ring"),
    App("Lyft", "me.lyft.android", colour="#ff00bf", glyph="L", location=True),
    App("Netflix", "com.netflix.mediaclient", colour="#2b0000", glyph="N", ink="#e50914"),
    App("Pandora", "com.pandora.android", colour="#3668ff", glyph="P"),
    App("Play Books", "com.google.android.apps.books", colour="#2196f3", glyph="B"),
    App("Play Movies", "com.google.android.videos", colour="#b3261e", glyph="M"),
    App("Play Music", "com.google.android.music", colour="#ff5722", glyph="o"),
    App("Spotify", "com.spotify.music", colour="#1ed760", glyph="S", ink="#0a2912"),
    App("Twitter", "com.twitter.android", colour="#1da1f2", glyph="t"),
    App("Uber", "com.ubercab", colour="#2d2d2d", glyph="U", location=True),
)
APPS: dict[str, App] = {app.package: app for app in (*_SYSTEM_APPS, *_PREINSTALLED)}
# Names people use for an app whose icon says something else, or whose package is known.
_KNOWN_PACKAGES = {app.label.lower(): app.package for app in APPS.values()}
_COLOURS = ("#c62828", "#ad1457", "#6a1b9a", "#283593", "#0277bd", "#00695c", "#558b2f", "#ef6c00", "#4e342e")


def app_named(label: str) -> App:
    """The app of that label, or a made-up one as an app store would list it ("Zoom" -> com.zoom.android)."""
    package = _KNOWN_PACKAGES.get(label.strip().lower())
    if package:
        return APPS[package]
    slug = re.sub(r"[^a-z0-9]+", "", label.lower()) or "app"
    if slug[0].isdigit():
        slug = "app" + slug
    colour = _COLOURS[sum(map(ord, slug)) % len(_COLOURS)]
    return App(label.strip(), f"com.{slug}.android", colour=colour, glyph=label.strip()[:1].upper())
