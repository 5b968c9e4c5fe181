"""The device that a fit runs on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from darksight_core.errors import ConfigError

__all__ = ["choose_device", "one_thread"]


def choose_device(name: str) -> torch.device:
    """`auto`, `cpu`, `cuda` or any torch device that is present; each process of torchrun takes its own GPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is {name!r}; it must be auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch finds no GPU on this machine; use --device auto or cpu")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return device


@contextmanager
def one_thread(device: torch.device) -> Iterator[None]:
    """Use one torch thread on a CPU.

    The arrays fit the cache of one core, and more threads mostly wait for each other: on a busy machine two threads
    were five to ten times slower than one.
    """
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
