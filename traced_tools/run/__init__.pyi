from .log_filter import RunIdFilter as RunIdFilter
