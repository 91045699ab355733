"""Runs the server's command as ``python -m flambeau``."""

from flambeau.cli import main

if __name__ == "__main__":
    main()
