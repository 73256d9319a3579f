"""Work that one process does for the cell.

term               leadership: a lease with an epoch, which every verb of the leader checks
scheduler          the leader's loops; they also call the verbs of `life`
pauses             pauses that begin or end without a request
bulk_operations    carries out bulk operations, batch by batch
notify, watch      notices that become executions; monitors
group_callbacks    the callbacks of groups whose executions have all ended
activity           what ended in each minute
"""
