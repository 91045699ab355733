"""Shared by the two Triton servers: requests with rows of bytes in, JSON texts out."""

import numpy as np


def answer(run, arrays):
    """arrays: one uint8 array for each request, a row for each item; gives one object array of texts for each request."""
    answers = iter(run([row.tobytes() for rows in arrays for row in rows]))
    return [np.array([next(answers) for _ in rows], dtype=object).reshape(-1, 1) for rows in arrays]
