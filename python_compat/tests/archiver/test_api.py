"""The archivers from Python: what programs written for TorchServe's packages import, call and catch."""

import argparse
import importlib
import inspect
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
import types
import zipfile
from pathlib import Path
from unittest import mock

import pytest


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    (tmp_path / "svc.py").write_text("def handle(data, context):\n    return data\n")
    (tmp_path / "w.pt").write_text("w")
    (tmp_path / "spec.yaml").write_text("dag:\n")
    monkeypatch.chdir(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("package", ["model_archiver", "torch_model_archiver"])
def test_from_a_config(package, work):
    found = importlib.import_module(package)
    config = found.ModelArchiverConfig("m", "svc.py", "1.0", serialized_file="w.pt", export_path=str(work))
    found.ModelArchiver.generate_model_archive(config)
    with zipfile.ZipFile("m.mar") as made:
        manifest = json.loads(made.read("MAR-INF/MANIFEST.json").decode())
    assert re.fullmatch(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d", manifest.pop("createdOn"))
    assert manifest == {
        "runtime": "python",
        "model": {"modelName": "m", "serializedFile": "w.pt", "handler": "svc.py", "modelVersion": "1.0"},
        "archiverVersion": "0.12.0",
    }


def test_the_other_names_are_the_same_modules():
    for ours, modules in (
        (
            "model_archiver",
            "arg_parser manifest_components.manifest manifest_components.model model_archiver model_archiver_config",
        ),
        ("model_archiver", "model_archiver_error model_packaging model_packaging_utils version manifest_components"),
        (
            "workflow_archiver",
            "arg_parser manifest_components.manifest manifest_components.workflow workflow_archiver_error version",
        ),
        ("workflow_archiver", "workflow_packaging workflow_packaging_utils"),
    ):
        for module in modules.split():
            assert importlib.import_module("torch_%s.%s" % (ours, module)) is importlib.import_module(ours + "." + module)
    import torch_model_archiver

    assert torch_model_archiver.model_packaging.ModelExportUtils is torch_model_archiver.model_packaging_utils.ModelExportUtils


def test_names_and_signatures():
    from model_archiver import __version__, arg_parser, model_packaging, model_packaging_utils, version
    from model_archiver.manifest_components.manifest import Manifest, RuntimeType
    from model_archiver.manifest_components.model import Model
    from model_archiver.model_archiver_error import ModelArchiverError
    from workflow_archiver import __version__ as workflow_version

    assert __version__ == version.__version__ == "0.12.0"
    assert workflow_version == "0.2.15"
    assert Path(version.version_path).read_text().strip() == "0.12.0"
    assert [kind.value for kind in RuntimeType] == ["python", "python3", "LSP"]
    assert issubclass(ModelArchiverError, Exception)
    assert str(ModelArchiverError("words")) == "words"
    assert model_packaging_utils.archiving_options == {"tgz": ".tar.gz", "no-archive": "", "zip-store": ".mar", "default": ".mar"}
    assert len(model_packaging_utils.model_handlers) == 8
    utils = model_packaging_utils.ModelExportUtils
    expected = {
        utils.get_archive_export_path: "export_file_path model_name archive_format",
        utils.check_mar_already_exists: "model_name export_file_path overwrite archive_format",
        utils.find_unique: "files suffix",
        utils.generate_model: "modelcfg",
        utils.generate_manifest_json: "config",
        utils.clean_temp_files: "temp_files",
        utils.make_dir: "d",
        utils.copy_artifacts: "model_name runtime kwargs",
        utils.archive: "export_file model_name model_path manifest archive_format",
        utils.archive_dir: "path dst archive_format model_name",
        utils.directory_filter: "directory unwanted_dirs",
        utils.file_filter: "current_file files_to_exclude",
        utils.check_model_name_regex_or_exit: "model_name",
        utils.validate_inputs: "model_name export_path",
        model_packaging.package_model: "config manifest",
        model_packaging.generate_model_archive: "config",
        Model: "model_name serialized_file handler model_file model_version extensions requirements_file config_file",
        Manifest: "runtime model",
    }
    for function, names in expected.items():
        assert list(inspect.signature(function).parameters) == names.split(), function
    assert arg_parser.ArgParser.export_model_args_parser is not None


def test_an_old_namespace_without_newer_fields(work):
    from model_archiver.model_packaging import package_model
    from model_archiver.model_packaging_utils import ModelExportUtils

    for kind in (argparse.Namespace, types.SimpleNamespace):
        args = kind(model_name="old", handler="svc.py:handle", export_path=str(work), force=True, version="2", runtime="python")
        package_model(args, manifest=ModelExportUtils.generate_manifest_json(args))
        with zipfile.ZipFile("old.mar") as made:
            assert made.namelist() == ["svc.py", "MAR-INF/MANIFEST.json"]
    bare = types.SimpleNamespace(model_name="bare", handler="base_handler")
    package_model(bare, "{}")
    with zipfile.ZipFile("bare.mar") as made:
        assert made.read("MAR-INF/MANIFEST.json") == b"{}"
    assert json.loads(ModelExportUtils.generate_manifest_json(bare))["model"] == {"modelName": "bare", "handler": "base_handler"}


def test_config_from_args():
    from model_archiver import ModelArchiverConfig

    config = ModelArchiverConfig.from_args(argparse.Namespace(model_name="m", handler="h", version="1", force=True, other=1))
    assert (config.force, config.archive_format, config.runtime, config.export_path) == (True, "default", "python", os.getcwd())
    with pytest.raises(AttributeError, match="version"):
        ModelArchiverConfig.from_args(argparse.Namespace(model_name="m", handler="h"))


def test_a_patched_parser(work):
    from model_archiver import ModelArchiverConfig, model_packaging

    config = ModelArchiverConfig("patched", "svc", "1.0")
    with mock.patch("model_archiver.model_packaging.ArgParser.export_model_args_parser", return_value=config):
        model_packaging.generate_model_archive()
    assert (work / "patched.mar").is_file()


def test_errors_keep_their_kinds(work, caplog):
    from model_archiver import ModelArchiver, ModelArchiverConfig
    from model_archiver.model_archiver_error import ModelArchiverError
    from model_archiver.model_packaging_utils import ModelExportUtils

    def build(**fields):
        ModelArchiver.generate_model_archive(
            ModelArchiverConfig(**{"model_name": "m", "handler": "svc", "version": "1", **fields})
        )

    with pytest.raises(ModelArchiverError, match="a b"):
        build(model_name="a b")
    with pytest.raises(ModelArchiverError, match="cannot be used"):
        build(model_name="m\n")
    with pytest.raises(ModelArchiverError, match="nowhere"):
        build(export_path="nowhere")
    with pytest.raises(ModelArchiverError, match="no handler"):
        build(handler=None)
    with pytest.raises(ModelArchiverError, match="archive format rar is unknown"):
        build(archive_format="rar")
    with pytest.raises(FileNotFoundError, match="nope"):
        build(extra_files="nope")
    with pytest.raises(FileNotFoundError, match=r"nope\.py"):
        build(handler="nope")
    with pytest.raises(IsADirectoryError):
        build(serialized_file=".")
    with pytest.raises(ValueError, match="/dev/null"):
        build(extra_files="/dev/null")
    with pytest.raises(ValueError, match="cobol"):
        build(runtime="cobol")
    with pytest.raises(OSError, match=r"cannot write /proc/m\.mar") as refusal:
        build(export_path="/proc")
    assert refusal.value.errno
    build()
    with pytest.raises(ModelArchiverError, match="already exists"):
        build()
    with pytest.raises(ModelArchiverError, match=r"2 files end with \.pt"):
        ModelExportUtils.find_unique(["a.pt", "b.pt"], ".pt")
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * len(caplog.records)
    assert ModelExportUtils.find_unique(["a.pt", "b"], ".pt") == "a.pt"
    assert ModelExportUtils.find_unique(["b"], ".pt") is None


def test_the_steps_one_by_one(work, monkeypatch):
    from model_archiver.model_packaging_utils import ModelExportUtils

    (work / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(work / "tmp"))
    (work / "in" / "sub").mkdir(parents=True)
    (work / "in" / "sub" / "f").write_text("f")
    staged = ModelExportUtils.copy_artifacts(
        "m", "python", handler="svc.py", extra_files="in", serialized_file="w.pt", model_file=None
    )
    other = ModelExportUtils.copy_artifacts("m", "python", handler="svc.py")
    assert staged != other
    assert sorted(os.listdir(staged)) == ["sub", "svc.py", "w.pt"]
    for form, name in (("default", "m.mar"), ("zip-store", "m.mar"), ("tgz", "m.tar.gz"), ("no-archive", "m")):
        ModelExportUtils.archive(str(work), "m", staged, "{}", form)
        assert (work / name).exists()
    with zipfile.ZipFile("own.zip", "w") as made:
        ModelExportUtils.archive_dir(staged, made, "default", "m")
        assert made.namelist() == ["sub/f", "svc.py", "w.pt"]
    with tarfile.open("own.tar", "w") as tar:
        ModelExportUtils.archive_dir(staged, tar, "tgz", "m")
        assert tar.getnames() == ["m/sub/f", "m/svc.py", "m/w.pt"]
    ModelExportUtils.archive_dir(staged, "own", "no-archive", "m")
    assert (work / "own" / "sub" / "f").read_text() == "f"
    with pytest.raises(FileNotFoundError):
        ModelExportUtils.copy_artifacts("m", "python", handler="svc.py", serialized_file="nope")
    shutil.rmtree(staged)
    shutil.rmtree(other)
    assert os.listdir("tmp") == []
    ModelExportUtils.make_dir("d/e")
    ModelExportUtils.make_dir("d/e")
    (work / "d" / "f").write_text("")
    ModelExportUtils.clean_temp_files(["d/f"])
    assert os.listdir("d") == ["e"]
    assert ModelExportUtils.directory_filter("src", {"x"})
    assert not ModelExportUtils.directory_filter(".git", set())
    assert not ModelExportUtils.directory_filter("x", {"x"})
    excluded = {"x"}
    assert [
        name for name in ("a.py", "x", "a.pyc", "m.mar", "MANIFEST.json") if ModelExportUtils.file_filter(name, excluded)
    ] == ["a.py"]


def test_manifest_parts():
    from model_archiver.manifest_components.manifest import Manifest
    from model_archiver.manifest_components.model import Model

    model = Model("m", "d/w.pt", "d/svc:f", "d/net.py", "1", {"x": 1}, "d/r.txt", "d/c.yaml")
    assert (
        str(model)
        == repr(model)
        == json.dumps(
            {
                "modelName": "m",
                "serializedFile": "w.pt",
                "handler": "svc:f",
                "modelFile": "net.py",
                "modelVersion": "1",
                "extensions": {"x": 1},
                "requirementsFile": "r.txt",
                "configFile": "c.yaml",
            }
        )
    )
    manifest = Manifest("python3", model)
    assert list(json.loads(str(manifest))) == ["createdOn", "runtime", "model", "archiverVersion"]
    assert str(manifest) == repr(manifest)
    with pytest.raises(ValueError, match="cobol"):
        Manifest("cobol", model)


def test_workflow_api(work, caplog):
    from torch_workflow_archiver.workflow_archiver_error import WorkflowArchiverError
    from torch_workflow_archiver.workflow_packaging import package_workflow
    from torch_workflow_archiver.workflow_packaging_utils import WorkflowExportUtils

    args = types.SimpleNamespace(workflow_name="w", spec_file="./spec.yaml", handler="./svc.py", export_path=".")
    manifest = WorkflowExportUtils.generate_manifest_json(args)
    assert list(json.loads(manifest)) == ["createdOn", "workflow", "archiverVersion"]
    package_workflow(args, manifest)
    with zipfile.ZipFile("w.war") as made:
        assert made.namelist() == ["spec.yaml", "svc.py", "WAR-INF/MANIFEST.json"]
    with pytest.raises(SystemExit) as stop:
        package_workflow(args, manifest)
    assert stop.value.code == 1
    assert "w.war already exists" in caplog.text
    with pytest.raises(WorkflowArchiverError, match="no --handler"):
        WorkflowExportUtils.generate_manifest_json(types.SimpleNamespace(workflow_name="w", spec_file="s"))
    with pytest.raises(FileNotFoundError):
        package_workflow(types.SimpleNamespace(workflow_name="v", spec_file="nope", handler="svc.py"), manifest)
    staged = WorkflowExportUtils.copy_artifacts("w", ["spec.yaml", "svc.py", None, "w.pt,svc.py"])
    assert sorted(os.listdir(staged)) == ["spec.yaml", "svc.py", "w.pt"]
    WorkflowExportUtils.archive(".", "again", staged, "{}")
    shutil.rmtree(staged)
    assert zipfile.is_zipfile("again.war")


@pytest.mark.parametrize("module", ["model_archiver", "torch_model_archiver", "model_archiver.model_packaging"])
def test_ways_to_start(module, work):
    command = [sys.executable, "-m", module, "--model-name", "m", "--version", "1.0", "--handler", "svc.py"]
    done = subprocess.run(command, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"")
    # Python itself warns when a module is started by its path in a package that has imported it already.
    assert done.stderr == b"" or (module == "model_archiver.model_packaging" and b"RuntimeWarning" in done.stderr)
    assert (work / "m.mar").is_file()


# The command lines of TorchServe's own tutorials and examples, with small files in place of the weights.
TUTORIALS = [
    "--model-name densenet161 --version 1.0 --model-file ./serve/examples/image_classifier/densenet_161/model.py"
    " --serialized-file densenet161-8d451a50.pth --export-path model_store"
    " --extra-files ./serve/examples/image_classifier/index_to_name.json --handler image_classifier",
    "--model-name mnist --version 1.0 --model-file examples/image_classifier/mnist/mnist.py"
    " --serialized-file examples/image_classifier/mnist/mnist_cnn.pt --handler examples/image_classifier/mnist/mnist_handler.py",
    "--model-name my_text_classifier --version 1.0 --model-file model.py --serialized-file model.pt --handler text_classifier"
    " --extra-files index_to_name.json,source_vocab.pt",
    "--model-name BERTSeqClassification --version 1.0 --serialized-file Transformer_model/pytorch_model.bin"
    " --handler ./Transformer_handler_generalized.py"
    " --extra-files Transformer_model/config.json,./setup_config.json,./Seq_classification_artifacts/index_to_name.json",
    "--model-name maskrcnn --version 1.0 --model-file examples/object_detector/maskrcnn/model.py --serialized-file maskrcnn.pth"
    " --handler object_detector --extra-files examples/object_detector/index_to_name.json",
    "--model-name resnet-18 --version 1.0 --serialized-file resnet-18.pt --handler image_classifier"
    " --config-file model-config.yaml --archive-format tgz -f",
    "--model-name llm --version 1.0 --handler custom_handler.py --config-file model-config.yaml -r requirements.txt"
    " --archive-format no-archive --export-path model_store/",
]


@pytest.mark.parametrize("line", TUTORIALS)
def test_tutorials(line, work):
    words = line.split()
    for flag, value in zip(words, words[1:]):
        if flag in ("--model-file", "--serialized-file", "--extra-files", "--config-file", "-r") or value.endswith(".py"):
            for path in value.split(","):
                target = work / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(path)
    (work / "model_store").mkdir()
    done = subprocess.run([sys.executable, "-m", "torch_model_archiver", *words], stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")
