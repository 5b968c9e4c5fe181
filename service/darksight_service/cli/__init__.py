"""The `darksight` command line."""

from darksight_service.cli.main import build_parser, main

__all__ = ["build_parser", "main"]
