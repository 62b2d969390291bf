"""把字符串倒过来：定长向量的瓶颈、注意力怎样解决它、教师强制与自由运行（PyTorch，CPU）。"""

import torch
from torch import Tensor, nn

SYMBOLS, START = 10, 10


# --8<-- [start:model]
class Seq2Seq(nn.Module):
    """GRU 编码器加 GRU 解码器；attention 时每步用解码状态去查编码器的全部状态。"""

    def __init__(self, h: int = 64, *, attention: bool) -> None:
        super().__init__()
        self.attention = attention
        self.embed = nn.Embedding(SYMBOLS + 1, h)
        self.encoder, self.decoder = nn.GRU(h, h, batch_first=True), nn.GRU(h, h, batch_first=True)
        self.head = nn.Linear(2 * h if attention else h, SYMBOLS)

    def forward(self, source: Tensor, target: Tensor | None = None) -> Tensor:
        """source: (b, s)。给了 target 就教师强制（喂真值），否则喂自己的输出；返回 logits (b, s, SYMBOLS)。"""
        memory, state = self.encoder(self.embed(source))
        token, logits = torch.full((len(source), 1), START), []
        for t in range(source.shape[1]):
            out, state = self.decoder(self.embed(token), state)
            if self.attention:
                weights = (out @ memory.transpose(1, 2)).softmax(-1)  # (b, 1, s)
                out = torch.cat([out, weights @ memory], dim=-1)
            logits.append(self.head(out))
            token = logits[-1].argmax(-1) if target is None else target[:, t : t + 1]
        return torch.cat(logits, dim=1)


# --8<-- [end:model]


# --8<-- [start:train]
def train(length: int, *, attention: bool, steps: int = 200, seed: int = 0) -> tuple[float, float]:
    """训练后在 500 条新字符串上：（教师强制时逐字准确率，自由运行时整串全对的比例）。

    >>> for attention in (False, True):
    ...     print("注意力" if attention else "定长向量", [round(v, 1) for v in train(6, attention=attention)])
    定长向量 [0.9, 0.5]
    注意力 [1.0, 0.8]
    """
    if length < 1 or steps < 0:
        raise ValueError(f"length 须为正、steps 不能为负，收到 {length}、{steps}")
    torch.manual_seed(seed)
    model = Seq2Seq(attention=attention)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(steps):
        source = torch.randint(SYMBOLS, (64, length))
        target = source.flip(1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(source, target).flatten(0, 1), target.flatten()).backward()
        optimizer.step()
    source = torch.randint(SYMBOLS, (500, length))
    target = source.flip(1)
    with torch.no_grad():
        forced, free = (model(source, t).argmax(-1) == target for t in (target, None))
    return forced.float().mean().item(), free.all(1).float().mean().item()


# --8<-- [end:train]


# --8<-- [start:exposure]
def whole_sequence(per_token: float, length: int) -> float:
    """逐字准确率 per_token、各字独立时，整串全对的概率。

    >>> [round(whole_sequence(0.99, n), 3) for n in (10, 100, 1000)]
    [0.904, 0.366, 0.0]
    """
    if not 0 <= per_token <= 1 or length < 0:
        raise ValueError(f"须 0 ≤ per_token ≤ 1、length ≥ 0，收到 {per_token}、{length}")
    return per_token**length


# --8<-- [end:exposure]
