------------------------------ MODULE Manager -------------------------------
(* The manager and its scheduler (spec/rules/manager.md): requests come, hit, are
   admitted or refused, grow, are preempted, come again, and end.

   The state m is a cache (see Groups), and

     seats   of each request its phase, its tokens, how many its prompt has, and how many are
             computed
     popped  deferred frees: blocks that were popped and have not come back *)
EXTENDS Calls

CONSTANTS NumTokens,     \* the alphabet is 0 .. NumTokens - 1
          MinPrompt,
          MaxPrompt,     \* prompts are all texts with so many tokens
          Watermark,     \* blocks left free when a request comes beside others
          MustFit,       \* TRUE: admission with full_sequence_must_fit
          Lookahead,     \* slots for a drafter that every allocation asks for
          MaxLoaded,     \* tokens that come from elsewhere when a request begins, at most
          MaxPopped      \* deferred frees under way at once

VARIABLE m

Tokens == 0 .. NumTokens - 1
Prompts == UNION {[1 .. n -> Tokens] : n \in MinPrompt .. MaxPrompt}
Seat(phase, tokens, promptTokens, computed) ==
  [phase |-> phase, tokens |-> tokens, prompt |-> promptTokens, computed |-> computed]
Empty == Seat("empty", <<>>, 0, 0)

\* How long its prompt is matters to retention alone; else it is no part of the state.
PromptLength(prompt) == IF Retention = NoRetention THEN 0 ELSE Len(prompt)
PromptOf(s, r) == s.seats[r].prompt

NewManager ==
  [pool |-> NewPool, lists |-> NewCache.lists, counts |-> NewCache.counts,
   seats |-> [r \in Requests |-> Empty], popped |-> <<>>]

Init == m = NewManager

-----------------------------------------------------------------------------
(* Allocation: room for all tokens of seat `next`, of which some are computed. *)

\* The seat is taken if there are slots.
Seated(allocation, r, next) ==
  IF allocation.granted THEN [allocation.cache EXCEPT !.seats[r] = next] ELSE allocation.cache

Asking(computed, hits, new, watermark, fit) ==
  [Ask(computed, hits, new, watermark, fit) EXCEPT !.lookahead = Lookahead]

\* A request that holds nothing asks for its first slots, `left` tokens left for later.
Begun(s, r, text, promptTokens, hits, left) ==
  Seated(AllocateSlots(s, r, text, promptTokens,
                       Asking(0, hits, Len(text) - left - HitTokens(hits), Watermark, MustFit)),
         r, Seat("running", text, promptTokens, Len(text) - left))

\* Slots for hits, for what is loaded behind them, and for `new` tokens behind that.
Loaded(s, r, text, hits, new, loaded, phase) ==
  Seated(AllocateSlots(s, r, text, PromptLength(text),
                       [Asking(0, hits, new, Watermark, MustFit) EXCEPT
                          !.external = loaded, !.delay = (phase = "loading")]),
         r, Seat(phase, text, PromptLength(text), HitTokens(hits) + loaded + new))

\* A running request asks for slots for so many tokens of a text that it may have grown to.
Continued(s, r, text, slots) ==
  Seated(AllocateSlots([s EXCEPT !.seats[r].tokens = text], r, text, PromptOf(s, r),
                       Asking(s.seats[r].computed, NoHits, slots - s.seats[r].computed, 0, FALSE)),
         r, [s.seats[r] EXCEPT !.tokens = text, !.computed = slots])

-----------------------------------------------------------------------------
(* The moves. *)

Admit(r, prompt, left) ==                                       \* KV-MGR-1, KV-MGR-3, KV-MGR-7
  /\ m.seats[r].phase = "empty"
  /\ Len(prompt) - left > HitTokens(LookUp(m, prompt))
  /\ m' = Begun(m, r, prompt, PromptLength(prompt), LookUp(m, prompt), left)

\* Some tokens behind the hits come from elsewhere: others are computed in the same step …
LoadNow(r, prompt, loaded, left) ==                             \* KV-MGR-4, KV-GRP-6, KV-GRP-8
  /\ m.seats[r].phase = "empty"
  /\ Len(prompt) - left > HitTokens(LookUp(m, prompt)) + loaded
  /\ m' = Loaded(m, r, prompt, LookUp(m, prompt),
                 Len(prompt) - left - HitTokens(LookUp(m, prompt)) - loaded, loaded, "running")

