"""A clock that can be stepped, for the processes of a service: Python runs this module at its start if it finds it.

The file named by FAULTS_CLOCK holds nanoseconds to add to the real time, and may be rewritten at any moment. Timers run
on the monotonic clock, which no step moves, so they are left alone.
"""

import mmap
import os
import struct
import time

if "FAULTS_CLOCK" in os.environ:
    with open(os.environ["FAULTS_CLOCK"], "rb") as _file:
        _offset = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _ns = time.time_ns

    def _stepped_ns() -> int:
        return _ns() + int(struct.unpack("<q", _offset[:])[0])

    time.time_ns = _stepped_ns
    time.time = lambda: _stepped_ns() / 1e9
