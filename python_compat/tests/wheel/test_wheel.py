"""The wheel: what is in it, what its tag promises, and that equal sources make equal wheels."""

import base64
import csv
import email
import hashlib
import io
import re
import shutil
import subprocess
import sys
import zipfile

import pytest
import wheel_support

import elf
import flambeau_backend as backend


def read(wheel):
    with zipfile.ZipFile(str(wheel)) as archive:
        return {item.filename: (item, archive.read(item)) for item in archive.infolist()}


def test_record_and_modes(built):
    members = read(built.wheel)
    info = "flambeau-%s.dist-info/" % backend.version()
    rows = list(csv.reader(io.StringIO(members[info + "RECORD"][1].decode())))
    assert sorted(row[0] for row in rows) == sorted(members)
    for name, digest, size in rows:
        if name != info + "RECORD":
            data = members[name][1]
            assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert int(size) == len(data)
    assert list(members)[-1] == info + "RECORD"
    programs = {name for name, (item, _) in members.items() if item.external_attr >> 16 & 0o111}
    assert programs == {"flambeau/_bin/flambeau", "flambeau/_bin/flambeau-onnx", "flambeau/_lib/libflambeau.so"}
    assert {item.date_time for item, _ in members.values()} == {(1980, 1, 1, 0, 0, 0)}
    assert not [name for name in members if "__pycache__" in name or name.endswith(".pyc")]
    for package in ("flambeau", "ts", "model_archiver", "torch_model_archiver", "workflow_archiver", "torch_workflow_archiver"):
        assert package + "/__init__.py" in members
    assert members["ts/py.typed"][1] == b"", "type checkers take the annotations of ts only with this file"
    assert members["flambeau/VERSION"][1].decode().strip() == backend.version()


def test_metadata(built):
    members = read(built.wheel)
    info = "flambeau-%s.dist-info/" % backend.version()
    fields = email.message_from_string(members[info + "METADATA"][1].decode())
    assert fields["Name"] == "flambeau"
    assert fields["Version"] == backend.version()
    assert fields["Requires-Python"] == ">=3.8"
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields.get_all("Requires-Dist") is None
    for name in fields.get_all("License-File"):
        assert members[info + "licenses/" + name][1]
    assert "third_party/go/LICENSE" in fields.get_all("License-File")
    scripts = members[info + "entry_points.txt"][1].decode().splitlines()
    assert [line.partition(" = ")[0] for line in scripts[1:]] == [
        "flambeau",
        "torch-model-archiver",
        "torch-workflow-archiver",
        "torchserve",
    ]


def test_tag_is_the_newest_symbol_that_readelf_sees(built):
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed")
    newest = (2, 17)
    for path in built.parts.values():
        out = subprocess.run(["readelf", "-VW", str(path)], stdout=subprocess.PIPE, check=True).stdout.decode()
        for major, minor in re.findall(r"\bGLIBC_(\d+)\.(\d+)", out):
            newest = max(newest, (int(major), int(minor)))
        out = subprocess.run(["readelf", "-dW", str(path)], stdout=subprocess.PIPE, check=True).stdout.decode()
        assert set(re.findall(r"NEEDED.*\[(.*)\]", out)) == elf.needs(path).libraries
    tag = "manylinux_%d_%d_" % newest
    assert tag in built.wheel.name
    wheel = next(data for name, (_, data) in read(built.wheel).items() if name.endswith("/WHEEL")).decode()
    assert "\nTag: py3-none-" + tag in wheel
    assert "\nRoot-Is-Purelib: false\n" in wheel


def test_the_server_needs_no_library(built):
    assert elf.needs(built.parts["flambeau/_bin/flambeau"]).libraries == set()
    assert elf.needs(built.parts["flambeau/_lib/libflambeau.so"]).libraries >= {"libc.so.6"}


def test_another_folder_makes_the_same_bytes(built, tmp_path, monkeypatch):
    again = wheel_support.build(tmp_path, monkeypatch)
    assert again.parts != built.parts
    # Packed again, and not compared with what the fixture made: somebody may be working on the packages meanwhile.
    first = backend.make_wheel(tmp_path / "first", built.parts, backend.go_licences())
    assert again.wheel.name == first.name
    assert again.wheel.read_bytes() == first.read_bytes()


