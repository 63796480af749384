from .scenario.outcomes import OUTCOMES as OUTCOMES
from .scenario.scenario import Scenario as Scenario
