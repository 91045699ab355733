import argparse
import math


def height(hours: float, range_m: float = 3.2) -> float:
    """Height of the tide above low water, a cosine of half a lunar day."""
    return range_m / 2 * (1 - math.cos(2 * math.pi * hours / 12.42))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("hours", type=float, nargs="+")
    for hours in parser.parse_args().hours:
        print(f"{hours:6.2f} h  {height(hours):5.2f} m")
