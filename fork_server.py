"""What the fork server imports first: it is killed as soon as the main process ends, and its children with it.

Without this a worker that is stopped (Ctrl-Z, a debugger) when its run is killed would stay for ever: what is stopped
notices nothing, and only the kernel can end it. Imported anywhere else it ties that process to its parent. On systems
other than Linux it does nothing, and only what runs leaves with the main process.
"""

from worker import die_with_parent

die_with_parent("fork server")
