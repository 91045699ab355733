"""The least Python worker: libflambeau by ctypes, and a handler that does what the first part of a batch says.

usage: worker.py LIBRARY
"""

import ctypes
import json
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time


class Job(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64), ("kind", ctypes.c_uint64), ("data", ctypes.c_void_p), ("len", ctypes.c_uint64)]


def start(path):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    handshake = os.dup(1)
    os.dup2(4, 1)
    lib = ctypes.CDLL(path)
    lib.flambeau_error.restype = ctypes.c_char_p
    lib.flambeau_take.argtypes = [ctypes.POINTER(Job)]
    lib.flambeau_give.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int32]
    env = b"".join(k + b"=" + v + b"\0" for k, v in os.environb.items())
    if lib.flambeau_start(env, ctypes.c_uint64(len(env)), handshake, 3) != 0:
        sys.exit(lib.flambeau_error().decode())
    for fd in (handshake, 3, 4):
        os.close(fd)
    return lib


def first_parts(frame):
    """Gives the batch id and the data of each item's first part."""
    _, _, _, count, batch = struct.unpack_from("<BBHIQ", frame)
    at, found = 16, []

    def text():
        nonlocal at
        (n,) = struct.unpack_from("<I", frame, at)
        at += 4 + n

    def number(form):
        nonlocal at
        (n,) = struct.unpack_from(form, frame, at)
        at += struct.calcsize(form)
        return n

    for _ in range(count):
        text()
        number("<q")
        for _ in range(2 * number("<I")):
            text()
        parts = []
        for _ in range(number("<I")):
            text()
            text()
            n = number("<Q")
            parts.append(frame[at : at + n])
            at += n
        found.append(parts[0] if parts else b"")
    return batch, found


def square(x):
    return x * x


def handle(data):
    if data == b"loop":  # holds the GIL for ever, in C
        print("looping", flush=True)
        sum(iter(int, 1))
    if data == b"child":
        child = subprocess.Popen(["sleep", "1000"])
        print("child", child.pid, flush=True)
    if data == b"fork":
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return json.dumps(pool.map(square, range(4))).encode()
    if data == b"wait":
        time.sleep(1000)
    if data == b"segv":
        ctypes.string_at(0)
    if data == b"exit":
        os._exit(5)
    return data


def main():
    lib, job = start(sys.argv[1]), Job()
    while True:
        kind = lib.flambeau_take(ctypes.byref(job))
        if kind < 0:
            sys.exit(lib.flambeau_error().decode())
        data = ctypes.string_at(job.data, job.len) if job.len else b""
        answer = b""
        if kind == 0:
            return
        if kind == 1:
            request = json.loads(data)
            print("loading", request["model_name"], request["gpu"], request["batch_size"], flush=True)
            answer = {"features": ["python"]}
            if request["handler"] == "broken":
                answer = {"failure": {"message": "ValueError: broken", "detail": "Traceback", "out_of_memory": False}}
            answer = json.dumps(answer).encode()
        if kind == 2:
            batch, parts = first_parts(data)
            answer = struct.pack("<BBHIQ", 2, 0, 0, len(parts), batch)
            for part in parts:
                body = handle(part)
                answer += struct.pack("<BIIQ", 0, 0, 0, len(body)) + body
            answer = {b"garbage": b"garbage", b"other": answer[:8] + b"x" * 8 + answer[16:]}.get(parts[0], answer)
        if lib.flambeau_give(job.id, answer, len(answer), 1) != 0:
            print(lib.flambeau_error().decode(), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
