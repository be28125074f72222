"""Manage the processes (ranks) of a run on several devices, one per device.

Rank 0 is the process of the command and the only one that plans, logs and writes. On one machine it starts
the others. Under Slurm (``srun``) and ``torchrun`` the others exist already and wait for rank 0.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from pytorch_lightning.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from torch import distributed

from pe_experiments.configuration.schema import TrainerConfig
from pe_experiments.terminal import process
from pe_experiments.terminal.console import complain
from pe_experiments.terminal.errors import UserError, sentence

SPAWN = multiprocessing.get_context("spawn")
NOTICE_SECONDS = 10.0  # in which rank 0 should notice that another rank has ended

_exit_code_lock = threading.Lock()  # if two threads read an exit code at once, one of them gets a wrong one

Work = Callable[..., None]  # called by a rank with picklable arguments


class RankLost(RuntimeError):
    """Another process of the run failed or was killed."""


class Ranks(LightningEnvironment):
    """The processes of a run, seen from one of them; also tells Lightning about them."""

    def __init__(self, trainer: TrainerConfig, device: str, local_rank: int = 0, port: int | None = None):
        super().__init__()
        self.trainer = trainer
        self.size = trainer.devices * trainer.num_nodes
        self.device = device
        self.started_by = _started_by(self.size)  # None if rank 0 starts the others
        self._others_wait = True  # whether processes started by Slurm or torchrun wait for the next order
        self._local_rank = self.started_by.local_rank() if self.started_by else local_rank
        main_port = self.started_by.main_port if self.started_by else port
        if main_port:
            self._main_port = main_port
        if trainer.num_nodes > 1 and not self.started_by:
            raise UserError(
                f"trainer.num_nodes={trainer.num_nodes}: start one process for each device, with srun or "
                f"torchrun"
            )

    @property
    def creates_processes_externally(self) -> bool:
        """Return True, so that Lightning starts no processes."""
        return True

    @property
    def main_address(self) -> str:
        return self.started_by.main_address if self.started_by else "127.0.0.1"

    def local_rank(self) -> int:
        return self._local_rank

    def node_rank(self) -> int:
        return self.started_by.node_rank() if self.started_by else 0

    @property
    def rank(self) -> int:
        return self.node_rank() * self.trainer.devices + self.local_rank()

    def join(self) -> None:
        """Connect to the other ranks; return when all ranks are connected."""
        on_gpu = self.device == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.local_rank())
        distributed.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=f"tcp://{self.main_address}:{self.main_port}",
            rank=self.rank,
            world_size=self.size,
        )

    @contextmanager
    def run_on_all(self, work: Work, *arguments: Any) -> Iterator[None]:
        """Let the other ranks call ``work(ranks, *arguments)``, while rank 0 does the same work in the block.

        Raises:
            RankLost: another rank failed or was killed.
        """
        if self.size == 1:
            yield
            return
        if self.started_by:
            distributed.broadcast_object_list([(work, arguments)])
            self._others_wait = False
            yield
            self._others_wait = True
            return
        shared = (self.trainer, self.device, self.main_port, process.command, work, arguments)
        workers = [
            SPAWN.Process(target=_run_rank, args=(n, *shared), daemon=True) for n in range(1, self.size)
        ]
        done = threading.Event()
        try:
            for worker in workers:
                worker.start()
            threading.Thread(target=_exit_if_rank_is_lost, args=(workers, done), daemon=True).start()
            self.join()
            yield
            for worker in workers:
                worker.join()
        except RuntimeError as error:
            lost_rank = _find_lost_rank(workers)
            if lost_rank:
                raise RankLost(f"{lost_rank}; the same command resumes from the last checkpoint") from error
            raise
        finally:
            done.set()
            for worker in workers:
                worker.kill()
            if distributed.is_initialized():
                distributed.destroy_process_group()

    @contextmanager
    def assembled(self) -> Iterator[None]:
        """Connect the processes that Slurm or torchrun has started; only rank 0 enters the block.

        The other ranks do the work that rank 0 passes to `run_on_all`, and exit.
        """
        if not self.started_by:
            yield
            return
        self.join()
        if self.rank:
            while order := _receive_order():
                work, arguments = order
                work(self, *arguments)
            distributed.destroy_process_group()
            process.end()
        try:
            yield
        finally:
            if self._others_wait:  # otherwise they are still at work and end when the connection closes
                distributed.broadcast_object_list([None])
            distributed.destroy_process_group()


def _started_by(size: int) -> ClusterEnvironment | None:
    """Return the environment that has started a process for each device; None without one."""
    environments = (TorchElasticEnvironment, SLURMEnvironment)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The `srun` command is available")  # srun is not needed
        detected = [environment for environment in environments if size > 1 and environment.detect()]
    if not detected:
        return None
    try:
        environment = detected[0]()
    except RuntimeError as error:  # raised for Slurm's variables
        raise UserError(f"trainer.devices: {sentence(error)}") from error
    if environment.world_size() not in (1, size):
        mismatch = f"{environment.world_size()} processes were started; start {size}"
        raise UserError(f"trainer.devices times trainer.num_nodes is {size}, and {mismatch}")
    return environment if environment.world_size() > 1 else None


def _receive_order() -> Any:
    """Return the work and arguments that rank 0 passes to the others, or None at the end."""
    order = [None]
    distributed.broadcast_object_list(order)
    return order[0]


def _run_rank(
    local_rank: int,
    trainer: TrainerConfig,
    device: str,
    port: int,
    command: list[str],
    work: Work,
    arguments: tuple[Any, ...],
) -> None:
    """Do the work of a rank other than 0 in this process, which ends when the process of rank 0 ends."""
    process.follow_parent(signal.SIGINT, signal.SIGTERM)
    process.set_up(command)
    ranks = Ranks(trainer, device, local_rank, port)
    ranks.join()
    work(ranks, *arguments)
    distributed.destroy_process_group()


def _exit_if_rank_is_lost(workers: Sequence[BaseProcess], done: threading.Event) -> None:
    """Kill this process if another rank is lost and the main thread does not notice in time."""
    while not done.wait(1.0):
        lost_rank = _find_lost_rank(workers, 0.0)
        if lost_rank:
            if not done.wait(NOTICE_SECONDS):
                complain(lost_rank)
                os.kill(os.getpid(), signal.SIGKILL)
            return


def _find_lost_rank(workers: Sequence[BaseProcess], seconds: float = 1.0) -> str:
    """Return a sentence about a rank that fails or is killed within these seconds, or an empty string."""
    wait([worker.sentinel for worker in workers], timeout=seconds)
    with _exit_code_lock:
        codes = [worker.exitcode for worker in workers]
    for rank, code in enumerate(codes, 1):
        if code:
            how = "was killed" if code < 0 else "failed"
            return f"the process of device {rank} (of {len(workers) + 1}, from 0) {how}"
    return ""
