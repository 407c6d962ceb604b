"""The annotation workbench over HTTP: an application around a store, with pages and a JSON API that does all they do.

`app.py` puts it together; `access.py` says who asks, `guessing.py` keeps guessing slow; `coming.py` logs people in and
out, `work.py` gives out items and takes labels, `admin.py` runs projects and people, `transfer.py` takes items in and
labels out; `forms.py` is what is sent, `answers.py` what comes back, worded by `showing.py`; `figures.py` is agreement,
live.
"""

from compeer.web.workbench.app import WorkbenchSettings, workbench_app

__all__ = ["WorkbenchSettings", "workbench_app"]
