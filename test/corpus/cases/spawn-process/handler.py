import multiprocessing
import subprocess
import sys

import work


class Spawner:
    def initialize(self, context):
        self.spawn = multiprocessing.get_context("spawn")

    def handle(self, data, context):
        with self.spawn.Pool(1) as pool:
            cubes = [pool.map(work.cube, row["body"]) for row in data]
        queue = self.spawn.SimpleQueue()
        child = self.spawn.Process(target=work.where, args=(queue,))
        child.start()
        found = queue.get()
        child.join()
        command = [sys.executable, "-c", "import work; print(work.cube(5))"]
        out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        return [[numbers, found, child.exitcode, out.decode()] for numbers in cubes]