\* … or none are, and what is loaded is cached when it has arrived.
LoadLater(r, prompt, loaded) ==                                 \* KV-MGR-3, KV-MGR-10
  /\ m.seats[r].phase = "empty"
  /\ Len(prompt) >= HitTokens(LookUp(m, prompt)) + loaded
  /\ m' = Loaded(m, r, prompt, LookUp(m, prompt), 0, loaded, "loading")

\* The last token of a prompt is computed in any case.
Arrived(r) ==                                                   \* KV-MGR-11
  /\ m.seats[r].phase = "loading"
  /\ m' = [CacheAll(m, r, m.seats[r].tokens, PromptOf(m, r), m.seats[r].computed) EXCEPT
             !.seats[r] = Seat("running", @.tokens, @.prompt,
                               Min(@.computed, Len(@.tokens) - 1))]

FailLoad(r) ==                                                  \* KV-MGR-12
  /\ m.seats[r].phase = "loading"
  /\ m' = [FreeAll(m, r) EXCEPT !.seats[r] = Empty]

Resume(r, left) ==                                              \* KV-MGR-17
  /\ m.seats[r].phase = "preempted"
  /\ Len(m.seats[r].tokens) - left > HitTokens(LookUp(m, m.seats[r].tokens))
  /\ m' = Begun(m, r, m.seats[r].tokens, PromptOf(m, r), LookUp(m, m.seats[r].tokens), left)

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
  /\ m' = [FreeAll(m, r) EXCEPT !.seats[r] = Seat("preempted", @.tokens, @.prompt, 0)]

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
  IN [FreeBlocks(s, Reversed(back)) EXCEPT
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
  m.pool.keys[b] # NoKey /\ m' = EvictBlocks(m, {b})

EvictAll ==                                                     \* KV-POOL-10
  /\ Cardinality({b \in Blocks : m.pool.keys[b] # NoKey}) > 1
  /\ m' = EvictBlocks(m, Blocks)

ResetCache == m' = ResetPrefixCache(m)                              \* KV-POOL-11

Next ==
  \/ \E r \in Requests : \E prompt \in Prompts : \E left \in 0 .. MaxPrompt - 1 :
       Admit(r, prompt, left)
  \/ \E r \in Requests : \E prompt \in Prompts : \E loaded \in 1 .. MaxLoaded :
       \E left \in 0 .. MaxPrompt - 1 : LoadNow(r, prompt, loaded, left)
  \/ \E r \in Requests : \E prompt \in Prompts : \E loaded \in 1 .. MaxLoaded :
       LoadLater(r, prompt, loaded)
  \/ \E r \in Requests : Arrived(r)
  \/ \E r \in Requests : FailLoad(r)
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

\* Who runs, loads or has loaded has a slot for every such token; who does not holds nothing.
slots_are_there ==
  \A r \in Requests : \A g \in Groups :
    IF m.seats[r].phase \in {"running", "loading", "loaded"}
    THEN Len(m.lists[r][g]) >= Cdiv(m.seats[r].computed, BlockSizes[g])
    ELSE m.lists[r][g] = <<>> /\ ~HasEntry(m, r, g)

RECURSIVE BlocksFrom(_, _)
BlocksFrom(n, g) ==
  IF g > NumGroups THEN 0 ELSE Cdiv(n, BlockSizes[g]) + BlocksFrom(n, g + 1)

\* In an idle pool a request that fits is not refused (KV-LIVE-1).
an_idle_pool_admits ==
  NumFree(m.pool) = NumBlocks - 1 =>
    \A r \in Requests : \A text \in Prompts :
      BlocksFrom(Min(Len(text) + Lookahead, MaxTokens), 1) <= NumBlocks - 1 =>
        AllocateSlots(m, r, text, PromptLength(text),
                      Asking(0, LookUp(m, text), Len(text) - HitTokens(LookUp(m, text)), 0, TRUE)
          ).granted
=============================================================================
