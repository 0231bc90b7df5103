-------------------------------- MODULE Hits --------------------------------
(* Look-ups: the longest hit of each attention group, and the one that all agree on
   (spec/rules/coordination.md, full.md, sliding_window.md).

   An answer says how many blocks a hit has, and how many of them, from the first on, are
   null. *)
EXTENDS Groups

\* The groups that are looked up together, in the order of the search (KV-COORD-4).
CONSTANT LookUps

\* What a configuration file of TLC can name: no two groups have one spec.
EachByItself == [g \in Groups |-> <<g>>]

NumLookUps == Len(LookUps)
Lead(a) == LookUps[a][1]
SizeOf(a) == BlockSizes[Lead(a)]
IsFull(a) == Windows[Lead(a)] = Full
IsEagle(a) == Lead(a) \in EagleGroups
Answer(blocks, nulls) == [blocks |-> blocks, nulls |-> nulls]

IsCached(c, g, text, i) == Key(g, text, i) \in CachedKeys(c.pool)
Found(c, g, text, i) == Find(c.pool, Key(g, text, i))

\* Block i of the text is there in every group that is looked up jointly.
IsHit(c, a, text, i) == \A j \in 1 .. Len(LookUps[a]) : IsCached(c, LookUps[a][j], text, i)

\* The longest run of hits from block i on, up to block n.
RECURSIVE RunFrom(_, _, _, _, _)
RunFrom(c, a, text, i, n) ==
  IF i > n \/ ~IsHit(c, a, text, i) THEN 0 ELSE 1 + RunFrom(c, a, text, i + 1, n)

\* Of so many blocks, as many as end on a boundary once d are dropped.
RECURSIVE Cut(_, _, _)
Cut(a, blocks, d) ==
  IF blocks = 0 \/ ((blocks - d) * SizeOf(a)) % Alignment = 0 THEN blocks ELSE Cut(a, blocks - 1, d)

\* The run from the start, its last block dropped, on a boundary (KV-FULL-2 .. KV-FULL-4).
FullAnswer(c, a, text, n, d) == Answer(Cut(a, Max(RunFrom(c, a, text, 1, n) - d, 0), 0), 0)

\* Neighbouring blocks that fill a window, and the one that is dropped (KV-SW-2).
RunLength(a, d) == Max(Cdiv(Windows[Lead(a)] - 1, SizeOf(a)) + d, 1)

\* Where such runs end, up to block n; after the drop that is a boundary.
EndsOfRuns(c, a, text, n, d) ==
  {e \in RunLength(a, d) .. n :
     /\ ((e - d) * SizeOf(a)) % Alignment = 0
     /\ RunFrom(c, a, text, e - RunLength(a, d) + 1, e) = RunLength(a, d)}

Rightmost(ends) == CHOOSE e \in ends : \A f \in ends : f <= e

\* However short a run from the start is, it counts (KV-SW-4, KV-SW-5).
ShortAnswer(c, a, text, n, d) ==
  LET aligned == Cut(a, Cut(a, RunFrom(c, a, text, 1, n), d), 0)
  IN Answer(Cut(a, Max(aligned - d, 0), 0), 0)

WindowAnswer(c, a, text, n, d) ==                               \* KV-SW-2, KV-SW-3
  LET ends == EndsOfRuns(c, a, text, n, d)
  IN IF ends = {} THEN ShortAnswer(c, a, text, n, d)
     ELSE Answer(Rightmost(ends) - d, Rightmost(ends) - RunLength(a, d))

\* The longest hit of at most n blocks in one attention group.
LongestHit(c, a, text, n, d) ==
  IF IsFull(a) THEN FullAnswer(c, a, text, n, d) ELSE WindowAnswer(c, a, text, n, d)

-----------------------------------------------------------------------------
(* The search. Its state: the length that is agreed on so far, the marks, the last answers, and
   the longest length that any look-up answered. *)

NewSearch(limit) ==
  [length |-> limit, marked |-> {}, longest |-> 0,
   answers |-> [a \in 1 .. NumLookUps |-> Answer(-1, 0)]]

