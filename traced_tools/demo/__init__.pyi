from .scenario.history import write_history as write_history
from .scenario.outcomes import OUTCOMES as OUTCOMES
from .scenario.scenario import Scenario as Scenario
