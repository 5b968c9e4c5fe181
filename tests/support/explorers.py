"""A real explorer in a thread, for tests that talk to one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from darksight_service.http.web.sockets import listen, socket_url
from darksight_service.processes.explorer import serve
from darksight_service.settings import Settings

__all__ = ["running_explorer"]


@contextmanager
def running_explorer(settings: Settings) -> Iterator[str]:
    """Its address, until the end of the block."""
    bound = listen(settings, "explorer_port")
    stop, ready = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve, args=(settings, bound, stop, ready.set))
    thread.start()
    assert ready.wait(60)
    try:
        yield socket_url(settings, bound)
    finally:
        stop.set()
        thread.join()
