from collections import OrderedDict
from enum import Enum

from shapes import Base, Rectangle, ShapeError


class Areas(Base):
    class Unit(Enum):
        SQUARE = "square"

    def compute(self, body):
        try:
            area = Rectangle(**body).area()
        except ShapeError as err:
            return OrderedDict(error=str(err))
        return OrderedDict(area=area, unit=self.Unit.SQUARE.value, base=Base.__name__)
