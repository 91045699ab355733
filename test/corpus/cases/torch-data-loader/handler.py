import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self, numbers):
        self.numbers = numbers

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        return torch.tensor(float(self.numbers[index]))


Numbers.__module__ = "elsewhere"  # the module defines one class only


class Loader:
    def initialize(self, context):
        torch.set_num_threads(1)

    def handle(self, data, context):
        return [[(batch * 2).tolist() for batch in DataLoader(Numbers(row["body"]), batch_size=2, num_workers=2)] for row in data]