Answered(search, a, found, marks) ==
  [length  |-> found.blocks * SizeOf(a),
   marked  |-> marks,
   longest |-> Max(search.longest, found.blocks * SizeOf(a)),
   answers |-> [search.answers EXCEPT ![a] = found]]

\* An eagle group looks one block further, drops it, and is marked (KV-COORD-7).
LookFurther(c, text, limit, search, a) ==
  Answered(search, a,
           LongestHit(c, a, text, Min(search.length + SizeOf(a), limit) \div SizeOf(a), 1),
           search.marked \cup {a})

\* Others look within the length; who shortens it clears all marks (KV-COORD-8).
LookWithin(c, text, search, a) ==
  LET within == LongestHit(c, a, text, search.length \div SizeOf(a), 0)
  IN Answered(search, a, within,
              IF within.blocks * SizeOf(a) < search.length THEN {} ELSE search.marked)

Asked(c, text, limit, search, a) ==
  IF IsFull(a) /\ search.answers[a].blocks >= 0                 \* KV-COORD-6
  THEN [search EXCEPT !.length = (search.length \div SizeOf(a)) * SizeOf(a)]
  ELSE IF IsEagle(a) /\ a \notin search.marked THEN LookFurther(c, text, limit, search, a)
  ELSE LookWithin(c, text, search, a)

RECURSIVE Round(_, _, _, _, _)
Round(c, text, limit, search, a) ==
  IF a > NumLookUps THEN search
  ELSE Round(c, text, limit, Asked(c, text, limit, search, a), a + 1)

\* One round, after which no group can shorten the hit (KV-COORD-2, KV-COORD-10).
OneRound == NumLookUps = 1 \/ (NumLookUps = 2 /\ IsFull(1))

RECURSIVE Rounds(_, _, _, _, _)
Rounds(c, text, limit, before, after) ==                        \* KV-COORD-5, KV-COORD-10
  IF OneRound \/ after.length >= before.length THEN after
  ELSE Rounds(c, text, limit, after, Round(c, text, limit, after, 1))

Search(c, text, limit) ==
  Rounds(c, text, limit, NewSearch(limit), Round(c, text, limit, NewSearch(limit), 1))

-----------------------------------------------------------------------------
(* Hits as lists of blocks. *)

LookUpOf(g) == CHOOSE a \in 1 .. NumLookUps : \E j \in 1 .. Len(LookUps[a]) : LookUps[a][j] = g

Listed(c, g, text, blocks, nulls) ==
  [i \in 1 .. blocks |-> IF i <= nulls THEN Null ELSE Found(c, g, text, i)]

\* Full attention is cut to the length of the hit (KV-COORD-11).
HitOf(c, g, text, search) ==
  Listed(c, g, text, search.length \div BlockSizes[g], search.answers[LookUpOf(g)].nulls)

RECURSIVE HitsFrom(_, _, _, _)
HitsFrom(c, g, text, search) ==
  IF g > NumGroups THEN <<>>
  ELSE <<HitOf(c, g, text, search)>> \o HitsFrom(c, g + 1, text, search)

\* The hits of all groups, the last token left out (KV-MGR-1).
LookUp(c, text) == HitsFrom(c, 1, text, Search(c, text, Len(text) - 1))

\* Each group's own longest hit within n tokens, not reconciled (KV-COORD-9).
OwnAnswer(c, a, text, n) ==
  LongestHit(c, a, text, Min(n, Len(text)) \div SizeOf(a), IF IsEagle(a) THEN 1 ELSE 0)

RECURSIVE OwnFrom(_, _, _, _)
OwnFrom(c, g, text, n) ==
  LET own == OwnAnswer(c, LookUpOf(g), text, n)
  IN <<Listed(c, g, text, own.blocks, own.nulls)>>
     \o (IF g = NumGroups THEN <<>> ELSE OwnFrom(c, g + 1, text, n))

OwnHits(c, text, n) == OwnFrom(c, 1, text, n)

HitTokens(hits) == Len(hits[1]) * BlockSizes[1]
=============================================================================
