from .pending_store import PendingStore as PendingStore
from .pending_store import WaitingApproval as WaitingApproval
