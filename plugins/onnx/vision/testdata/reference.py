"""Writes pictures and what PIL and torchvision make of them.

    python reference.py FOLDER

FOLDER/NAME.EXT is a picture, FOLDER/NAME.EXT.rgb its pixels by PIL, and FOLDER/NAME.EXT.f32 the input that the built-in handler
image_classifier makes; FOLDER/list.json has the sizes. Needs torchvision, and matplotlib for its sample pictures.
"""

import json
import sys
from pathlib import Path

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


def main() -> None:
    out = Path(sys.argv[1])
    photo = Image.open(Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg").convert("RGB")
    flower = photo.crop((100, 50, 401, 356)).resize((173, 201), Image.Resampling.LANCZOS)
    alpha = photo.copy()
    alpha.putalpha(photo.convert("L"))
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
    }
    sizes = {}
    for name, (image, options) in files.items():
        image.save(out / name, **options)
        rgb = Image.open(out / name).convert("RGB")
        (out / f"{name}.rgb").write_bytes(rgb.tobytes())
        (out / f"{name}.f32").write_bytes(np.ascontiguousarray(IMAGENET(rgb).numpy()).tobytes())
        sizes[name] = [rgb.width, rgb.height]
    (out / "list.json").write_text(json.dumps(sizes))


if __name__ == "__main__":
    main()
