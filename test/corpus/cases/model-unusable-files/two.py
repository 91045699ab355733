import torch


class One(torch.nn.Module):
    pass


class Two(torch.nn.Module):
    pass
