import torch


class Sentiment(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(16, 2)
        self.out = torch.nn.Linear(2, 2)

    def forward(self, text, offsets):
        return self.out(self.embedding(text, offsets))