def test_source_date_epoch(built, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    members = read(backend.make_wheel(tmp_path, built.parts))
    assert {item.date_time for item, _ in members.values()} == {(2023, 11, 14, 22, 13, 20)}


@pytest.mark.parametrize(
    "libraries, versions, tag",
    [
        ({"libc.so.6"}, {"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.4"}, "manylinux_2_34_x86_64"),
        ({"libc.so.6"}, {"GLIBC_2.3.2"}, "manylinux_2_17_x86_64.manylinux2014_x86_64"),
        ({"libc.so.6"}, {"GLIBC_2.4", "GLIBC_ABI_DT_RELR"}, "manylinux_2_36_x86_64"),
        ({"libc.so.6"}, {"GLIBC_2.4", "GLIBC_PRIVATE"}, "linux_x86_64"),
        ({"libc.so.6", "libstdc++.so.6"}, {"GLIBC_2.4", "GLIBCXX_3.4"}, "linux_x86_64"),
        ({"libc.musl-x86_64.so.1"}, set(), "linux_x86_64"),
        (set(), set(), "manylinux_2_17_x86_64.manylinux2014_x86_64"),
    ],
)
def test_tags(libraries, versions, tag, tmp_path, monkeypatch):
    monkeypatch.setattr(elf, "needs", lambda path: elf.Needs("x86_64", libraries, versions))
    assert backend.platform_tag([tmp_path]) == tag


def test_parts_for_different_machines_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(elf, "needs", lambda path: elf.Needs(path.name, set(), set()))
    with pytest.raises(backend.BuildError, match="aarch64, x86_64"):
        backend.platform_tag([tmp_path / "x86_64", tmp_path / "aarch64"])


def test_what_is_not_elf_is_refused(tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh\n")
    with pytest.raises(backend.BuildError, match=r"script is not a 64-bit little-endian ELF file\. A wheel is made on Linux"):
        backend.make_wheel(tmp_path / "dist", {"flambeau/_bin/flambeau": tmp_path / "script"})
    with pytest.raises(backend.BuildError, match=r"cannot read .*absent"):
        backend.make_wheel(tmp_path / "dist", {"flambeau/_bin/flambeau": tmp_path / "absent"})


def test_a_failing_go_build_is_told(tmp_path, monkeypatch):
    root = wheel_support.make_root(tmp_path)
    monkeypatch.setattr(backend, "ROOT", root)
    (root / "cmd" / "flambeau" / "main.go").write_text("package main\n\nfunc main() { nonsense() }\n")
    with pytest.raises(backend.BuildError, match=r"(?s)go build .* failed in .*undefined: nonsense"):
        backend.go_build(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(backend.BuildError, match="go is not on PATH"):
        backend.go_build(tmp_path)


@pytest.mark.parametrize(
    "text, good", [("1.2.3", True), ("1.2.3rc1", True), ("1.2.dev3", True), ("v1", False), ("1.0-beta", False), ("", False)]
)
def test_version_file(text, good, tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "ROOT", tmp_path)
    (tmp_path / "VERSION").write_text(text + "\n")
    if good:
        assert backend.version() == text
    else:
        with pytest.raises(backend.BuildError, match="not a version"):
            backend.version()


def test_the_script(built, tmp_path):
    script = str(wheel_support.CHECKOUT / "tools" / "wheel" / "build.py")
    (tmp_path / "flambeau-0.0.1-py3-none-any.whl").write_text("an older one")
    server, library, onnx = (str(path) for path in built.parts.values())
    command = [sys.executable, script, "--out", str(tmp_path), "--binary", server, "--library", library, "--onnx", onnx]
    done = subprocess.run(command, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [str(path) for path in tmp_path.glob("*.whl")] == done.stdout.decode().split()
    command[command.index("--binary") + 1] = script
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 1
    assert b"tools/wheel/build.py: error: " in done.stderr
    assert b"Traceback" not in done.stderr


def test_no_sdist(tmp_path):
    with pytest.raises(backend.BuildError, match="make wheel"):
        backend.build_sdist(str(tmp_path))
