import multiprocessing
import os


def square(number):
    return number * number, os.getpid()


def report(queue, numbers):
    queue.put(("child", sum(numbers)))


class Pool:
    def initialize(self, context):
        self.fork = multiprocessing.get_context("fork")
        self.pool = self.fork.Pool(2)

    def handle(self, data, context):
        answers = []
        for row in data:
            squares = self.pool.map(square, row["body"])
            queue = self.fork.Queue()
            child = self.fork.Process(target=report, args=(queue, row["body"]))
            child.start()
            found = queue.get(timeout=30)
            child.join()
            with self.fork.Pool(1) as own:
                last = own.map(square, [9])
            elsewhere = all(pid != os.getpid() for _, pid in squares + last)
            answers.append({"squares": [n for n, _ in squares], "child": found, "elsewhere": elsewhere, "exit": child.exitcode})
        return answers
