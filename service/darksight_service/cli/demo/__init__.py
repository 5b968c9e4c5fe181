"""`darksight demo`: the whole system on a small digit classifier."""

from darksight_service.cli.demo.command import demo

__all__ = ["demo"]
