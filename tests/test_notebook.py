"""Run the notebook of the examples as Jupyter does."""

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "digits.ipynb"


def test_it_has_no_outputs():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in cells] == [([], None)] * len(cells)


@pytest.mark.full
def test_it_runs_and_resumes(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook, kernel_name="python3", timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    by_id = {cell.id: cell for cell in notebook.cells}
    printed = "".join(output.text for output in by_id["predict"].outputs if output.output_type == "stream")
    labels, predictions = (line.split()[1:] for line in printed.splitlines())
    assert sum(a == b for a, b in zip(labels, predictions, strict=True)) >= 6
    assert "valid/Accuracy" in by_id["history"].outputs[0].data["text/html"]
    assert [o.text for cell in notebook.cells for o in cell.get("outputs", ()) if o.get("name") == "stderr"] == []
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["notebook"]
