"""The hub of our own against huggingface_hub's client: what that client believes, our tests may rely on."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, HfFileSystem, get_hf_file_metadata, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile

from tests.tools.hub import Hub, running_hub
from tests.tools.hub_answers import git_sha1

REPO = "owner/corpus"
LARGE = bytes(range(256)) * 64
FILES = {
    "README.md": b"# corpus\n",
    "data/en/a.parquet": LARGE,
    "data/en/b.jsonl": b'{"text": "b"}\n',
    "data/zh/c d+e.jsonl": b'{"text": "c"}\n',
    "data/_SUCCESS": b"",
}


@pytest.fixture(params=[False, True], ids=["direct", "redirected"])
def hub(request: pytest.FixtureRequest) -> Iterator[Hub]:
    with running_hub(page_size=2, redirect=request.param) as running:
        yield running


def test_the_client_lists_a_tree_page_by_page_with_sizes_and_hashes(hub: Hub) -> None:
    commit = hub.commit(REPO, FILES)
    api = HfApi(endpoint=hub.url)
    entries = list(api.list_repo_tree(REPO, recursive=True, revision=commit, repo_type="dataset"))
    files = {entry.path: entry for entry in entries if isinstance(entry, RepoFile)}
    assert sorted(files) == sorted(FILES) and len(entries) == len(FILES) + 3
    assert len(hub.requests("GET .*/tree/")) == 4
    large = files["data/en/a.parquet"]
    assert large.size == len(LARGE) and large.lfs is not None
    assert (large.lfs.sha256, large.lfs.size) == (hashlib.sha256(LARGE).hexdigest(), len(LARGE))
    small = files["data/en/b.jsonl"]
    assert small.lfs is None and small.blob_id == git_sha1(FILES["data/en/b.jsonl"])
    below = [entry.path for entry in api.list_repo_tree(REPO, "data/en", repo_type="dataset")]
    assert below == ["data/en/a.parquet", "data/en/b.jsonl"]
    top = [entry.path for entry in api.list_repo_tree(REPO, repo_type="dataset")]
    assert top == ["README.md", "data"]


def test_the_client_resolves_revisions_and_paths(hub: Hub) -> None:
    old = hub.commit(REPO, FILES, age_hours=48)
    new = hub.commit(REPO, {"only": b"x"}, branch="next")
    api = HfApi(endpoint=hub.url)
    info = api.dataset_info(REPO)
    assert info.sha == old and info.last_modified is not None and info.siblings is not None
    assert api.dataset_info(REPO, revision="next").sha == new
    (found,) = api.get_paths_info(REPO, ["data/zh/c d+e.jsonl", "gone"], repo_type="dataset")
    assert isinstance(found, RepoFile) and found.blob_id == git_sha1(FILES["data/zh/c d+e.jsonl"])


@pytest.mark.parametrize("path", ["data/en/a.parquet", "data/zh/c d+e.jsonl", "data/_SUCCESS"])
def test_the_client_downloads_files_whole(hub: Hub, tmp_path: Path, path: str) -> None:
    commit = hub.commit(REPO, FILES)
    url = hf_hub_url(REPO, path, repo_type="dataset", revision=commit, endpoint=hub.url)
    metadata = get_hf_file_metadata(url, endpoint=hub.url)
    assert (metadata.commit_hash, metadata.size) == (commit, len(FILES[path]))
    cached = hf_hub_download(REPO, path, repo_type="dataset", endpoint=hub.url, cache_dir=tmp_path / "c")
    assert Path(cached).read_bytes() == FILES[path]
    local = hf_hub_download(
        REPO, path, repo_type="dataset", revision=commit, endpoint=hub.url, local_dir=tmp_path / "l"
    )
    assert Path(local).read_bytes() == FILES[path]
    methods = [request.key.split()[0] for request in hub.requests("/resolve/|/network/")]
    assert methods == ["HEAD", *(["HEAD", "GET"] * 2 if FILES[path] else ["HEAD"] * 2)]


def test_the_client_reads_ranges(hub: Hub) -> None:
    commit = hub.commit(REPO, FILES)
    system = HfFileSystem(endpoint=hub.url, skip_instance_cache=True)
    with system.open(f"datasets/{REPO}@{commit}/data/en/a.parquet", block_size=512) as file:
        file.seek(1000)
        assert file.read(300) == LARGE[1000:1300]
    assert any(request.span for request in hub.requests("GET"))


def test_the_client_names_what_is_missing_or_closed(hub: Hub) -> None:
    commit = hub.commit(REPO, FILES)
    hub.commit("owner/closed", FILES)
    hub.repos["owner/closed"].token = "mine"
    api = HfApi(endpoint=hub.url, token="other")

    def head(repo: str, path: str, revision: str) -> None:
        url = hf_hub_url(repo, path, repo_type="dataset", revision=revision, endpoint=hub.url)
        get_hf_file_metadata(url, token="other", endpoint=hub.url)

    with pytest.raises(RepositoryNotFoundError):
        api.dataset_info("owner/none")
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info(REPO, revision="none")
    with pytest.raises(GatedRepoError):
        api.dataset_info("owner/closed")
    with pytest.raises(RemoteEntryNotFoundError):
        head(REPO, "gone.parquet", commit)
    with pytest.raises(GatedRepoError):
        head("owner/closed", "data/en/a.parquet", "main")
    hub.forget(REPO, commit)
    with pytest.raises(RevisionNotFoundError):
        head(REPO, "data/en/a.parquet", commit)
    assert HfApi(endpoint=hub.url, token="mine").dataset_info("owner/closed").sha


def test_plans_are_taken_in_turn_and_the_hub_can_be_away(hub: Hub) -> None:
    hub.commit(REPO, FILES)
    hub.plan("HEAD .*b.jsonl", "status:404", "ok", "status:403*")
    url = hf_hub_url(REPO, "data/en/b.jsonl", repo_type="dataset", endpoint=hub.url)
    codes = []
    for _ in range(4):
        try:
            get_hf_file_metadata(url, endpoint=hub.url)
            codes.append(200)
        except HfHubHTTPError as error:
            codes.append(error.response.status_code)
    assert codes == [404, 200, 403, 403]
    assert [r.action for r in hub.requests("HEAD")] == ["status:404", "ok", "status:403", "status:403"]
    hub.away()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(f"{hub.url}/api/datasets/{REPO}")
    hub.back()
    assert urllib.request.urlopen(f"{hub.url}/api/datasets/{REPO}").status == 200
