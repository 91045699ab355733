"""Draws pictures with text, and writes what the package rapidocr-onnxruntime reads in them.

    python ocr.py FOLDER

FOLDER gets NAME.png and NAME.json: [{"text", "score", "box"}]. All lines of a picture are read in one batch, as the pipeline
does; and the package works with one thread, as rounding depends on it.
"""

import io
import json
import sys
from pathlib import Path
from typing import Dict, List, Tuple

import matplotlib
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

FONTS = Path(matplotlib.get_data_path()) / "fonts/ttf"
MANY = 1000


def font(size: int, name: str = "DejaVuSans") -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(FONTS / f"{name}.ttf"), size)


Line = Tuple[int, int, str, ImageFont.FreeTypeFont]


def page(size: Tuple[int, int], lines: List[Line], paper: str = "white", ink: str = "black") -> Image.Image:
    picture = Image.new("RGB", size, paper)
    draw = ImageDraw.Draw(picture)
    for x, y, text, face in lines:
        draw.text((x, y), text, font=face, fill=ink)
    return picture


def pictures() -> Dict[str, Image.Image]:
    serif, bold, mono = font(30, "DejaVuSerif"), font(34, "DejaVuSans-Bold"), font(26, "DejaVuSansMono")
    letter = page(
        (720, 480),
        [
            *((40, 30, "Hello Server 2026", bold), (40, 100, "Invoice No. 4711", serif), (420, 100, "17 March", serif)),
            *((40, 170, "Total 1,234.56 EUR", mono), (40, 240, "Thank you for your order", font(28))),
            (40, 320, "Page 1 of 2", font(22)),
        ],
    )
    many = page((900, 760), [(30, 20 + 60 * i, f"Line {i + 1} of a longer page, item {i * 37}", font(28)) for i in range(12)])
    upside = page((600, 200), [(40, 20, "Keep this side up", bold), (40, 110, "Handle with care", bold)])
    line = page((1400, 60), [(20, 12, "One long line that is much wider than it is high, as of a scanner", font(30))])
    mixed = Image.new("RGB", (640, 420), (250, 245, 230))
    mixed.paste(upside.resize((450, 150)).rotate(180), (20, 240))
    mixed.paste(letter.crop((30, 20, 420, 150)), (10, 10))
    noise = Image.effect_noise((640, 420), 30).convert("RGB")
    return {
        "letter": letter,
        "many": many,
        "upside": upside.rotate(180),
        "mixed": Image.blend(mixed, noise, 0.08),
        "tilted": letter.rotate(4, expand=True, fillcolor="white", resample=Image.Resampling.BICUBIC),
        "standing": letter.crop((30, 20, 420, 150)).rotate(90, expand=True),
        "line": line,
        "tiny": page((160, 26), [(6, 2, "Small 42", font(18))]),
        "large": letter.resize((2400, 1600), Image.Resampling.BICUBIC),
        "dark": page((640, 200), [(30, 60, "White on blue", bold)], "navy", "white"),
        "grey": letter.convert("L"),
        "clear": Image.merge("RGBA", (*letter.split(), letter.convert("L").point(lambda v: 255 - v // 2))),
        "blank": Image.new("RGB", (400, 300), "white"),
    }


def main() -> None:
    out = Path(sys.argv[1])
    reader = RapidOCR(rec_batch_num=MANY, intra_op_num_threads=1)
    for name, picture in pictures().items():
        file = io.BytesIO()
        picture.save(file, "PNG")
        (out / f"{name}.png").write_bytes(file.getvalue())
        found, _ = reader(file.getvalue())
        read = [{"text": text, "score": score, "box": box} for box, text, score in found or []]
        (out / f"{name}.json").write_text(json.dumps(read))
        print(name, picture.size, [(r["text"], round(r["score"], 4)) for r in read])


if __name__ == "__main__":
    main()
