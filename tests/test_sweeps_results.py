"""The results of a sweep: what is written is read, and what is not what it says is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from gibbsprune.errors import UserError
from gibbsprune.sweeps import results
from gibbsprune.training import RunSpec, result
from sweep_bench import plain_result, run

SPEC = run(seed=1)


def record(spec=SPEC, **changes) -> dict:
    return result.make(spec, plain_result(**changes))


def test_what_is_written_is_read(tmp_path):
    file = results.write(tmp_path / "new" / "folder", record())
    assert file == results.path(tmp_path / "new" / "folder", SPEC)
    found = results.read(file)
    assert RunSpec.from_dict(found["spec"]) == SPEC
    assert {key: found[key] for key in plain_result()} == plain_result()
    assert results.read(results.write(file.parent, record(accuracy=0.91)))["accuracy"] == 0.91


def test_what_each_image_was_taken_for_lies_beside_it(tmp_path):
    seen = torch.arange(10, dtype=torch.uint8).repeat(1000)
    results.write(tmp_path, record(), seen)
    file = tmp_path / "predictions" / f"{SPEC.name()}.npz"
    with np.load(file, allow_pickle=False) as found:
        assert np.array_equal(found["classes"], seen.numpy())
    assert file.stat().st_size < 11_000
    assert results.names(tmp_path) == {SPEC.name()}


def test_missing_runs_are_those_without_a_file(tmp_path):
    specs = [run(seed=seed) for seed in range(5)]
    for spec in specs[::2]:
        results.write(tmp_path, record(spec))
    assert results.missing(tmp_path, specs) == specs[1::2]


def test_results_are_read_when_they_are_asked_for(tmp_path):
    found = results.Found(tmp_path)
    assert (len(found), list(found)) == (0, [])
    results.write(tmp_path, record())
    (tmp_path / "other.json").write_text("{")
    assert SPEC.name() not in found
    assert found.look()[SPEC.name()]["accuracy"] == 0.9
    assert set(found) == {SPEC.name(), "other"}
    with pytest.raises(KeyError):
        found["nobody"]
    with pytest.raises(UserError, match=r"other\.json cannot be read"):
        found["other"]


def test_files_that_do_not_hold_what_they_say_are_refused(tmp_path):
    file = results.write(tmp_path, record())
    renamed = file.rename(tmp_path / "digits-resnet8-dense-s1.json")
    with pytest.raises(
        UserError, match=r"digits-resnet8-dense-s1\.json does not hold the run that its name says; move"
    ):
        results.read(renamed)
    found = json.loads(renamed.read_text())
    found["spec"]["seed"] = 5
    file.write_text(json.dumps(found))
    with pytest.raises(UserError, match="does not hold the run that it names; move it away"):
        results.read(file)
    for content, sentence in (("{", "cannot be read"), ("[]", "it holds no JSON object; move it away")):
        file.write_text(content)
        with pytest.raises(UserError, match=sentence):
            results.read(file)
    with pytest.raises(UserError, match=r"there is no .*nothing\.json$"):
        results.read(tmp_path / "nothing.json")
    with pytest.raises(UserError, match="is not a folder of results"):
        results.read_all(tmp_path / "nowhere")
