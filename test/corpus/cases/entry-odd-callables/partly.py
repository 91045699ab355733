import functools


def answer(word, data, context):
    return data and [word] * len(data)


handle = functools.partial(answer, "partial")
