import logging
import os
import subprocess
import sys
import warnings

print("printed at import")
logging.basicConfig(level=logging.DEBUG)
logger = logging.getLogger("corpus")


def handle(data, context):
    if data is None:
        print("printed at load, without an end", end="")
        return None
    word = data[0]["body"]
    print("printed", word, flush=True)
    print("printed to stderr", file=sys.stderr)
    sys.stdout.write("no end of line")
    sys.stdout.buffer.write(b"\xff\xfe bytes \x00\n")
    os.write(1, b"written to the descriptor\n")
    os.write(2, b"and the other one\n")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL):
        logger.log(level, "logged %s größer 犬 at %d", word, level)
    logger.info("two\nlines")
    warnings.warn("a warning", stacklevel=1)
    if word == "METRICS":
        print("[METRICS]nonsense")
        print("[PID]1")
        print("Torch worker started.")
    subprocess.run(["sh", "-c", "echo from a child; echo and its stderr >&2"], check=True)
    try:
        raise ValueError("logged with its traceback")
    except ValueError:
        logger.exception("caught")
    print("x" * 100000)
    return ["answered %s" % word]
