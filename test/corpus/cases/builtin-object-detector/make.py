from PIL import Image

Image.new("RGB", (32, 24), (200, 100, 50)).save("scene.png")
