"""Child processes of the service, seen from both sides.

The parent holds the other end of each child's stdin. When the parent is gone, however it went, the child reads the end
of it and stops by itself: nothing of the service outlives its supervisor.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping

__all__ = ["start_child", "stop_event"]


def start_child(
    module: str, *arguments: str, environment: Mapping[str, str], descriptors: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    """Run a module of ours as a child; its stdout is a pipe, on which it says `ready`.

    Parameters
    ----------
    module
        To run, with these arguments.
    environment
        Variables on top of ours.
    descriptors
        Open files that the child gets under the same numbers.
    """
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        pass_fds=descriptors,
    )


def stop_event() -> threading.Event:
    """Set on SIGTERM or SIGINT, and when the supervisor's end of stdin closes."""
    stop = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        # By a thread: the one that is interrupted may hold the event's lock, and would wait for itself for ever.
        signal.signal(name, lambda *_: threading.Thread(target=stop.set, daemon=True).start())

    def wait_for_parent() -> None:
        # Not sys.stdin: its lock would be held at exit.
        while os.read(0, 1):
            pass
        stop.set()

    threading.Thread(target=wait_for_parent, daemon=True).start()
    return stop
