"""Does what the body says: sleeps, loops, forks, ends the process, aborts, or tells its process id."""

import multiprocessing
import os
import subprocess
import sys
import time


def double(x):
    return 2 * x


class Rogue:
    def initialize(self, context):
        print("rogue is loading")

    def handle(self, data, context):
        answers = []
        for row in data:
            word, _, argument = bytes(row["body"]).decode().partition(":")
            answers.append(getattr(self, word)(argument))
        return answers

    def pid(self, argument):
        return str(os.getpid())

    def sleep(self, argument):
        time.sleep(float(argument))
        return str(os.getpid())

    def loop(self, argument):
        child = subprocess.Popen(["sleep", "1000"])  # a child that nobody waits for
        print("looping beside", child.pid)
        while True:
            pass

    def exit(self, argument):
        os._exit(int(argument))

    def abort(self, argument):
        os.abort()

    def fork(self, argument):
        with multiprocessing.Pool(2) as pool:
            return {"doubled": pool.map(double, range(int(argument)))}

    def shout(self, argument):
        print("printed " + argument)
        sys.stderr.write("warned " + argument + "\n")
        os.write(1, b"raw " + argument.encode() + b"\n")
        return "ok"
