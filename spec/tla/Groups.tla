------------------------------- MODULE Groups -------------------------------
(* Groups over one pool: block lists, windows, hits (spec/rules/groups.md, full.md,
   sliding_window.md, coordination.md). A cache is a record with

     pool    see Pool
     lists   lists[r][g]: the block list of request r in group g, Null where no
             block is needed
     counts  counts[r][g]: how many blocks of it were handed to the cache,
             NoEntry as long as there is no entry (KV-GRP-1)

   There is a group of full attention, one with a sliding window, or both, full
   attention first. Their block sizes are equal, so every hit length that is a
   multiple of it is aligned. *)
EXTENDS Pool

CONSTANTS NumRequests,
          BlockSize,
          HasFull,       \* TRUE: there is a group of full attention
          Window         \* the sliding window of another group, 0 if there is none

Requests == 1 .. NumRequests
Full == 0
Windows == (IF HasFull THEN <<Full>> ELSE <<>>) \o (IF Window > 0 THEN <<Window>> ELSE <<>>)
NumGroups == Len(Windows)
Groups == 1 .. NumGroups
NoEntry == -1

Min(a, b) == IF a < b THEN a ELSE b
Max(a, b) == IF a > b THEN a ELSE b
Cdiv(a, b) == (a + b - 1) \div b
Reversed(list) == [i \in 1 .. Len(list) |-> list[Len(list) + 1 - i]]
RealBlocks(list) == {list[i] : i \in 1 .. Len(list)} \ {Null}

NewCache ==
  [pool   |-> NewPool,
   lists  |-> [r \in Requests |-> [g \in Groups |-> <<>>]],
   counts |-> [r \in Requests |-> [g \in Groups |-> NoEntry]]]

NoHits == [g \in Groups |-> <<>>]
HasEntry(c, r, g) == c.counts[r][g] # NoEntry

\* The key of block i of a text, counted from 1 (KV-HASH-5, KV-HASH-6).
Key(g, text, i) == <<g>> \o SubSeq(text, 1, i * BlockSize)

\* Blocks that nobody reads any more once n tokens are computed (KV-FULL-1, KV-SW-1).
SkippedBlocks(g, n) ==
  IF Windows[g] = Full THEN 0 ELSE Max(0, n - Windows[g] + 1) \div BlockSize

-----------------------------------------------------------------------------
(* Hits. *)

IsCached(c, g, text, i) == Key(g, text, i) \in CachedKeys(c.pool)
Found(c, g, text, i) == Find(c.pool, Key(g, text, i))

\* The longest run of cached blocks from block i on, up to block n.
RECURSIVE RunFrom(_, _, _, _, _)
RunFrom(c, g, text, i, n) ==
  IF i > n \/ ~IsCached(c, g, text, i) THEN 0 ELSE 1 + RunFrom(c, g, text, i + 1, n)

\* Neighbouring blocks that fill a window (KV-SW-2).
RunLength(g) == Max(Cdiv(Windows[g] - 1, BlockSize), 1)

\* Where runs that fill a window end, up to block n.
EndsOfRuns(c, g, text, n) ==
  {e \in RunLength(g) .. n : RunFrom(c, g, text, e - RunLength(g) + 1, e) = RunLength(g)}

Rightmost(ends) == CHOOSE e \in ends : \A f \in ends : f <= e

WindowHit(c, g, text, ends) ==                                  \* KV-SW-2, KV-SW-3
  [i \in 1 .. Rightmost(ends) |->
     IF i > Rightmost(ends) - RunLength(g) THEN Found(c, g, text, i) ELSE Null]

RunHit(c, g, text, n) ==                                        \* KV-FULL-2, KV-SW-4
  [i \in 1 .. RunFrom(c, g, text, 1, n) |-> Found(c, g, text, i)]

