----------------------------- MODULE Scheduler ------------------------------
(* The scheduler of spec/rules/liveness.md over Manager: first come, first served, and
   the youngest preempted on a refusal. A request comes, is computed token by token up
   to MaxTokens tokens, and ends. Each comes once or, with Endless, again and again. A request that waits has the phase
   "preempted", also before it has ever run. *)
EXTENDS Manager

CONSTANT Endless         \* TRUE: when a request has ended another may come in its seat

VARIABLE order           \* the unfinished requests, in the order of arrival

vars == <<m, order>>

SchedulerInit == Init /\ order = <<>>

Waits(r) == m.seats[r].phase = "preempted"
Runs(r) == m.seats[r].phase = "running"
Gone == IF Endless THEN Empty ELSE Seat("ended", <<>>, 0, 0)
HasEnded(r) == m.seats[r] = Gone
IsRunning(s, r) == s.seats[r].phase = "running"
Running(s) == {r \in Requests : IsRunning(s, r)}
Oldest(requests) == Head(SelectSeq(order, LAMBDA r : r \in requests))
Youngest(requests) == Head(SelectSeq(Reversed(order), LAMBDA r : r \in requests))

Arrive(r, prompt) ==
  /\ m.seats[r].phase = "empty"
  /\ m' = [m EXCEPT !.seats[r] = Seat("preempted", prompt, PromptLength(prompt), 0)]
  /\ order' = Append(order, r)

\* The oldest that waits comes through the gate, or stays (KV-MGR-5, KV-LIVE-1).
TryToAdmit(r, text) == Begun(m, r, text, PromptOf(m, r), LookUp(m, text), 0)

AdmitOldest ==
  /\ \E r \in Requests : Waits(r)
  /\ m' = TryToAdmit(Oldest({r \in Requests : Waits(r)}),
                     m.seats[Oldest({r \in Requests : Waits(r)})].tokens)
  /\ order' = order

PreemptedIn(s, r) == [FreeAll(s, r) EXCEPT !.seats[r] = Seat("preempted", @.tokens, @.prompt, 0)]

\* One token more, of those that are there or a generated one; refused, none.
OneMore(s, r) ==
  IF s.seats[r].computed < Len(s.seats[r].tokens)
  THEN Continued(s, r, s.seats[r].tokens, s.seats[r].computed + 1)
  ELSE Continued(s, r, Append(s.seats[r].tokens, 0), Len(s.seats[r].tokens) + 1)

\* On a refusal the youngest is preempted and r tries again, until it is r that is preempted;
\* who runs alone keeps what it has (KV-LIVE-2).
RECURSIVE Served(_, _, _)
Served(s, tried, r) ==
  IF tried.seats[r].computed > s.seats[r].computed THEN tried
  ELSE IF Running(tried) = {r} THEN tried
  ELSE IF Youngest(Running(tried)) = r THEN PreemptedIn(tried, r)
  ELSE Served(PreemptedIn(tried, Youngest(Running(tried))),
              OneMore(PreemptedIn(tried, Youngest(Running(tried))), r), r)

Serve(r) ==
  /\ Runs(r)
  /\ m.seats[r].computed < MaxTokens
  /\ m' = Served(m, OneMore(m, r), r)
  /\ order' = order

Finish(r) ==
  /\ Runs(r)
  /\ m.seats[r].computed = MaxTokens
  /\ m' = [FreeAll(m, r) EXCEPT !.seats[r] = Gone]
  /\ order' = SelectSeq(order, LAMBDA other : other # r)

SchedulerNext ==
  \/ \E r \in Requests : \E prompt \in Prompts : Arrive(r, prompt)
  \/ AdmitOldest
  \/ \E r \in Requests : Serve(r)
  \/ \E r \in Requests : Finish(r)

Fairness ==
  /\ WF_vars(AdmitOldest)
  /\ \A r \in Requests : WF_vars(Serve(r))
  /\ \A r \in Requests : WF_vars(Finish(r))

SchedulerSpec == SchedulerInit /\ [][SchedulerNext]_vars /\ Fairness

-----------------------------------------------------------------------------
\* Who runs came before all who wait (the first step of the proof of KV-LIVE-2).
the_oldest_run ==
  \A i, j \in 1 .. Len(order) : (i < j /\ Runs(order[j])) => Runs(order[i])

\* Whoever waits is admitted, and whoever is admitted ends, if it fits (KV-LIVE-1, KV-LIVE-2).
\* With Endless, although others never stop coming.
every_request_is_admitted == \A r \in Requests : Waits(r) ~> Runs(r)
every_request_ends == \A r \in Requests : Waits(r) ~> HasEnded(r)
=============================================================================
