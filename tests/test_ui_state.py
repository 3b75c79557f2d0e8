"""What a phone's screen holds, read from the answer of dumpsys and uiautomator."""

import pytest

from ui_state import parse_ui

DUMP = """  mCurrentFocus=null
  mCurrentFocus=Window{{5f3 u0 com.android.chrome/.Main}}
  mFocusedApp=ActivityRecord{{2b u0 com.google.android.youtube/.Watch t12}}
<?xml version='1.0' encoding='UTF-8' standalone='yes' ?><hierarchy rotation="0">
<node text="" class="F" package="p" content-desc="" bounds="[0,0][100,200]">
<node text="low" resource-id="i" content-desc="d" bounds="[0,90][50,110]" clickable="true" checked="true"/>
<node text="{0}" package="p" content-desc="" bounds="[10,20][31,40]" focused="true"/>
<node text="flat" package="p" bounds="[10,20][10,40]"/><node text="off" package="p" bounds="[0,200][9,240]"/>
<node text="hid" package="p" bounds="[1,1][9,9]" visible-to-user="false"/>
</node></hierarchy>UI hierchary dumped to: /dev/tty
"""


def test_ui_keeps_visible_nodes_in_reading_order():
    state = parse_ui(DUMP.format("a &amp; b").encode())
    assert (state.package, state.activity) == ("com.android.chrome", "com.android.chrome.Main")
    assert state.app == "com.google.android.youtube"
    assert state.texts == ["a & b", "low", "d"]
    high, low = state.nodes[1:]
    assert high.center == (20, 30) and high.focused and not high.clickable
    assert low.clickable and low.checked and low.id == "i" and low.bounds == (0, 90, 50, 110)


@pytest.mark.parametrize(
    "written, read",
    [
        ("&#55357;&#56832;", "😀"),
        ("&#xD83D;&#xDE00;!", "😀!"),
        ("a&#1;b", "ab"),
        ("a\x02b", "ab"),
        ("&#55357;a", "a"),
        ("&#233;&#2;", "é"),
        ("a&#10;&#55357;&#56832;b", "a\n😀b"),
        ("&#128512;&#2;", "😀"),
        ("&#xFFFF;&#1114112;&#38;&#60;", "&<"),
    ],
)
def test_ui_mends_what_is_not_xml(written, read):
    assert parse_ui(DUMP.format(written).encode()).texts[0] == read


@pytest.mark.parametrize("dump", [b"", b"ERROR: could not get idle state.", b"<hierarchy><node></hierarchy>"])
def test_ui_without_a_hierarchy_is_an_error(dump):
    with pytest.raises(ValueError, match="hierarchy"):
        parse_ui(dump)
