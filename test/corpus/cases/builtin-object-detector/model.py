import torch


class Detector(torch.nn.Module):
    """Finds boxes that depend on nothing but the size of the image."""

    def forward(self, images):
        found = []
        for image in images:
            height, width = float(image.shape[1]), float(image.shape[2])
            boxes = torch.tensor([[0, 0, width, height], [1, 1, 2, 2], [0, 0, width / 2, height / 2], [3, 3, 4, 4]])
            found.append({"boxes": boxes, "labels": torch.tensor([1, 2, 3, 1]), "scores": torch.tensor([0.75, 0.5, 0.875, 0.25])})
        return found
