"""在本机起若干个 gloo 进程跑同一个函数：页面与测试里的“多卡”都是它。"""

import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import ProcessException


# --8<-- [start:launch]
def launch(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """在 world 个进程里各调用一次 function(rank, *args)，按 rank 次序返回结果。

    function 要在模块顶层定义；返回值须能被 torch.save（张量、数、列表、字典）。
    任何一个进程出错，整体抛 RuntimeError，带上最先出错的那个进程的调用栈（别的进程只会报“连接断开”）。
    """
    if world < 1:
        raise ValueError(f"进程数必须为正，收到 {world}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            mp.spawn(_worker, args=(world, folder, function, args), nprocs=world)
        except ProcessException as error:
            reports = sorted(folder.glob("*.error"), key=lambda file: file.stat().st_mtime_ns)
            raise RuntimeError(reports[0].read_text(encoding="utf-8") if reports else str(error)) from error
        return [torch.load(folder / f"{rank}.pt") for rank in range(world)]


def _worker(rank: int, world: int, folder: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)  # 用文件碰头，不占端口
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        torch.save(function(rank, *args), folder / f"{rank}.pt")
        dist.barrier()
    except Exception:
        (folder / f"{rank}.error").write_text(f"rank {rank}:\n{traceback.format_exc()}", encoding="utf-8")
        raise
    finally:
        dist.destroy_process_group()


# --8<-- [end:launch]
