"""A run's folder turned into a picture, `curves.png`, and a page, `report.html`, that needs no other file.

    python report.py runs/NAME                      # both; also while the run goes on
    python report.py runs/NAME --screens 200        # with the screens of 200 trajectories in it, not of 60
    python report.py runs/NAME --gif 123            # trajectory 123 as runs/NAME/trajectory-123.gif
    python report.py runs/NAME --live               # the same page on http://127.0.0.1:8765, kept up to date
    python report.py --compare runs/A runs/B        # several runs: compare.html beside the first

What is read, and how: run_data.py. What is drawn: report_curves.py, report_page.py (with report_page.html and
report_page.js beside it), report_trajectories.py, report_compare.py.
"""

import argparse
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from report_curves import draw_curves
from report_page import page
from run_data import read_run, write_whole

SCREENS = 60  # trajectories whose screens are in the page
EVERY = 15  # s between two pages of --live


def write_report(folder: str | os.PathLike, screens: int = SCREENS) -> tuple[Path, Path]:
    """Writes `curves.png` and `report.html` into the run's folder, each whole or not at all. -> the paths"""
    run = read_run(folder)
    paths = run.folder / "curves.png", run.folder / "report.html"
    png, curves = draw_curves(run)
    for path, content in zip(paths, (png, page(run, curves, screens).encode("utf-8", "replace")), strict=True):
        write_whole(path, content)
    return paths


def serve(folder: Path, port: int, screens: int, every: int = EVERY) -> ThreadingHTTPServer:
    """A server of the run's page on 127.0.0.1, not yet at work. A page is made when one is asked for, and is then good
    for `every` seconds; port 0 takes a free one. Raises FileNotFoundError, OSError."""
    read_run(folder)  # or it is none
    cache: dict = {}
    lock, made = Lock(), [0.0, b""]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = self.headers.get("Host", "").partition(":")[0]
            if host not in ("127.0.0.1", "localhost"):  # a name of someone else's that leads here
                return self.send_error(403, "only 127.0.0.1")
            if self.path.partition("?")[0] != "/":
                return self.send_error(404)
            with lock:
                if time.monotonic() - made[0] > every or not made[1]:
                    run = read_run(folder)
                    text = page(run, draw_curves(run)[1], screens, live=every, cache=cache)
                    made[:] = time.monotonic(), text.encode("utf-8", "replace")
                content = made[1]
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            try:
                self.wfile.write(content)
            except ConnectionError:  # the browser has gone
                pass

        def log_message(self, *args) -> None:
            """Says nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    """Read the command line and do what it asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="runs/NAME", help="a run's folder")
    parser.add_argument("--screens", type=int, default=SCREENS, help="trajectories whose screens are in the page")
    parser.add_argument("--gif", type=int, metavar="ID", help="one trajectory of the journal as an animated GIF")
    parser.add_argument("--out", type=Path, help="where the GIF, or the comparison, goes")
    parser.add_argument("--live", action="store_true", help="serve the page on 127.0.0.1")
    parser.add_argument("--port", type=int, default=8765, help="of --live; 0: a free one")
    parser.add_argument("--compare", nargs="+", type=Path, metavar="runs/NAME", help="several runs in one page")
    args = parser.parse_args()
    if bool(args.compare) == bool(args.runs) or len(args.runs) > 1:
        parser.error("give one run's folder, or several after --compare")
    if args.screens < 0 or not 0 <= args.port <= 65535:
        parser.error(f"--screens {args.screens}, --port {args.port}: 0 or more, and 0 to 65535")
    try:
        if args.compare:
            from report_compare import write_comparison

            print(f"wrote {write_comparison(args.compare, args.out)}")
        elif args.gif is not None:
            from report_trajectories import gif

            path = args.out or args.runs[0] / f"trajectory-{args.gif}.gif"
            gif(read_run(args.runs[0]), args.gif, path)
            print(f"wrote {path}")
        elif args.live:
            server = serve(args.runs[0], args.port, args.screens)
            print(f"http://127.0.0.1:{server.server_port} shows {args.runs[0]}; Ctrl-C ends it", flush=True)
            server.serve_forever()
        else:
            print("wrote {} and {}".format(*write_report(args.runs[0], args.screens)))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"report: {error.args[0] if isinstance(error, KeyError) else error}")
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
