"""Observability: logs, traces, metrics and clock drift.

logs        structured logs
metrics     counters, gauges and histograms of this process
traces      the switch for traces; `spans` creates them, `exporting` sends them
clock       this machine's clock, for spans; `drift` compares it with the database's
"""
