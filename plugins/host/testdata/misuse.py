"""Calls libflambeau in ways that must fail with a text, and checks the texts.

usage: misuse.py LIBRARY
"""

import ctypes
import os
import sys
import threading

lib = ctypes.CDLL(sys.argv[1])
lib.flambeau_error.restype = ctypes.c_char_p
COOKIE = b"FLAMBEAU_PLUGIN=7c1d5b0e-flambeau-backend\0"


def start(env, handshake=1, lifeline=-1):
    return lib.flambeau_start(env, ctypes.c_uint64(len(env)), handshake, lifeline)


def fails(result, text):
    got = lib.flambeau_error().decode()
    if result != -1 or text not in got:
        sys.exit(f"{result}: {text!r} is not in {got!r}")


assert lib.flambeau_error() == b""
fails(lib.flambeau_take(ctypes.create_string_buffer(32)), "flambeau_start was not called")
fails(lib.flambeau_give(ctypes.c_uint64(1), b"", ctypes.c_uint64(0), 1), "flambeau_start was not called")
fails(start(b""), "not by hand")
fails(start(b"nonsense\0"), '"nonsense" in env is not KEY=VALUE')
fails(start(COOKIE), "FLAMBEAU_MAX_MESSAGE_BYTES")
os.environ["FLAMBEAU_MAX_MESSAGE_BYTES"] = "1000"
fails(start(COOKIE + b"FLAMBEAU_MAX_MESSAGE_BYTES=1000\0", 77), "descriptor 77 (handshake) is not open")
fails(start(COOKIE + b"FLAMBEAU_MAX_MESSAGE_BYTES=1000\0", 1, 78), "descriptor 78 (lifeline) is not open")
fails(start(COOKIE + b"FLAMBEAU_MAX_MESSAGE_BYTES=1000\0", 1, os.open("/dev/null", os.O_RDONLY)), "no pipe")

# Another thread's failure is not this one's.
before = lib.flambeau_error()
thread = threading.Thread(target=lambda: start(b"nonsense\0"))
thread.start()
thread.join()
assert lib.flambeau_error() == before

# It starts, takes from another thread than it was started from, and starts only once.
reading, writing = os.pipe()
assert start(COOKIE + b"FLAMBEAU_MAX_MESSAGE_BYTES=1000\0", writing) == 0, lib.flambeau_error()
os.close(writing)
line = os.fdopen(reading, "rb").read()
assert line.startswith(b"1|1|unix|") and line.endswith(b"|grpc|\n"), line
fails(start(COOKIE), "called before")
fails(lib.flambeau_give(ctypes.c_uint64(5), b"", ctypes.c_uint64(0), 1), "no job 5")
fails(lib.flambeau_give(ctypes.c_uint64(5), None, ctypes.c_uint64(3), 1), "data is NULL")
taker = threading.Thread(target=lib.flambeau_take, args=(ctypes.create_string_buffer(32),), daemon=True)
taker.start()
os.unlink(line.split(b"|")[3])
os._exit(0)  # the taker waits for ever
