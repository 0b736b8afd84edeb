"""The `fedfa` command: submit and follow federations, look at their results, run them locally."""

from fedfa.cli.app import main

__all__ = ["main"]
