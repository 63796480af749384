"""The audit trail of tool intent: what the model wanted to do, why, who allowed it, and what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.audit.erasing import Erasure as Erasure
    from traced_tools.audit.reading.matching import match as match
    from traced_tools.audit.reading.reader import AuditedCall as AuditedCall
    from traced_tools.audit.reading.reader import AuditedRun as AuditedRun
    from traced_tools.audit.reading.reader import AuditReader as AuditReader
    from traced_tools.audit.records import AuditDecision as AuditDecision
    from traced_tools.audit.records import AuditOutcome as AuditOutcome
    from traced_tools.audit.records import AuditRecord as AuditRecord
    from traced_tools.audit.trail import AuditTrail as AuditTrail
    from traced_tools.audit.verifying.findings import Problem as Problem
    from traced_tools.audit.verifying.findings import Verification as Verification
    from traced_tools.audit.verifying.receipts import ReceiptVerification as ReceiptVerification
    from traced_tools.audit.verifying.receipts import receipt as receipt
    from traced_tools.audit.verifying.receipts import verify_receipt as verify_receipt
    from traced_tools.audit.verifying.verified import UnverifiedError as UnverifiedError
    from traced_tools.audit.verifying.verified import VerifiedReader as VerifiedReader
    from traced_tools.audit.verifying.verified import read_verified as read_verified
    from traced_tools.audit.verifying.walk import verify as verify

_EXPORTS = {
    "AuditDecision": "traced_tools.audit.records",
    "AuditOutcome": "traced_tools.audit.records",
    "AuditReader": "traced_tools.audit.reading.reader",
    "AuditRecord": "traced_tools.audit.records",
    "AuditTrail": "traced_tools.audit.trail",
    "AuditedCall": "traced_tools.audit.reading.reader",
    "AuditedRun": "traced_tools.audit.reading.reader",
    "Erasure": "traced_tools.audit.erasing",
    "Problem": "traced_tools.audit.verifying.findings",
    "ReceiptVerification": "traced_tools.audit.verifying.receipts",
    "UnverifiedError": "traced_tools.audit.verifying.verified",
    "Verification": "traced_tools.audit.verifying.findings",
    "VerifiedReader": "traced_tools.audit.verifying.verified",
    "match": "traced_tools.audit.reading.matching",
    "read_verified": "traced_tools.audit.verifying.verified",
    "receipt": "traced_tools.audit.verifying.receipts",
    "verify": "traced_tools.audit.verifying.walk",
    "verify_receipt": "traced_tools.audit.verifying.receipts",
}

__all__ = [
    "AuditDecision",
    "AuditOutcome",
    "AuditReader",
    "AuditRecord",
    "AuditTrail",
    "AuditedCall",
    "AuditedRun",
    "Erasure",
    "Problem",
    "ReceiptVerification",
    "UnverifiedError",
    "Verification",
    "VerifiedReader",
    "match",
    "read_verified",
    "receipt",
    "verify",
    "verify_receipt",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
