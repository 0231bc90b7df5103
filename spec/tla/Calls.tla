------------------------------- MODULE Calls --------------------------------
(* The calls of a manager (spec/rules/manager.md): each operator takes a cache, and answers the
   cache afterwards. Manager has the moves of a scheduler that makes these calls, Trace follows a
   record of them.

   What an allocation asks for is a record:

     computed   tokens of the request that are computed
     hits, hit  of each group the blocks of a look-up made just before, and how many tokens they are
     external   tokens behind them that come from elsewhere
     new        tokens to be computed, drafts included
     lookahead  slots beyond them
     watermark  blocks kept free beside others, 0 where it does not count (KV-MGR-9)
     reserved   free blocks that must remain
     fit        whether the whole sequence must fit
     delay      whether caching waits for a later call *)
EXTENDS Hits

CONSTANT StepTokens      \* the most tokens computed in one step (max_num_batched_tokens)

Ask(computed, hits, new, watermark, fit) ==
  [computed |-> computed, hits |-> hits, hit |-> HitTokens(hits), external |-> 0, new |-> new,
   lookahead |-> 0, watermark |-> watermark, reserved |-> 0, fit |-> fit, delay |-> FALSE]

-----------------------------------------------------------------------------
(* What an allocation goes by. *)

Brought(q) == q.computed + q.hit + q.external                   \* KV-MGR-4
Total(q) == Min(Brought(q), MaxTokens)

\* The last token is computed again after a load: what it reads stays (KV-MGR-4).
SkipAt(q, text) == IF q.external > 0 THEN Min(Brought(q), Len(text) - 1) ELSE Brought(q)

\* Slots for drafts, too, none beyond the longest sequence but what is loaded (KV-MGR-7).
Slots(c, r, q) ==
  LET wanted == Min(Total(q) + q.new + q.lookahead, MaxTokens)
  IN IF q.external > 0 /\ ~IsRunning(c, r) THEN Max(wanted, Brought(q)) ELSE wanted

\* A windowed group holds no more than this at once (KV-SW-7).
Cap(g, n) ==
  IF Windows[g] = Full THEN n
  ELSE Min(n, BlockSizes[g] * (Cdiv(Min(Windows[g] - 1 + StepTokens, MaxTokens), BlockSizes[g]) + 1))

RECURSIVE WholeNeed(_, _, _, _, _, _)
WholeNeed(c, r, g, hits, n, computed) ==
  IF g > NumGroups THEN 0
  ELSE Need(c, r, g, hits[g], Cap(g, n), computed) + WholeNeed(c, r, g + 1, hits, n, computed)

PassesGate(c, r, text, q) ==                                    \* KV-MGR-5, KV-MGR-9
  \/ ~q.fit
  \/ WholeNeed(c, r, 1, q.hits, Min(Len(text), MaxTokens), Min(SkipAt(q, text), MaxTokens))
       + q.watermark <= NumFree(c.pool)

Fits(c, r, text, q) ==                                          \* KV-MGR-7, KV-MGR-9
  TotalNeed(c, r, q.hits, Slots(c, r, q), SkipAt(q, text)) + q.watermark
    <= NumFree(c.pool) - q.reserved

-----------------------------------------------------------------------------
(* The calls. *)

\* Hits first in all groups, then what comes from elsewhere (KV-GRP-5, KV-GRP-6, KV-GRP-8).
Started(c, r, text, q) ==
  LET computed == SkipAt(q, text)
  IN IF IsRunning(c, r) \/ (q.hit = 0 /\ q.external = 0) THEN c
     ELSE IF q.external = 0 THEN TakeAllHits(c, r, q.hits, computed)
     ELSE TakeAllExternal(TakeAllHits(c, r, q.hits, computed), r, Brought(q), computed)

RECURSIVE NewFrom(_, _, _, _)
NewFrom(c, grown, r, g) ==
  IF g > NumGroups THEN <<>>
  ELSE <<SubSeq(grown.lists[r][g], Len(c.lists[r][g]) + 1, Len(grown.lists[r][g]))>>
       \o NewFrom(c, grown, r, g + 1)

\* An answer: whether there are slots, the new blocks of each group, and the cache afterwards.
Refused(c) == [granted |-> FALSE, blocks |-> NoHits, cache |-> c]

Granted(c, grown, r, text, promptTokens, q) ==                        \* KV-MGR-10
  [granted |-> TRUE,
   blocks  |-> NewFrom(c, grown, r, 1),
   cache   |-> IF q.delay THEN grown
               ELSE CacheAll(grown, r, text, promptTokens, Min(Total(q) + q.new, Len(text)))]

\* New blocks after all hits, and then what is full is cached (KV-MGR-7, KV-GRP-7).
Given(started, slots, r, text, promptTokens, q) ==
  Granted(started, ExtendAll(started, r, slots), r, text, promptTokens, q)

\* What is skipped goes first, and is all that a refusal has done (KV-MGR-6).
AfterRemoval(c, r, text, promptTokens, q) ==
  IF Fits(c, r, text, q)
  THEN Given(Started(c, r, text, q), Slots(c, r, q), r, text, promptTokens, q)
  ELSE Refused(c)

\* Room for the next tokens of a request with this text, whose prompt has so many tokens.
AllocateSlots(c, r, text, promptTokens, q) ==
  IF ~PassesGate(c, r, text, q) THEN Refused(c)
  ELSE AfterRemoval(RemoveAllSkipped(c, r, Min(SkipAt(q, text), MaxTokens)), r, text, promptTokens, q)

\* Blocks of a deferred free come back, in the order in which they are given (KV-POOL-7, KV-POOL-9).
FreeBlocks(c, list) == [c EXCEPT !.pool = Release(c.pool, list)]

EvictBlocks(c, blocks) == [c EXCEPT !.pool = Forget(c.pool, blocks)]    \* KV-POOL-10

ResetPrefixCache(c) == [c EXCEPT !.pool = Reset(c.pool)]                \* KV-POOL-11
=============================================================================
