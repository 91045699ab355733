class ShapeError(ValueError):
    pass


class Rectangle:
    def __init__(self, width, height):
        if width < 0 or height < 0:
            raise ShapeError("sides are not negative")
        self.width, self.height = width, height

    def area(self):
        return self.width * self.height


class Base:
    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        return [self.compute(row["body"]) for row in data]
