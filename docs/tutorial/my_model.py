import torch
from torch import nn


class Pool(nn.Module):
    """The mean over the first `length` steps of each sequence."""

    def forward(self, x, lengths):
        if lengths.max() > x.shape[1]:
            raise ValueError("a length exceeds the sequence")
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        return (x * mask[..., None]).sum(1) / lengths[:, None]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.pool = Pool()
        self.head = nn.Linear(16, 3)

    def forward(self, ids, lengths):
        return self.head(self.pool(self.embed(ids), lengths))


def build():
    torch.manual_seed(0)
    ids = torch.randint(0, 100, (4, 12))
    lengths = torch.tensor([12, 7, 3, 1])
    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence")
    return Classifier(), (ids, lengths), {}, {"ids": {0: batch, 1: sequence}, "lengths": {0: batch}}
