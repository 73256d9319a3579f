"""Observability: logs, traces, metrics and clock drift.

logs        structured logs
metrics     counters, gauges and histograms of this process
traces      the switch of traces; `spans` makes them, `exporting` sends them
clock       the clock of this machine, for spans; `drift` compares it with the database's
"""
