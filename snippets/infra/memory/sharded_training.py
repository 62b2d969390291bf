"""数据并行的六种写法，各训练同一个小模型：手写 DDP、ZeRO-1/2/3，框架的 DDP 与 FSDP2（PyTorch，gloo）。

每个引擎只有三件事：backward（前向、反向、同步梯度）、step（裁剪、AdamW）、full（拼回完整权重）。
损失一律是 **和 ÷ 全局 token 数**，于是各 rank 的梯度要相加；框架默认取平均，所以先乘回 rank 数。
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from snippets.infra.memory.tiny_llama import OPTIMIZER, SMALL, Llama, Size, build, clip, count_tokens, loss_sum, make_batch
from snippets.infra.memory.traffic import Traffic


def square_sum(tensors: list[Tensor]) -> Tensor:
    return sum(tensor.square().sum() for tensor in tensors)


# --8<-- [start:ddp]
class Ddp:
    """完整的权重、梯度、优化器状态各一份；反向之后把梯度拼成一桶，一次 all-reduce。"""

    def __init__(self, model: Llama):
        self.model, self.parameters = model, list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, **OPTIMIZER)

    def backward(self, x: Tensor, y: Tensor, tokens: int) -> Tensor:
        loss = loss_sum(self.model(x), y) / tokens
        loss.backward()
        bucket = torch.cat([p.grad.flatten() for p in self.parameters])
        dist.all_reduce(bucket)
        for p, grad in zip(self.parameters, bucket.split([p.numel() for p in self.parameters]), strict=True):
            p.grad = grad.view_as(p)
        return loss

    def step(self) -> None:
        clip(self.parameters, square_sum([p.grad for p in self.parameters]))  # 梯度已经相同，范数不用再通信
        self.optimizer.step()
        self.optimizer.zero_grad()

    def full(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}


# --8<-- [end:ddp]


# --8<-- [start:unit]
class FlatUnit:
    """一个模块的参数拼成一条，补零到 n 的倍数，每个 rank 留 1/n：ZeRO 与 FSDP1 的 FlatParameter 都是它。

    flat 是完整的一条（ZeRO-1/2 一直留着，模块的参数是它的视图）；shard 是自己那一段，优化器只见到它。
    """

    def __init__(self, module: nn.Module):
        n, rank = dist.get_world_size(), dist.get_rank()
        self.named = list(module.named_parameters())
        values = torch.cat([p.detach().flatten() for _, p in self.named])
        self.numel = values.numel()
        self.flat = torch.cat([values, values.new_zeros(-self.numel % n)])
        self.shard = nn.Parameter(self.flat.chunk(n)[rank].clone())
        self.point(self.flat)

    def point(self, flat: Tensor) -> None:
        for (_, p), view in zip(self.named, self.views(flat).values(), strict=True):
            p.data = view

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        pieces = flat[: self.numel].split([p.numel() for _, p in self.named])
        return {name: piece.view(p.shape) for (name, p), piece in zip(self.named, pieces, strict=True)}

    def gather(self, flat: Tensor) -> Tensor:
        dist.all_gather_single(flat, self.shard.detach())
        return flat

    def reduce_scatter(self, flat_grad: Tensor) -> Tensor:
        shard = torch.empty_like(self.shard)
        dist.reduce_scatter_single(shard, flat_grad)
        return shard

    def flat_gradient(self) -> Tensor:
        flat = torch.zeros_like(self.flat)
        torch.cat([p.grad.flatten() for _, p in self.named], out=flat[: self.numel])
        return flat


# --8<-- [end:unit]


def units_of(model: Llama) -> list[nn.Module]:
    """切成几个 unit：嵌入、每一层、末尾（归一化与输出层）。绑定的权重必须在同一个 unit 里，所以这里不支持。"""
    if model.size.tied:
        raise ValueError("嵌入与输出层绑定时，两者要放进同一个 unit")
    return [model.embed, *model.blocks, nn.ModuleList([model.norm, model.head])]


class Sharded:
    """ZeRO-1/2/3 共有的后半：裁剪用所有分片的平方和，AdamW 只更新自己那一段。"""

    units: list[FlatUnit]

    def optimize(self) -> None:
        shards = [unit.shard for unit in self.units]
        total = square_sum([shard.grad for shard in shards])
        dist.all_reduce(total)  # 一个标量：少了它，每个 rank 裁的倍数就不同
        clip(shards, total)
        self.optimizer.step()
        self.optimizer.zero_grad()


# --8<-- [start:zero12]
class Zero1(Sharded):
    """切优化器状态：反向结束后 reduce-scatter 梯度，各更新自己的 1/n，再 all-gather 新权重。"""

    def __init__(self, model: Llama):
        self.model, self.units = model, [FlatUnit(model)]
        self.optimizer = torch.optim.AdamW([unit.shard for unit in self.units], **OPTIMIZER)

    def backward(self, x: Tensor, y: Tensor, tokens: int) -> Tensor:
        loss = loss_sum(self.model(x), y) / tokens
        loss.backward()
        for unit in self.units:
            unit.shard.grad = unit.reduce_scatter(unit.flat_gradient())
        return loss

    def step(self) -> None:
        self.optimize()
        for unit in self.units:
            unit.gather(unit.flat)  # 模块的参数是 flat 的视图，写进去就都更新了
        self.model.zero_grad()

    def full(self) -> dict[str, Tensor]:
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}


class Zero2(Zero1):
    """再切梯度：每个 unit 的梯度一凑齐就 reduce-scatter 并放掉，完整的梯度同时只活一个 unit。"""

    def __init__(self, model: Llama):
        self.model, self.units = model, [FlatUnit(module) for module in units_of(model)]
        self.optimizer = torch.optim.AdamW([unit.shard for unit in self.units], **OPTIMIZER)
        self.live = self.peak = 0  # 还活着的完整梯度，元素数
        for unit in self.units:
            waiting = {name for name, _ in unit.named}
            for name, p in unit.named:
                p.register_post_accumulate_grad_hook(lambda p, u=unit, w=waiting, name=name: self.ready(u, w, name, p))

    def ready(self, unit: FlatUnit, waiting: set[str], name: str, p: Tensor) -> None:
        self.live += p.numel()
        self.peak = max(self.peak, self.live)
        waiting.discard(name)
        if not waiting:
            unit.shard.grad = unit.reduce_scatter(unit.flat_gradient())
            for other, q in unit.named:
                q.grad = None
                waiting.add(other)
            self.live -= unit.numel

    def backward(self, x: Tensor, y: Tensor, tokens: int) -> Tensor:
        loss = loss_sum(self.model(x), y) / tokens
        loss.backward()
        return loss


# --8<-- [end:zero12]


# --8<-- [start:zero3]
class Unshard(torch.autograd.Function):
    """前向 all-gather 出完整的一条，反向 reduce-scatter 它的梯度：ZeRO-3 的两个通信恰好互为转置。"""

    @staticmethod
    def forward(ctx, shard: Tensor, unit: "Zero3Unit") -> Tensor:
        ctx.unit = unit
        return unit.gather(shard.new_empty(len(shard) * dist.get_world_size()))

    @staticmethod
    def backward(ctx, grad: Tensor):
        ctx.unit.regathered = None  # 这个 unit 的反向做完了，放掉第二次聚齐的权重
        return ctx.unit.reduce_scatter(grad.contiguous()), None


class Zero3Unit(FlatUnit):
    """完整的权重只在用的时候存在：前向聚齐、用完即弃；反向第一次要用时再聚一次。"""

    def __init__(self, module: nn.Module, owner: "Zero3"):
        super().__init__(module)
        self.module, self.owner, self.regathered = module, owner, None
        self.flat = None
        for _, p in self.named:
            p.data = p.data.new_empty(()).expand(p.shape)  # 只留形状，不占显存

    def call(self, function, *inputs: Tensor) -> Tensor:
        """function(参数字典, *inputs)，参数是刚聚齐的视图。反向要留的权重只记“哪一段”，不记数据。"""
        full = Unshard.apply(self.shard, self)
        storage = full.untyped_storage().data_ptr()

        def pack(tensor: Tensor):
            if tensor.untyped_storage().data_ptr() != storage:
                return tensor
            return tensor.shape, tensor.stride(), tensor.storage_offset()

        def unpack(packed) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            if self.regathered is None:
                self.regathered = self.gather(self.shard.new_empty(len(self.shard) * dist.get_world_size()))
                self.owner.watch()
            return self.regathered.as_strided(*packed)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return function(self.views(full), *inputs)


class Zero3(Sharded):
    """权重也只留 1/n。每个 unit 前向、反向各 all-gather 一次，反向末尾 reduce-scatter 一次：3Ψ(n−1)/n。"""

    def __init__(self, model: Llama):
        self.model = model
        self.units = [Zero3Unit(module, self) for module in units_of(model)]
        self.optimizer = torch.optim.AdamW([unit.shard for unit in self.units], **OPTIMIZER)
        self.most_alive = 0

    def watch(self) -> None:
        """反向里同时聚齐着几个 unit。"""
        self.most_alive = max(self.most_alive, sum(unit.regathered is not None for unit in self.units))

    def backward(self, x: Tensor, y: Tensor, tokens: int) -> Tensor:
        first, *blocks, last = self.units
        run = lambda unit: lambda weights, *inputs: torch.func.functional_call(unit.module, weights, inputs)  # noqa: E731
        hidden = first.call(run(first), x)
        for unit in blocks:
            hidden = unit.call(run(unit), hidden)
        loss = last.call(self.head, hidden, y) / tokens
        loss.backward()
        return loss

    def head(self, weights: dict[str, Tensor], hidden: Tensor, y: Tensor) -> Tensor:
        norm, linear = weights["0.weight"], weights["1.weight"]
        hidden = nn.functional.rms_norm(hidden, norm.shape, norm, self.model.norm.eps)
        return loss_sum(hidden @ linear.T, y)

    def step(self) -> None:
        self.optimize()  # 更新后不用 all-gather：下一步前向本来就要聚

    def full(self) -> dict[str, Tensor]:
        prefixes = ["embed.", *(f"blocks.{i}." for i in range(len(self.model.blocks))), ""]
        rename = {"0.weight": "norm.weight", "1.weight": "head.weight"}
        out = {}
        for prefix, unit in zip(prefixes, self.units, strict=True):
            full = unit.gather(unit.shard.new_empty(len(unit.shard) * dist.get_world_size()).detach())
            for name, view in unit.views(full).items():
                out[rename[name] if not prefix else prefix + name] = view.clone()
        return {name: out[name] for name, _ in self.model.named_parameters()}


# --8<-- [end:zero3]


# --8<-- [start:frameworks]
class TorchDdp(Ddp):
    """框架的 DDP：钩子按桶 all-reduce，与反向重叠，并把梯度除以 rank 数。"""

    def __init__(self, model: Llama):
        super().__init__(model)
        self.wrapped = DistributedDataParallel(model)

    def backward(self, x: Tensor, y: Tensor, tokens: int) -> Tensor:
        loss = loss_sum(self.wrapped(x), y) / tokens
        (loss * dist.get_world_size()).backward()  # 抵消 DDP 的平均
        return loss


class Fsdp2:
    """框架的 fully_shard：每层一组，参数成为按第 0 维切开的 DTensor，优化器直接作用在分片上。"""

    def __init__(self, model: Llama):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        self.model = fully_shard(model, mesh=mesh)  # 剩下的（嵌入、末尾的归一化与输出层）归根
        self.optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)

    def backward(self, x: Tensor, y: Tensor, tokens: int) -> Tensor:
        loss = loss_sum(self.model(x), y) / tokens
        (loss * dist.get_world_size()).backward()
        return loss

    def step(self) -> None:
        parameters = list(self.model.parameters())
        total = square_sum([p.grad.to_local() for p in parameters])
        dist.all_reduce(total)
        clip(parameters, total)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def full(self) -> dict[str, Tensor]:
        return {name: p.full_tensor().detach() for name, p in self.model.named_parameters()}


# --8<-- [end:frameworks]

ENGINES = {
    "DDP（手写）": Ddp,
    "DDP（框架）": TorchDdp,
    "ZeRO-1": Zero1,
    "ZeRO-2": Zero2,
    "ZeRO-3": Zero3,
    "FSDP2（框架）": Fsdp2,
}


# --8<-- [start:train]
def train(rank: int, kind: str, size: Size = SMALL, dtype: torch.dtype = torch.float32, uneven: bool = False, steps: int = 5):
    """在已初始化的进程组里训练，返回 (每步全局损失, 完整权重, 稳定后一步里每种通信发出的字节)。"""
    engine, n = ENGINES[kind](build(size, dtype)), dist.get_world_size()
    losses = []
    for step in range(steps):
        x, y = make_batch(step, uneven=uneven)
        with Traffic() as traffic:
            loss = engine.backward(x.chunk(n)[rank], y.chunk(n)[rank], count_tokens(y)).detach()
            engine.step()
        dist.all_reduce(loss)  # 各 rank 的部分和相加，才是全局损失
        losses.append(loss.item())
    return losses, engine.full(), traffic.sent()


# --8<-- [end:train]


def train_all(rank: int, kinds: tuple[str, ...], *args):
    """一次起进程，逐个引擎训练：省下反复起进程的时间。"""
    return {kind: train(rank, kind, *args) for kind in kinds}
