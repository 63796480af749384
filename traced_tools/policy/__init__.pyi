from .advisor import PolicyAdvisor as PolicyAdvisor
from .policy import Policy as Policy
from .rule import Rule as Rule
