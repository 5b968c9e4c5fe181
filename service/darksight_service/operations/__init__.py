"""Every call of the service, declared once and handled without a transport.

operation    how a call is declared: scope, messages, pool, handler, HTTP routes
table        all operations
scoring      MonitorService: Score, ScoreStream, ReportOutcomes, ListPoints
models       AdminService: models, versions and policies
regions      AdminService: regions
inference    the Open Inference Protocol, for clients of Triton and KServe
timestamps   protobuf timestamps as Unix milliseconds
"""

__all__: list[str] = []
