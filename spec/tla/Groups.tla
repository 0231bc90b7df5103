------------------------------- MODULE Groups -------------------------------
(* Groups over one pool: block lists, windows, needs, what is cached (spec/rules/groups.md,
   full.md, sliding_window.md, retention.md). A cache is a record with

     pool    see Pool
     lists   lists[r][g]: the block list of request r in group g, Null where no
             block is needed
     counts  counts[r][g]: how many blocks of it were handed to the cache,
             NoEntry as long as there is no entry (KV-GRP-1)

   A text is a sequence of tokens. Hits is over this module. *)
EXTENDS Pool

CONSTANTS NumRequests,
          Windows,       \* of each group the sliding window, 0 for full attention
          BlockSizes,    \* of each group
          Alignment,     \* hits end on its multiples: that of one group, or the LCM of several
          EagleGroups,   \* the groups whose look-ups drop a block
          Retention,     \* the retention interval, -1 for none
          MaxTokens      \* the longest sequence (max_model_len)

\* What a configuration file of TLC, which has no sequences, can name.
OneFull == <<0>>
OneOfTwo == <<2>>
FullAndTwo == <<0, 2>>
One == <<1>>
Two == <<2>>
OneAndOne == <<1, 1>>
TwoAndOne == <<2, 1>>

Requests == 1 .. NumRequests
Full == 0
NumGroups == Len(Windows)
Groups == 1 .. NumGroups
NoEntry == -1
NoRetention == -1

Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b
Cdiv(a, b) == (a + b - 1) \div b
Reversed(list) == [i \in 1 .. Len(list) |-> list[Len(list) + 1 - i]]
From(list, first) == IF first > Len(list) THEN <<>> ELSE SubSeq(list, first, Len(list))
RealBlocks(list) == {list[i] : i \in 1 .. Len(list)} \ {Null}

NewCache ==
  [pool   |-> NewPool,
   lists  |-> [r \in Requests |-> [g \in Groups |-> <<>>]],
   counts |-> [r \in Requests |-> [g \in Groups |-> NoEntry]]]

NoHits == [g \in Groups |-> <<>>]
HasEntry(c, r, g) == c.counts[r][g] # NoEntry
IsRunning(c, r) == \E g \in Groups : HasEntry(c, r, g)          \* KV-GRP-9

\* The key of block i of a text, counted from 1 (KV-HASH-5, KV-HASH-6).
Key(g, text, i) == <<g>> \o SubSeq(text, 1, i * BlockSizes[g])

\* Tokens, and whole blocks, that no token reads once n are computed (KV-FULL-1, KV-SW-1).
SkippedTokens(g, n) == IF Windows[g] = Full THEN 0 ELSE Max(0, n - Windows[g] + 1)
SkippedBlocks(g, n) == SkippedTokens(g, n) \div BlockSizes[g]

\* One block more in an eagle group (KV-SW-2, KV-RET-1).
Drop(g) == IF g \in EagleGroups THEN 1 ELSE 0

-----------------------------------------------------------------------------
(* What an allocation does in each group, in the order of the figure in groups.md. *)

