------------------------------- MODULE Trace --------------------------------
(* A recorded run, followed call by call: each step of the record is a call of the model (Calls),
   with the arguments, the answer and the state afterwards that were recorded. The model follows
   the whole record, or stops before the first step that it cannot take.

   A step is a record: the call (op) and its arguments, said (the answer), free (how many blocks
   are free afterwards), and what changed: new (a record of the fields that are given whole), keys
   (<<block, key>>), lists (<<request, lists, counts>>). A key is written <<group, text, n>>, for
   the first n tokens of a text, and <<>> for none. *)
EXTENDS Calls

CONSTANTS Texts,         \* of each request that was made, all tokens that it ever had
          Steps,
          ShowsState,    \* FALSE: the record has answers only
          Unchecked      \* a step whose answer and state are not compared, 0 for none

VARIABLE cache           \* see Groups
VARIABLE at              \* how many steps were followed
VARIABLE said            \* the answer to the last call

Init == cache = NewCache /\ at = 0 /\ said = <<>>

TextOf(step) == SubSeq(Texts[step.text], 1, step.tokens)
KeyOf(key) == IF key = <<>> THEN NoKey ELSE <<key[1]>> \o SubSeq(Texts[key[2]], 1, key[3])

-----------------------------------------------------------------------------
(* The calls: what the model answers, and its cache afterwards. *)

Outcome(answer, state) == [answer |-> answer, state |-> state]

OfLookUp(c, hits) == Outcome(<<hits, HitTokens(hits)>>, c)

OfAllocation(a) == Outcome(IF a.granted THEN a.blocks ELSE <<>>, a.cache)

AfterReset(c) ==
  Outcome(NumFree(c.pool) = NumBlocks - 1, ResetPrefixCache(c))

HoldsNothing(c, r) == \A g \in Groups : c.lists[r][g] = <<>>

AfterCaching(c, s) ==                                           \* KV-MGR-11
  IF HoldsNothing(c, s.r) THEN c ELSE CacheAll(c, s.r, TextOf(s), s.prompt, s.n)

NeedOf(c, s) ==                                                 \* KV-MGR-18
  IF s.capped THEN WholeNeed(c, s.r, 1, NoHits, s.n, s.computed)
  ELSE TotalNeed(c, s.r, NoHits, s.n, s.computed)

Called(c, s) ==
  CASE s.op = "look up"  -> OfLookUp(c, LookUp(c, TextOf(s)))
    [] s.op = "own hits" -> Outcome(OwnHits(c, TextOf(s), s.n), c)
    [] s.op = "miss"     -> Outcome(<<NoHits, 0>>, c)
    [] s.op = "allocate" -> OfAllocation(AllocateSlots(c, s.r, TextOf(s), s.prompt, s.q))
    [] s.op = "free"     -> Outcome(<<>>, FreeAll(c, s.r))
    [] s.op = "pop"      -> Outcome(AllBlocksOf(c, s.r), ForgetRequest(c, s.r))
    [] s.op = "return"   -> Outcome(<<>>, FreeBlocks(c, s.blocks))
    [] s.op = "skip"     -> Outcome(<<>>, RemoveAllSkipped(c, s.r, s.n))
    [] s.op = "cache"    -> Outcome(<<>>, AfterCaching(c, s))
    [] s.op = "evict"    -> Outcome(<<>>, EvictBlocks(c, s.blocks))
    [] s.op = "reset"    -> AfterReset(c)
    [] s.op = "lists"    -> Outcome(c.lists[s.r], c)
    [] s.op = "need"     -> Outcome(NeedOf(c, s), c)
    [] OTHER             -> Outcome(<<>>, c)

\* A call that the model has: hits are what they claim to be (KV-MGR-3, KV-MGR-8).
HitsAreRight(c, text, q) ==
  \A g \in Groups : \A i \in 1 .. Len(q.hits[g]) :
    IF q.hits[g][i] = Null THEN i <= SkippedBlocks(g, SkipAt(q, text))
    ELSE c.pool.keys[q.hits[g][i]] = Key(g, text, i)

IsLegal(c, s) ==
  CASE s.op = "allocate" ->
         /\ s.q.new + s.q.external > 0
         /\ Total(s.q) + s.q.new <= MaxTokens
         /\ HitsAreRight(c, TextOf(s), s.q)
    [] s.op = "return"   -> \A i \in 1 .. Len(s.blocks) :
                              s.blocks[i] = Null \/ c.pool.refs[s.blocks[i]] > 0
    [] OTHER             -> TRUE

-----------------------------------------------------------------------------
(* The state afterwards is the recorded one. *)

IsGiven(step, field) == field \in DOMAIN step.new

SameKeys(before, after, changed) ==
  LET blocks == {changed[i][1] : i \in 1 .. Len(changed)}
  IN /\ \A b \in Blocks \ blocks : after[b] = before[b]
     /\ \A i \in 1 .. Len(changed) : after[changed[i][1]] = KeyOf(changed[i][2])

SameLists(before, after, changed) ==
  LET named == {changed[i][1] : i \in 1 .. Len(changed)}
  IN /\ \A r \in Requests \ named :
          after.lists[r] = before.lists[r] /\ after.counts[r] = before.counts[r]
     /\ \A i \in 1 .. Len(changed) :
          /\ after.lists[changed[i][1]] = changed[i][2]
          /\ after.counts[changed[i][1]] = changed[i][3]

\* The copies of each key that has any, in the order of registration.
Copies(p) == {<<key, p.cached[key]>> : key \in {k \in CachedKeys(p) : Len(p.cached[k]) > 1}}
Recorded(copies) == {<<KeyOf(copies[i][1]), copies[i][2]>> : i \in 1 .. Len(copies)}

SameState(before, after, step) ==
  /\ after.pool.queue = IF IsGiven(step, "queue") THEN step.new.queue ELSE before.pool.queue
  /\ after.pool.refs = IF IsGiven(step, "refs") THEN step.new.refs ELSE before.pool.refs
  /\ SameKeys(before.pool.keys, after.pool.keys, step.keys)
  /\ SameLists(before, after, step.lists)
  /\ Copies(after.pool) = IF IsGiven(step, "copies") THEN Recorded(step.new.copies)
                          ELSE Copies(before.pool)

Agrees(before, outcome, step) ==
  /\ step.compared => outcome.answer = step.said
  /\ NumFree(outcome.state.pool) = step.free
  /\ ShowsState => SameState(before, outcome.state, step)

-----------------------------------------------------------------------------
Follow(step) ==
  \E outcome \in {Called(cache, step)} :
    /\ at + 1 = Unchecked \/ Agrees(cache, outcome, step)
    /\ cache' = outcome.state
    /\ said' = outcome.answer
    /\ at' = at + 1

Next ==
  /\ at < Len(Steps)
  /\ \E step \in {Steps[at + 1]} : IsLegal(cache, step) /\ Follow(step)

\* Broken where the model is wanted to show itself.
has_not_arrived == at < Unchecked \/ Unchecked = 0
=============================================================================
