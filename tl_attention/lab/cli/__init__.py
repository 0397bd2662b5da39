"""This room is the command line `tl-attention`: list, check, explain and which start without torch.

Each command imports what it needs when it runs.
"""

from __future__ import annotations

import click

from tl_attention import __version__
from tl_attention.lab.cli.calibrate import calibrate
from tl_attention.lab.cli.command import Groups
from tl_attention.lab.cli.compare import compare
from tl_attention.lab.cli.diff import diff
from tl_attention.lab.cli.doctor import doctor
from tl_attention.lab.cli.ladder import ladder
from tl_attention.lab.cli.measure import bench, run
from tl_attention.lab.cli.predict import predict
from tl_attention.lab.cli.profile import profile
from tl_attention.lab.cli.report import report
from tl_attention.lab.cli.schedules import check, explain, list_command, schema
from tl_attention.lab.cli.submit import submit
from tl_attention.lab.cli.trace import trace
from tl_attention.lab.cli.warm import warm
from tl_attention.lab.cli.which import which


@click.group(cls=Groups, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(version)s")
@click.pass_context
def main(context: click.Context) -> None:
    """FlashAttention's forward pass, whose pipeline schedule is a YAML file.

    A SCHEDULE is the name of one that ships or a file NAME.yaml. Commands that take several also take a folder of files.

    Start with `tl-attention doctor`, then `tl-attention run best`. `tl-attention COMMAND --help` shows a command's options.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


main.add_group("Look at schedules", list_command, explain, diff, which)
main.add_group("Check and compile", check, warm, schema)
main.add_group("Predict without a GPU", predict, calibrate)
main.add_group("Measure", run, bench, compare, ladder, profile, trace)
main.add_group("Show records", report)
main.add_group("Enter the leaderboard", submit)
main.add_group("Look at this machine", doctor)
