"""The `fedfa` command: submit and follow federations, look at their results, run them locally."""

EXIT_INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended


def main() -> None:
    try:
        from fedfa.cli import app  # takes a moment, in which somebody may press Ctrl-C

        app.main()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


__all__ = ["main"]
