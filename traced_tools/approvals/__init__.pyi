from .pending_rows import WaitingApproval as WaitingApproval
from .pending_store import PendingStore as PendingStore
