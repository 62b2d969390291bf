"""参数同步算法：真的搬数据并记下每个 rank 发出多少，再比步数、时间与收敛（只用标准库）。"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Vector = list[float]


# --8<-- [start:network]
@dataclass
class Network:
    """n 个 rank 的网络：记下每个 rank 发出、收到的元素数，以及进行了几轮（一轮内的收发并行）。"""

    n: int
    sent: list[int] = field(init=False)
    received: list[int] = field(init=False)
    rounds: int = 0

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError(f"rank 数必须 ≥ 1，收到 {self.n}")
        self.sent, self.received = [0] * self.n, [0] * self.n

    def exchange(self, messages: Sequence[tuple[int, int, Vector]]) -> list[tuple[int, Vector]]:
        """一轮：messages 是 (发送方, 接收方, 数据)，返回 (接收方, 数据)。"""
        self.rounds += 1
        for source, target, data in messages:
            self.sent[source] += len(data)
            self.received[target] += len(data)
        return [(target, list(data)) for _, target, data in messages]


def chunk(length: int, parts: int, index: int) -> slice:
    """把 length 个元素切成 parts 段，第 index 段的范围（前几段可能多一个）。"""
    base, extra = divmod(length, parts)
    start = index * base + min(index, extra)
    return slice(start, start + base + (index < extra))


def _copy(vectors: Sequence[Vector]) -> list[Vector]:
    if not vectors or len({len(vector) for vector in vectors}) != 1:
        raise ValueError("每个 rank 要有一个等长的向量")
    return [list(vector) for vector in vectors]


# --8<-- [end:network]


# --8<-- [start:allreduce]
def ring_all_reduce(vectors: Sequence[Vector]) -> tuple[list[Vector], Network]:
    """环形 all-reduce = reduce-scatter + all-gather，各 N−1 轮，每轮每 rank 发一段 Ψ/N（Patarasuk & Yuan 2009）。

    >>> out, net = ring_all_reduce([[float(rank + i) for i in range(1024)] for rank in range(8)])
    >>> out[0] == out[7] == [float(28 + 8 * i) for i in range(1024)]
    True
    >>> net.sent[0] / 1024, net.rounds                     # 2(N−1)/N = 1.75，2(N−1) = 14
    (1.75, 14)
    """
    data, n = _copy(vectors), len(vectors)
    length, net = len(vectors[0]), Network(n)
    for step in range(n - 1):  # reduce-scatter：rank r 最后持有第 r+1 段的和
        segments = [chunk(length, n, (rank - step) % n) for rank in range(n)]
        arrived = net.exchange([(rank, (rank + 1) % n, data[rank][segments[rank]]) for rank in range(n)])
        for source, (target, part) in enumerate(arrived):
            segment = segments[source]
            data[target][segment] = [a + b for a, b in zip(data[target][segment], part, strict=True)]
    for step in range(n - 1):  # all-gather：沿环把算好的段传一圈
        segments = [chunk(length, n, (rank + 1 - step) % n) for rank in range(n)]
        arrived = net.exchange([(rank, (rank + 1) % n, data[rank][segments[rank]]) for rank in range(n)])
        for source, (target, part) in enumerate(arrived):
            data[target][segments[source]] = part
    return data, net


def tree_all_reduce(vectors: Sequence[Vector]) -> tuple[list[Vector], Network]:
    """二叉树：向根求和再广播，各 ⌈log₂N⌉ 轮，每条消息是整个 Ψ（不分段、不流水）。

    >>> out, net = tree_all_reduce([[1.0] * 1024 for _ in range(8)])
    >>> out[5][:2], max(net.sent) / 1024, net.rounds       # 根节点广播时发 log₂N 份
    ([8.0, 8.0], 3.0, 6)
    """
    data, n = _copy(vectors), len(vectors)
    net = Network(n)
    strides = [2**level for level in range(math.ceil(math.log2(n)) if n > 1 else 0)]
    for stride in strides:
        sources = range(stride, n, 2 * stride)
        for target, part in net.exchange([(rank, rank - stride, data[rank]) for rank in sources]):
            data[target] = [a + b for a, b in zip(data[target], part, strict=True)]
    for stride in reversed(strides):
        sources = [rank for rank in range(0, n, 2 * stride) if rank + stride < n]
        for target, part in net.exchange([(rank, rank + stride, data[rank]) for rank in sources]):
            data[target] = part
    return data, net


def parameter_server(vectors: Sequence[Vector], servers: int = 1) -> tuple[list[Vector], Network]:
    """参数服务器：N 个 worker 把梯度发给 S 个 server（各管一段），server 求和后发回。rank N 起是 server。

    >>> out, net = parameter_server([[1.0] * 1024 for _ in range(8)])
    >>> net.received[8] / 1024, net.sent[0] / 1024         # 单个 server 要收 NΨ，worker 只发 Ψ
    (8.0, 1.0)
    >>> max(parameter_server([[1.0] * 1024 for _ in range(8)], servers=8)[1].received[8:]) / 1024
    1.0
    """
    data, n = _copy(vectors), len(vectors)
    if servers < 1:
        raise ValueError(f"server 数必须 ≥ 1，收到 {servers}")
    length, net = len(vectors[0]), Network(n + servers)
    totals = [[0.0] * len(range(length)[chunk(length, servers, s)]) for s in range(servers)]
    pushed = [(w, n + s, data[w][chunk(length, servers, s)]) for w in range(n) for s in range(servers)]
    for target, part in net.exchange(pushed):
        totals[target - n] = [a + b for a, b in zip(totals[target - n], part, strict=True)]
    net.exchange([(n + s, w, totals[s]) for s in range(servers) for w in range(n)])
    result = [value for total in totals for value in total]
    return [list(result) for _ in range(n)], net


# --8<-- [end:allreduce]


# --8<-- [start:time]
def all_reduce_seconds(algorithm: str, n: int, payload: float, bandwidth: float, latency: float) -> float:
    """α–β 模型下 all-reduce 的时间（秒）：轮数 × 延迟 + 最忙链路的字节 ÷ 带宽。

    payload: 字节；bandwidth: 单向字节/秒；latency: 每轮秒数。tree 按分段流水计，每 rank 发 2Ψ、轮数 2⌈log₂N⌉。

    >>> for size in (64e3, 16e6, 16.06e9):                          # 64 KB、16 MB、Llama-3-8B 的 bf16 梯度
    ...     ring, tree = (all_reduce_seconds(a, 64, size, 50e9, 5e-6) for a in ("ring", "tree"))
    ...     print(f"{size:>14,.0f} B  ring {ring * 1e3:8.3f} ms  tree {tree * 1e3:8.3f} ms")
            64,000 B  ring    0.633 ms  tree    0.063 ms
        16,000,000 B  ring    1.260 ms  tree    0.700 ms
    16,060,000,000 B  ring  632.993 ms  tree  642.460 ms
    """
    if n < 1 or not payload >= 0 or not bandwidth > 0 or not latency >= 0:
        raise ValueError(f"须有 n ≥ 1、payload ≥ 0、bandwidth > 0、latency ≥ 0，收到 {n, payload, bandwidth, latency}")
    if n == 1:
        return 0.0
    match algorithm:
        case "ring":
            rounds, volume = 2 * (n - 1), 2 * (n - 1) / n * payload
        case "tree":
            rounds, volume = 2 * math.ceil(math.log2(n)), 2 * payload
        case _:
            raise ValueError(f"algorithm 须为 ring 或 tree，收到 {algorithm!r}")
    return rounds * latency + volume / bandwidth


def bytes_per_step(psi: float, n: int, element_bytes: int = 2, local_steps: int = 500) -> list[tuple[str, float]]:
    """每步每 rank 发出的 GB（10⁹ 字节），按最忙的节点计；psi 为参数量。

    >>> for name, gb in bytes_per_step(8.03e9, 64):                 # Llama-3-8B，64 个 rank，bf16 梯度
    ...     print(f"{gb:10.3f} GB  {name}")
      1027.840 GB  参数服务器，1 个 server
        16.060 GB  参数服务器，64 个 server（单独机器）
        31.618 GB  环形 all-reduce
        32.120 GB  gossip，环上两个邻居
         0.063 GB  local SGD / DiLoCo，每 500 步一次 all-reduce
    """
    if psi <= 0 or n < 2 or element_bytes <= 0 or local_steps < 1:
        raise ValueError(f"须有 psi > 0、n ≥ 2、element_bytes > 0、local_steps ≥ 1，收到 {psi, n, element_bytes, local_steps}")
    payload = psi * element_bytes / 1e9
    ring = 2 * (n - 1) / n * payload
    return [
        ("参数服务器，1 个 server", n * payload),
        (f"参数服务器，{n} 个 server（单独机器）", payload),
        ("环形 all-reduce", ring),
        ("gossip，环上两个邻居", 2 * payload),
        (f"local SGD / DiLoCo，每 {local_steps} 步一次 all-reduce", ring / local_steps),
    ]


# --8<-- [end:time]


# --8<-- [start:converge]
def gossip_contraction(n: int, rounds: int = 50) -> tuple[float, float]:
    """环上同步 gossip：每轮与左右邻居三等分平均。返回 (实测每轮收缩率, 混合矩阵的第二大特征值)。

    第二大特征值是 1/3 + 2/3·cos(2π/N)：N 越大越接近 1，副本之间的差异消得越慢。

    >>> [tuple(round(x, 4) for x in gossip_contraction(n)) for n in (8, 64)]
    [(0.8047, 0.8047), (0.9968, 0.9968)]
    """
    if n < 3:
        raise ValueError(f"环上 gossip 至少 3 个 rank，收到 {n}")
    values = [math.cos(2 * math.pi * rank / n) for rank in range(n)]  # 收缩最慢的模式，均值为 0
    start = math.hypot(*values)
    for _ in range(rounds):
        values = [(values[rank - 1] + values[rank] + values[(rank + 1) % n]) / 3 for rank in range(n)]
    return (math.hypot(*values) / start) ** (1 / rounds), 1 / 3 + 2 / 3 * math.cos(2 * math.pi / n)


def local_sgd_fixed_point(local_steps: int, lr: float = 0.1) -> float:
    """两个 rank 的损失 ½a(x−c)²，a = (1, 9)、c = (0, 1)；各走 local_steps 步再平均，返回收敛到的 x。

    真正的最小点是 Σac/Σa = 0.9。每步都平均就收敛到它；走得越久，越偏向各自最小点的平均 0.5。

    >>> [round(local_sgd_fixed_point(h), 4) for h in (1, 4, 16, 500)]
    [0.9, 0.7441, 0.5511, 0.5]
    """
    if local_steps < 1 or not 0 < lr < 2 / 9:
        raise ValueError(f"须有 local_steps ≥ 1、0 < lr < 2/9，收到 {local_steps, lr}")
    x = 0.0
    for _ in range(2_000):
        ends = [c + (1 - lr * a) ** local_steps * (x - c) for a, c in ((1.0, 0.0), (9.0, 1.0))]
        x = sum(ends) / 2
    return x


def stale_step_limit(delay: int) -> float:
    """梯度晚到 delay 步时，x ← x − η·λ·x_{t−delay} 稳定的最大 ηλ：2·sin(π / (2(2·delay + 1)))。

    >>> [round(stale_step_limit(d), 3) for d in (0, 1, 4, 16)]      # 异步越陈旧，能用的学习率越小
    [2.0, 1.0, 0.347, 0.095]
    """
    if delay < 0:
        raise ValueError(f"delay 不能为负，收到 {delay}")
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1)))


# --8<-- [end:converge]


# --8<-- [start:wrong]
def reduce_to_rank0_and_broadcast(vectors: Sequence[Vector]) -> tuple[list[Vector], Network]:
    """反例：“数据并行就是 rank 0 求平均再广播”。结果对，但 rank 0 的链路要收发各 (N−1)Ψ。

    >>> _, net = reduce_to_rank0_and_broadcast([[1.0] * 1024 for _ in range(8)])
    >>> net.received[0] / 1024, net.sent[0] / 1024
    (7.0, 7.0)
    """
    data, n = _copy(vectors), len(vectors)
    net = Network(n)
    for _, part in net.exchange([(rank, 0, data[rank]) for rank in range(1, n)]):
        data[0] = [a + b for a, b in zip(data[0], part, strict=True)]
    for target, part in net.exchange([(0, rank, data[0]) for rank in range(1, n)]):
        data[target] = part
    return data, net


# --8<-- [end:wrong]
