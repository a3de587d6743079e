"""Workflows: jobs that wait for other jobs, enqueued as a whole in the caller's transaction.

wf = lq.workflow("report")
parts = wf.add_many("part", [load.call(day) for day in days])
merged = wf.add("merge", merge.call(), after=parts)
wf.add("alarm", alarm.call(), after=fires(merged))
handle = wf.enqueue(session)

chain(fetch.call(), group(a.call(), b.call()), publish.call()).enqueue(session)
batch([a.call(), b.call()], on_completed=done.call(), on_failure=alarm.call()).enqueue(session)
"""

from leasequeue.steps import StepRow, WorkflowStatus
from leasequeue.workflow.build import Edge, Node, Workflow, continues, fires
from leasequeue.workflow.handle import WorkflowHandle
from leasequeue.workflow.short import Batch, Chain, Group, batch, chain, group
from leasequeue.workflow.step import Step

__all__ = ["Batch", "Chain", "Edge", "Group", "Node", "Step", "StepRow", "Workflow", "WorkflowHandle", "WorkflowStatus",
           "batch", "chain", "continues", "fires", "group"]  # fmt: skip
