----------------------------- MODULE Scheduler ------------------------------
(* The scheduler of spec/rules/liveness.md over Manager. In each step it serves those who run,
   in one order, and preempts the last one on a refusal; then, unless one was refused in the
   step before, it admits who waits, in this order. A request comes, is computed token by
   token up to MaxTokens tokens, and ends. Each comes once or, with Endless, again and again.
   A request that waits has the phase "preempted", also before it has ever run. One whose
   load has ended has the phase "loaded" until it computes a token. *)
EXTENDS Manager

CONSTANTS Endless,       \* TRUE: when a request has ended another may come in its seat
          AnyOrder       \* TRUE: who comes may be put before others; FALSE: first come, first served

VARIABLE order           \* the unfinished requests, in the order of service
VARIABLE failed          \* those of them whose load failed: they load nothing more
VARIABLE served          \* those that had their turn in this step
VARIABLE refused         \* whether one of them was refused
VARIABLE barred          \* whether one was in the step before

vars == <<m, order, failed, served, refused, barred>>

SchedulerInit == Init /\ order = <<>> /\ failed = {} /\ served = {} /\ refused = FALSE /\ barred = FALSE

Waits(r) == m.seats[r].phase = "preempted"
Runs(r) == m.seats[r].phase = "running"
Gone == IF Endless THEN Empty ELSE Seat("ended", <<>>, 0, 0)
HasEnded(r) == m.seats[r] = Gone
IsRunning(s, r) == s.seats[r].phase \in {"running", "loaded"}          \* KV-LIVE-4
Running(s) == {r \in Requests : IsRunning(s, r)}
Youngest(requests) == Head(SelectSeq(Reversed(order), LAMBDA r : r \in requests))

Places == IF AnyOrder THEN 0 .. Len(order) ELSE {Len(order)}

Arrive(r, prompt) ==
  /\ m.seats[r].phase = "empty"
  /\ m' = [m EXCEPT !.seats[r] = Seat("preempted", prompt, PromptLength(prompt), 0)]
  /\ \E i \in Places : order' = SubSeq(order, 1, i) \o <<r>> \o SubSeq(order, i + 1, Len(order))
  /\ UNCHANGED <<failed, served, refused, barred>>

PreemptedIn(s, r) == [FreeAll(s, r) EXCEPT !.seats[r] = Seat("preempted", @.tokens, @.prompt, 0)]

\* One token more, of those that are there or a generated one; refused, none.
OneMore(s, r) ==
  IF s.seats[r].computed < Len(s.seats[r].tokens)
  THEN Continued(s, r, s.seats[r].tokens, s.seats[r].computed + 1)
  ELSE Continued(s, r, Append(s.seats[r].tokens, 0), Len(s.seats[r].tokens) + 1)

\* On a refusal the last one is preempted and r tries again, until it is r that is preempted;
\* who runs alone keeps what it has (KV-LIVE-2).
RECURSIVE Served(_, _, _)
Served(s, tried, r) ==
  IF tried.seats[r].computed > s.seats[r].computed
  THEN [tried EXCEPT !.seats[r].phase = "running"]
  ELSE IF Running(tried) \subseteq {r} THEN tried
  ELSE IF Youngest(Running(tried)) = r THEN PreemptedIn(tried, r)
  ELSE Served(PreemptedIn(tried, Youngest(Running(tried))),
              OneMore(PreemptedIn(tried, Youngest(Running(tried))), r), r)

HaveHadTheirTurn(requests) == \A other \in requests : other \in served
Before(r) == {other \in Requests : \E i, j \in 1 .. Len(order) :
                i < j /\ order[i] = other /\ order[j] = r}

\* OneMore is refused, or another is preempted for it.
IsRefused(r) == OneMore(m, r).seats[r].computed = m.seats[r].computed

Serve(r) ==
  /\ m.seats[r].phase \in {"running", "loaded"}
  /\ m.seats[r].computed < MaxTokens
  /\ r \notin served
  /\ HaveHadTheirTurn({other \in Before(r) : Runs(other)})
  /\ m' = Served(m, OneMore(m, r), r)
  /\ served' = served \cup {r}
  /\ refused' = (refused \/ IsRefused(r))
  /\ UNCHANGED <<order, failed, barred>>

