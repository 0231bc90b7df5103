------------------------------ MODULE Manager -------------------------------
(* The manager and its scheduler (spec/rules/manager.md): requests come, hit, are
   admitted or refused, grow, are preempted, come again, and end.

   The state m is a cache (see Groups), and

     seats   of each request name its phase, its tokens, and how many are computed
     popped  deferred frees: blocks that were popped and have not come back *)
EXTENDS Groups

CONSTANTS NumTokens,     \* the alphabet is 0 .. NumTokens - 1
          MinPrompt,
          MaxPrompt,     \* prompts are all texts with so many tokens
          MaxTokens,     \* the longest sequence (max_model_len)
          Watermark,     \* blocks left free when a request comes beside others
          MustFit,       \* TRUE: admission with full_sequence_must_fit
          MaxPopped      \* deferred frees under way at once

VARIABLE m

Tokens == 0 .. NumTokens - 1
Prompts == UNION {[1 .. n -> Tokens] : n \in MinPrompt .. MaxPrompt}
Seat(phase, tokens, computed) == [phase |-> phase, tokens |-> tokens, computed |-> computed]
Empty == Seat("empty", <<>>, 0)

NewManager ==
  [pool |-> NewPool, lists |-> NewCache.lists, counts |-> NewCache.counts,
   seats |-> [r \in Requests |-> Empty], popped |-> <<>>]

Init == m = NewManager

-----------------------------------------------------------------------------
(* Allocation: room for all tokens of seat `next`, of which `computed` are there. *)

\* A windowed group holds no more than this at once (KV-SW-7); steps are of any size.
Cap(g, n) ==
  IF Windows[g] = Full THEN n
  ELSE Min(n, BlockSize * (Cdiv(Min(Windows[g] - 1 + MaxTokens, MaxTokens), BlockSize) + 1))

RECURSIVE WholeNeed(_, _, _, _, _, _)
WholeNeed(s, r, g, hits, n, computed) ==
  IF g > NumGroups THEN 0
  ELSE Need(s, r, g, hits[g], Cap(g, n), computed) + WholeNeed(s, r, g + 1, hits, n, computed)

PassesGate(s, r, hits, text, computed) ==                       \* KV-MGR-5, KV-MGR-9
  ~MustFit
  \/ WholeNeed(s, r, 1, hits, Min(Len(text), MaxTokens), computed) + Watermark <= NumFree(s.pool)

Fits(s, r, hits, slots, computed, kept) ==                      \* KV-MGR-7, KV-MGR-9
  TotalNeed(s, r, hits, slots, computed) + kept <= NumFree(s.pool)

\* Hits first in all groups, then new blocks, then what is full is cached (KV-MGR-7, KV-MGR-10).
Granted(s, r, hits, computed, next) ==
  LET started == IF HitTokens(hits) > 0 THEN TakeAllHits(s, r, hits, computed) ELSE s
      grown == ExtendAll(started, r, next.computed)
  IN [CacheAll(grown, r, next.tokens, next.computed) EXCEPT !.seats[r] = next]

\* What is skipped goes first, and is all that a refusal has done (KV-MGR-6).
Allocated(s, r, hits, computed, kept, next) ==
  LET skipped == RemoveAllSkipped(s, r, computed)
  IN IF Fits(skipped, r, hits, next.computed, computed, kept)
     THEN Granted(skipped, r, hits, computed, next)
     ELSE skipped

\* A request that holds nothing asks for its first slots, `left` tokens left for later.
Started(s, r, text, hits, left) ==
  IF ~PassesGate(s, r, hits, text, HitTokens(hits)) THEN s
  ELSE Allocated(s, r, hits, HitTokens(hits), Watermark, Seat("running", text, Len(text) - left))

\* A running request asks for slots for so many tokens of a text that it may have grown to.
Continued(s, r, text, slots) ==
  Allocated([s EXCEPT !.seats[r].tokens = text], r, NoHits, s.seats[r].computed, 0,
            Seat("running", text, slots))

-----------------------------------------------------------------------------
(* The moves. *)

Admit(r, prompt, left) ==                                       \* KV-MGR-1, KV-MGR-3, KV-MGR-7
  /\ m.seats[r].phase = "empty"
  /\ Len(prompt) - left > HitTokens(LookUp(m, prompt))
  /\ m' = Started(m, r, prompt, LookUp(m, prompt), left)

Resume(r, left) ==                                              \* KV-MGR-17
  /\ m.seats[r].phase = "preempted"
  /\ Len(m.seats[r].tokens) - left > HitTokens(LookUp(m, m.seats[r].tokens))
  /\ m' = Started(m, r, m.seats[r].tokens, LookUp(m, m.seats[r].tokens), left)

Compute(r, left) ==                                             \* KV-MGR-7, KV-MGR-10
  /\ m.seats[r].phase = "running"
  /\ m.seats[r].computed < Len(m.seats[r].tokens) - left
  /\ m' = Continued(m, r, m.seats[r].tokens, Len(m.seats[r].tokens) - left)

Generate(r, token) ==                                           \* KV-REQ-2, KV-MGR-7
  /\ m.seats[r].phase = "running"
  /\ m.seats[r].computed = Len(m.seats[r].tokens)
  /\ Len(m.seats[r].tokens) < MaxTokens
  /\ m' = Continued(m, r, Append(m.seats[r].tokens, token), Len(m.seats[r].tokens) + 1)

FreeRequest(r) ==                                               \* KV-MGR-12
  /\ m.seats[r].phase = "running"
  /\ m' = [FreeAll(m, r) EXCEPT !.seats[r] = Empty]

