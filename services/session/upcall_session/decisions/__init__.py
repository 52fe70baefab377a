"""What may happen to a session, and what comes of it: pure functions, one file a subject.

State, command, time and facts go in; what comes out is one of

- `Decided`: one entry of the log, with the whole state after it (`results`);
- `Refusal`: nothing changes, and the caller is told why;
- `Repeated`: the same command came before, and nothing new is decided;
- `NotYet`: what belongs before it is missing.

Every `Decided` goes through `periods.rest` before it is appended: it closes the period where the session has
become quiet, and says what a report is held for. What a decision leaves to be done (the shells of a host
that is gone, an interrupted run, a deadline that has passed) is read from the state by `steps.next_step`, one
entry at a time until nothing is left, so a crash in between loses none of it.
"""
