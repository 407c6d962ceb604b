"""Runs a module's `main` in two processes, as torchrun would, but what it needs is loaded once, before they part.

python -m tests.support.pair MODULE WORDS...
"""

import importlib
import os
import signal
import sys
import traceback

from torch.distributed import TCPStore


def main() -> None:
    name, *words = sys.argv[1:]
    work = importlib.import_module(name).main
    sys.argv = [name, *words]
    told = [os.pipe(), os.pipe()]
    children = [_begun(rank, work, told) for rank in range(2)]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for _, write in told:
        os.write(write, str(store.port).encode())
    while children:
        child, status = os.wait()
        children.remove(child)
        if status:
            for other in children:  # it would wait for the one that failed
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


def _begun(rank: int, work: object, told: list[tuple[int, int]]) -> int:
    """A process that works as soon as it is told the port of the store through which the two meet."""
    if child := os.fork():
        return child
    assert callable(work)
    for _, write in told:
        os.close(write)
    code = 1
    try:
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.read(told[rank][0], 8).decode()}
        os.environ.update({**place, **meet, "TORCHELASTIC_USE_AGENT_STORE": "True"})
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
