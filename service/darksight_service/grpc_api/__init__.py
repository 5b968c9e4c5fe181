"""The gRPC interface.

scoring     MonitorService: Score, ScoreStream, ReportOutcomes, ListPoints
admin       AdminService: models, versions and policies
regions     AdminService: regions
inference   the Open Inference Protocol, for clients of Triton and KServe
status      gRPC statuses of errors
methods     the table of all methods
pools       the threads of a worker
silence     ends calls whose caller sends nothing
health      grpc.health.v1: Check and Watch
server      the gRPC server: limits, tokens, TLS and health
"""

__all__: list[str] = []
