"""An archive appears whole or not at all, and holds what was asked for, whatever lies around it."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest

from model_archiver.model_packaging import main

MODEL = [sys.executable, "-m", "model_archiver", "--model-name", "m", "--version", "1.0", "--handler", "svc.py"]


@pytest.fixture
def work(tmp_path, monkeypatch):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "svc.py").write_text("def handle(data, context):\n    return data\n")
    (folder / "store").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.chdir(str(folder))
    return folder


def archive(*arguments, **options):
    done = subprocess.run([*MODEL, *arguments], capture_output=True, **options)
    return done.returncode, done.stderr.decode("utf-8")


def test_a_failed_write_keeps_the_old_archive(work):
    assert archive("--export-path", "store") == (0, "")
    before = (work / "store" / "m.mar").read_bytes()
    (work / "big.bin").write_bytes(os.urandom(300000))
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000)); "
    program = limit + "from model_archiver.model_packaging import main; import sys; sys.exit(main())"
    for form in ("default", "zip-store", "tgz"):
        arguments = [*MODEL[3:], "--export-path", "store", "-f", "--extra-files", "big.bin", "--archive-format", form]
        done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True)
        assert done.returncode == 1
        assert b"ERROR - cannot write store/m." in done.stderr
        assert b"File too large" in done.stderr
        assert b"Traceback" not in done.stderr
        assert os.listdir("store") == ["m.mar"]
    assert (work / "store" / "m.mar").read_bytes() == before


def test_a_failed_folder_leaves_nothing(work):
    (work / "big.bin").write_bytes(os.urandom(300000))
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000)); "
    program = limit + "from model_archiver.model_packaging import main; import sys; sys.exit(main())"
    arguments = [*MODEL[3:], "--export-path", "store", "--extra-files", "big.bin", "--archive-format", "no-archive"]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True)
    assert done.returncode == 1
    assert b"File too large" in done.stderr
    assert os.listdir("store") == []


def test_a_place_that_cannot_be_written(work):
    code, words = archive("--export-path", "/proc")
    assert code == 1
    assert words.startswith("ERROR - cannot write /proc/m.mar: ")
    assert "Traceback" not in words


def test_an_input_that_cannot_be_read(work):
    code, words = archive("--extra-files", "/proc/self/mem")
    assert code == 1
    assert words.startswith("ERROR - cannot read /proc/self/mem: Input/output error")
    assert not (work / "m.mar").exists()


def test_interrupted(work):
    with (work / "big.bin").open("wb") as stream:
        stream.truncate(20 << 30)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in background jobs
    try:
        process = subprocess.Popen([*MODEL, "--export-path", "store", "--extra-files", "big.bin"], stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while not [entry for entry in os.scandir("store") if entry.stat().st_size]:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.005)
    assert not [name for name in os.listdir("store") if not name.startswith(".")]
    process.send_signal(signal.SIGINT)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 130, words
    assert words == b"ERROR - Interrupted: no archive was made.\n"
    assert os.listdir("store") == []


def test_interrupted_with_an_open_member(work, monkeypatch, caplog, capfd):
    begin = zipfile.ZipFile.open
    members = []

    def interrupted(self, *arguments, **options):
        members.append(begin(self, *arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "open", interrupted)
    monkeypatch.setattr(sys, "argv", ["model_archiver", *MODEL[3:], "--export-path", "store"])
    assert main() == 130
    members.clear()
    gc.collect()
    assert caplog.messages == ["Interrupted: no archive was made."]
    assert capfd.readouterr().err == ""
    assert os.listdir("store") == []


def test_builds_of_one_name_at_the_same_time(work):
    running = []
    for number in range(6):
        (work / ("in%d" % number)).mkdir()
        for item in range(50):
            (work / ("in%d" % number) / ("f%d" % item)).write_text(str(number))
        command = [*MODEL, "--export-path", "store", "-f", "--extra-files", "in%d" % number]
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE))
    for process in running:
        words = process.communicate(timeout=60)[1]
        assert process.returncode == 0, words
    assert os.listdir("store") == ["m.mar"]
    with zipfile.ZipFile("store/m.mar") as made:
        assert made.testzip() is None
        assert len({made.read("f%d" % item) for item in range(50)}) == 1


@pytest.mark.parametrize("form, name", [("default", "m.mar"), ("tgz", "m.tar.gz"), ("no-archive", "m")])
def test_an_archive_does_not_hold_itself(work, form, name):
    def build():
        code, words = archive("-f", "--extra-files", ".", "--archive-format", form)
        assert code == 0, words
        return words

    build()
    words = build()
    assert "the archive that is being made" in words or form == "no-archive"
    assert sorted(members(work / name)) == ["MAR-INF/MANIFEST.json", "svc.py"]


def test_no_archive_into_a_folder_that_is_there(work):
    (work / "weights").write_text("old")
    assert archive("--archive-format", "no-archive", "--extra-files", "weights") == (0, "")
    (work / "m" / "venv").mkdir()
    (work / "m" / "kept.txt").write_text("k")
    with (work / "m" / "weights").open("rb") as served:
        (work / "weights").write_text("new")
        code, words = archive("--archive-format", "no-archive", "--extra-files", "weights", "-f")
        assert served.read() == b"old"
    assert code == 0
    assert "m still holds 1 files that are not part of this build: kept.txt." in words
    assert (work / "m" / "weights").read_text() == "new"
    assert (work / "m" / "kept.txt").read_text() == "k"
    assert sorted(os.listdir("m")) == ["MAR-INF", "kept.txt", "svc.py", "venv", "weights"]


def test_no_archive_of_a_folder_onto_itself(work):
    (work / "m" / "code").mkdir(parents=True)
    (work / "m" / "code" / "a.py").write_text("a")
    (work / "m" / "h.py").write_text("h")
    code, words = archive("--archive-format", "no-archive", "-f", "--handler", "m/h.py", "--extra-files", "m")
    assert code == 0, words
    assert sorted(members(work / "m")) == ["MAR-INF/MANIFEST.json", "code/a.py", "h.py"]
    assert json.loads((work / "m" / "MAR-INF" / "MANIFEST.json").read_text())["model"]["handler"] == "h.py"


def test_a_name_taken_by_the_other_kind(work):
    (work / "m.mar").mkdir()
    code, words = archive("-f")
    assert code == 1
    assert "m.mar is a folder" in words
    (work / "m").write_text("a file")
    code, words = archive("-f", "--archive-format", "no-archive")
    assert code == 1
    assert "m is a file" in words
    assert (work / "m").read_text() == "a file"


def test_a_loop_of_links(work):
    (work / "in" / "deep").mkdir(parents=True)
    (work / "in" / "deep" / "up").symlink_to("..")
    code, words = archive("--extra-files", "in")
    assert code == 1
    assert "in/deep/up is a link that leads back to in" in words


def test_a_folder_and_a_file_of_one_name(work):
    (work / "one" / "data").mkdir(parents=True)
    (work / "one" / "data" / "f").write_text("f")
    (work / "data").write_text("d")
    for order in ("one,data", "data,one"):
        code, words = archive("--extra-files", order)
        assert code == 1
        assert "cannot go into the archive" in words
        assert not (work / "m.mar").exists()
    (work / "MAR-INF").write_text("f")
    code, words = archive("--extra-files", "MAR-INF")
    assert code == 1
    assert "the manifest's folder" in words


def test_big_folders(work):
    for number in range(10):
        folder = work / "data" / ("part%02d" % number) / "x"
        folder.mkdir(parents=True)
        for item in range(100):
            (folder / str(item)).write_text("%d %d" % (number, item))
    for form, name in (("default", "m.mar"), ("tgz", "m.tar.gz"), ("no-archive", "m")):
        assert archive("--extra-files", "data", "--archive-format", form) == (0, "")
        found = members(work / name)
        assert len(found) == 1002
        assert found["part07/x/42"] == b"7 42"


def test_sizes_that_need_zip64(work, monkeypatch):
    # Real sizes of this kind take half a minute; the limit itself is the standard library's.
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    monkeypatch.setattr(sys, "argv", ["torch-model-archiver", *MODEL[3:], "--serialized-file", "big.bin"])
    (work / "big.bin").write_bytes(b"b" * 5000)
    assert main() == 0
    with zipfile.ZipFile("m.mar") as made:
        assert made.read("big.bin") == b"b" * 5000
        assert made.getinfo("big.bin").extract_version == 45


def test_old_times_and_hard_links(work):
    (work / "old").write_text("o")
    os.utime("old", (0, 0))
    os.link("old", "again")
    assert archive("--extra-files", "old,again") == (0, "")
    assert members(work / "m.mar")["old"] == b"o"
    assert archive("--extra-files", "old,again", "--archive-format", "tgz") == (0, "")
    with tarfile.open("m.tar.gz") as made:
        assert {item.type for item in made} == {tarfile.REGTYPE}
        assert {(item.uid, item.gid, item.uname) for item in made} == {(0, 0, "")}
        assert made.extractfile("m/again").read() == b"o"


def test_order_and_modes_do_not_depend_on_the_file_system(work):
    for name in ("z", "a", "k"):
        (work / name).write_text(name)
    assert archive("--extra-files", "z,k,a") == (0, "")
    with zipfile.ZipFile("m.mar") as made:
        assert made.namelist() == ["a", "k", "svc.py", "z", "MAR-INF/MANIFEST.json"]
        assert made.getinfo("MAR-INF/MANIFEST.json").external_attr >> 16 == 0o644


def test_umask_and_the_mode_of_an_archive_that_is_replaced(work):
    mask = os.umask(0o027)
    try:
        assert archive() == (0, "")
        assert (work / "m.mar").stat().st_mode & 0o777 == 0o640
        (work / "m.mar").chmod(0o664)
        assert archive("-f")[0] == 0
        assert (work / "m.mar").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(mask)


def test_a_link_in_place_of_the_archive_is_followed(work):
    (work / "real.mar").write_text("old")
    (work / "m.mar").symlink_to("real.mar")
    assert archive("-f")[0] == 0
    assert (work / "m.mar").is_symlink()
    assert zipfile.is_zipfile("real.mar")


def test_a_name_that_is_not_text(work):
    with open(b"\xff.txt", "wb"):
        pass
    code, words = archive("--extra-files", "*.txt")
    assert code == 1
    assert "is not UTF-8" in words
    assert not (work / "m.mar").exists()


def test_leading_blank_in_a_real_name(work):
    (work / " a").write_text("blank")
    (work / "a").write_text("plain")
    assert archive("--extra-files", "svc.py, a") == (0, "")
    assert members(work / "m.mar")[" a"] == b"blank"


def members(path):
    """Gives the content of each file of an archive or folder by its name, without the prefix that a .tar.gz has."""
    if path.is_dir():
        found = [os.path.join(root, name) for root, _, names in os.walk(str(path)) for name in names]
        return {os.path.relpath(name, str(path)): open(name, "rb").read() for name in found}
    with contextlib.ExitStack() as stack:
        if path.suffix == ".gz":
            tar = stack.enter_context(tarfile.open(str(path)))
            return {item.name[len("m/") :]: tar.extractfile(item).read() for item in tar}
        made = stack.enter_context(zipfile.ZipFile(str(path)))
        return {name: made.read(name) for name in made.namelist()}