\* Blocks wholly before s(n) become null and are released, last first (KV-GRP-2).
RemoveSkipped(c, r, g, n) ==
  LET list == c.lists[r][g]
      skipped == Min(SkippedBlocks(g, n), Len(list))
      removed == SelectSeq(Reversed(SubSeq(list, 1, skipped)), LAMBDA b : b # Null)
  IN IF removed = <<>> THEN c
     ELSE [c EXCEPT
             !.pool = Release(c.pool, removed),
             !.lists[r][g] = [i \in 1 .. Len(list) |-> IF i <= skipped THEN Null ELSE list[i]]]

\* Free blocks that slots for n tokens take, with these hits and `computed` tokens.
Need(c, r, g, hits, n, computed) ==
  LET held == Len(c.lists[r][g])
      skipped == SkippedBlocks(g, computed)
      kept == From(hits, Max(0, skipped - held) + 1)
  IN IF HasEntry(c, r, g)
     THEN Max(Cdiv(n, BlockSizes[g]) - held, 0)                     \* KV-GRP-3
     ELSE Max(Cdiv(n, BlockSizes[g]) - Max(skipped, Len(hits) + held), 0)
          + Cardinality({b \in RealBlocks(kept) : IsFree(c.pool, b)})   \* KV-GRP-4

\* A list begins with nulls for what is skipped, then the hits, touched (KV-GRP-5).
TakeHits(c, r, g, hits, computed) ==
  LET skipped == SkippedBlocks(g, computed)
      taken == From(hits, skipped + 1)
  IN [c EXCEPT
        !.pool = Touch(c.pool, RealBlocks(taken)),
        !.lists[r][g] = [i \in 1 .. skipped |-> Null] \o taken,
        !.counts[r][g] = skipped + Len(taken)]

\* The blocks still missing for slots for n tokens (KV-GRP-7).
Extend(c, r, g, n) ==
  LET missing == Cdiv(n, BlockSizes[g]) - Len(c.lists[r][g])
  IN IF missing <= 0 THEN c
     ELSE [c EXCEPT
             !.pool = Allocate(c.pool, missing),
             !.lists[r][g] = @ \o Taken(c.pool, missing)]

\* The blocks for tokens that come from elsewhere, if attention still reads any (KV-GRP-6).
TakeExternal(c, r, g, n, computed) ==
  IF SkippedTokens(g, computed) < n THEN Extend(c, r, g, n) ELSE c

\* Whether block i, from 1 on, is one of the `tail` before a multiple of a segment of blocks, or
\* behind it by the drop (KV-RET-1, KV-RET-3).
IsBeforeBoundary(g, i, tail, segment) ==
  \/ tail >= segment
  \/ i > Drop(g) /\ (i - 1 - Drop(g)) % segment >= segment - tail

\* The same for the replay boundary of a prompt of so many tokens (KV-RET-4).
IsBeforeReplay(g, i, tail, promptTokens) ==
  LET replayed == (((promptTokens - 1) \div Alignment) * Alignment) \div BlockSizes[g] + Drop(g)
  IN i > replayed - tail /\ i <= replayed

\* Blocks that some hit can use (KV-FULL-6, KV-SW-6, KV-RET-1 .. KV-RET-4).
IsWorthCaching(g, i, promptTokens) ==
  LET tail == Cdiv(Windows[g] - 1, BlockSizes[g]) + Drop(g)
      segment == (IF Retention = NoRetention THEN Alignment ELSE Retention) \div BlockSizes[g]
  IN IF Windows[g] = Full THEN TRUE
     ELSE \/ segment > 0 /\ IsBeforeBoundary(g, i, tail, segment)
          \/ Retention # NoRetention /\ IsBeforeReplay(g, i, tail, promptTokens)

\* Blocks i .. last of a list are registered; null ones are passed over (KV-RET-6).
RECURSIVE RegisterFrom(_, _, _, _, _, _, _)
RegisterFrom(p, g, text, promptTokens, list, i, last) ==
  IF i > last THEN p
  ELSE RegisterFrom(IF list[i] = Null \/ ~IsWorthCaching(g, i, promptTokens) THEN p
                    ELSE Register(p, list[i], Key(g, text, i)),
                    g, text, promptTokens, list, i + 1, last)

\* The full blocks among the first n tokens are cached, from the count on (KV-GRP-11).
CacheBlocks(c, r, g, text, promptTokens, n) ==
  LET first == Max(c.counts[r][g], 0)
      last == n \div BlockSizes[g]
  IN IF first >= last THEN c
     ELSE [c EXCEPT
             !.pool = RegisterFrom(c.pool, g, text, promptTokens, c.lists[r][g], first + 1, last),
             !.counts[r][g] = last]

\* Several groups cache up to a boundary, eagle groups one block further (KV-COORD-13).
CacheBound(g, n) ==
  LET boundary == (n \div Alignment) * Alignment
  IN IF NumGroups = 1 THEN n
     ELSE IF boundary > 0 THEN Min(n, boundary + Drop(g) * BlockSizes[g]) ELSE 0

\* The group forgets the request, whose blocks keep their references (KV-MGR-13).
Forgotten(c, r, g) == [c EXCEPT !.lists[r][g] = <<>>, !.counts[r][g] = NoEntry]

\* All blocks of the request are released, the last one first (KV-POOL-8).
FreeList(c, r, g) ==
  [Forgotten(c, r, g) EXCEPT !.pool = Release(c.pool, Reversed(c.lists[r][g]))]

-----------------------------------------------------------------------------
(* The same in all groups, one after another, in group order (KV-POOL-7, KV-GRP-8). *)

RECURSIVE RemoveFrom(_, _, _, _)
RemoveFrom(c, r, g, n) ==
  IF g > NumGroups THEN c ELSE RemoveFrom(RemoveSkipped(c, r, g, n), r, g + 1, n)

RECURSIVE TakeFrom(_, _, _, _, _)
TakeFrom(c, r, g, hits, n) ==
  IF g > NumGroups THEN c ELSE TakeFrom(TakeHits(c, r, g, hits[g], n), r, g + 1, hits, n)

RECURSIVE ExtendFrom(_, _, _, _)
ExtendFrom(c, r, g, n) ==
  IF g > NumGroups THEN c ELSE ExtendFrom(Extend(c, r, g, n), r, g + 1, n)

RECURSIVE ExternalFrom(_, _, _, _, _)
ExternalFrom(c, r, g, n, computed) ==
  IF g > NumGroups THEN c
  ELSE ExternalFrom(TakeExternal(c, r, g, n, computed), r, g + 1, n, computed)

RECURSIVE CacheFrom(_, _, _, _, _, _)
CacheFrom(c, r, g, text, promptTokens, n) ==
  IF g > NumGroups THEN c
  ELSE CacheFrom(CacheBlocks(c, r, g, text, promptTokens, CacheBound(g, n)),
                 r, g + 1, text, promptTokens, n)

RECURSIVE FreeFrom(_, _, _)
FreeFrom(c, r, g) == IF g > NumGroups THEN c ELSE FreeFrom(FreeList(c, r, g), r, g + 1)

RECURSIVE ForgetFrom(_, _, _)
ForgetFrom(c, r, g) == IF g > NumGroups THEN c ELSE ForgetFrom(Forgotten(c, r, g), r, g + 1)

RECURSIVE NeedFrom(_, _, _, _, _, _)
NeedFrom(c, r, g, hits, n, computed) ==
  IF g > NumGroups THEN 0
  ELSE Need(c, r, g, hits[g], n, computed) + NeedFrom(c, r, g + 1, hits, n, computed)

RemoveAllSkipped(c, r, n) == RemoveFrom(c, r, 1, n)
TakeAllHits(c, r, hits, computed) == TakeFrom(c, r, 1, hits, computed)
ExtendAll(c, r, n) == ExtendFrom(c, r, 1, n)
TakeAllExternal(c, r, n, computed) == ExternalFrom(c, r, 1, n, computed)
CacheAll(c, r, text, promptTokens, n) == CacheFrom(c, r, 1, text, promptTokens, n)
FreeAll(c, r) == FreeFrom(c, r, 1)
ForgetRequest(c, r) == ForgetFrom(c, r, 1)
TotalNeed(c, r, hits, n, computed) == NeedFrom(c, r, 1, hits, n, computed)

\* The lists of a request, one after another (KV-MGR-13).
RECURSIVE ListsFrom(_, _, _)
ListsFrom(c, r, g) == IF g > NumGroups THEN <<>> ELSE c.lists[r][g] \o ListsFrom(c, r, g + 1)
AllBlocksOf(c, r) == ListsFrom(c, r, 1)

-----------------------------------------------------------------------------
(* The invariants of kvspec.invariants that speak of lists. *)

Times(b, list) == Cardinality({i \in 1 .. Len(list) : list[i] = b})

RECURSIVE TimesListed(_, _, _)
TimesListed(c, b, r) ==
  IF r > NumRequests THEN 0 ELSE Times(b, AllBlocksOf(c, r)) + TimesListed(c, b, r + 1)

AccountedFor(c, popped) ==                                      \* KV-POOL-16
  \A b \in Blocks : c.pool.refs[b] = TimesListed(c, b, 1) + Times(b, popped)

Places(c, b) ==                                                 \* KV-POOL-17
  {<<g, i>> \in Groups \X (1 .. NumBlocks) :
     \E r \in Requests : i <= Len(c.lists[r][g]) /\ c.lists[r][g][i] = b}

HasOnePlace(c) ==
  /\ \A b \in Blocks : Cardinality(Places(c, b)) <= 1
  /\ \A r \in Requests : \A b \in Blocks : Times(b, AllBlocksOf(c, r)) <= 1

KeysOfGroup(c) ==                                               \* KV-HASH-6
  \A r \in Requests : \A g \in Groups : \A b \in RealBlocks(c.lists[r][g]) :
    c.pool.keys[b] # NoKey => Head(c.pool.keys[b]) = g

KeysOfPlaces(c) ==                                              \* KV-POOL-17
  \A r \in Requests : \A g \in Groups : \A i \in 1 .. Len(c.lists[r][g]) :
    LET listed == c.lists[r][g][i]
    IN IF listed = Null \/ c.pool.keys[listed] = NoKey THEN TRUE
       ELSE Len(c.pool.keys[listed]) = 1 + i * BlockSizes[g] /\ Head(c.pool.keys[listed]) = g

NullsFirst(c) ==                                                \* KV-GRP-2, KV-FULL-1
  \A r \in Requests : \A g \in Groups : \A i \in 1 .. Len(c.lists[r][g]) :
    c.lists[r][g][i] = Null =>
      (Windows[g] # Full /\ \A j \in 1 .. i : c.lists[r][g][j] = Null)

CountsFit(c) ==                                                 \* KV-GRP-1
  \A r \in Requests : \A g \in Groups :
    HasEntry(c, r, g) => c.counts[r][g] \in 0 .. Len(c.lists[r][g])

\* A block that a request lists is cached under nothing but the prefix of that request.
KeysOfText(c, r, text) ==                                       \* KV-MGR-8, KV-HASH-5
  \A g \in Groups : \A i \in 1 .. Len(c.lists[r][g]) :
    LET listed == c.lists[r][g][i]
    IN IF listed = Null \/ c.pool.keys[listed] = NoKey THEN TRUE
       ELSE c.pool.keys[listed] = Key(g, text, i)
=============================================================================
