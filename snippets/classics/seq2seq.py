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

    def step(self, tokens: Tensor, state: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """喂 n 个 token：(b, n)。返回 logits (b, n, SYMBOLS) 与新的解码状态。"""
        out, state = self.decoder(self.embed(tokens), state)
        if self.attention:
            weights = (out @ memory.transpose(1, 2)).softmax(-1)  # (b, n, s)
            out = torch.cat([out, weights @ memory], dim=-1)
        return self.head(out), state

    def forward(self, source: Tensor, target: Tensor | None = None) -> Tensor:
        """source: (b, s)，取值 0 到 SYMBOLS − 1；返回 logits (b, s, SYMBOLS)。

        给了同形状的 target 就教师强制：真值右移一位，一次喂完；否则一次一个，喂自己的输出。
        """
        for name, tokens in (("source", source), ("target", target)):
            if tokens is not None and (
                tokens.dtype != torch.long or tokens.dim() != 2 or not tokens.numel() or tokens.min() < 0 or tokens.max() >= SYMBOLS
            ):
                raise ValueError(f"{name} 须是非空的 int64 张量 (b, s)，取值 0 到 {SYMBOLS - 1}")
        if target is not None and target.shape != source.shape:
            raise ValueError(f"target 的形状 {tuple(target.shape)} 与 source 的 {tuple(source.shape)} 不同")
        memory, state = self.encoder(self.embed(source))
        token, logits = torch.full((len(source), 1), START), []
        if target is not None:
            return self.step(torch.cat([token, target[:, :-1]], dim=1), state, memory)[0]
        for _ in range(source.shape[1]):
            one, state = self.step(token, state, memory)
            logits.append(one)
            token = one.argmax(-1)
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
    if any(type(n) is not int for n in (length, steps)) or length < 1 or steps < 0:
        raise ValueError(f"length 须为正整数、steps 须为非负整数，收到 {length}、{steps}")
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
    if not 0 <= per_token <= 1 or type(length) is not int or length < 0:
        raise ValueError(f"须 0 ≤ per_token ≤ 1、length 为非负整数，收到 {per_token}、{length}")
    return per_token**length


# --8<-- [end:exposure]
