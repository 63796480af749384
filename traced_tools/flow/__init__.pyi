from .flow import Step as Step
from .steps import perform as perform
from .workers import WorkerPool as WorkerPool