Preempt(r) ==                                                   \* KV-MGR-17
  /\ m.seats[r].phase = "running"
  /\ m' = [FreeAll(m, r) EXCEPT !.seats[r] = Seat("preempted", @.tokens, 0)]

GiveUp(r) ==                                                    \* KV-ERR-4
  /\ m.seats[r].phase = "preempted"
  /\ m' = [m EXCEPT !.seats[r] = Empty]

Pop(r) ==                                                       \* KV-MGR-13
  /\ m.seats[r].phase = "running"
  /\ Len(m.popped) < MaxPopped
  /\ m' = [ForgetRequest(m, r) EXCEPT !.seats[r] = Empty, !.popped = Append(@, AllBlocksOf(m, r))]

\* The last `count` blocks of a deferred free come back, in reverse order (KV-POOL-7, KV-POOL-9).
Returned(s, i, count) ==
  LET blocks == s.popped[i]
      kept == SubSeq(blocks, 1, Len(blocks) - count)
      back == SubSeq(blocks, Len(blocks) - count + 1, Len(blocks))
  IN [s EXCEPT
        !.pool = Release(s.pool, Reversed(back)),
        !.popped = SubSeq(s.popped, 1, i - 1) \o (IF kept = <<>> THEN <<>> ELSE <<kept>>)
                   \o SubSeq(s.popped, i + 1, Len(s.popped))]

ReturnAll(i) ==                                                 \* KV-MGR-13
  i <= Len(m.popped) /\ m' = Returned(m, i, Len(m.popped[i]))

ReturnLast(i) ==                                                \* KV-MGR-13
  i <= Len(m.popped) /\ Len(m.popped[i]) > 1 /\ m' = Returned(m, i, 1)

Skip(r) ==                                                      \* KV-MGR-14
  /\ m.seats[r].phase = "running"
  /\ m' = RemoveAllSkipped(m, r, m.seats[r].computed)

Evict(b) ==                                                     \* KV-POOL-10
  m.pool.keys[b] # NoKey /\ m' = [m EXCEPT !.pool = Forget(m.pool, {b})]

EvictAll ==                                                     \* KV-POOL-10
  /\ Cardinality({b \in Blocks : m.pool.keys[b] # NoKey}) > 1
  /\ m' = [m EXCEPT !.pool = Forget(m.pool, Blocks)]

ResetCache == m' = [m EXCEPT !.pool = Reset(m.pool)]                 \* KV-POOL-11

Next ==
  \/ \E r \in Requests : \E prompt \in Prompts : \E left \in 0 .. MaxPrompt - 1 :
       Admit(r, prompt, left)
  \/ \E r \in Requests : \E left \in 0 .. MaxTokens - 1 : Resume(r, left)
  \/ \E r \in Requests : \E left \in 0 .. MaxTokens - 1 : Compute(r, left)
  \/ \E r \in Requests : \E token \in Tokens : Generate(r, token)
  \/ \E r \in Requests : FreeRequest(r)
  \/ \E r \in Requests : Preempt(r)
  \/ \E r \in Requests : GiveUp(r)
  \/ \E r \in Requests : Pop(r)
  \/ \E i \in 1 .. MaxPopped : ReturnAll(i)
  \/ \E i \in 1 .. MaxPopped : ReturnLast(i)
  \/ \E r \in Requests : Skip(r)
  \/ \E b \in Blocks : Evict(b)
  \/ EvictAll
  \/ ResetCache

Spec == Init /\ [][Next]_m

-----------------------------------------------------------------------------
(* The invariants, named as in kvspec.invariants, and some that see the texts, too. *)

RECURSIVE Joined(_)
Joined(lists) == IF lists = <<>> THEN <<>> ELSE Head(lists) \o Joined(Tail(lists))

has_the_right_shape == PoolHasTheRightShape(m.pool)
null_block_is_apart == NullIsApart(m.pool)
free_queue_has_no_duplicates == QueueHasNoDuplicates(m.pool)
free_means_unreferenced == FreeIsUnreferenced(m.pool)
references_are_accounted_for == AccountedFor(m, Joined(m.popped))
keys_and_lookups_agree == KeysAgree(m.pool)
keys_are_listed_once == KeysListedOnce(m.pool)
a_block_has_one_place == HasOnePlace(m)
cached_blocks_belong_to_their_group == KeysOfGroup(m)
cached_counts_fit_the_lists == CountsFit(m)
nulls_come_first == NullsFirst(m)
keys_of_one_place == KeysOfPlaces(m)

\* A hit stands for the tokens of the request that it serves.
blocks_carry_the_text_of_their_requests == \A r \in Requests : KeysOfText(m, r, m.seats[r].tokens)

\* Who runs has a slot for every computed token; who does not holds nothing.
slots_are_there ==
  \A r \in Requests : \A g \in Groups :
    IF m.seats[r].phase = "running"
    THEN Len(m.lists[r][g]) = Cdiv(m.seats[r].computed, BlockSize)
    ELSE m.lists[r][g] = <<>> /\ ~HasEntry(m, r, g)

\* In an idle pool a request that fits is not refused (KV-LIVE-1).
an_idle_pool_admits ==
  NumFree(m.pool) = NumBlocks - 1 =>
    \A r \in Requests : \A text \in Prompts :
      LET hits == LookUp(m, text)
      IN Cdiv(Len(text), BlockSize) * NumGroups <= NumBlocks - 1 =>
           /\ TotalNeed(m, r, hits, Len(text), HitTokens(hits)) <= NumFree(m.pool)
           /\ WholeNeed(m, r, 1, hits, Len(text), HitTokens(hits)) <= NumFree(m.pool)
=============================================================================
