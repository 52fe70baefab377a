"""The broker's rules, as pure functions: no I/O and no clock.

    may this question be asked?         asking.py
    may it be answered?                 answering.py
    may it be cancelled?                cancelling.py
    what ends it without a command?     ending.py
    is it the same question?            sameness.py
    who may speak, answer and see?      access.py

The states of a question, in one place:

    waiting ──answered│timed_out│cancelled│error──▶ ended for good; a later answer is kept as `late`
"""
