"""This script runs a submission in a process of its own. It stands beside the submission, as the servers' eval.py does.

The files that evaluate.py copies with it are all of this package that is in the process. The script writes the outputs'
bytes to files, which evaluate.py checks, and one JSON message to the descriptor that its plan names.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).parent)


def main() -> None:
    """Imports the submission, tests it if the plan in the first argument has a line, reports, and exits.

    The report goes to the descriptor that the plan names.
    """
    plan = json.loads(sys.argv.pop(1))
    os.set_inheritable(plan["message"], False)
    if FOLDER not in sys.path:
        # Python's option -P and PYTHONSAFEPATH leave this folder out.
        sys.path.insert(0, FOLDER)
    # The servers do not have this package, so an import of it fails here as it does there.
    sys.modules["tl_attention"] = None  # type: ignore[assignment]  # None is how an import is forbidden
    message: dict[str, Any] = {"error": ""}
    try:
        if plan["line"]:
            sys.stdout = None
            test = _prepared(**plan)
        import submission

        if not callable(getattr(submission, "custom_kernel", None)):
            raise TypeError("submission.py defines no custom_kernel that can be called")
        message |= test(submission.custom_kernel) if plan["line"] else {}
    # SystemExit included: a submission that leaves is a row of the table, with the reason.
    except BaseException as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".encode(errors="replace").decode()
        message = {"error": " ".join(text.split())[:300]}
    for file in filter(None, (sys.stdout, sys.stderr)):
        file.flush()
    os.write(plan["message"], json.dumps(message).encode())
    # What the submission would do at exit does not count.
    os._exit(0)


def _prepared(line: dict, outputs: str, device: str, mode: str, **_: object) -> Callable[[Callable], dict[str, Any]]:
    """Imports the judge's files, before the submission is imported, and returns a function that tests its kernel."""
    # The test calls the kernel on the inputs of two seeds and, for "benchmark", times calls in between. The folder
    # `outputs` gets the whole outputs of both calls, and of the timed calls one whole output and the rows that were
    # read. It returns what the message says of the timed calls.
    from inputs import Inputs
    from outputs import Outputs
    from reference import generate_input
    from timed import Timer

    timer = Timer(device)

    def test(kernel: Callable) -> dict[str, Any]:
        seeds, message = (line["seed"], line["seed"] + 1), dict[str, Any]()
        drawn = Inputs(*(generate_input(**line | {"seed": seed}, device=device) for seed in seeds))
        found = Outputs(drawn)
        found.write(found.call(kernel), outputs, "first")
        if mode == "benchmark":
            message, rows = timer.time(kernel, drawn, found)
            found.write(rows, outputs, "rows")
            found.write(found.copy, outputs, "timed")
        # Other inputs at the same addresses: what recognises inputs by address, or replays an output, is wrong now.
        drawn.change_all()
        found.write(found.call(kernel), outputs, "second")
        found.check_kept()
        return message

    return test


# Processes that the submission spawns load this file again.
if __name__ == "__main__":
    main()
