"""Trains models of classical machine learning, writes them as ONNX, and what the libraries themselves say.

    from classical import trained
    for folder, feeds in trained(FOLDER): …

Needs scikit-learn, skl2onnx, lightgbm, xgboost and onnxmltools; the data come with scikit-learn.
"""

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import lightgbm
import numpy as np
import onnxruntime
import xgboost
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType as Floats
from skl2onnx.common.data_types import StringTensorType as Strings
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import IsolationForest, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

Feeds = List[Dict[str, Any]]
# Name, ONNX, what the library predicts with, all rows, and the names of columns that are inputs each; none: X is all of them.
Model = Tuple[str, Any, Any, Any, List[str]]

SPECIES = np.array(["setosa", "versicolor", "virginica"])
CITIES = ["Bern", "Z\u00fcrich", "Gen\u00e8ve", ""]


def classifiers() -> Iterator[Model]:
    """Classifiers with maps and with arrays, by numbers and by names, of two classes and of three."""
    x, y = load_iris(return_X_y=True)
    x = x.astype(np.float32)
    ports = [("X", FloatTensorType([None, 4]))]
    forest = RandomForestClassifier(n_estimators=10, random_state=0).fit(x, SPECIES[y])
    for name, zipmap in (("iris_maps", True), ("iris_arrays", False)):
        yield name, to_onnx(forest, x[:1], options={"zipmap": zipmap}), forest, x, []
    settings = {"n_estimators": 10, "random_state": 0, "n_jobs": 1}
    for name, rows, labels in (("numbers", 150, y), ("names", 150, SPECIES[y]), ("two", 100, y)):
        light = lightgbm.LGBMClassifier(min_child_samples=5, verbose=-1, **settings).fit(x[:rows], labels[:rows])
        yield f"lightgbm_{name}", convert_lightgbm(light, initial_types=ports), light, x[:rows], []
        yield f"lightgbm_{name}_arrays", convert_lightgbm(light, initial_types=ports, zipmap=False), light, x[:rows], []
        if name != "names":  # XGBoost knows numbers only
            boosted = xgboost.XGBClassifier(max_depth=3, **settings).fit(x[:rows], labels[:rows])
            yield f"xgboost_{name}", convert_xgboost(boosted, initial_types=ports), boosted, x[:rows], []


def others() -> Iterator[Model]:
    """Regressors, a detector of outliers, and a pipeline with columns of texts and of numbers."""
    x, y = load_diabetes(return_X_y=True)
    x = x.astype(np.float32)
    ports = [("X", FloatTensorType([None, 10]))]
    light = lightgbm.LGBMRegressor(n_estimators=10, random_state=0, n_jobs=1, verbose=-1).fit(x, y)
    yield "lightgbm_regressor", convert_lightgbm(light, initial_types=ports), light, x, []
    boosted = xgboost.XGBRegressor(n_estimators=10, max_depth=3, n_jobs=1).fit(x, y)
    yield "xgboost_regressor", convert_xgboost(boosted, initial_types=ports), boosted, x, []
    outliers = IsolationForest(n_estimators=10, random_state=0).fit(x)
    yield "outliers", to_onnx(outliers, x[:1], target_opset={"": 17, "ai.onnx.ml": 3}), outliers, x, []
    table = np.array([[CITIES[i % 4], x[i, 0], x[i, 1]] for i in range(len(x))], dtype=object)
    columns = ColumnTransformer([("city", OneHotEncoder(), [0]), ("numbers", StandardScaler(), [1, 2])])
    pipeline = Pipeline([("columns", columns), ("model", LogisticRegression())]).fit(table, (y > 140).astype(int))
    types = [("city", Strings([None, 1])), ("age", Floats([None, 1])), ("sex", Floats([None, 1]))]
    onnx_model = to_onnx(pipeline, initial_types=types, options={"zipmap": False})
    yield "pipeline", onnx_model, pipeline, table, ["city", "age", "sex"]


def plain(v: Any) -> Any:
    """As JSON has it: no tuples, no numbers of numpy, keys that are texts."""
    if isinstance(v, dict):
        return {str(k): plain(m) for k, m in v.items()}
    if isinstance(v, (list, tuple)):
        return [plain(m) for m in v]
    return plain(v.tolist()) if isinstance(v, (np.ndarray, np.generic)) else v


def said(model: Any, rows: Any, outputs: List[Any]) -> Dict[str, Any]:
    """What the library itself says of rows, by the names and in the forms of the ONNX model's outputs."""
    first = outputs[0].name
    if hasattr(model, "score_samples"):
        return {first: model.predict(rows).reshape(-1, 1), outputs[1].name: model.decision_function(rows).reshape(-1, 1)}
    if not hasattr(model, "predict_proba"):
        return {first: model.predict(rows).reshape(-1, 1)}
    shares = model.predict_proba(rows)
    if outputs[1].type.startswith("seq"):
        shares = [dict(zip(model.classes_.tolist(), row)) for row in shares.tolist()]
    return {first: np.asarray(model.predict(rows)).astype(np.asarray(model.classes_).dtype), outputs[1].name: shares}


def trained(out: Path) -> Iterator[Tuple[Path, Feeds]]:
    """Writes model.onnx and library.json, [{"request", "answer"}], for each model, and gives its folder and its feeds."""
    for models in (classifiers(), others()):
        for name, made, model, rows, columns in models:
            folder = out / name
            folder.mkdir(parents=True)
            (folder / "model.onnx").write_bytes(made.SerializeToString())
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3  # LightGBM's converter says that there is one label, whatever the rows
            session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
            feeds, pairs = [], []
            for i in (0, 60, 97):
                some = rows[i : i + 2]
                feed = {"X": some}
                if columns:
                    feed = {c: some[:, [k]].astype(str if k == 0 else np.float32) for k, c in enumerate(columns)}
                feeds.append(feed)
                pairs.append({"request": plain(feed), "answer": plain(said(model, some, session.get_outputs()))})
            (folder / "library.json").write_text(json.dumps(pairs))
            yield folder, feeds
