"""The reporter's composition: `faststream run upcall_reporter.app:app`."""

from upcall_contracts import streams
from upcall_shell.process import Service
from upcall_shell.settings import ShellSettings

from .handlers import PeriodHandler
from .listing import ReportLists
from .metrics import HELD, OLDEST
from .queries import ReportQueries
from .stores import SERVICE, ReportIndex, ReportLog


def build(settings: ShellSettings) -> Service:
    """The reporter with its parts put together; tests call it, too."""
    service = Service(SERVICE, settings)
    reports = ReportLog(service.log)
    index = ReportIndex(service.redis, reports)
    queries = ReportQueries(reports, ReportLists(reports, index))
    service.on_deliveries(
        streams.LOG, "reporter-periods", PeriodHandler(reports, index, service.redis).handle
    )
    service.on_queries({("report", "get"): queries.get, ("report", "list"): queries.page})
    service.figures.add_oldest("reports", index.held, HELD, OLDEST)
    service.in_background(index.keeper.run)
    return service


app = build(ShellSettings()).app()