Finish(r) ==
  /\ Runs(r)
  /\ m.seats[r].computed = MaxTokens
  /\ m' = [FreeAll(m, r) EXCEPT !.seats[r] = Gone]
  /\ order' = SelectSeq(order, LAMBDA other : other # r)
  /\ failed' = failed \ {r}
  /\ served' = served \ {r}
  /\ UNCHANGED <<refused, barred>>

\* The first that waits comes through the gate, or stays (KV-MGR-5, KV-LIVE-1). A store may have
\* tokens for it; look-ahead slots are asked for when these are there.
TryToAdmit(r, text, loaded) ==
  IF loaded = 0 THEN Begun(m, r, text, PromptOf(m, r), LookUp(m, text), 0)
  ELSE Seated(AllocateSlots(m, r, text, PromptOf(m, r),
                            [Ask(0, LookUp(m, text), 0, Watermark, MustFit) EXCEPT
                               !.external = loaded, !.delay = TRUE]),
              r, Seat("loading", text, PromptOf(m, r), HitTokens(LookUp(m, text)) + loaded))

Stored(r, text) ==
  IF r \in failed THEN 0 ELSE Min(MaxLoaded, Len(text) - HitTokens(LookUp(m, text)))

\* Not behind a step that refused a request; in a step that does it is free to admit or not.
AdmitOldest ==
  /\ ~barred
  /\ HaveHadTheirTurn(Running(m))
  /\ \E r \in Requests :
       /\ Waits(r)
       /\ \A other \in Before(r) : ~Waits(other)
       /\ \E loaded \in 0 .. Stored(r, m.seats[r].tokens) :
            m' = TryToAdmit(r, m.seats[r].tokens, loaded)
       /\ served' = served \cup {r}
  /\ UNCHANGED <<order, failed, refused, barred>>

AdmitUnlessRefused == ~refused /\ AdmitOldest

NextStep ==
  /\ HaveHadTheirTurn(Running(m))
  /\ served' = {}
  /\ refused' = FALSE
  /\ barred' = refused
  /\ UNCHANGED <<m, order, failed>>

\* A load ends: its tokens are there, or the request waits again and loads nothing more.
EndLoad(r) ==
  /\ m.seats[r].phase = "loading"
  /\ \/ /\ m' = [CacheAll(m, r, m.seats[r].tokens, PromptOf(m, r), m.seats[r].computed) EXCEPT
                   !.seats[r] = Seat("loaded", @.tokens, @.prompt,
                                     Min(@.computed, Len(@.tokens) - 1))]
        /\ failed' = failed
     \/ m' = PreemptedIn(m, r) /\ failed' = failed \cup {r}
  /\ UNCHANGED <<order, served, refused, barred>>

SchedulerNext ==
  \/ \E r \in Requests : \E prompt \in Prompts : Arrive(r, prompt)
  \/ AdmitOldest
  \/ NextStep
  \/ \E r \in Requests : Serve(r)
  \/ \E r \in Requests : Finish(r)
  \/ \E r \in Requests : EndLoad(r)

Fairness ==
  /\ WF_vars(AdmitUnlessRefused)
  /\ WF_vars(NextStep)
  /\ \A r \in Requests : WF_vars(Serve(r))
  /\ \A r \in Requests : WF_vars(Finish(r))
  /\ \A r \in Requests : WF_vars(EndLoad(r))

SchedulerSpec == SchedulerInit /\ [][SchedulerNext]_vars /\ Fairness

-----------------------------------------------------------------------------
\* First come, first served, without loads: who runs came before all who wait (the first step
\* of the proof of KV-LIVE-2).
the_oldest_run ==
  AnyOrder \/ MaxLoaded > 0 \/ \A i, j \in 1 .. Len(order) : (i < j /\ Runs(order[j])) => Runs(order[i])

\* Whoever comes is admitted and ends, if it fits (KV-LIVE-1, KV-LIVE-2, KV-LIVE-4). With
\* Endless, although others never stop coming. The left sides hold until the right sides do: of
\* P ~> Q the checker sees a cycle without Q alone if there is a state with P in it.
HasCome(r) == \E i \in 1 .. Len(order) : order[i] = r
every_request_is_admitted == \A r \in Requests : (HasCome(r) /\ ~Runs(r)) ~> Runs(r)
every_request_ends == \A r \in Requests : HasCome(r) ~> HasEnded(r)
=============================================================================
