"""DiLoCo on one machine: a master and two workers, each a process, meet at a folder.

    python examples/diloco.py [FOLDER]

Takes about half a minute. FOLDER (by default a new one in runs/) gets the store
and a folder for each process.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "examples" / "diloco.yaml"
WORKERS = ("a", "b")


def main() -> int:
    """Start the three processes, wait for them, and say what they came to."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else new_folder()
    folder.mkdir(parents=True, exist_ok=True)
    processes = {"master": start(folder, "master")}
    for number, name in enumerate(WORKERS):
        # Another seed is another order of the data; the weights come from the master.
        processes[name] = start(folder, "worker", f"diloco.worker={name}", f"run.seed={number + 1}")
    print(f"master and workers {', '.join(WORKERS)} are running; their logs are in {folder}", flush=True)
    try:
        wait(list(processes.values()))
    finally:
        for process in processes.values():
            process.terminate()
    statuses = {name: process.wait() for name, process in processes.items()}
    for name, status in statuses.items():
        print(f"{name}: exit status {status}")
    if any(statuses.values()):
        return 1
    print((folder / "master.txt").read_text(encoding="utf-8").splitlines()[-1])
    return 0


def wait(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all have ended well or one has not: the others would wait for it."""
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            return
        time.sleep(0.1)


def start(folder: Path, role: str, *settings: str) -> subprocess.Popen[bytes]:
    """Start one process; what it prints goes to a file in the folder."""
    name = next((each.partition("=")[2] for each in settings if each.startswith("diloco.worker=")), role)
    settings = (
        f"run.directory={folder / name}",
        f"diloco.role={role}",
        f"diloco.store=file://{(folder / 'store').absolute()}",
        *settings,
    )
    command = [sys.executable, "-m", "trainer", "train", "--config", str(CONFIG)]
    command += [argument for each in settings for argument in ("--set", each)]
    # One thread each: three processes share this machine.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (folder / f"{name}.txt").open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)


def new_folder() -> Path:
    """Return a new folder below runs/."""
    runs = Path("runs")
    runs.mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="diloco-", dir=runs))


if __name__ == "__main__":
    sys.exit(main())
