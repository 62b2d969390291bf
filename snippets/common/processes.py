"""在本机起若干个 gloo 进程跑同一个函数：页面与测试里的“多卡”都是它。"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


# --8<-- [start:launch]
def launch(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """在 world 个进程里各调用一次 function(rank, *args)，按 rank 次序返回结果。

    function 要在模块顶层定义；返回值须能被 torch.save（张量、数、列表、字典）。任何一个进程出错，整体抛错。
    """
    if world < 1:
        raise ValueError(f"进程数必须为正，收到 {world}")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_worker, args=(world, folder, function, args), nprocs=world)
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(world)]


def _worker(rank: int, world: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world)  # 用文件碰头，不占端口
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        torch.save(function(rank, *args), Path(folder) / f"{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


# --8<-- [end:launch]
