"""Writes pictures and what PIL and torchvision make of them.

    python reference.py FOLDER

FOLDER/NAME.EXT is a picture, FOLDER/NAME.EXT.rgb its pixels by PIL, and FOLDER/NAME.EXT.f32 the input that the built-in handler
image_classifier makes; FOLDER/list.json has the sizes. Needs torchvision, OpenCV, and matplotlib for its sample pictures.
"""

import io
import json
import struct
import sys
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from PIL import Image
from torchvision import transforms

IMAGENET = transforms.Compose(
    [
        transforms.Resize(256),
        transforms.CenterCrop(224),
        transforms.ToTensor(),
        transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ]
)


def corner(transparent):
    """A GIF file of 6 x 5 pixels, whose picture is smaller; of its four colours one may be transparent."""
    picture = Image.new("P", (3, 2))
    picture.putpalette([10, 20, 30, 200, 0, 0, 0, 200, 0, 0, 0, 200])
    picture.putdata([1, 2, 3, 3, 2, 1])
    file = io.BytesIO()
    picture.save(file, "GIF", optimize=False)
    data = file.getvalue()
    frame = data.index(b",", 13)
    flags = data[10]
    colours = data[13 : 13 + (6 << (flags & 7))]
    graphics = b"" if transparent is None else bytes([0x21, 0xF9, 4, 1, 0, 0, transparent, 0])
    place = struct.pack("<HHHHB", 2, 1, 3, 2, 0)
    return b"GIF89a" + struct.pack("<HHBBB", 6, 5, flags, 0, 0) + colours + graphics + b"," + place + data[frame + 10 :]


def spoilt(name, picture, options):
    """A JPEG file with other quantization tables before its second scan, or one that ends early, and says that it does."""
    file = io.BytesIO()
    picture.save(file, "JPEG", **options)
    data = file.getvalue()
    if not name.startswith("requantized"):
        return data[: len(data) * 2 // 3] + b"\xff\xd9"
    second = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2)
    tables = b"".join(bytes([0xFF, 0xDB, 0, 67, number]) + bytes([99]) * 64 for number in (0, 1))
    return data[:second] + tables + data[second:]


def main() -> None:
    out = Path(sys.argv[1])
    photo = Image.open(Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg").convert("RGB")
    flower = photo.crop((100, 50, 401, 356)).resize((173, 201), Image.Resampling.LANCZOS)
    alpha = photo.copy()
    alpha.putalpha(photo.convert("L"))
    rotated = Image.Exif()
    rotated[0x112] = 6
    files = {
        "photo420.jpg": (photo, {"quality": 90, "subsampling": "4:2:0"}),
        "photo422.jpg": (photo, {"quality": 90, "subsampling": "4:2:2"}),
        "photo444.jpg": (photo, {"quality": 95, "subsampling": "4:4:4"}),
        "progressive.jpg": (photo, {"quality": 75, "progressive": True}),
        "small.jpg": (flower, {"quality": 85}),
        "gray.jpg": (photo.convert("L"), {"quality": 90}),
        "photo.png": (photo, {}),
        "small.png": (flower, {}),
        "wide.png": (photo.resize((1001, 120)), {}),
        "gray.png": (photo.convert("L"), {}),
        "palette.png": (photo.convert("P"), {}),
        "alpha.png": (alpha, {}),
        "lossless.webp": (photo, {"lossless": True}),
        "lossy.webp": (photo, {"quality": 80}),
        "odd.webp": (flower, {"quality": 80}),
        "photo.gif": (photo, {}),
        "photo.bmp": (photo, {}),
        "thin.png": (photo.resize((4, 900)), {}),
        "cmyk.jpg": (photo.convert("CMYK"), {}),
        "colours.jpg": (flower, {"keep_rgb": True}),
        "restarts.jpg": (flower, {"restart_marker_blocks": 3}),
        "progressive_restarts.jpg": (photo, {"progressive": True, "subsampling": "4:2:2", "restart_marker_rows": 1}),
        "exif.jpg": (flower, {"exif": rotated}),
        "one.jpg": (photo.resize((1, 1)), {}),
        "narrow.jpg": (photo.resize((4, 70)), {"subsampling": "4:2:0"}),
        "worst.jpg": (photo, {"quality": 1, "progressive": True}),
        "noise.jpg": (Image.effect_noise((123, 77), 200).convert("RGB"), {"quality": 100}),
        "animated.webp": (flower, {"save_all": True, "append_images": [flower.rotate(90)], "lossless": True}),
        "animated_lossy.webp": (
            alpha.crop((0, 0, 200, 150)),
            {"save_all": True, "append_images": [alpha.crop((9, 9, 209, 159))]},
        ),
        "transparent.gif": (alpha, {}),
        "animated.gif": (flower, {"save_all": True, "append_images": [flower.rotate(90)]}),
        "fax.tiff": (photo.convert("1"), {"compression": "group4"}),
        "fax3.tiff": (photo.convert("1"), {"compression": "group3"}),
        "fax_white.tiff": (photo.convert("1"), {"compression": "group4", "tiffinfo": {262: 0}}),
    }
    sizes = {}
    for name, sampling in (("440.jpg", 0x121111), ("411.jpg", 0x411111)):  # which PIL does not write
        cv2.imwrite(str(out / name), np.asarray(photo)[:, :, ::-1], [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling])
        files[name] = (None, {})
    for name, transparent in (("corner.gif", None), ("corner_transparent.gif", 2)):  # nor these
        (out / name).write_bytes(corner(transparent))
        files[name] = (None, {})
    for name, options in (("requantized.jpg", {"progressive": True}), ("short.jpg", {})):
        (out / name).write_bytes(spoilt(name, flower, options))
        files[name] = (None, {})
    for name, (image, options) in files.items():
        if image is not None:
            image.save(out / name, **options)
        rgb = Image.open(out / name).convert("RGB")
        (out / f"{name}.rgb").write_bytes(rgb.tobytes())
        (out / f"{name}.f32").write_bytes(np.ascontiguousarray(IMAGENET(rgb).numpy()).tobytes())
        sizes[name] = [rgb.width, rgb.height]
    (out / "list.json").write_text(json.dumps(sizes))


if __name__ == "__main__":
    main()