\* The longest hit of at most n blocks in one group, Null where a block is not needed.
LongestHit(c, g, text, n) ==
  LET ends == IF Windows[g] = Full THEN {} ELSE EndsOfRuns(c, g, text, n)
  IN IF ends = {} THEN RunHit(c, g, text, n) ELSE WindowHit(c, g, text, ends)

\* Each group in turn, within what the one before it answers (KV-COORD-5, KV-COORD-10).
RECURSIVE Agreed(_, _, _, _)
Agreed(c, g, text, n) ==
  IF g > NumGroups THEN n ELSE Agreed(c, g + 1, text, Len(LongestHit(c, g, text, n)))

RECURSIVE HitsFrom(_, _, _, _)
HitsFrom(c, g, text, n) ==
  IF g > NumGroups THEN <<>> ELSE <<LongestHit(c, g, text, n)>> \o HitsFrom(c, g + 1, text, n)

\* The hits of all groups, the last token left out (KV-MGR-1, KV-COORD-11).
LookUp(c, text) ==
  HitsFrom(c, 1, text, Agreed(c, 1, text, (Len(text) - 1) \div BlockSize))

HitTokens(hits) == Len(hits[1]) * BlockSize

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
      kept == SubSeq(hits, Max(0, skipped - held) + 1, Len(hits))
  IN IF HasEntry(c, r, g)
     THEN Max(Cdiv(n, BlockSize) - held, 0)                     \* KV-GRP-3
     ELSE Max(Cdiv(n, BlockSize) - Max(skipped, Len(hits) + held), 0)
          + Cardinality({b \in RealBlocks(kept) : IsFree(c.pool, b)})   \* KV-GRP-4

\* A list begins with nulls for what is skipped, then the hits, touched (KV-GRP-5).
TakeHits(c, r, g, hits, computed) ==
  LET skipped == SkippedBlocks(g, computed)
      taken == SubSeq(hits, skipped + 1, Len(hits))
  IN [c EXCEPT
        !.pool = Touch(c.pool, RealBlocks(taken)),
        !.lists[r][g] = [i \in 1 .. skipped |-> Null] \o taken,
        !.counts[r][g] = skipped + Len(taken)]

\* The blocks still missing for slots for n tokens (KV-GRP-7).
Extend(c, r, g, n) ==
  LET missing == Cdiv(n, BlockSize) - Len(c.lists[r][g])
  IN IF missing <= 0 THEN c
     ELSE [c EXCEPT
             !.pool = Allocate(c.pool, missing),
             !.lists[r][g] = @ \o Taken(c.pool, missing)]

\* With a window of one token nothing is worth caching (KV-SW-6, KV-RET-1, KV-FULL-6).
IsWorthCaching(g) == Windows[g] # 1

\* Blocks i .. last of a list are registered; null ones are passed over.
RECURSIVE RegisterFrom(_, _, _, _, _, _)
RegisterFrom(p, g, text, list, i, last) ==
  IF i > last THEN p
  ELSE RegisterFrom(IF list[i] = Null \/ ~IsWorthCaching(g) THEN p
                    ELSE Register(p, list[i], Key(g, text, i)),
                    g, text, list, i + 1, last)

\* The full blocks among the first n tokens are cached, from the count on (KV-GRP-11).
CacheBlocks(c, r, g, text, n) ==
  LET first == Max(c.counts[r][g], 0)
      last == n \div BlockSize
  IN IF first >= last THEN c
     ELSE [c EXCEPT
             !.pool = RegisterFrom(c.pool, g, text, c.lists[r][g], first + 1, last),
             !.counts[r][g] = last]

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

RECURSIVE CacheFrom(_, _, _, _, _)
CacheFrom(c, r, g, text, n) ==
  IF g > NumGroups THEN c ELSE CacheFrom(CacheBlocks(c, r, g, text, n), r, g + 1, text, n)

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
CacheAll(c, r, text, n) == CacheFrom(c, r, 1, text, n)
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
       ELSE Len(c.pool.keys[listed]) = 1 + i * BlockSize /\ Head(c.pool.keys[listed]) = g

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
