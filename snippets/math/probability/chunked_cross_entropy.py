"""分块的“输出层 + 交叉熵”：前向时就把每块的梯度算完，任何时刻只有一块 logits（PyTorch）。"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from snippets.infra.memory.saved_tensors import LiveStorages


# --8<-- [start:chunked]
class _ChunkedLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, w: Tensor, labels: Tensor, chunk: int, ignore_index: int) -> Tensor:
        count = (labels != ignore_index).sum()  # 梯度累积时应换成整个 batch 的有效 token 数
        dx, dw = torch.empty_like(x), torch.zeros_like(w, dtype=torch.float32)
        total = torch.zeros((), dtype=torch.float32, device=x.device)
        for start in range(0, len(x), chunk):
            part, y = x[start : start + chunk], labels[start : start + chunk]
            valid = y != ignore_index
            y = y.masked_fill(~valid, 0)[:, None]  # ignore_index 可以是任何数，gather 不能越界
            grad = (part @ w.T).float()
            picked, log_z = grad.gather(1, y), grad.logsumexp(1, keepdim=True)
            total += ((log_z - picked)[:, 0] * valid).sum()
            grad.sub_(log_z).exp_()  # 就地变成 softmax，再减 one-hot，就是 q − p
            grad.scatter_add_(1, y, torch.full_like(picked, -1.0))
            low = grad.mul_(valid[:, None] / count).to(x.dtype)
            dx[start : start + chunk] = low @ w
            dw += low.T @ part
        ctx.save_for_backward(dx, dw.to(w.dtype))
        return total / count

    @staticmethod
    def backward(ctx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw = ctx.saved_tensors
        return dx * upstream, dw * upstream, None, None, None


def chunked_linear_cross_entropy(x: Tensor, w: Tensor, labels: Tensor, chunk: int = 1024, ignore_index: int = -100) -> Tensor:
    """cross_entropy(x @ w.T, labels) 的有效 token 平均，但每次只算 chunk 个 token 的 logits。

    x: (N, h)，w: (V, h)，labels: (N,) 已移位。没有有效 token 时抛 ValueError（torch 的 mean 会给 NaN）。

    >>> _ = torch.manual_seed(0)
    >>> x, w, y = torch.randn(64, 16, requires_grad=True), torch.randn(500, 16, requires_grad=True), torch.randint(500, (64,))
    >>> fused = torch.autograd.grad(chunked_linear_cross_entropy(x, w, y, chunk=10), (x, w))
    >>> plain = torch.autograd.grad(F.cross_entropy(x @ w.T, y), (x, w))
    >>> all(torch.allclose(a, b, atol=1e-6) for a, b in zip(fused, plain, strict=True))
    True
    """
    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[1] or labels.shape != x.shape[:1]:
        raise ValueError(f"须有 x (N, h)、w (V, h)、labels (N,)，收到 {tuple(x.shape), tuple(w.shape), tuple(labels.shape)}")
    if chunk < 1:
        raise ValueError(f"chunk 必须 ≥ 1，收到 {chunk}")
    kept = labels[labels != ignore_index]
    if not len(kept):
        raise ValueError("没有有效 token：标签全是 ignore_index")
    if kept.min() < 0 or kept.max() >= len(w):
        raise ValueError(f"标签须在 [0, {len(w)}) 内或等于 {ignore_index}")
    return _ChunkedLinearCrossEntropy.apply(x, w, labels, chunk, ignore_index)


# --8<-- [end:chunked]


# --8<-- [start:peak]
def peak_gigabytes(tokens: int, h: int, vocabulary: int, chunk: int | None = None) -> float:
    """bf16 的输出层加损失，前向与反向里新造出的张量的峰值，GB（10⁹ 字节）；chunk=None 是逐算子的写法。

    在 FakeTensorMode 里数：张量只有形状，所以真实的形状也数得动。x、W 本身不算，它们的梯度算。

    >>> for chunk in (None, 4096, 1024, 256):                    # Llama-3-8B，一条 8192
    ...     print(chunk, round(peak_gigabytes(8192, 4096, 128_256, chunk), 2))
    None 12.61
    4096 8.47
    1024 4.01
    256 3.42
    """
    if min(tokens, h, vocabulary, 1 if chunk is None else chunk) < 1:
        raise ValueError(f"tokens、h、vocabulary、chunk 都必须 ≥ 1，收到 {tokens, h, vocabulary, chunk}")
    with FakeTensorMode():
        x = torch.empty(tokens, h, dtype=torch.bfloat16, requires_grad=True)
        w = torch.empty(vocabulary, h, dtype=torch.bfloat16, requires_grad=True)
        labels = torch.zeros(tokens, dtype=torch.long)
        with LiveStorages() as live:
            if chunk is None:
                loss = F.cross_entropy((x @ w.T).float(), labels)
            else:
                loss = _ChunkedLinearCrossEntropy.apply(x, w, labels, chunk, -100)
            loss.backward()
    return live.peak / 1e9


# --8<-- [end:peak]
