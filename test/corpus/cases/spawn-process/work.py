import os


def cube(number):
    return number**3


def where(queue):
    queue.put(os.path.basename(__file__))
