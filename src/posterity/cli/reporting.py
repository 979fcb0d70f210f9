"""``posterity report``: a page for a browser."""

from posterity import reporting
from posterity.cli import files
from posterity.cli.options import Settings
from posterity.cli.recipes import reading_of
from posterity.cli.streams import Data, verb

FORMATS = (".html", ".htm")


def _report(data: Data) -> str:
    return f"{data['title']}.\nWrote the page to {data['output']}"


@verb(_report)
def report(settings: Settings) -> Data:
    """Write one page of HTML about posteriors, ledgers, students and receipts."""
    output = settings.output
    data = settings.path("data.file")
    files.check_ending(output, FORMATS)
    page = reporting.report(
        *settings.files,
        path=output,
        data=data,
        reading=reading_of(settings),
        level=settings["level"],
        title=settings["title"],
    )
    size = output.stat().st_size
    return {"output": output, "title": page.title, "bytes": size, "notes": []}
