from ..common import SEPARATOR


def words(text):
    return text.split(SEPARATOR)
