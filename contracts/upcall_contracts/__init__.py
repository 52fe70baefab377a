"""The wire of Upcall: subjects, commands, queries, events, records, errors and tools.

Import from the modules (`from upcall_contracts.records import RunRecord`); this file exports nothing, so that
a reader sees at each import which part of the contract is meant.
"""
