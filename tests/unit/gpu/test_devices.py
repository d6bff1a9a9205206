"""What the driver says of processes, read; torch's implementation, as far as it goes without a GPU."""

from __future__ import annotations

import subprocess

import pytest
import torch

from trainer_core.gpu.devices import GpuMemory, GpuProcess, TorchDevices, processes_in

UUID = "5f2b7c1e-0000-1111-2222-333344445555"
ANSWER = f"""GPU-{UUID}, 4321, 20480, /usr/bin/python3, a program
GPU-00000000-aaaa-bbbb-cccc-dddddddddddd, 7, 100, other
GPU-{UUID}, 99, [N/A], [Not Found]
"""


def test_processes_of_one_gpu() -> None:
    assert processes_in(ANSWER, UUID) == [
        GpuProcess(pid=4321, name="/usr/bin/python3, a program", num_bytes=20 << 30),
        GpuProcess(pid=99, name="[Not Found]", num_bytes=None),
    ]
    assert processes_in("", UUID) == []


@pytest.fixture
def properties(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        uuid = UUID

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: Properties)


def test_this_process_is_not_another(properties: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def run(command: list[str], **settings: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, ANSWER, "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr("os.getpid", lambda: 99)
    assert [process.pid for process in TorchDevices().processes(0)] == [4321]
    assert asked[0][0] == "nvidia-smi" and "gpu_uuid,pid,used_memory,process_name" in asked[0][1]


@pytest.mark.parametrize(
    "fault",
    [
        FileNotFoundError("nvidia-smi"),
        subprocess.CalledProcessError(9, "nvidia-smi"),
        subprocess.TimeoutExpired("nvidia-smi", 30),
    ],
)
def test_a_driver_that_does_not_answer_names_nobody(
    properties: None, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def run(command: list[str], **settings: object) -> None:
        raise fault

    monkeypatch.setattr(subprocess, "run", run)
    assert list(TorchDevices().processes(0)) == []


def test_what_is_neither_free_nor_ours_is_of_others() -> None:
    assert GpuMemory(total=100, free=30, ours=50).others == 20
