"""This room is the command line `tl-attention`: list, check and explain start without torch.

Each command imports what it needs when it runs.
"""

from __future__ import annotations

import click

from tl_attention import __version__
from tl_attention.lab.cli.bench import bench
from tl_attention.lab.cli.command import Groups
from tl_attention.lab.cli.compare import compare
from tl_attention.lab.cli.diff import diff
from tl_attention.lab.cli.doctor import doctor
from tl_attention.lab.cli.explain import explain
from tl_attention.lab.cli.measure import run
from tl_attention.lab.cli.predict import predict
from tl_attention.lab.cli.report import report
from tl_attention.lab.cli.schedules import check, list_command
from tl_attention.lab.cli.search import search
from tl_attention.lab.cli.submit import submit
from tl_attention.lab.cli.trace import trace
from tl_attention.lab.cli.warm import warm


@click.group(cls=Groups, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """FlashAttention's forward pass, whose pipeline schedule is a YAML file.

    A SCHEDULE is the name of one that ships or a file NAME.yaml. Commands that take several take a folder of files too.

    Start with `tl-attention doctor`, then `tl-attention run best`. `tl-attention COMMAND --help` shows its options.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


main.add_group("Look at schedules", list_command, explain, diff)
main.add_group("Check and compile", check, warm)
main.add_group("Predict without a GPU", predict)
main.add_group("Measure", run, bench, compare, trace)
main.add_group("Search", search)
main.add_group("Show records", report)
main.add_group("Enter the leaderboard", submit)
main.add_group("Look at this machine", doctor)
IN_TOOLS = "is now `python tools/measure.py {}`, in a checkout"
main.gone = {
    "which": "is now `tl-attention explain --call`; `tl-attention explain NAME` shows a schedule",
    "ladder": "is now `tl-attention bench --ladder NAME`; `tl-attention report --ladder NAME` shows the record that ships",
    "schema": "is now `tl-attention check --schema`",
    "calibrate": IN_TOOLS.format("calibrate"),
    "profile": f"{IN_TOOLS.format('profile')}; `tl-attention report FILE` shows what it recorded",
    "help": "is `tl-attention --help`",
    "version": "is `tl-attention --version`",
}
