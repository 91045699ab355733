#!/usr/bin/env python3
"""Compare what clients say of Triton and of Flambeau.

usage: matrix.py TRITON.tsv FLAMBEAU.tsv COMPATIBILITY.md

Prints both columns. Exit status 1 if a call goes well with Triton and not with Flambeau, unless the table of
docs/compatibility.md has its name in backquotes.
"""

from __future__ import annotations

import pathlib
import sys

RACES = {"grpc infer timeout"}  # a deadline of 0.1 ms, which a server meets or does not


def read(path: str) -> dict[str, tuple[str, str]]:
    """The lines of clients.py by their names: result, and what was seen."""
    lines = (line.split("\t") for line in pathlib.Path(path).read_text().splitlines())
    return {parts[0]: (parts[1], parts[2] if len(parts) > 2 else "") for parts in lines if len(parts) > 1}


def main() -> int:
    """Print the comparison, and say whether it is as it should be."""
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    triton, ours, documented = read(sys.argv[1]), read(sys.argv[2]), pathlib.Path(sys.argv[3]).read_text()
    width = max(len(name) for name in [*triton, *ours])
    worse = []
    print(f"{'call':{width}}  Triton  Flambeau")
    for name in [*ours, *(n for n in triton if n not in ours)]:
        theirs, mine = triton.get(name, ("-", "")), ours.get(name, ("missing", ""))
        note = ""
        if theirs[0] == "OK" and mine[0] != "OK":
            is_known = name in RACES or f"`{name}`" in documented
            note = "  known" if is_known else "  <- " + mine[1]
            if not is_known:
                worse.append(name)
        print(f"{name:{width}}  {theirs[0]:6}  {mine[0]}{note}")
    passed = sum(result == "OK" for result, _ in ours.values())
    print(f"\n{len(ours)} calls: OK with Triton {sum(r == 'OK' for r, _ in triton.values())}, with Flambeau {passed}")
    if worse:
        print("worse than Triton, and not in docs/compatibility.md:", ", ".join(worse))
    return 1 if worse or not triton or not ours else 0


if __name__ == "__main__":
    sys.exit(main())
