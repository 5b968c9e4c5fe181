"""The container image: restricted as in production it is ready within 10 s, scores, and compiles nothing.

`./dev image` builds the image, sets IMAGE to its name and runs this file; `./dev test` does not. It is started in a
mount namespace of its own: root file system read-only, the user of the image, one CPU, 1 GiB.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from darksight_client import Client

from tests.support.servers import Server, follow, wait_until

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
MEMORY_BYTES = 1 << 30
READY_SECONDS = 10.0
# Arguments: root file system, data directory, bundles, memory group, CPU; then the command.
_START = """
root=$1 data=$2 bundles=$3 group=$4 cpu=$5; shift 5
echo $$ > "$group/cgroup.procs"
mount --bind "$root" "$root"
mount --bind /proc "$root/proc"
mount --bind /dev "$root/dev"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$root/tmp"
mount --bind "$data" "$root/var/lib/darksight"
mount --bind "$bundles" "$root/bundles"
mount -o remount,bind,ro "$root/bundles"
mount -o remount,bind,ro "$root"
exec taskset --cpu-list "$cpu" chroot "$@"
"""


def run(*command: str) -> str:
    """Output of a command."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@contextmanager
def memory_group() -> Iterator[Path]:
    """A control group with a memory limit, below or beside the group of this process."""
    groups = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    if "memory" in groups:
        path, limit = Path("/sys/fs/cgroup/memory", groups["memory"].strip("/")), "memory.limit_in_bytes"
    else:
        # In version 2 a group with processes has no groups below it.
        path, limit = Path("/sys/fs/cgroup", groups[""].strip("/")).parent, "memory.max"
    path /= f"darksight-image-{os.getpid()}"
    path.mkdir()
    try:
        (path / limit).write_text(str(MEMORY_BYTES))
        yield path
    finally:
        wait_until(lambda: not (path / "cgroup.procs").read_text(), 60.0, "all processes to exit")
        path.rmdir()


@contextmanager
def root_of(image: str) -> Iterator[Path]:
    """The file system of an image."""
    container = run("buildah", "from", "--pull-never", image)
    try:
        yield Path(run("buildah", "mount", container))
    finally:
        run("buildah", "rm", container)


def chroot_arguments(config: dict[str, Any], root: Path, *options: str) -> list[str]:
    """Arguments of chroot that run the image as its configuration says."""
    user, program = config["User"], [*config["Entrypoint"], *config["Cmd"], *options]
    enter = [f"--userspec={user}", f"--groups={user.partition(':')[2]}", str(root)]
    return [*enter, "env", "-i", "-C", config["WorkingDir"], *config["Env"], *program]


def resident_bytes(group: Path) -> int:
    """Memory of all processes of a group; shared pages count once."""
    found = 0
    for pid in (group / "cgroup.procs").read_text().split():
        lines = Path("/proc", pid, "smaps_rollup").read_text().splitlines()
        found += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return found


@contextmanager
def started(image: str, folder: Path) -> Iterator[tuple[Server, Path, float]]:
    """The service of an image, its memory group, and the seconds until it was ready."""
    config = json.loads(run("buildah", "inspect", "--type", "image", image))["Docker"]["config"]
    data, bundles = folder / "data", folder / "bundles"
    for path in (data, bundles):
        path.mkdir()
        os.chown(path, *map(int, config["User"].split(":")))
    shutil.copy(GOLDEN / "bundle_v3.safetensors", bundles / "golden.safetensors")
    ports = [f"--{name}-port=0" for name in ("grpc", "http", "explorer")]
    cpu = str(min(os.sched_getaffinity(0)))
    with root_of(image) as root, memory_group() as group:
        places = [str(path) for path in (root, data, bundles, group)]
        command = chroot_arguments(config, root, "--model=golden=golden.safetensors", *ports)
        begun = time.monotonic()
        process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-euc", _START, "sh", *places, cpu, *command],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            server = follow(process, data, 60.0)
            wait_until(lambda: server.get("/v2/health/ready")[0] == 200, 60.0, "readiness")
            yield server, group, time.monotonic() - begun
        finally:
            process.terminate()
            process.wait(60)


def test_the_image_starts_restricted_and_compiles_nothing(tmp_path: Path) -> None:
    """It is ready within 10 s, scores as the bundle promises, stays within its memory and writes to its data only."""
    image = os.environ["IMAGE"]
    with np.load(GOLDEN / "bundle_v3.scores.npz") as file:
        expected = dict(file)

    with started(image, tmp_path) as (server, group, seconds):
        process = Path("/proc", str(server.process.pid))
        status = (process / "status").read_text()
        mounts = {fields[4]: fields[5] for fields in map(str.split, (process / "mountinfo").read_text().splitlines())}
        with Client(server.grpc_target, timeout_seconds=30.0) as client:
            scored = client.score("golden", expected["probs"])
        wait_until(lambda: server.events("kernel_loaded"), 30.0, "the compiled code")
        memory = resident_bytes(group)

    size = run("buildah", "images", "--format", "{{.Size}}", image)
    sys.stdout.write(f"\n{image}: {size}, ready in {seconds:.1f} s, {memory / 1e6:.0f} MB of memory\n")
    assert seconds < READY_SECONDS
    assert mounts["/"].startswith("ro")
    assert "Uid:\t10001\t10001" in status
    np.testing.assert_allclose(scored.p_value, expected["p_value"], rtol=1e-6, atol=1e-6)
    assert scored.recorded
    assert server.events("kernel_compiling") == []
    assert memory < MEMORY_BYTES
    assert server.process.returncode == 0
