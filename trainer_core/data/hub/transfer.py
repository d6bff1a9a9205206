"""One file on its way from a hub to this disk.

The bytes collect beside the target in `.NAME.part` (by xet: below `.NAME.xet/`), where a cut, killed or left
transfer goes on; they get their name by one rename, and only when size and digest are the pinned ones.
Who holds the lock of the part works on it, so several threads and processes may want one file at once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer_core.data.files.pinned_file import PinnedFile, difference, is_pointer
from trainer_core.data.hub.process import ask
from trainer_core.data.hub.requests import Hub, cache_folder, offline
from trainer_core.data.hub.waiting import Patience, Say, Wait
from trainer_core.errors import DiskFull, Refused, disk_full
from trainer_core.line.files import fsync_dir

PART = ".part"
STAGE = ".xet"


def part_of(target: Path) -> Path:
    """Where a target's bytes collect."""
    return target.with_name(f".{target.name}{PART}")


def stage_of(target: Path) -> Path:
    """Where they collect by xet."""
    return target.with_name(f".{target.name}{STAGE}")


def remove_download(target: Path) -> None:
    """Remove a download and what is left of its transfers."""
    target.unlink(missing_ok=True)
    part_of(target).unlink(missing_ok=True)
    shutil.rmtree(stage_of(target), ignore_errors=True)


class Transfer:
    """The transfer of one file."""

    def __init__(
        self,
        repo: str,
        commit: str,
        file: PinnedFile,
        target: Path,
        *,
        wait: Wait,
        say: Say,
        patience: Patience,
    ) -> None:
        self._what = f"{repo}: {file.path}"
        self._repo = repo
        self._commit = commit
        self._file = file
        self._target = target
        self._part = part_of(target)
        self._stage = stage_of(target)
        self._wait = wait
        self._say = say
        self._patience = patience

    def run(self, *, again: bool) -> None:
        """Let the target be the pinned file (see `hub.fetch_to`)."""
        if not again and difference(self._target, self._file) is None:
            self._refuse_pointer(self._target)
            return
        try:
            with self._claimed():
                self._have(again)
        except OSError as error:
            if disk_full(error):
                raise self._disk_full(str(error)) from error
            raise

    def _have(self, again: bool) -> None:
        if not again and self._is_here():
            os.truncate(self._part, 0)
            return
        self._target.unlink(missing_ok=True)
        if again:
            os.truncate(self._part, 0)
        try:
            if offline():
                self._copy_cached()
            else:
                self._download()
        except DiskFull:
            self._give_back()
            raise
        except OSError as error:
            if disk_full(error):
                self._give_back()
            raise

    def _is_here(self) -> bool:
        problem = difference(self._target, self._file)
        if problem is None:
            self._refuse_pointer(self._target)
        elif self._target.exists():
            self._say(f"{self._what}: {self._target} {problem}; fetched again")
        return problem is None

    def _download(self) -> None:
        hub = Hub(self._repo, self._wait, self._patience)
        request = {
            "operation": "fetch",
            "commit": self._commit,
            "path": self._file.path,
            "size": self._file.size,
            "part": str(self._part),
            "stage": str(self._stage),
        }
        wrong = 0
        inherited = self._part.stat().st_size > 0
        while True:
            shutil.rmtree(self._stage, ignore_errors=True)
            self._check_room()
            had = self._part.stat().st_size
            answer = hub.try_once(request, watched=(self._part, self._stage))
            if answer["kind"] == "done":
                problem = self._take(Path(answer["file"]))
                if problem is None:
                    self._wait.over()
                    return
                # Bytes that an earlier process left may be the wrong ones: the hub is not to blame yet.
                wrong += not inherited
                inherited, hub.xet = False, False
                if wrong >= self._patience.wrong_tries:
                    raise Refused(
                        f"{self._what}: the hub sent other bytes than those pinned at commit {self._commit}, "
                        f"{wrong} times: {problem}; try later, or from another network"
                    )
                self._say(f"{self._what}: {problem}; fetched again")
                continue
            if answer["kind"] == "full":
                raise self._disk_full(answer["message"])
            progress = self._part.stat().st_size > had
            hub.wait_after(
                answer, revision=self._commit, pinned=True, path=self._file.path, progress=progress
            )

    def _take(self, found: Path) -> str | None:
        """Give the bytes that came their name; a word about them when they are not the pinned ones."""
        problem = difference(found, self._file)
        if problem is None:
            self._refuse_pointer(found)
            self._publish(found)
        else:
            os.truncate(self._part, 0)
        shutil.rmtree(self._stage, ignore_errors=True)
        return problem

    def _publish(self, found: Path) -> None:
        descriptor = os.open(found, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(found, self._target)
        if found != self._part:
            self._part.unlink()
        fsync_dir(self._target.parent)

    def _copy_cached(self) -> None:
        """A copy of what the hub's own cache has. Raises Refused when it has not, or has other bytes."""
        request = {
            "operation": "cached",
            "repo": self._repo,
            "commit": self._commit,
            "path": self._file.path,
            "cache_dir": cache_folder(),
        }
        check = self._wait.check_leaving
        answer = ask(request, xet=False, watched=(), patience=self._patience, check=check)
        found = Path(answer["file"]) if answer.get("file") else None
        problem = difference(found, self._file) if found else "is not in the hub's cache"
        if found is None or problem is not None:
            raise Refused(
                f"{self._what} at {self._commit}: {f'{found} ' if found else ''}{problem}, and "
                "HF_HUB_OFFLINE is set; unset it to download the file"
            )
        shutil.copyfile(found, self._part)
        if (problem := self._take(self._part)) is not None:
            raise Refused(f"{self._what}: {found} changed while it was copied: {problem}; start again")

    def _refuse_pointer(self, path: Path) -> None:
        if is_pointer(path):
            raise Refused(
                f"{self._what} at {self._commit}: is a Git LFS pointer, not the data it stands for: the data "
                "was never uploaded; leave the file out by the source's glob, or ask the owner"
            )

    def _check_room(self) -> None:
        missing = self._file.size - self._part.stat().st_size
        free = shutil.disk_usage(self._target.parent).free
        if free < missing:
            raise self._disk_full(f"{missing} bytes are missing, {free} are free")

    def _disk_full(self, detail: str) -> DiskFull:
        return DiskFull(f"{self._target}: no space left ({detail}); free space and start again")

    def _give_back(self) -> None:
        """Free what the unfinished file takes: others need it more."""
        os.truncate(self._part, 0)
        shutil.rmtree(self._stage, ignore_errors=True)

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Hold the part's lock; it is gone with the name when another holder has finished the file.

        A part without bytes is removed at the end, by whom it belongs to.
        """
        while True:
            self._target.parent.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:
                continue  # another download was discarded, and its empty folder with it
            try:
                if _lock(descriptor) and _is_at(descriptor, self._part):
                    try:
                        yield
                    finally:
                        if not os.fstat(descriptor).st_size and _is_at(descriptor, self._part):
                            self._part.unlink()
                    return
            finally:
                os.close(descriptor)
            self._wait.pause(self._patience.poll_seconds)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
